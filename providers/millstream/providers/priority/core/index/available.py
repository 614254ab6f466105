"""What may be had that could not before, for those who wait: nobody else need look again.

Owns: `Available`. Not: who waits (`owner`). Invariants:
- once it was asked (`take`) by somebody who waits, every message that became pending, and every
  value that became free, is in the next answer, unless the value is held again by then: its end
  comes later;
- of a value that became free all pending messages count, of one that was free those that came.
Costs: nothing while nobody waits; else a step for each change; an answer, for each value that
became free, a step for each filter that has a shape, or a look at each of its pending messages if
somebody waits by a filter that has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.providers.priority.core.message import Message, Metadata

from .filters import Filters
from .grouped import Holds

__all__ = ["Available"]


class Available:
    """Messages that became available since the last call. `is_on`: they are noted."""

    __slots__ = ("_came", "_freed", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._came: dict[tuple[Metadata, str | None], int] = {}
        self._freed: dict[str, None] = {}

    def came(self, message: Message) -> None:
        """It is pending now."""
        place = message.metadata, message.value
        self._came[place] = self._came.get(place, 0) + 1

    def on_freed(self, value: str) -> None:
        """It is held once less."""
        self._freed[value] = None

    def take(
        self, holds: Holds | None, filters: Filters, wanted: Collection[Metadata]
    ) -> Mapping[Metadata, int]:
        """The pairs of messages that may be had, and how many; from now on, what comes is noted.

        Args:
            wanted: which pairs somebody waits for: of a value that became free only what helps
                one of these is told. None: nothing is noted until the next is asked for.
        """
        self.is_on = bool(wanted)
        if not self._came and not self._freed:
            return {}
        found: dict[Metadata, int] = {}
        for (metadata, value), count in self._came.items():
            if value is None or holds is None:
                found[metadata] = found.get(metadata, 0) + count
            elif value not in self._freed and not holds.is_blocked(value):
                found[metadata] = found.get(metadata, 0) + count
        for value in self._freed:
            if holds is not None and not holds.is_blocked(value):
                for metadata in filters.metadata_of(value, wanted):
                    found[metadata] = found.get(metadata, 0) + 1
        self._came.clear()
        self._freed.clear()
        return found
