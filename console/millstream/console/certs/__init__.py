"""`millstream certs`: makes and shows the certificates of a small cluster.

Owns the commands, and a private authority in a directory (`authority.py`). Reading starts at
`commands.py`. The package `cryptography` makes the files; silos and clients need only the
standard library, so `commands` imports `authority` when a command runs.

May import `console` and `runtime`.
"""
