"""The cache of one queue: messages that were read and not yet acknowledged by all, with their
cursors.

Owns the cache, the messages of one stream (`lane`), cursors and lagging cursors, and the messages
that these share (`reread_messages`).

Reading starts at `queue_cache.py`.

May import `contracts`, `ownership` and `runtime`.
"""
