"""Events of streams that came from another queue, as the number of queues was changed.

Owns: `Crossing`: may they be delivered yet? Not: keeping them until then (`subscribers`), when a
former queue is done (`ownership.layout`).
"""

from __future__ import annotations

import math

from millstream.streams.agent.audience.stream_entry import StreamEntry
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.ownership.layout import Layout

__all__ = ["Crossing"]


class Crossing:
    """The streams that came to one queue.

    Args:
        layout: says when a former queue is done; None: the number of queues cannot change.

    Attributes:
        era: of the newest message that was looked at.
    """

    def __init__(self, queue: QueueId, layout: Layout | None) -> None:
        self._queue = queue
        self._layout = layout
        self.era: float = math.inf if layout is None else -1

    def is_early(self, stream: StreamId, era: int) -> bool:
        """May events of that era come before those in the stream's former queue?"""
        layout = self._layout
        if layout is None or (layout.is_settled and era <= layout.era):
            return False
        return not layout.is_open(stream, self._queue, era)

    async def opened(self, stream: StreamId, entry: StreamEntry) -> None:
        """Return when the stream's former queue is done."""
        while entry.moved_era >= 0 and self._layout is not None:
            era = entry.moved_era
            await self._layout.opened(stream, self._queue, era)
            if entry.moved_era == era:
                entry.moved_era = -1
