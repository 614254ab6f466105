"""Callers that wait for messages of one queue, and the choice of those that look again.

Owns `QueueWaiters` and `Waiter`, as pure decisions without clock and futures. `polls` does the
looking.

Callers with the same filter are a group, in the order of their arrival.

Invariants:

- While a caller of a group sleeps, no message for the group is available, or one caller of the
  group is awake.
- A caller that is awake wakes the next one of its group when it leaves or gets everything that it
  asked for. It does not if another one looks since the last change, or has seen that there is no
  more.
- Of the callers that found nothing, one looks again after a change, and not all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import combinations

from millstream.providers.priority.core.message import Metadata
from millstream.runtime import Overloaded

__all__ = ["QueueWaiters", "Waiter"]

SPARE_MAX = 64
"""Stale entries that a group keeps before it drops them all."""


class WaiterGroup:
    """The callers that wait for messages with all of these pairs.

    `changes` counts the changes that may have helped them. `fresh` is the number of callers that
    began to look after the last change and still look. `roused` is the number of callers that were
    woken and do not look yet. `none_at` is the change after which a caller last saw that there is
    no more message.
    """

    __slots__ = ("asleep", "changes", "fresh", "none_at", "roused", "size", "sleeping", "wanted")

    def __init__(self, wanted: Metadata) -> None:
        self.wanted = wanted
        self.changes = self.fresh = self.roused = 0
        self.none_at = -1
        self.size = 0
        self.sleeping = 0
        # a heap; entries of callers that woke or left are stale
        self.asleep: list[tuple[int, Waiter]] = []

    @property
    def is_looked_after(self) -> bool:
        """Whether a caller looks after the last change, and wakes the next one if there is more."""
        return self.fresh > 0 or self.roused > 0


class Waiter:
    """One waiting caller. `wake` is called once for each `sleeps`."""

    __slots__ = (
        "group",
        "is_asleep",
        "is_looking",
        "is_roused",
        "seen",
        "ticket",
        "wake",
    )

    def __init__(self, group: WaiterGroup, ticket: int, wake: Callable[[], None]) -> None:
        self.group = group
        self.ticket = ticket
        self.wake = wake
        self.is_asleep = self.is_looking = self.is_roused = False
        self.seen = 0  # the number of changes at its last look


class QueueWaiters:
    """The waiting callers of one queue; at most `waiting_max`."""

    def __init__(self, queue: str, waiting_max: int) -> None:
        self._queue = queue
        self._waiting_max = waiting_max
        self._groups: dict[Metadata, WaiterGroup] = {}
        self._tickets = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def enter(self, wanted: Metadata, wake: Callable[[], None]) -> tuple[Waiter, bool]:
        """Add a caller.

        True means that it looks first; False that it sleeps, because others came before.

        Raises Overloaded.
        """
        if self._size >= self._waiting_max:
            what = f"queue {self._queue!r} has too many waiting polls"
            raise Overloaded(what, "waiting_polls_max", self._waiting_max)
        group = self._groups.get(wanted)
        if group is None:
            group = self._groups[wanted] = WaiterGroup(wanted)
        self._tickets += 1
        waiter = Waiter(group, self._tickets, wake)
        is_first = group.size == 0
        group.size += 1
        self._size += 1
        return waiter, is_first

    def looks(self, waiter: Waiter) -> None:
        """Record that the caller is about to look, perhaps once more."""
        settle(waiter)
        end_look(waiter)
        waiter.is_looking = True
        waiter.seen = waiter.group.changes
        waiter.group.fresh += 1

    def found_none(self, waiter: Waiter) -> None:
        """Record that the caller looked, and that there is no more than it got."""
        waiter.group.none_at = max(waiter.group.none_at, waiter.seen)

    def sleeps(self, waiter: Waiter) -> bool:
        """Let the caller sleep.

        False means that it must look first, because no caller has looked since the last change.
        """
        group = waiter.group
        end_look(waiter)
        if group.none_at != group.changes and not group.is_looked_after:
            return False
        waiter.is_asleep = True
        group.sleeping += 1
        heappush(group.asleep, (waiter.ticket, waiter))
        return True

    def leaves(self, waiter: Waiter) -> None:
        """Remove a caller, whether it got messages or not. Call it once."""
        group = waiter.group
        group.size -= 1
        self._size -= 1
        end_look(waiter)
        settle(waiter)
        if waiter.is_asleep:
            waiter.is_asleep = False
            group.sleeping -= 1
            drop_stale(group)
        elif group.none_at != group.changes and not group.is_looked_after:
            wake_next(group)
        if not group.size:
            del self._groups[group.wanted]

    @property
    def filters(self) -> Collection[Metadata]:
        """The filters of all groups."""
        return self._groups.keys()

    def on_changed(self, messages: Mapping[Metadata, int] | None = None, count: int = 1) -> None:
        """Wake callers after a change that may help them.

        In each group that it may help, as many of the first callers look again as there are
        messages. More follow while there are more messages. `messages` has the number of messages
        by their pairs; None means about `count` messages of any pairs.
        """
        if not self._groups:
            return
        helped = dict.fromkeys(self._groups.values(), count)
        if messages is not None:
            helped = self._find_helped(messages)
        found = [waiter for group, most in helped.items() for waiter in touch(group, most)]
        for waiter in sorted(found, key=lambda waiter: waiter.ticket):
            rouse(waiter)

    def _find_helped(self, messages: Mapping[Metadata, int]) -> dict[WaiterGroup, int]:
        found: dict[WaiterGroup, int] = {}
        for metadata, count in messages.items():
            for group in self._wanting(metadata):
                found[group] = found.get(group, 0) + count
        return found

    def _wanting(self, metadata: Metadata) -> Iterable[WaiterGroup]:
        """The groups that a message may help: their filters are subsets of its pairs."""
        for size in range(len(metadata) + 1):
            for wanted in combinations(metadata, size):
                group = self._groups.get(wanted)
                if group is not None:
                    yield group

    def check(self) -> None:
        """Assert the invariants."""
        assert self._size == sum(group.size for group in self._groups.values())
        for group in self._groups.values():
            asleep = [waiter for _, waiter in group.asleep if waiter.is_asleep]
            assert len(set(asleep)) == group.sleeping <= group.size
            assert 0 <= group.roused + group.fresh <= group.size - group.sleeping
            assert len(group.asleep) <= 2 * group.sleeping + SPARE_MAX + 1


def touch(group: WaiterGroup, count: int) -> list[Waiter]:
    """Record a change that `count` callers may use, and return the callers to wake.

    Callers that were woken already and did not look yet count as woken for this change.
    """
    group.changes += 1
    group.fresh = 0
    first = (first_asleep(group) for _ in range(min(count - group.roused, group.sleeping)))
    return [waiter for waiter in first if waiter is not None]


def first_asleep(group: WaiterGroup) -> Waiter | None:
    """Take the first sleeping caller from the heap; None if there is none."""
    while group.asleep:
        _, waiter = heappop(group.asleep)
        if waiter.is_asleep:
            return waiter
    return None


def wake_next(group: WaiterGroup) -> None:
    waiter = first_asleep(group)
    if waiter is not None:
        rouse(waiter)


def rouse(waiter: Waiter) -> None:
    waiter.is_asleep, waiter.is_roused = False, True
    waiter.group.sleeping -= 1
    waiter.group.roused += 1
    waiter.wake()


def settle(waiter: Waiter) -> None:
    """Stop counting a woken caller as about to look, because it looks now or leaves.

    This changes nothing for a caller that was not woken, or that was settled before.
    """
    if waiter.is_roused:
        waiter.is_roused = False
        waiter.group.roused -= 1


def end_look(waiter: Waiter) -> None:
    if waiter.is_looking:
        waiter.is_looking = False
        waiter.group.fresh -= waiter.seen == waiter.group.changes


def drop_stale(group: WaiterGroup) -> None:
    """Drop stale entries when they outnumber the sleeping callers."""
    if len(group.asleep) > 2 * group.sleeping + SPARE_MAX:
        group.asleep = [entry for entry in group.asleep if entry[1].is_asleep]
        heapify(group.asleep)
