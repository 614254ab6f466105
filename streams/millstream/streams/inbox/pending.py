"""The unacknowledged events of the delivery that waits for a consumer outside.

Owns: `Pending`. Pure. Not: waiting, sessions, silence (`inbox`). Invariants: an acknowledged event
is not handed out again, even if it is delivered again. A delivery of an older epoch than a known
one is refused. Memory holds one delivery and a bounded list of acknowledged events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.streams.api.inbox import Acks, Taken
from millstream.streams.consumer.batch import WireBatch
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["ACKED_MAX", "Pending"]

ACKED_MAX = 1_000
"""Acknowledged tokens that are remembered, where tokens do not rise."""


class Pending:
    """The events that wait in one inbox."""

    __slots__ = ("_acked", "_batch", "_epochs", "_given", "_is_stale", "_left", "_upto")

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._upto: dict[str, Token] = {}  # by queue: acknowledged up to here, where tokens rise
        self._acked: dict[tuple[str, Token], None] = {}
        self._batch: WireBatch | None = None
        self._left: dict[Token, Item] = {}  # events of the batch that are not acknowledged
        self._given: dict[Token, int] = {}  # for events of the batch: the session that has seen it
        self._is_stale = False  # it was moved back: ignore acknowledgements of events from before

    def offer(self, batch: WireBatch) -> bool:
        """Replace the delivery by a new one. Return False if the new one has an outdated epoch."""
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
        """Leave out the waiting events: the subscription has moved to another position."""
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
        """Remember acknowledgements. Return True if any of the events was still waiting.

        If tokens rise, a token acknowledges all earlier events of its queue, too. After the
        subscription was moved back, acknowledgements are ignored until the consumer takes events.
        """
        if self._is_stale:
            return False
        for token in acks.tokens:
            self._remember(acks.queue, token)
        return self._look()

    def learn(self, acks: Acks) -> None:
        """Handle a session that comes to a new inbox.

        The session has acknowledged its last event, and all events before that.
        """
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
        """Whether any event waits."""
        return bool(self._left)

    def take(self, session: int, events_max: int, beat_s: float) -> Taken:
        """The first unacknowledged events, for a session."""
        batch = self._batch
        if not events_max:
            return Taken(beat_s=beat_s)
        self._is_stale = False  # a consumer that asks has no old events left
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
        """Return how many of the items an earlier session has seen. These items come first."""
        seen = 0
        for item in items:
            seen += self._given.setdefault(item.token, session) != session
        return seen

    def count_done(self) -> int:
        """The number of acknowledged items of the delivery, up to the first that is not."""
        items = () if self._batch is None else self._batch.items
        for at, item in enumerate(items):
            if item.token in self._left:
                return at
        return len(items)
