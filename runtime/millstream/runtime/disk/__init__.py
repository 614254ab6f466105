"""The disk seam: files that must survive a crash, and the real disk behind it.

Owns the contract (`seam`), the disk of the operating system (`real`, `thread`), and small files
that are replaced as a whole (`whole`). The simulated disk is `testing.world.disk`. Reading starts
at `seam.py`.

May import nothing else of this project.
"""
