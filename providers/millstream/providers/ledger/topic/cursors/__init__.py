"""Named cursors: the acknowledged messages of a subscription, stored.

Owns the cursor, the set of acknowledged messages (`acknowledged`), and the decision which messages
may be deleted (`retention`). Reading starts at `cursor.py`.
May import `metadata`, `runtime` and `topic`.
"""
