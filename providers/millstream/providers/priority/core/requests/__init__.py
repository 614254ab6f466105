"""The memory of requests, so that a repeated request gets its answer and is not carried out again.

Owns sessions and request ids (`sessions`) and the stored form of answers (`answers`). Reading
starts at `sessions.py`.
May import `core` and `runtime`.
"""
