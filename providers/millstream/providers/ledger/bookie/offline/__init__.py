"""A directory that is read without its bookie.

Owns the entries that a directory has on disk (`view`) and the check that all of it is as it was
written (`verification`). Reading starts at `view.py`.
May import `bookie`, `bookie.form`, `protocol` and `runtime`.
"""
