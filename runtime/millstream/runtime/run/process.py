"""Settings of a process that runs a silo: its garbage collector and its standard streams."""

from __future__ import annotations

import gc
import os

__all__ = ["LOG_FORMAT", "fill_standard_streams", "settle_memory"]

LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


def settle_memory() -> None:
    """Exclude all objects that were loaded so far from full garbage collections."""
    gc.collect()
    gc.freeze()


def fill_standard_streams() -> None:
    """Open the descriptors 0, 1 and 2 if they are closed. Call it before the loop is made.

    Otherwise a descriptor of libuv may get one of these numbers, and libuv aborts the process when
    it closes that descriptor.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
