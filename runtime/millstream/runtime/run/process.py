"""What a process does that is there to run a silo, whoever started it."""

from __future__ import annotations

import gc
import os

__all__ = ["LOG_FORMAT", "fill_standard_streams", "settle_memory"]

LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


def settle_memory() -> None:
    """What was loaded so far stays: full collections need not look at it."""
    gc.collect()
    gc.freeze()


def fill_standard_streams() -> None:
    """Open what of 0, 1 and 2 is closed: libuv takes such a number, and aborts when it lets it go.

    Call it before the loop is made.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
