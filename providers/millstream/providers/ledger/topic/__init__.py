"""A managed topic: numbered messages in a sequence of ledgers, named cursors, retention.

Owns the topic of an owner, its row (`record`, `owned`), the form of its messages (`form`), and the
contract of ledgers (`ledgers`). Reading starts at `topic.py`.
May import `handle`, `metadata`, `protocol` and `runtime`.
"""
