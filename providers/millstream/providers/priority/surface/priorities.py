"""Priorities as deadlines: classes of work that are shifted against each other.

Owns: `PriorityClass`, and what a program may give for a priority. Lower is more urgent.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from millstream.providers.priority.core.body import PRIORITY_MAX, check_number
from millstream.providers.priority.owner.relative import after_enqueue

__all__ = ["Priority", "PriorityClass"]

DAY_MS = 86_400_000
DECADE = 3_650
"""Days."""


class PriorityClass(Enum):
    """Classes of work; the value is by how many days a message's deadline is shifted.

    Within a class the earliest deadline comes first. Classes are ten years apart, so a message of a
    more urgent class comes before all of the others. Of a message without a deadline that is the
    time of its enqueue. A program can have classes of its own: an `Enum` of days like this one, or
    any whole numbers.
    """

    DAY_OF_BROADCAST = -3 * DECADE
    URGENT = -2 * DECADE
    HIGH = -1 * DECADE
    STANDARD = 0
    LOW = 1 * DECADE
    BULK = 2 * DECADE

    def by(self, deadline_ms: int) -> int:
        """The priority of a message of this class that is due then, in Unix milliseconds."""
        return deadline_ms + self.value * DAY_MS

    def overridden(self, tags: Iterable[str]) -> PriorityClass:
        """This class, as a rule says, unless tags of the request name others: the most urgent of
        these then."""
        named = [PriorityClass[tag] for tag in tags if tag in PriorityClass.__members__]
        return min(named, key=lambda one: one.value, default=self)


Priority = int | PriorityClass | None
"""A number; a class: by the time of the enqueue; None: `PriorityClass.STANDARD`."""


def wire_priority(queue: str, priority: Priority) -> int:
    """The number for the wire. Raises `RequestInvalid`."""
    if priority is None:
        return after_enqueue(0)
    if isinstance(priority, PriorityClass):
        return after_enqueue(priority.by(0))
    check_number(queue, "priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
    return priority
