"""`millstream index`: queries an index of priority queues, and verifies that it is complete.

Owns the arguments (`commands`), and the answers as text or JSON (`questions`).
Reading starts at `commands.py`.
May import `console`, `ledger`, `pq`, `providers.priority`, `providers.spark` and `runtime`.
"""
