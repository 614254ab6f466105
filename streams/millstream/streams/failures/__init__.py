"""Events that were given up: the decision about them, and dead letters.

Owns the failure handler and its policy, dead letters as stored rows (`letters`), and their use by
silos and clients (`dead_letters`, `target`). Reading starts at `handler.py`.
May import `contracts` and `runtime`.
"""
