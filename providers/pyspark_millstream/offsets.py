"""Where a query is in the queues, and how far its next batch goes. Pure.

An offset is, for each queue that is known, the position of the first message that was not read.
Spark stores it as {queue: token}. Invariants: a position never goes back; the same offsets give the
same ranges; a queue enters an offset at its first message, before anything of it is read, so that
what Spark plans again begins at the same place; one that is no longer in use stays until all of it
is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.streams import QueueId, Token
from millstream.streams.rewinding.outside import Range
from millstream.streams.rewinding.target import Extent

__all__ = ["Offset", "advance", "behind", "ends", "firsts", "losses", "parsed", "ranges", "texts"]

Offset = Mapping[QueueId, Token]


def parsed(given: Mapping[str, object]) -> dict[QueueId, Token]:
    """An offset as Spark stores it. Raises ValueError naming the queue."""
    found: dict[QueueId, Token] = {}
    for queue, text in given.items():
        try:
            found[queue] = Token.parse(str(text))
        except ValueError as error:
            raise ValueError(f"queue {queue!r}: {error}") from None
    return found


def texts(offset: Offset) -> dict[str, str]:
    """An offset for Spark."""
    return {queue: str(token) for queue, token in sorted(offset.items())}


def after(token: Token) -> Token:
    """The position behind a message."""
    return Token(token.era, token.seq + 1)


def firsts(extents: Sequence[Extent]) -> dict[QueueId, Token]:
    """The positions of the first messages that are kept."""
    return {one.queue: one.first for one in extents if one.first is not None}


def ends(extents: Sequence[Extent]) -> dict[QueueId, Token]:
    """The positions behind the last messages."""
    return {one.queue: after(one.last) for one in extents if one.last is not None}


def behind(start: Token, end: Token) -> int:
    """How many messages lie between, as far as numbers tell: eras may leave some out."""
    if end <= start:
        return 0
    return end.seq - start.seq if end.era == start.era else max(end.seq, 1)


def advance(
    start: Offset, extents: Sequence[Extent], most: int, target: Offset | None = None
) -> dict[QueueId, Token]:
    """How far the next batch goes.

    Args:
        most: messages in all; what is less than one for a queue counts as one.
        target: go no further than that.
    """
    limits = ends(extents) if target is None else target
    ahead = {
        queue: behind(position, limits.get(queue, position)) for queue, position in start.items()
    }
    total = sum(ahead.values())
    found: dict[QueueId, Token] = {}
    for queue, position in start.items():
        found[queue] = _moved(position, limits.get(queue, position), ahead[queue], total, most)
    for one in extents:
        if one.queue not in start and one.first is not None:
            if target is None or one.queue in target:
                found[one.queue] = one.first
    for one in extents:
        if one.queue in start and _is_over(start[one.queue], one):
            del found[one.queue]
    return found


def _moved(position: Token, end: Token, ahead: int, total: int, most: int) -> Token:
    if total <= most or not ahead:
        return max(position, end)
    share = max(1, ahead * most // total)
    if share >= ahead or position.era != end.era:
        return end
    return Token(position.era, position.seq + share)


def _is_over(position: Token, extent: Extent) -> bool:
    """Is a queue no longer in use, and read to its end?"""
    return not extent.is_open and (extent.last is None or position > extent.last)


def ranges(start: Offset, end: Offset, split_messages: int) -> list[Range]:
    """What a batch reads, in parts of so many messages; those of a queue in their order."""
    found: list[Range] = []
    for queue, stop in sorted(end.items()):
        position = start.get(queue, stop)
        while position.era == stop.era and behind(position, stop) > split_messages:
            following = Token(position.era, position.seq + split_messages)
            found.append(Range(queue, position, following))
            position = following
        if position < stop:
            found.append(Range(queue, position, stop))
    return found


def losses(start: Offset, extents: Sequence[Extent]) -> dict[QueueId, Token]:
    """Queues in which messages from the start on are gone, and the first that is kept of each."""
    kept = firsts(extents)
    return {
        queue: kept[queue]
        for queue, position in start.items()
        if queue in kept and position < kept[queue]
    }
