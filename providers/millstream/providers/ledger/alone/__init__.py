"""Topics without a silo: a directory, a program, and what it produces and reads.

`own` has the directories and the rows, `topics` what is open, `topic` and `subscription` are what
a program uses.
"""
