"""How far the reading of a queue is, as its record should say it.

Owns: `Standing`: what is stored while reading and at a hand-off, and who waits for that. Not: who
is behind (`book`), when it is stored (`ownership`). Invariant: who waits is told once, and
not later than the agent ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import structs

from millstream.streams.agent.cache.lagging import Laggards
from millstream.streams.agent.cache.positions import SubscriptionKey
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import Progress, SentAt

from .done_before import DoneBefore

__all__ = ["DONE_MAX", "Noted", "Standing"]

DONE_MAX = 4096  # ranges above the frontier in a hand-off; what is done beyond comes again


class Undone(Protocol):
    """Who has something to do."""

    def hand_over(self) -> None:
        """Note as behind whom ranges of messages cannot describe."""
        ...

    def sent(self, frontier: Token | None, /) -> tuple[SentAt, ...] | None:
        """What was delivered and comes again; None: it is not known."""
        ...


class Reading(Protocol):
    """What was read, and what the provider knows of it."""

    @property
    def acked_upto(self) -> Token | None:
        """The provider knows that all up to here is done."""
        ...

    @property
    def first_read(self) -> Token | None: ...
    @property
    def position(self) -> Token | None:
        """The last message that was read, or where reading began."""
        ...

    @property
    def found_nothing_s(self) -> float:
        """When the last read began, if it has found nothing."""
        ...


class Noted(Protocol):
    """What else the record should say, such as of owners that died."""

    @property
    def matters(self) -> bool: ...
    @property
    def is_waiting(self) -> bool:
        """Is something held back until the record says it?"""
        ...

    def noted(self, progress: Progress, /) -> Progress: ...
    def stored(self, progress: Progress, /) -> None: ...


class Standing:
    """The progress of one agent.

    Args:
        progress: what the record said when the queue was acquired.
        done_before: what a former owner had done above the frontier.
        has_positions: tokens are positions; else nothing can be said.
        is_sole: the provider keeps no position.

    Attributes:
        waiters: who waits until the record says that a subscription lags.
    """

    def __init__(
        self,
        behind: Laggards,
        done_before: DoneBefore,
        undone: Undone,
        *,
        notes: Sequence[Noted],
        has_positions: bool,
        is_sole: bool,
        progress: Progress | None = None,
    ) -> None:
        self._behind = behind
        self._stored = progress or Progress()
        self._asked_s: dict[Token, float] = {}  # since when is asked of it
        self._done_before = done_before
        self._undone = undone
        self._notes = notes
        self._has_positions = has_positions
        self._is_sole = is_sole
        self.waiters: dict[SubscriptionKey, asyncio.Future[bool]] = {}

    @property
    def is_awaited(self) -> bool:
        """Does somebody wait until it is stored?"""
        return bool(self.waiters) or any(one.is_waiting for one in self._notes)

    def progress(self) -> Progress | None:
        """What the queue record should say; None: nothing, as the provider keeps the position."""
        is_said = self._is_sole or self._behind.matters or any(one.matters for one in self._notes)
        return self._noted() if is_said else None

    def _noted(self) -> Progress:
        progress = self._behind.progress()
        for one in self._notes:
            progress = one.noted(progress)
        return progress

    def stored(self, progress: Progress) -> None:
        """The queue record says this now."""
        self._stored = progress
        self._behind.stored(progress)
        for one in self._notes:
            one.stored(progress)
        self._answer({(entry.stream, entry.subscription) for entry in progress.behind})

    def look(self) -> None:
        """Who is awaited may be behind no more: then the record will never say so, and need not."""
        self._answer(())

    def _answer(self, stored: Collection[SubscriptionKey]) -> None:
        for key in list(self.waiters):
            if key in stored or self._behind.get(key) is None:
                self.waiters.pop(key).set_result(True)

    def handoff(self, *, is_known: bool) -> Progress | None:
        """All that the next owner can use; None where a token is no position.

        `is_known`: what former owners have delivered is.
        """
        if not self._has_positions:
            return None
        self._undone.hand_over()
        sent = self._undone.sent(self._behind.cache.acked_upto()) if is_known else None
        self._behind.let_go()
        progress = self._noted()
        done = self._behind.cache.done_ranges(DONE_MAX)
        done += self._done_before.above(done[-1][1] if done else progress.frontier)
        return structs.replace(progress, done=tuple(done[:DONE_MAX]), sent=sent)

    def undone_up_to(
        self, token: Token, reading: Reading, now_s: float
    ) -> frozenset[StreamId] | None:
        """Streams of which something up to a message may come again; None: not known, or many.

        What is before the first message that this owner has found was done before. So was what is
        not there any more: nothing is found, by a read that began after this was asked for the
        first time, and all that was found before is done.
        """
        asked_s, stored = self._asked_s.setdefault(token, now_s), self._stored
        if stored.frontier is not None and stored.frontier >= token:
            return frozenset(one.stream for one in stored.behind if one.position <= token)
        is_acked = reading.acked_upto is not None and reading.acked_upto >= token
        first, last, acked = reading.first_read, reading.position, reading.acked_upto
        is_all = first is None or (acked is not None and last is not None and acked >= last)
        was_done = is_all and reading.found_nothing_s > asked_s
        was_done = was_done or (first is not None and first > token)
        return frozenset() if is_acked or (was_done and not self._behind.matters) else None

    def until_stored(self, key: SubscriptionKey) -> asyncio.Future[bool]:
        """True once the record says that a subscription is behind, or it is so no more; False if
        neither will be."""
        waiter = self.waiters.get(key)
        if waiter is None:
            waiter = self.waiters[key] = asyncio.get_running_loop().create_future()
        return asyncio.shield(waiter)

    def close(self) -> None:
        """Nothing more is stored."""
        for waiter in self.waiters.values():
            waiter.set_result(False)
        self.waiters.clear()
