"""Priority queues as the queues of a stream provider.

Owns the adapter, its receiver, publishing, and the conversion between messages of streams and
messages of priority queues (`form`). Reading starts at `queues.py`.
May import `core`, `owner`, `runtime`, `streams` and `surface`.
"""
