"""`millstream pq`: priority queues from the command line.

Owns the arguments (`commands`), the work and the HTTP server (`actions`), and tables of messages as
text and JSON (`tables`).
Reading starts at `commands.py`.
May import `console`, `ledger`, `providers.priority` and `runtime`.
"""
