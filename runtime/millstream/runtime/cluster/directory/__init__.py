"""The grain directory: which silo has which grain.

Owns the range of one silo (`range`, `partition`, both pure), the events and actions of the range
(`events`), and the calls between silos about it (`directory`). Reading starts at `directory.py`.

May import `calls`, `cluster` and `runtime`.
"""
