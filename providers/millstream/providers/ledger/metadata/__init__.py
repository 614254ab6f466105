"""Rows of a state store: ledgers, bookies, topics and cursors, written by compare-and-set alone.

Owns rows of one kind and their witnesses (`rows`, `witness`), the scope of a cluster (`metadata`),
and the rows of ledgers, bookies and drain marks. Reading starts at `rows.py`.
May import `protocol` and `runtime`.
"""
