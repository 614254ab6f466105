"""The progress of a queue, as its record should say it.

Owns the frontier of acknowledged events (`tracker`), and the care that an agent takes after the
crash of former owners (`wary`). Reading starts at `tracker.py`.
May import `agent`, `agent.audience`, `agent.cache`, `agent.reading`, `contracts` and `ownership`.
"""
