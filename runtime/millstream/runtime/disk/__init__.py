"""The disk seam: files that must survive a crash, and the real disk behind it.

`seam` says what there is, `real` and `thread` do it by the operating system, `whole` replaces and
reads small files. The simulator has another disk (`testing.world.disk`).
"""
