"""Topics without a silo: one program opens a directory, and produces and reads messages.

Owns the directories and rows of one process (`own`), the open topics (`topics`), and the handles
that a program uses (`topic`, `subscription`). Reading starts at `topics.py`.
May import `bookie`, `handle`, `metadata`, `protocol`, `recovery`, `runtime`, `scrubbing`,
`serving`, `streams` and `topic`.
"""
