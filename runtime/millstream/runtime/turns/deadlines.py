"""Deadlines of waiting and running requests: one periodic sweep instead of a timer per call.

`Deadlines` owns the requests of one silo or client that have a deadline of their own.

Invariants:

- Requests with the same timeout form a group in the order of their deadlines, so a sweep stops at
  the first request that is not due.
- All other requests are in slots, one slot per sweep, so a sweep looks only at requests that are
  due.
- A sweep cancels a task once, for its outermost expired turn.
- The timer runs only while a request is watched.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from .request import Request, cancel_turn

__all__ = ["Deadlines"]

Group = dict[Request, None]
FARTHEST = 2**62  # the slot of requests without an end


class Deadlines:
    """The watched requests. Each request is in one group until it ends or is due.

    Attributes:
        groups: the requests by timeout; a group is created on first use.
        is_armed: True while the sweep is scheduled. Code that adds a request to a group or a `slot`
            must call `arm()` if it is False.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep_s: float) -> None:
        self._loop = loop
        self._sweep_s = sweep_s
        self.groups: defaultdict[float, Group] = defaultdict(dict)
        self._slots: dict[int, Group] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.is_armed = False

    def slot(self, deadline_s: float) -> Group:
        """Return the group of requests that are due in the same sweep. A past slot is due next."""
        try:
            at = int(deadline_s / self._sweep_s)
        except OverflowError:  # an infinite deadline
            at = FARTHEST
        found = self._slots.get(at)
        if found is None:
            found = self._slots[at] = {}
        return found

    def add(self, request: Request, timeout_s: float | None) -> None:
        """Watch a request with the deadline now + `timeout_s`. None means its own deadline."""
        group = self.slot(request.deadline) if timeout_s is None else self.groups[timeout_s]
        group[request] = None
        request.group = group
        if not self.is_armed:
            self.arm()

    def remove(self, request: Request) -> None:
        """Stop watching a request. No effect if it is not watched."""
        group, request.group = request.group, None
        if group is not None:
            del group[request]

    def iter_watched(self) -> Iterator[Request]:
        """Iterate over every watched request, for tests and tools."""
        for group in [*self.groups.values(), *self._slots.values()]:
            yield from group

    def arm(self) -> None:
        """Schedule the sweep. It stops by itself when no request is watched."""
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
            if not (request.done or request.expired):  # it is next after its outer turn
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
        """Yield all requests of past slots, and the due requests of the present slot."""
        present = int(now / self._sweep_s)
        over = sorted(at for at in self._slots if at < present)
        slot = self._slots.get(present, {})
        due = [request for at in over for request in self._slots.pop(at)]
        for request in [*due, *(one for one in slot if one.deadline <= now)]:
            self.remove(request)
            yield request


def expire(due: list[Request]) -> None:
    """End the due requests: a waiting request by its future, a turn by cancelling its task."""
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
    """Return True if an expired outer turn in the same task is still unwinding."""
    parent = request.parent
    while parent is not None and not parent.done:
        if parent.expired and parent.task is request.task:
            return True
        parent = parent.parent
    return False
