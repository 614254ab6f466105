"""The progress of a queue, as its record should have it.

Owns the frontier of acknowledged events (`tracker`), and the caution of an agent after crashes of
former owners (`wary`).

Reading starts at `tracker.py`.

May import `agent`, `agent.audience`, `agent.cache`, `agent.reading`, `contracts` and `ownership`.
"""
