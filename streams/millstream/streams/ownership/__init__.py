"""Ownership: which silo reads which queue.

Owns the record of a queue (`record`), the decision of one silo about it (`decision`, pure), the
driver of that decision (`manager`), and the mappers from streams to queues. This package does not
know `api`.

Reading starts at `manager.py`.

May import `contracts` and `runtime`.
"""
