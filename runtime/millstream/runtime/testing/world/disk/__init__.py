"""A disk in memory that forgets, on a crash, what a real one may forget.

`content` has the bytes of a file, `names` which name leads to which file, `medium` what can go
wrong; `file`, `thread` and `simulated` are the disk seam over them.
"""
