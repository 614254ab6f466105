"""Small files that are replaced and read as a whole, such as identities, counters and marks.

This module owns the order of steps that makes a replacement atomic and durable.
"""

from __future__ import annotations

from contextlib import suppress

from .seam import Buffer, Disk, parent_of

__all__ = ["read_file", "replace_file"]

NEW = ".new"


def replace_file(disk: Disk, path: str, data: Buffer) -> None:
    """Give a file a new content, atomically and durably.

    A crash leaves the old content or the new one, and perhaps a file whose name ends in `.new`,
    which the next call replaces. Only one writer may replace a path at a time. Errors of the disk
    reach the caller.

    Args:
        disk: The disk.
        path: The path. The file need not exist.
        data: The new content.
    """
    fresh = path + NEW
    with suppress(FileNotFoundError):
        disk.unlink(fresh)
    file = disk.create(fresh)
    try:
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    disk.rename(fresh, path)
    disk.sync_dir(parent_of(path))


def read_file(disk: Disk, path: str, bytes_max: int) -> bytes:
    """Read the whole content of a file.

    Args:
        disk: The disk.
        path: The path.
        bytes_max: The largest size that is accepted.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is larger than `bytes_max`.
    """
    file = disk.open(path, can_write=False)
    try:
        data = file.read_at(0, bytes_max + 1)
    finally:
        file.close()
    if len(data) > bytes_max:
        raise ValueError(f"{path}: the file has more than {bytes_max} bytes")
    return data
