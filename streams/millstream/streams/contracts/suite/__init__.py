"""The contract suite of queue adapters: the promises of a plug-in, one check per rule.

Owns the runner, the opened adapters of a check (`bench`), the guard around them (`guarded`), and
the hooks of an author. Reading starts at `run.py`.
May import `contracts` and `runtime`.
"""
