"""Durable topics behind the Protocol of buffers, `millstream.streams.BufferQueue`.

Owns the queue and its producers (`queue`) and the consumers of a group (`consumer`). Reading starts
at `queue.py`.
May import `alone`, `runtime` and `streams`.
"""
