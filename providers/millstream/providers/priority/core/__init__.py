"""One priority queue as decisions: messages and their states, leases, order, exclusivity, repeated
requests.

Owns the operations as values (`commands`, `results`), the messages with all indexes (`contents`),
and the changes for a store (`changes`). Pure: no I/O, no clock, no chance. Reading starts at
`core.py`.
May import `runtime`.
"""
