"""Priority queues as the queues of a stream provider.

Owns the adapter, its receiver, publishing into a priority queue, and messages of streams as
messages of it (`form`). Reading starts at `queues.py`.
May import `core`, `owner`, `runtime`, `streams` and `surface`.
"""
