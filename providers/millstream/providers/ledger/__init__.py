"""Durable streams in ledgers, after Pulsar on BookKeeper.

Rooms, from the ground up: `protocol` (what is stored and decided, without I/O), `bookie` (one
directory of entries) and `metadata` (rows of a state store), `handle` (writing, reading and
recovering one ledger), `serving` (which silo runs which bookie), `topic` (a sequence of ledgers,
with cursors).
"""
