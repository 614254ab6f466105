"""Rows of a state store: ledgers, bookies, topics, cursors; written by compare-and-set alone."""
