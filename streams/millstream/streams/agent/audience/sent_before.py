"""What was delivered and comes again, subscription by subscription, over hand-overs.

Owns: `SentBefore`: what former owners have told, and what the next one is told. Not: what a
subscription was sent while it is known (`Subscriber.sent_upto`). Invariant: what was delivered and
comes again is told for each subscription, or it is told that it is not known; what was read and not
delivered is not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from millstream.streams.agent.cache.lagging import Laggards
from millstream.streams.agent.cache.positions import SubscriptionKey
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import SentAt

from .stream_entry import StreamEntry

__all__ = ["SENT_MAX", "SentBefore"]

SENT_MAX = 1_000
"""Subscriptions of a queue of which a hand-over tells what they were delivered."""


class SentBefore:
    """What former owners have delivered to subscriptions that are not known here yet."""

    def __init__(self, sent: Iterable[SentAt]) -> None:
        self._upto = _highest(sent)

    def take(self, key: SubscriptionKey) -> Token | None:
        """Up to where it was delivered what comes again; from now on its subscriber knows."""
        return self._upto.pop(key, None) if self._upto else None

    def told(
        self,
        entries: Iterable[StreamEntry],
        behind: Laggards,
        frontier: Token | None,
        newest: Token | None,
    ) -> tuple[SentAt, ...] | None:
        """What the next owner is told; None: it is not known, or too much.

        Args:
            newest: the last message that was read here.
        """
        repeated = behind.repeated()
        if repeated is None:
            return None
        found = [*self.left(frontier, behind), *repeated]
        for entry in entries:
            found += _sent_of([*entry.subscribers.values()], behind, newest)
        highest = _highest(found)
        if len(highest) > SENT_MAX:
            return None
        return tuple(SentAt(*stream, one, upto) for (stream, one), upto in highest.items())

    def left(self, frontier: Token | None, behind: Laggards) -> list[SentAt]:
        """Those that nobody has taken, and that may come again: to who is behind, the frontier may
        be past it."""
        return [
            SentAt(*stream, subscription, upto)
            for (stream, subscription), upto in self._upto.items()
            if frontier is None
            or upto > frontier
            or any(one.needs(upto) for one in behind.of(stream))
        ]


def _highest(sent: Iterable[SentAt]) -> dict[SubscriptionKey, Token]:
    """The highest position that is named for each subscription.

    A subscription can be named twice: by a former owner that may have sent all of a backlog, and by
    this owner, which has sent less of it.
    """
    upto: dict[SubscriptionKey, Token] = {}
    for one in sent:
        key = (one.stream, one.subscription)
        upto[key] = max(one.upto, upto.get(key, one.upto))
    return upto


def _sent_of(
    subscribers: Sequence[Subscriber], behind: Laggards, newest: Token | None
) -> Iterator[SentAt]:
    """What the subscriptions of one stream were delivered of that which comes again to them.

    To one that is behind nothing comes again that it has done. To the others comes what one of them
    has not done, from the beginning of its message on. What a former owner has delivered comes
    again, too, while it was not read here, or not read anew for one that is behind.
    """
    alone = {one.id: behind.get(one.key) for one in subscribers}
    undone = [one.undone_token for one in subscribers if alone[one.id] is None]
    first = min((token for token in undone if token is not None), default=None)
    for one in subscribers:
        again, lags, upto = one.undone_token, alone[one.id], one.sent_upto
        if lags is None:
            again = None if first is None else Token(first.era, first.seq)
        elif again is None:
            again = lags.position
        if upto is not None:
            is_unread = newest is None or newest < Token(upto.era, upto.seq)
            if is_unread or (again is not None and upto >= again):
                yield SentAt(*one.stream, one.id, upto)
