"""Ownership: which silo reads which queue.

Owns the record of a queue (`record`), the decision of one silo about it (`decision`, pure), its
driver (`manager`), and the mappers from streams to queues. It knows nothing of `api`. Reading
starts at `manager.py`.
May import `contracts` and `runtime`.
"""
