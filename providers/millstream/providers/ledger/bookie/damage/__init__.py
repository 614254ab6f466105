"""Entries of a running bookie that may be damaged.

Owns the list of suspected entries (`suspects`) and the check of a whole segment (`segment_check`).
Repairs are in `scrubbing`. Reading starts at `suspects.py`.
May import `bookie`, `bookie.form`, `protocol` and `runtime`.
"""
