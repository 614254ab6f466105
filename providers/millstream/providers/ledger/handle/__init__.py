"""Writing, reading, closing and recovering one ledger: the drivers of the cores in `protocol`.

Owns the writer, the reader, the recovery of a ledger and the acceptance of a loss. `context` has
the objects that all handles of a process share, and `bookies` the contract of a set of bookies.
Reading starts at `writer.py`.
May import `metadata`, `protocol` and `runtime`.
"""
