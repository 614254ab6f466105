"""Named points in the code at which a simulation may inject a fault.

This module owns the function `maybe` and the one hook behind it. The class `FaultPlan` of the test
kit decides which points fire. Without a hook every point is false, and costs one call and one
comparison. The name of a point is `part.event`, in lower case, and the documentation lists it.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FaultHook", "install", "maybe"]

FaultHook = Callable[[str], bool]

_hook: FaultHook | None = None


def maybe(name: str) -> bool:
    """Return True if the simulation wants the fault `name` to happen now."""
    return _hook is not None and _hook(name)


def install(hook: FaultHook | None) -> FaultHook | None:
    """Put `hook` behind every point of this process, and return the previous hook.

    A hook answers for its own event loop only. It returns False for code of any other loop.
    """
    global _hook
    previous, _hook = _hook, hook
    return previous
