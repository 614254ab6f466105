"""Where grains were last seen: what spares a question to the directory.

Invariant: at most `size_max` grains; the oldest learnt leaves first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Locations"]


class Locations:
    """Silos by grain, as they were learnt; none of them is certain."""

    __slots__ = ("_silos", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._silos: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._size_max = size_max

    def get(self, kind: str, key: str) -> str | None:
        """Where a grain was last seen, or None."""
        return self._silos.get((kind, key))

    def learn(self, kind: str, key: str, silo: str) -> None:
        """Note where a grain is."""
        self._silos[kind, key] = silo
        if len(self._silos) > self._size_max:
            self._silos.popitem(last=False)

    def forget(self, kind: str, key: str) -> None:
        """The grain is not where it was."""
        self._silos.pop((kind, key), None)

    def keep(self, is_live: Callable[[str], bool]) -> None:
        """Forget what is not on a live silo."""
        gone = {silo for silo in set(self._silos.values()) if not is_live(silo)}
        if gone:
            for grain in [grain for grain, silo in self._silos.items() if silo in gone]:
                del self._silos[grain]
