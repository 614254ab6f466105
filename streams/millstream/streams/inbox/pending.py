"""What a consumer outside has not acknowledged of the delivery that waits for it.

Owns: `Pending`. Pure. Not: waiting, sessions, silence (`grain`). Invariants: what was acknowledged
is not given again, also where it is delivered again; a delivery of an older epoch than one seen is
refused; nothing is kept but one delivery and a bounded memory of what was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.streams.api.inbox import Acks, Taken
from millstream.streams.consumer.batch import WireBatch
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["ACKED_MAX", "Pending"]

ACKED_MAX = 1_000
"""Tokens that are remembered as done, where tokens do not rise."""


class Pending:
    """The events that wait in one inbox."""

    __slots__ = ("_acked", "_batch", "_epochs", "_given", "_is_stale", "_left", "_upto")

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._upto: dict[str, Token] = {}  # by queue: done up to here, where tokens rise
        self._acked: dict[tuple[str, Token], None] = {}
        self._batch: WireBatch | None = None
        self._left: dict[Token, Item] = {}  # of the batch: not acknowledged
        self._given: dict[Token, int] = {}  # of the batch: the session that has seen it
        self._is_stale = False  # it was moved back: what the consumer still has is of before

    def offer(self, batch: WireBatch) -> bool:
        """Take over a delivery in the place of the last one; False: its epoch is over."""
        if batch.epoch < self._epochs.get(batch.queue, 0):
            return False
        self._epochs[batch.queue] = batch.epoch
        if batch.rewinds:
            self._upto.pop(batch.queue, None)
            self._acked.clear()
            self._is_stale = True
        self._batch = batch
        self._left = {item.token: item for item in batch.items if not self._is_done(item.token)}
        self._given = {token: one for token, one in self._given.items() if token in self._left}
        return True

    def clear(self) -> None:
        """What waits is left out: the subscription goes on elsewhere."""
        self._batch = None
        self._left.clear()
        self._given.clear()

    def _is_done(self, token: Token) -> bool:
        batch = self._batch
        assert batch is not None
        if not batch.has_positions:
            return (batch.queue, token) in self._acked
        upto = self._upto.get(batch.queue)
        return upto is not None and token <= upto

    def acknowledge(self, acks: Acks) -> bool:
        """These are done; was any of them still waiting?"""
        if self._is_stale:
            return False
        for token in acks.tokens:
            self._remember(acks.queue, token)
        return self._look()

    def learn(self, acks: Acks) -> None:
        """A session comes to a fresh inbox: what it did last is done, with all before it."""
        if acks.last is not None and not self._is_stale:
            self._remember(acks.queue, acks.last)
            self._look()

    def _remember(self, queue: str, token: Token) -> None:
        upto = self._upto.get(queue)
        self._upto[queue] = token if upto is None else max(upto, token)
        if self._batch is None or not self._batch.has_positions:
            self._acked[queue, token] = None
            if len(self._acked) > ACKED_MAX:
                del self._acked[next(iter(self._acked))]

    def _look(self) -> bool:
        known = len(self._left)
        if self._batch is not None:
            self._drop([token for token in self._left if self._is_done(token)])
        return len(self._left) < known

    def _drop(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            del self._left[token]
            self._given.pop(token, None)

    @property
    def has_any(self) -> bool:
        """Does anything wait?"""
        return bool(self._left)

    def take(self, session: int, events_max: int, beat_s: float) -> Taken:
        """What a session is given: the first that are not acknowledged."""
        batch = self._batch
        if not events_max:
            return Taken(beat_s=beat_s)
        self._is_stale = False  # who asks has nothing left
        if batch is None:
            return Taken(beat_s=beat_s)
        items = list(self._left.values())[:events_max]
        return Taken(
            batch.queue,
            items,
            len(items) if batch.redelivered else self._give(items, session),
            batch.attempt,
            beat_s,
            gap=batch.gap if items and items[0] is batch.items[0] else None,
        )

    def _give(self, items: Sequence[Item], session: int) -> int:
        """How many of the items an earlier session has seen; they are the first ones."""
        seen = 0
        for item in items:
            seen += self._given.setdefault(item.token, session) != session
        return seen

    def count_done(self) -> int:
        """How many of the delivery's items are done, up to the first that is not."""
        items = () if self._batch is None else self._batch.items
        for at, item in enumerate(items):
            if item.token in self._left:
                return at
        return len(items)
