"""A directory that is read without its bookie.

Owns the entries that a directory has on disk (`view`) and the check of all of its files
(`verification`). Reading starts at `view.py`.
May import `bookie`, `bookie.form`, `protocol` and `runtime`.
"""
