"""Suites of whole clusters in virtual time, with seeded faults, judged by checkers.

Owns the runner of seeds and the suites `calls`, `membership` and `pipeline`; the others have a
package each. Reading starts at `runner.py`.
May import `balancers`, `providers.ledger`, `providers.memory`, `providers.priority`,
`providers.sqlite`, `runtime` and `streams`.
"""
