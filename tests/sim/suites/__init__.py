"""Suites of whole clusters in virtual time, with seeded faults; checkers judge each run.

Owns the runner of seeds and the suites `calls`, `membership` and `pipeline`; each of the other
suites has a package. Reading starts at `runner.py`.
May import `balancers`, `providers.ledger`, `providers.memory`, `providers.priority`,
`providers.sqlite`, `runtime` and `streams`.
"""
