"""The buffer queue in memory, usable without a cluster.

Owns topics, producers, consumers, batches for a handler (`push`), and items from other threads
(`handover`).
Reading starts at `buffer_queue.py`.
May import `providers.memory`, `runtime` and `streams`.
"""
