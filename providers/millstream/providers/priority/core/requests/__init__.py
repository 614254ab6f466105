"""The memory of requests, so that a repeated request is answered and not done again.

Owns sessions and request ids (`sessions`) and the stored form of answers (`answers`). Reading
starts at `sessions.py`.
May import `core` and `runtime`.
"""
