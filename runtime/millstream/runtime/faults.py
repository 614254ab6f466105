"""Named points in the code where a simulation may let something go wrong.

Owns: the seam `maybe` and the one hook behind it. Not: which points fire (`testing.world.faults`).
Invariants: without a hook every point is false, at the cost of one call and one comparison; a name
is `part.what`, in lower case, and is listed in the documentation.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FaultHook", "install", "maybe"]

FaultHook = Callable[[str], bool]

_hook: FaultHook | None = None


def maybe(name: str) -> bool:
    """True when the simulation wants the fault `name` to happen here and now; else False."""
    return _hook is not None and _hook(name)


def install(hook: FaultHook | None) -> FaultHook | None:
    """Put `hook` behind every point of this process; returns the one that was there.

    A hook answers for its own event loop only, and says False to everybody else.
    """
    global _hook
    previous, _hook = _hook, hook
    return previous
