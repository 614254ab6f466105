"""The parts of staged writes for one provider in one silo, and their life cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from millstream.runtime import StateStore, with_options
from millstream.runtime.extending import SiloServices
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.publishing.split import PublishLimits

from .desk import Enqueues, WriterDesk
from .finder import WAKE_S, Finder
from .rows import StagedRows
from .target import StagingTarget
from .writer import StagedWriter, writer_grain_of, writer_name

__all__ = ["Staging"]


class Staging:
    """The desks, the entry point and the finder of one provider.

    Args:
        refusal: the reason why this provider cannot stage anything; empty if it can.
    """

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        store: StateStore,
        into: Enqueues,
        queue_of: Callable[[StreamId], QueueId],
        limits: PublishLimits,
        staged_bytes_max: int,
        refusal: str,
    ) -> None:
        self._rows = StagedRows(store, provider)
        self._into = into
        self._staged_bytes_max = staged_bytes_max
        cls = writer_grain_of(provider)

        def writer(name: str) -> StagedWriter:
            return services.grain(cls, name)

        async def wake(name: str) -> None:
            await with_options(writer(name), timeout=WAKE_S).wake()

        self.target = StagingTarget(self._rows, writer, queue_of, limits, refusal)
        self._finder = Finder(services, self._rows, writer_name(provider), wake)

    def desk(self, writer: str, start: Callable[[Any], asyncio.Task[None]]) -> WriterDesk:
        """Make the desk of a writer, for its grain."""
        return WriterDesk(self._rows, writer, self._into, start, self._staged_bytes_max)

    def start(self) -> None:
        """Start the finder."""
        self._finder.start()

    async def stop(self) -> None:
        """Stop the finder."""
        await self._finder.stop()

    def abort(self) -> None:
        """Stop at once."""
        self._finder.abort()
