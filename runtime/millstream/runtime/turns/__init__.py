"""Activations and turns: one activation, and all of a silo.

Owns the turn rule (`turn_rule`, pure), the activation that it drives, requests, mailboxes and
deadlines, the run of a turn (`run`), and all activations of a silo (`catalog`). Reading starts at
`turn_rule.py`.
May import `codec`, `definition` and `runtime`.
"""
