"""`millstream index`: asks an index of priority queues, and checks that it is whole.

Owns the arguments (`commands`) and the answers as text or JSON (`questions`). Reading starts at
`commands.py`.
May import `console`, `ledger`, `pq`, `providers.priority`, `providers.spark` and `runtime`.
"""
