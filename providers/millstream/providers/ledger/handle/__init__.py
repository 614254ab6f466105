"""Writing, reading, closing and recovering one ledger: the drivers of the cores in `protocol`."""
