"""The checks of the contract suite, one module for each subject.

Owns the checks; `suite.run` lists them. Reading starts at `reads.py`.
May import `contracts`, `contracts.suite` and `runtime`.
"""
