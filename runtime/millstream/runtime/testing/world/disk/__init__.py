"""A disk in memory that forgets, on a crash, what a real one may forget.

Owns the bytes of a file (`content`), names (`names`), faults and costs (`medium`), and the disk
seam over them (`simulated`, `file`, `thread`). Reading starts at `simulated.py`.
May import `disk` and `testing.world`.
"""
