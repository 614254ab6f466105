"""`millstream ledger`: reads ledgers and repairs them.

Owns the arguments (`commands`), one module for each command, the choice of the source that options
mean (`source`), and lines of text (`lines`). `actions` loads the commands when one is given.
Reading starts at `commands.py`.
May import `console`, `providers.ledger` and `runtime`.
"""
