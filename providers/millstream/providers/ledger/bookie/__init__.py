"""One directory of entries of many ledgers, and what is promised about it."""
