"""The stores of priority queues.

Owns the contract of a store (`contract`), group commit (`committing`, `hold`), and the stores in
SQLite files (`embedded`) and in memory (`memory`). Reading starts at `contract.py`.
May import `core` and `runtime`.
"""
