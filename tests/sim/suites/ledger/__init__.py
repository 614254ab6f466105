"""Suite `ledger`: streams through the ledger provider.

Owns the run, the record of all topics (`book`), damage, lost silos and old files. Reading starts at
`suite.py`.
May import `providers.ledger`, `providers.sqlite`, `runtime`, `streams`, `suites.run` and
`suites.streams`.
"""
