"""Messages that became available, so that only the callers that they help look again.

Owns `Available`. The waiting callers are in `owner`.

Invariants:

- After a call of `take` with waiting callers, the next answer contains every message that became
  pending and every value that became free, unless the value is held again by then.
- For a value that became free, all its pending messages count. For a value that was free, only the
  new messages count.

Cost: nothing while no caller waits, and otherwise one step per change. An answer costs, per value
that became free, one step for each filter with a shape. If a caller waits with another filter, the
answer checks each pending message of the value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream.providers.priority.core.message import Message, Metadata

from .filters import Filters
from .grouped import Holds

__all__ = ["Available"]


class Available:
    """Messages that became available since the last call. `is_on` says whether they are noted."""

    __slots__ = ("_came", "_freed", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._came: dict[tuple[Metadata, str | None], int] = {}
        self._freed: dict[str, None] = {}

    def came(self, message: Message) -> None:
        """Record that the message became pending."""
        place = message.metadata, message.value
        self._came[place] = self._came.get(place, 0) + 1

    def on_freed(self, value: str) -> None:
        """Record that one lease of the value ended."""
        self._freed[value] = None

    def take(
        self, holds: Holds | None, filters: Filters, wanted: Collection[Metadata]
    ) -> Mapping[Metadata, int]:
        """The pairs of available messages with their numbers. From now on, new ones are noted.

        Args:
            holds: The held values; None in a simple queue.
            filters: The filters of the queue.
            wanted: The pairs for which callers wait. Of a value that became free, only messages
                that help them are included. Without any, nothing is noted until the next call.
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
