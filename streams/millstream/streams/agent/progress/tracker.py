"""The progress of reading a queue, as its record should have it.

Owns `ProgressTracker`: the progress to store during reading and at a hand-over, and the callers
that wait for that. `audience.handover_list` lists the subscriptions, and `ownership` writes the
record. Invariant: each waiting caller gets one answer, at the latest when the agent ends.
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
        stored: the progress in the record when the queue was acquired.
        has_positions: whether tokens are positions; otherwise there is no progress to store.
        is_sole: whether the provider keeps no position of its own.

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
        self._asked_s: dict[Token, float] = {}  # the time of the first question about a token
        self._has_positions = has_positions
        self._is_sole = is_sole
        self.waiters: dict[SubscriptionKey, asyncio.Future[bool]] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits until the record is stored."""
        return bool(self.waiters) or self._wary.is_waiting or self._losses.is_waiting

    def progress(self) -> QueueProgress | None:
        """Return the progress to store.

        None means that there is nothing to store, because the provider keeps the position.
        """
        is_kept = self._is_sole or self._laggards.matters or self._stored.listed
        if not (is_kept or self._wary.matters or self._losses.matters):
            return None
        progress, former = self._laggards.progress(), self._former
        if former.upto is not None and (progress.upto is None or progress.upto < former.upto):
            # messages of the former owner that are read again are only for its listed subscriptions
            progress = QueueProgress(former.upto, tuple(former.listed.values()), progress.upto)
        return self._note_in(progress)

    def _note_in(self, progress: QueueProgress) -> QueueProgress:
        return self._losses.note_in(self._wary.note_in(progress))

    def on_stored(self, progress: QueueProgress) -> None:
        """Remember that the queue record has this progress."""
        self._stored = progress
        self._laggards.on_stored(progress)
        self._wary.on_stored(progress)
        self._losses.on_stored(progress)
        self._answer({(one.stream, one.subscription) for one in progress.listed})

    def look(self) -> None:
        """Answer callers whose subscription no longer lags, because the record need not list it."""
        self._answer(())

    def _answer(self, stored: Collection[SubscriptionKey]) -> None:
        for key in list(self.waiters):
            if key in stored or self._laggards.get(key) is None:
                self.waiters.pop(key).set_result(True)

    def handoff(self, *, is_known: bool) -> QueueProgress | None:
        """Return all that the next owner can use; None if tokens are not positions.

        With too many subscriptions to list, the next owner begins at the frontier, as after a
        crash. `is_known` says that the deliveries of former owners are known.
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
        """Return the streams that may get events up to a token again.

        None means that they are unknown, or too many.

        Everything before the first message that this owner read was done before. Everything that is
        no longer in the queue was done, too. A read that began after the first question, and found
        nothing, proves this, once all earlier messages are done.
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
        """Return a future that is done when no later owner can skip events of a subscription.

        Its result is True when the stored record lists the subscription, or when the subscription
        no longer lags, so that the record need not list it. False: the agent ended first.
        """
        waiter = self.waiters.get(key)
        if waiter is None:
            waiter = self.waiters[key] = asyncio.get_running_loop().create_future()
        return asyncio.shield(waiter)

    def close(self) -> None:
        """Answer all waiting callers with False."""
        for waiter in self.waiters.values():
            waiter.set_result(False)
        self.waiters.clear()
