"""How far the reading of a queue is, as its record should say it.

Owns: `ProgressTracker`: what is stored while the queue is read and at a hand-over, and the futures
of callers that wait for that. Not: which subscriptions are listed (`listing`), when the record is
written (`ownership`). Invariant: each waiting caller is answered once, at the latest when the agent
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from msgspec.structs import replace

from millstream.streams.agent.audience.handover_list import LISTED_MAX, Former
from millstream.streams.agent.cache.lagging_cursors import UNKNOWN, LaggingCursors
from millstream.streams.agent.cache.positions import SubscriptionKey
from millstream.streams.agent.losses import Losses
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.subscribers import Subscribers
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import QueueProgress

from .wary import Wary

__all__ = ["ProgressTracker"]


class ProgressTracker:
    """The progress of one agent.

    Args:
        stored: what the record said when the queue was acquired.
        has_positions: tokens are positions; else nothing can be said.
        is_sole: the provider keeps no position.

    Attributes:
        waiters: callers that wait until the record lists a subscription.
    """

    def __init__(
        self,
        laggards: LaggingCursors,
        subscribers: Subscribers,
        former: Former,
        wary: Wary,
        losses: Losses,
        *,
        stored: QueueProgress,
        has_positions: bool,
        is_sole: bool,
    ) -> None:
        self._laggards = laggards
        self._cache = laggards.cache
        self._subscribers = subscribers
        self._former = former
        self._wary, self._losses = wary, losses
        self._stored = stored
        self._asked_s: dict[Token, float] = {}  # since when is asked of it
        self._has_positions = has_positions
        self._is_sole = is_sole
        self.waiters: dict[SubscriptionKey, asyncio.Future[bool]] = {}

    @property
    def is_awaited(self) -> bool:
        """Does a caller wait until the record is stored?"""
        return bool(self.waiters) or self._wary.is_waiting or self._losses.is_waiting

    def progress(self) -> QueueProgress | None:
        """The progress to store; None: nothing, as the provider keeps the position."""
        is_kept = self._is_sole or self._laggards.matters or self._stored.listed
        if not (is_kept or self._wary.matters or self._losses.matters):
            return None
        progress, former = self._laggards.progress(), self._former
        if former.upto is not None and (progress.upto is None or progress.upto < former.upto):
            # what is read again of the former owner's is for those that it has listed
            progress = QueueProgress(former.upto, tuple(former.listed.values()), progress.upto)
        return self._note_in(progress)

    def _note_in(self, progress: QueueProgress) -> QueueProgress:
        return self._losses.note_in(self._wary.note_in(progress))

    def on_stored(self, progress: QueueProgress) -> None:
        """The queue record says this now."""
        self._stored = progress
        self._laggards.on_stored(progress)
        self._wary.on_stored(progress)
        self._losses.on_stored(progress)
        self._answer({(one.stream, one.subscription) for one in progress.listed})

    def look(self) -> None:
        """A subscription that is waited for may lag no more: then the record need not list it."""
        self._answer(())

    def _answer(self, stored: Collection[SubscriptionKey]) -> None:
        for key in list(self.waiters):
            if key in stored or self._laggards.get(key) is None:
                self.waiters.pop(key).set_result(True)

    def handoff(self, *, is_known: bool) -> QueueProgress | None:
        """All that the next owner can use; None where a token is no position.

        With too many subscriptions to list, it is as after a crash: the next owner begins where
        everything is done. `is_known`: it is known what former owners have delivered.
        """
        if not self._has_positions:
            return None
        self._laggards.let_go()
        progress = self._laggards.progress()
        everyone = self._subscribers.list_unfinished()
        if len(everyone) > LISTED_MAX:
            return self._note_in(progress)
        upto = max(filter(None, (self._cache.newest, self._former.upto)), default=None)
        unknown = [one for one in everyone if one.subscription == UNKNOWN]
        is_told = is_known and not any(one.sent_upto for one in unknown)
        return self._note_in(replace(progress, upto=upto, listed=everyone, is_told=is_told))

    def undone_up_to(
        self, token: Token, reading: ReaderCore, now_s: float
    ) -> frozenset[StreamId] | None:
        """Streams of which something up to a message may come again; None: not known, or many.

        Everything before the first message that this owner has found was done before. So was
        everything that is not there any more: a read that began after this was asked for the first
        time finds nothing, and everything that was found before is done.
        """
        asked_s, stored = self._asked_s.setdefault(token, now_s), self._stored
        if stored.upto is not None and stored.upto >= token:
            return frozenset(one.stream for one in stored.listed if one.mark <= token)
        is_acked = reading.acked_upto is not None and reading.acked_upto >= token
        first, last, acked = reading.first_read, reading.position, reading.acked_upto
        is_all = first is None or (acked is not None and last is not None and acked >= last)
        was_done = is_all and reading.found_nothing_s > asked_s
        was_done = was_done or (first is not None and first > token)
        return frozenset() if is_acked or (was_done and not self._laggards.matters) else None

    def until_stored(self, key: SubscriptionKey) -> asyncio.Future[bool]:
        """True once the record lists a subscription, or it lags no more; False if neither will
        be."""
        waiter = self.waiters.get(key)
        if waiter is None:
            waiter = self.waiters[key] = asyncio.get_running_loop().create_future()
        return asyncio.shield(waiter)

    def close(self) -> None:
        """Nothing more is stored."""
        for waiter in self.waiters.values():
            waiter.set_result(False)
        self.waiters.clear()
