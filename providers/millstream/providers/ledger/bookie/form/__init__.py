"""The format of the files of a bookie, and their combined content: bytes in, values out.

Owns frames, segments, index files, the index of all entries and the state beside them. It reads
open files; it has no other I/O, no clock and no chance. Reading starts at `frame.py`.
May import `protocol` and `runtime`.
"""
