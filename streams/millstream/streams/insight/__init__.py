"""The reason why a stream makes no progress: reports of its hops, and a verdict.

Owns the report of a stream (`report`), the verdict over it (`verdict`, pure), and the question of a
program (`why`). Reading starts at `why.py`.
May import `contracts` and `runtime`.
"""
