"""Deadlines of everything that waits or runs: one sweep instead of a timer per call.

Owns: `Deadlines`: the requests of one silo or client that have a deadline of their own.
Invariants: requests with one time-out are in one group, in the order of their deadlines, so a sweep
stops at the first that is not due; the others are in a slot per sweep, so a sweep looks at those
that are due and no others; in one sweep a task is cancelled once, for its outermost expired turn;
the timer is armed only while something is watched.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from .request import Request, cancel_turn

__all__ = ["Deadlines"]

Group = dict[Request, None]
FARTHEST = 2**62  # the slot of those who wait for ever


class Deadlines:
    """Requests that are watched; each has its group, and is in it until it ends or is due.

    Attributes: `groups`, by time-out, made on first use; `is_armed`: who puts a request into a
    group, or into a `slot`, calls `arm()` if that is false.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep_s: float) -> None:
        self._loop = loop
        self._sweep_s = sweep_s
        self.groups: defaultdict[float, Group] = defaultdict(dict)
        self._slots: dict[int, Group] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.is_armed = False

    def slot(self, deadline_s: float) -> Group:
        """The group of requests that are due in one sweep; one that is over is due in the next."""
        try:
            at = int(deadline_s / self._sweep_s)
        except OverflowError:  # for ever
            at = FARTHEST
        found = self._slots.get(at)
        if found is None:
            found = self._slots[at] = {}
        return found

    def add(self, request: Request, timeout_s: float | None) -> None:
        """Watch a request whose deadline is now + timeout_s; None: it has a deadline of its own."""
        group = self.slot(request.deadline) if timeout_s is None else self.groups[timeout_s]
        group[request] = None
        request.group = group
        if not self.is_armed:
            self.arm()

    def remove(self, request: Request) -> None:
        """Forget a request; no effect if it is not watched."""
        group, request.group = request.group, None
        if group is not None:
            del group[request]

    def iter_watched(self) -> Iterator[Request]:
        """Every request that is watched (for tests and tools)."""
        for group in [*self.groups.values(), *self._slots.values()]:
            yield from group

    def arm(self) -> None:
        """Start the sweep; it stops by itself when nothing is watched."""
        self.is_armed = True
        self._timer = self._loop.call_later(self._sweep_s, self._sweep)

    def close(self) -> None:
        """Stop sweeping for good."""
        self.is_armed = True
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        now = self._loop.time()
        alone = list(self._due_in_slots(now))
        expire([*self._due_in_groups(now), *alone])
        for request in alone:
            if not (request.done or request.expired):  # its turn comes when its caller's has ended
                self.add(request, None)
        if any(self.groups.values()) or any(self._slots.values()):
            self._timer = self._loop.call_later(self._sweep_s, self._sweep)
        else:
            self._slots.clear()
            self.is_armed = False

    def _due_in_groups(self, now: float) -> Iterator[Request]:
        for group in self.groups.values():
            for request in group:
                if request.deadline > now:
                    break
                yield request

    def _due_in_slots(self, now: float) -> Iterator[Request]:
        """All of the slots that are over, and what is due of the present one."""
        present = int(now / self._sweep_s)
        over = sorted(at for at in self._slots if at < present)
        slot = self._slots.get(present, {})
        due = [request for at in over for request in self._slots.pop(at)]
        for request in [*due, *(one for one in slot if one.deadline <= now)]:
            self.remove(request)
            yield request


def expire(due: list[Request]) -> None:
    """End what is due: waiting requests by their future, turns by cancelling their task."""
    for request in sorted(due, key=lambda r: r.depth):
        if request.done or request.expired:
            continue
        if request.future is not None:
            request.expired = True
            wake: Callable[[], Any] = request.future.cancel
            wake()
        elif request.task is not None and not _unwinds(request):
            request.expired = True
            cancel_turn(request)


def _unwinds(request: Request) -> bool:
    """An ancestor in the same task has expired and is still on its way out."""
    parent = request.parent
    while parent is not None and not parent.done:
        if parent.expired and parent.task is request.task:
            return True
        parent = parent.parent
    return False
