"""How far the reading of a queue is, as its record should say it.

Owns: `Standing`: what is stored while reading and at a hand-off, and who waits for that. Not: who
is behind (`book`), when it is stored (`ownership`). Invariant: who waits is told once, and
not later than the agent ends.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import structs

from millstream.streams.ownership.record import Progress

from .behind import SubscriptionKey
from .book import BehindBook
from .done_before import DoneBefore

__all__ = ["DONE_MAX", "Standing"]

DONE_MAX = 4096  # ranges above the frontier in a hand-off; what is done beyond comes again


class Undone(Protocol):
    """Who has something to do."""

    def hand_over(self) -> None:
        """Note as behind whom ranges of messages cannot describe."""
        ...


class Standing:
    """The progress of one agent.

    Args:
        done_before: what a former owner had done above the frontier.
        has_positions: tokens are positions; else nothing can be said.
        is_sole: the provider keeps no position.
    """

    def __init__(
        self,
        behind: BehindBook,
        done_before: DoneBefore,
        undone: Undone,
        *,
        has_positions: bool,
        is_sole: bool,
    ) -> None:
        self._behind = behind
        self._done_before = done_before
        self._undone = undone
        self._has_positions = has_positions
        self._is_sole = is_sole
        self._waiters: dict[SubscriptionKey, asyncio.Future[bool]] = {}

    @property
    def is_awaited(self) -> bool:
        """Does somebody wait until it is stored?"""
        return bool(self._waiters)

    def progress(self) -> Progress | None:
        """What the queue record should say; None: nothing, as the provider keeps the position."""
        return self._behind.progress() if self._is_sole or self._behind.matters else None

    def stored(self, progress: Progress) -> None:
        """The queue record says this now."""
        self._behind.stored(progress)
        known = {(entry.stream, entry.subscription) for entry in progress.behind}
        for key in list(self._waiters):
            if key in known or self._behind.get(key) is None:
                self._waiters.pop(key).set_result(True)

    def handoff(self) -> Progress | None:
        """All that the next owner can use; None where a token is no position."""
        if not self._has_positions:
            return None
        self._undone.hand_over()
        self._behind.let_go()
        progress = self._behind.progress()
        done = self._behind.cache.done_ranges(DONE_MAX)
        done += self._done_before.above(done[-1][1] if done else progress.frontier)
        return structs.replace(progress, done=tuple(done[:DONE_MAX]))

    def until_stored(self, key: SubscriptionKey) -> asyncio.Future[bool]:
        """True once the record says that a subscription is behind, False if it never will."""
        waiter = self._waiters.get(key)
        if waiter is None:
            waiter = self._waiters[key] = asyncio.get_running_loop().create_future()
        return asyncio.shield(waiter)

    def close(self) -> None:
        """Nothing more is stored."""
        for waiter in self._waiters.values():
            waiter.set_result(False)
        self._waiters.clear()
