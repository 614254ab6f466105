"""Priority queues: the most urgent message first, and work that must not run in parallel.

`core/` decides; nothing is public yet.
"""
