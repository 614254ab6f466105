"""A disk in memory that loses data in a crash, as a real disk may.

Owns the bytes of a file (`content`), names (`names`), faults and costs (`medium`), and the disk
seam over them (`simulated`, `file`, `thread`). Reading starts at `simulated.py`.
May import `disk` and `testing.world`.
"""
