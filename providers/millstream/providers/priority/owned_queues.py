"""The priority queues that one silo owns, and their metrics.

Owns `OwnedQueues`: the owners' queues by name, and the descriptions of the metrics. The messages
are counted now and then, because only the store's own look is certain to be consistent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from millstream.runtime import MillstreamError
from millstream.runtime.extending import Metric, Sample

from .core.commands import Depth
from .core.message import State
from .store.contract import OwnedQueue

__all__ = ["PRIORITY_METRICS", "OwnedQueues"]

log = logging.getLogger("millstream.priority")

LOOK_EVERY_S = 5.0
"""The time between two looks at the queues of a silo, in seconds."""
LOOKED_AT_MAX = 1_000
"""Queues that one look counts."""

OWNED = Metric(
    name="millstream_priority_queues",
    type="gauge",
    help="Priority queues that this silo owns now.",
    labels=("part",),
)
MESSAGES = Metric(
    name="millstream_priority_queue_messages",
    type="gauge",
    help="Messages of a queue that this silo owns, by state, at the last look.",
    labels=("part", "queue", "state"),
)
CHANGES_LAG = Metric(
    name="millstream_priority_changes_lag_seconds",
    type="gauge",
    unit="seconds",
    help="Time for which the oldest change has waited for its relay, at the last look.",
    labels=("part",),
)

PRIORITY_METRICS = (OWNED, MESSAGES, CHANGES_LAG)


class OwnedQueues:
    """The priority queues of one part that its silo owns.

    Args:
        lag_s: Returns the lag of the relay. None: nobody relays changes.
    """

    def __init__(self, part: str, lag_s: Callable[[], Awaitable[float]] | None) -> None:
        self._part = part
        self._lag_s = lag_s
        self._owned: dict[str, OwnedQueue] = {}
        self._depths: dict[str, dict[State, int]] = {}
        self._lag: float | None = None

    def add(self, queue: str, owned: OwnedQueue) -> None:
        """Record that this silo has opened a queue."""
        self._owned[queue] = owned

    def remove(self, queue: str, owned: OwnedQueue) -> None:
        """Record that this silo no longer has the queue."""
        if self._owned.get(queue) is owned:
            del self._owned[queue]
            self._depths.pop(queue, None)

    async def look_while_running(self) -> None:
        """Look again and again; never ends by itself."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Count the messages once. A queue that does not answer keeps its counts."""
        for queue, owned in list(self._owned.items())[:LOOKED_AT_MAX]:
            try:
                depths = await owned.look(Depth())
            except MillstreamError as error:
                log.debug("queue %r: its messages were not counted: %s", queue, error)
                continue
            if self._owned.get(queue) is owned:
                self._depths[queue] = depths
        if self._lag_s is not None:
            try:
                self._lag = await self._lag_s()
            except MillstreamError as error:
                log.debug("part %r: the lag of changes is not known: %s", self._part, error)

    def read(self) -> Iterator[Sample]:
        """Yield the samples of the last look, the longest queues first."""
        yield Sample(OWNED, (self._part,), len(self._owned))
        if self._lag is not None:
            yield Sample(CHANGES_LAG, (self._part,), self._lag)
        longest = sorted(self._depths.items(), key=lambda item: -sum(item[1].values()))
        for queue, depths in longest:
            for state, number in depths.items():
                yield Sample(MESSAGES, (self._part, queue, state.name.lower()), number)
