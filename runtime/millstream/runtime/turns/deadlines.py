"""Deadlines of everything that waits or runs: one sweep instead of a timer per call.

Owns: the registry of pending requests of one silo or client. Source: spec/hotpath.md rule 6.
Invariants: requests with one timeout sit in one group, in order of their deadlines, so a sweep
stops at the first that is not due; in one sweep a task is cancelled once, for its outermost
expired turn; the timer is armed only while something is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .request import Request

__all__ = ["Pending"]

Group = dict[Request, None]


class Pending:
    """Pending requests by timeout."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep_s: float) -> None:
        self._loop = loop
        self._sweep_s = sweep_s
        self._groups: dict[float, Group] = {}
        self.irregular: Group = {}
        self._timer: asyncio.TimerHandle | None = None
        self.is_armed = False

    def group(self, timeout_s: float) -> Group:
        """The group of a timeout, made on first use; adding to it needs `arm()` afterwards."""
        return self._groups.setdefault(timeout_s, {})

    def add(self, request: Request, timeout_s: float | None) -> None:
        """Watch a request whose deadline is now + timeout_s; None: its deadline is irregular."""
        group = self.irregular if timeout_s is None else self._groups.get(timeout_s)
        if group is None:
            assert timeout_s is not None
            group = self.group(timeout_s)
        group[request] = None
        request.group = group
        if not self.is_armed:
            self.arm()

    def remove(self, request: Request) -> None:
        """Forget a request; no effect if it is not watched."""
        group, request.group = request.group, None
        if group is not None:
            group.pop(request, None)

    def arm(self) -> None:
        """Start the sweep; it stops by itself when nothing is pending."""
        self.is_armed = True
        self._timer = self._loop.call_later(self._sweep_s, self._sweep)

    def close(self) -> None:
        """Stop sweeping for good."""
        self.is_armed = True
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        now, is_empty = self._loop.time(), True
        due: list[Request] = []
        for group in self._groups.values():
            for request in group:
                if request.deadline > now:
                    break
                due.append(request)
            is_empty = is_empty and not group
        due.extend(request for request in self.irregular if request.deadline <= now)
        expire(due)
        if is_empty and not self.irregular:
            self.is_armed = False
        else:
            self._timer = self._loop.call_later(self._sweep_s, self._sweep)


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
            request.task.cancel()


def _unwinds(request: Request) -> bool:
    """An ancestor in the same task has expired and is still on its way out."""
    parent = request.parent
    while parent is not None and not parent.done:
        if parent.expired and parent.task is request.task:
            return True
        parent = parent.parent
    return False
