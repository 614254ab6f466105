"""Checks the answers of a mapper that comes from outside Millstream.

The mappers of this package (`mapper`, `function_mapper`) check their own answers. Invariant: a
stream gets an existing queue, or a StreamError that names mapper, stream and answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.runtime import StreamError
from millstream.runtime.extending import show_text
from millstream.streams.contracts.answers import text_of
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper

from .function_mapper import FunctionMapper
from .mapper import HashRingMapper

__all__ = ["sound"]

OURS = frozenset({HashRingMapper, FunctionMapper})  # these mappers check their own answers


def sound(mapper: QueueMapper) -> QueueMapper:
    """Return a mapper whose `queue_for` names existing queues, and raises only StreamError."""
    return mapper if type(mapper) in OURS else CheckedMapper(mapper)


class CheckedMapper:
    """Checks the answers of another mapper."""

    __slots__ = ("_known", "_mapper", "_queues")

    def __init__(self, mapper: QueueMapper) -> None:
        self._mapper = mapper
        self._queues = tuple(mapper.queues())
        self._known = frozenset(self._queues)

    @property
    def epoch(self) -> int:
        return self._mapper.epoch

    def queues(self) -> Sequence[QueueId]:
        return self._queues

    def queue_for(self, stream: StreamId, /) -> QueueId:
        try:
            queue = self._mapper.queue_for(stream)
            is_known = queue in self._known
        except (Exception, asyncio.CancelledError) as error:
            why = f"raised {type(error).__name__}: {show_text(text_of(error))}"
            raise self._make_refusal(stream, why) from error
        if is_known:
            return queue
        why = (
            f"returned {show_text(repr(queue))}, which is not one of its {len(self._queues)} queues"
        )
        raise self._make_refusal(stream, why)

    def _make_refusal(self, stream: StreamId, why: str) -> StreamError:
        name = type(self._mapper).__name__
        return StreamError(
            f"{show_text(str(stream))}: the stream has no queue: the mapper {name} {why}"
        )
