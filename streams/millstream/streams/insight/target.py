"""What silos and clients ask a silo about what holds a stream up.

Owns: the target `$why/<provider>`. Not: the reports (`provider/reporting`).
"""

from __future__ import annotations

from typing import Protocol

from millstream.runtime.extending import Role, SystemTarget, open_to
from millstream.streams.contracts.identity import QueueId, StreamId

from .report import LaggingStream, StreamReport
from .verdict import Why

__all__ = ["Reports", "WhyTarget"]


class Reports(Protocol):
    """What one silo can find out about a provider's streams."""

    async def why(self, stream: StreamId, /) -> Why:
        """What holds a stream up, wherever its queue is read."""
        ...

    async def look(self, queue: QueueId, stream: StreamId, /) -> StreamReport:
        """What this silo's agent of the queue knows."""
        ...

    async def lagging(self, namespace: str, limit: int, /) -> list[LaggingStream]:
        """The streams of a namespace that are furthest behind, wherever their queues are read."""
        ...

    async def lagging_here(self, namespace: str, limit: int, /) -> list[LaggingStream]:
        """Those of the queues that this silo reads."""
        ...


class WhyTarget(SystemTarget):
    """What holds the streams of one provider up, as any of its silos tells it."""

    target_name = "$why"

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    @open_to(Role.OPERATOR)
    async def why(self, stream: StreamId) -> Why:
        """What holds a stream up; takes half a second."""
        return await self._reports.why(stream)

    async def look(self, queue: str, stream: StreamId) -> StreamReport:
        """What this silo's agent of the queue knows."""
        return await self._reports.look(queue, stream)

    @open_to(Role.OPERATOR)
    async def lagging(self, namespace: str, limit: int) -> list[LaggingStream]:
        """The streams of a namespace that are furthest behind; of silos that answer."""
        return await self._reports.lagging(namespace, limit)

    async def lagging_here(self, namespace: str, limit: int) -> list[LaggingStream]:
        """Those of the queues that this silo reads."""
        return await self._reports.lagging_here(namespace, limit)
