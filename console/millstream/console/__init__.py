"""The `millstream` command.

Owns the parsing of arguments, the connection to a running cluster, and one module for each command;
`ledger`, `pq` and `index` are packages. Every command works through public names of the product.
Reading starts at `main.py`.
May import `providers.ledger`, `providers.postgres`, `providers.priority`, `providers.spark`,
`runtime` and `streams`.
"""
