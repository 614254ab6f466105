"""Priorities as deadlines, and classes of work that shift them.

Owns `PriorityClass` and the type of priorities that programs may pass. A lower number is more
urgent.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from millstream.providers.priority.core.body import PRIORITY_MAX, check_number
from millstream.providers.priority.owner.relative import after_enqueue

__all__ = ["Priority", "PriorityClass"]

DAY_MS = 86_400_000
DECADE = 3_650
"""Ten years, in days."""


class PriorityClass(Enum):
    """A class of work that shifts the deadlines of its messages by ten years per class.

    Pass a class as the `priority` of an enqueue; the queue then counts from the time of the
    enqueue. With a deadline, pass `PriorityClass.HIGH.by(deadline_ms)`. Within a class, the
    earliest deadline comes first. Because classes are ten years apart, every message of a more
    urgent class comes before all messages of the others.

    The value of a member is the shift in days. A program can define its own classes as an `Enum` of
    days or as plain numbers.

    Attributes:
        DAY_OF_BROADCAST: Thirty years before `STANDARD`, the most urgent class.
        URGENT: Twenty years before.
        HIGH: Ten years before.
        STANDARD: No shift. A message without a priority has this class.
        LOW: Ten years after.
        BULK: Twenty years after, the least urgent class.
    """

    DAY_OF_BROADCAST = -3 * DECADE
    URGENT = -2 * DECADE
    HIGH = -1 * DECADE
    STANDARD = 0
    LOW = 1 * DECADE
    BULK = 2 * DECADE

    def by(self, deadline_ms: int) -> int:
        """The priority of a message of this class with a deadline.

        Args:
            deadline_ms: The deadline, in Unix milliseconds.

        Returns:
            A number for the `priority` of an enqueue.
        """
        return deadline_ms + self.value * DAY_MS

    def overridden(self, tags: Iterable[str]) -> PriorityClass:
        """The class that the tags of a request name, or else this class.

        Use it when a rule assigns a class to work, and people may override the rule with a tag.

        Args:
            tags: Texts; those that are names of members, such as `"URGENT"`, count.

        Returns:
            The most urgent class among the tags; this class if no tag names a class.
        """
        named = [PriorityClass[tag] for tag in tags if tag in PriorityClass.__members__]
        return min(named, key=lambda one: one.value, default=self)


Priority = int | PriorityClass | None
"""A number; a class, which counts from the time of the enqueue; or None, which means
`PriorityClass.STANDARD`.
"""


def wire_priority(queue: str, priority: Priority) -> int:
    """The number that is sent to the owner of the queue. Raises `RequestInvalid`."""
    if priority is None:
        return after_enqueue(0)
    if isinstance(priority, PriorityClass):
        return after_enqueue(priority.by(0))
    check_number(queue, "priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
    return priority
