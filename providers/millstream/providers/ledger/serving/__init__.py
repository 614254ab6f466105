"""The bookies of a cluster: which silo runs which bookie, and calls to them.

Owns all bookies as one silo reaches them, the bookie that a silo runs (`hosted`, `home`), its
system target (`target`), the list of known ledgers (`census`), and the target for repairs by an
operator (`repair_target`). Reading starts at `cluster_bookies.py`.
May import `bookie`, `handle`, `metadata`, `protocol` and `runtime`.
"""
