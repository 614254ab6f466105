"""Activations and their turns.

Owns the turn rule (`turn_rule`, pure), the activation that applies it, requests, mailboxes and
deadlines, the execution of a turn (`run`), and all activations of a silo (`catalog`). Reading
starts at `turn_rule.py`.

May import `codec`, `definition`, `metrics` and `runtime`.
"""
