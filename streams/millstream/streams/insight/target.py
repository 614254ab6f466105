"""Calls of silos and clients that ask what delays a stream.

Owns: the target `$why/<provider>`. Not: the reports (`provider/stream_reports`).
"""

from __future__ import annotations

from typing import Protocol

from millstream.runtime.extending import Role, SystemTarget, open_to
from millstream.streams.contracts.identity import QueueId, StreamId

from .report import LaggingStream, StreamReport
from .verdict import Why

__all__ = ["Reports", "WhyTarget"]


class Reports(Protocol):
    """The knowledge of one silo about a provider's streams."""

    async def why(self, stream: StreamId, /) -> Why:
        """The reason why a stream is delayed, in whichever silo reads the stream's queue."""
        ...

    async def look(self, queue: QueueId, stream: StreamId, /) -> StreamReport:
        """Return the report on one stream by the agent that reads its queue in this silo."""
        ...

    async def lagging(self, namespace: str, limit: int, /) -> list[LaggingStream]:
        """Return the `limit` streams of a namespace with the largest lag, in all silos."""
        ...

    async def lagging_here(self, namespace: str, limit: int, /) -> list[LaggingStream]:
        """Return the `limit` streams with the largest lag, of the queues that this silo reads."""
        ...


class WhyTarget(SystemTarget):
    """Says what delays the streams of one provider; any of its silos answers."""

    target_name = "$why"

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    @open_to(Role.OPERATOR)
    async def why(self, stream: StreamId) -> Why:
        """The reason why a stream is delayed; takes half a second."""
        return await self._reports.why(stream)

    async def look(self, queue: str, stream: StreamId) -> StreamReport:
        """Return the report on one stream by the agent that reads its queue in this silo."""
        return await self._reports.look(queue, stream)

    @open_to(Role.OPERATOR)
    async def lagging(self, namespace: str, limit: int) -> list[LaggingStream]:
        """Return the `limit` streams of a namespace with the largest lag, of silos that answer."""
        return await self._reports.lagging(namespace, limit)

    async def lagging_here(self, namespace: str, limit: int) -> list[LaggingStream]:
        """Return the `limit` streams with the largest lag, of the queues that this silo reads."""
        return await self._reports.lagging_here(namespace, limit)
