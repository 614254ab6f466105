"""The decisions of one priority queue, without I/O.

They concern messages and their states, leases, order, exclusivity, and repeated requests.

Owns the operations as values (`commands`, `results`), the messages with all indexes (`contents`),
and the changes for a store (`changes`). There is no clock and no randomness. Reading starts at
`core.py`.
May import `runtime`.
"""
