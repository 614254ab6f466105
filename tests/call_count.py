"""How many Python functions a piece of work calls: a stand-in for time that does not flicker."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

__all__ = ["calls_of"]


def calls_of(work: Callable[[], object]) -> int:
    """Calls while `work` runs, its own among them; nothing is collected meanwhile, since what ends
    then, of whichever test, calls functions too."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
