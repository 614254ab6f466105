"""Suite `priority`: workers, producers and operators of priority queues in a cluster with faults.

Owns the run, its programs and their notes, the store, and the judge. Reading starts at `suite.py`.
May import `providers.priority`, `runtime` and `suites.run`.
"""
