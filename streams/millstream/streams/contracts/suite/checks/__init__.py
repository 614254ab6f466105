"""The checks of the contract suite, one module for each subject.

Owns the checks; `suite.run` lists them. Reading starts at `reads.py`. The docstring of a check is
the rule that it tests, and a failed check shows it.
May import `contracts`, `contracts.suite` and `runtime`.
"""
