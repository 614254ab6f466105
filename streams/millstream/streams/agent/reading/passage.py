"""Events of streams that came from another queue, whose number was changed.

Owns: `Crossing`: may they be delivered yet? Not: what is kept of them meanwhile (`subscribers`),
when a former queue is done (`ownership.layout`).
"""

from __future__ import annotations

import math
from typing import Protocol

from millstream.streams.contracts.identity import QueueId, StreamId

__all__ = ["Crossing", "Passage"]


class Passage(Protocol):
    """May events of a stream that came from another queue be delivered here?"""

    @property
    def era(self) -> int:
        """Messages of later eras may be of streams that have come; ask `opened`."""
        ...

    @property
    def is_settled(self) -> bool:
        """Nothing has come whose former queue is not done."""
        ...

    def is_open(self, stream: StreamId, queue: QueueId, era: int, /) -> bool: ...
    async def opened(self, stream: StreamId, queue: QueueId, era: int, /) -> None: ...


class Moved(Protocol):
    """A stream, of which events may have come too early."""

    moved_era: int  # of these; -1: none have


class Crossing:
    """What comes to one queue.

    Attributes: `era`: of the newest message that was looked at.
    """

    def __init__(self, queue: QueueId, passage: Passage | None) -> None:
        self._queue = queue
        self._passage = passage
        self.era: float = math.inf if passage is None else -1

    def is_early(self, stream: StreamId, era: int) -> bool:
        """May events of that era come before those in the stream's former queue?"""
        passage = self._passage
        if passage is None or (passage.is_settled and era <= passage.era):
            return False
        return not passage.is_open(stream, self._queue, era)

    async def opened(self, stream: StreamId, moved: Moved) -> None:
        """Return when the stream's former queue is done."""
        while moved.moved_era >= 0 and self._passage is not None:
            era = moved.moved_era
            await self._passage.opened(stream, self._queue, era)
            if moved.moved_era == era:
                moved.moved_era = -1
