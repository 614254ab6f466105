"""The progress of a query in the queues, and the size of its next batch, as pure functions.

An offset has, for each known queue, the position of the first message that was not read. Spark
stores it with the source of the positions: in another cluster, or in a cluster that was built again
under the same name, the same numbers belong to other messages. Invariants:

- A position moves back only where messages are lost.
- The same offsets give the same ranges, and offsets of two sources give none.
- A queue enters an offset at its first message, before any of its messages is read, so that a
  repeated plan begins at the same place.
- A queue stays in the offset while it has messages, even when it is no longer in use, because a
  change of the number of queues may bring it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millstream.streams import QueueId, Token
from millstream.streams.rewinding.outside import Range
from millstream.streams.rewinding.target import Extent

__all__ = [
    "Loss",
    "Offset",
    "ReadSource",
    "StoredOffset",
    "advance",
    "behind",
    "ends",
    "firsts",
    "losses",
    "make_stored",
    "parse",
    "ranges",
    "restore",
    "texts",
]

Offset = Mapping[QueueId, Token]


class ReadSource(NamedTuple):
    """The source of positions; `incarnation` changes when a provider is built again."""

    cluster: str
    provider: str
    namespace: str
    incarnation: str

    def __str__(self) -> str:
        return (
            f"cluster {self.cluster!r}, provider {self.provider!r}, namespace {self.namespace!r}, "
            f"incarnation {self.incarnation}"
        )


class StoredOffset(NamedTuple):
    """An offset with its source."""

    source: ReadSource
    positions: dict[QueueId, Token]


class Loss(NamedTuple):
    """A queue that no longer has a message at a position.

    `first` is the present beginning of the queue. `end` is the position after its last message, if
    that is before `position`. None: messages from `position` on were dropped.
    """

    queue: QueueId
    position: Token
    first: Token
    end: Token | None


def make_stored(source: ReadSource, offset: Offset) -> dict[str, Any]:
    """Return an offset for Spark, which compares texts; equal offsets give equal texts."""
    return {**source._asdict(), "queues": texts(offset)}


def restore(given: Mapping[str, Any]) -> StoredOffset:
    """Return an offset that Spark stored. Raises ValueError that names the fault."""
    names, queues = ReadSource._fields, given.get("queues")
    values = [given.get(name) for name in names]
    if not isinstance(queues, Mapping) or not all(isinstance(one, str) for one in values):
        raise ValueError(
            f"an offset has {', '.join(names)} and queues, but this one has "
            f"{', '.join(map(str, given)) or 'nothing'}: another version of Millstream, or another "
            "program, wrote the checkpoint. Give the query a new checkpoint"
        )
    return StoredOffset(ReadSource(*map(str, values)), parse(queues))


def parse(given: Mapping[str, object]) -> dict[QueueId, Token]:
    """Return positions by queue. Raises ValueError that names the queue."""
    found: dict[QueueId, Token] = {}
    for queue, text in given.items():
        try:
            found[queue] = Token.parse(str(text))
        except ValueError as error:
            raise ValueError(f"queue {queue!r}: {error}") from None
    return found


def texts(offset: Offset) -> dict[str, str]:
    """Return positions by queue, as text."""
    return {queue: str(token) for queue, token in sorted(offset.items())}


def firsts(extents: Sequence[Extent]) -> dict[QueueId, Token]:
    """Return the positions of the first stored messages."""
    return {one.queue: one.first for one in extents if one.first is not None}


def ends(extents: Sequence[Extent]) -> dict[QueueId, Token]:
    """Return the positions after the last messages."""
    return {one.queue: one.end for one in extents if one.end is not None}


def behind(start: Token, end: Token) -> int:
    """Return the number of messages between positions, by their numbers; eras may skip some."""
    if end <= start:
        return 0
    return end.seq - start.seq if end.era == start.era else max(end.seq, 1)


def advance(
    start: Offset, extents: Sequence[Extent], most: int, target: Offset | None = None
) -> dict[QueueId, Token]:
    """Return the end of the next batch.

    Args:
        most: The messages of all queues together. A share below one counts as one.
        target: The furthest end.
    """
    limits = ends(extents) if target is None else target
    ahead = {
        queue: behind(position, limits.get(queue, position)) for queue, position in start.items()
    }
    total = sum(ahead.values())
    found: dict[QueueId, Token] = {}
    for queue, position in start.items():
        found[queue] = _move(position, limits.get(queue, position), ahead[queue], total, most)
    for one in extents:
        if one.queue not in start and one.first is not None:
            if target is None or one.queue in target:
                found[one.queue] = one.first
    for one in extents:
        if one.queue in start and not one.is_open and one.last is None:
            del found[one.queue]
    return found


def _move(position: Token, end: Token, ahead: int, total: int, most: int) -> Token:
    if not ahead:
        return max(position, end)
    if position.era != end.era:
        return end
    share = max(1, ahead * most // total)
    return min(end, Token(position.era, position.seq + share))


def ranges(start: Offset, end: Offset, split_messages: int) -> list[Range]:
    """Return the ranges of a batch, each of up to `split_messages`, in order for each queue."""
    found: list[Range] = []
    for queue, stop in sorted(end.items()):
        position = start.get(queue, stop)
        while position < stop:
            following = stop
            if position.era == stop.era:
                following = min(stop, Token(position.era, position.seq + split_messages))
            found.append(Range(queue, position, following))
            position = following
    return found


def losses(start: Offset, extents: Sequence[Extent]) -> list[Loss]:
    """Return the queues whose messages from the start on were dropped, or which end before it."""
    found: list[Loss] = []
    for one in extents:
        position = start.get(one.queue)
        if position is None or one.first is None or one.end is None:
            continue
        if position < one.first:
            found.append(Loss(one.queue, position, one.first, None))
        elif position > one.end:
            found.append(Loss(one.queue, position, one.first, one.end))
    return found
