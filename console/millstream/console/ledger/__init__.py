"""`millstream ledger`: inspects and repairs ledgers.

Owns the arguments (`commands`), one module for each command, the selection of the source
(`source`), and lines of text (`lines`). `actions` loads the commands when one is given.
Reading starts at `commands.py`.
May import `console`, `providers.ledger` and `runtime`.
"""
