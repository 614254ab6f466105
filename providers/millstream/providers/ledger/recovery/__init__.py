"""Re-replication: missing replicas of entries are written again, and bookies are drained, while the
cluster runs.

Owns the auditor of a directory group, the choice of ledgers to repair and the time of each repair
(`agenda`, `needs`), and the copying (`repairer`, `copier`). Reading starts at `auditor.py`.
May import `handle`, `metadata`, `protocol` and `runtime`.
"""
