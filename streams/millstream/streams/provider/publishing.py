"""Publishing from a silo: messages go to the queue that carries their stream.

Owns: `Publishing`. Not: storing them (an adapter). Invariant: a publish returns when the adapter
has accepted the message, or has refused it for `enqueue_wait_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.runtime import QueueFull
from millstream.runtime.extending import Clock
from millstream.streams.api.split import PublishLimits, check_size, split_items
from millstream.streams.contracts.queue import OutMessage, QueueAdapter, QueueMapper
from millstream.streams.contracts.token import Token

__all__ = ["Publishing"]

FULL_RETRY_S = 0.02


class Publishing:
    """The publisher of one provider in one silo."""

    def __init__(
        self,
        adapter: QueueAdapter,
        mapper: QueueMapper,
        limits: PublishLimits,
        enqueue_wait_s: float,
        clock: Clock,
    ) -> None:
        self._adapter = adapter
        self._mapper = mapper
        self._limits = limits
        self._enqueue_wait_s = enqueue_wait_s
        self._clock = clock

    def split(self, bodies: Sequence[bytes]) -> list[Sequence[bytes]]:
        """Cut a list of items into messages."""
        return split_items(bodies, self._limits)

    async def enqueue(self, message: OutMessage, /) -> Token | None:
        """Store a message in the queue that carries its stream. Raises ValueError: too large."""
        check_size(message, self._limits)
        queue, epoch = self._mapper.queue_for(message.stream), self._mapper.epoch
        deadline_s = self._clock.now() + self._enqueue_wait_s
        while True:
            try:
                return await self._adapter.enqueue(queue, message, epoch)
            except QueueFull:
                if self._clock.now() >= deadline_s:
                    raise
                await asyncio.sleep(FULL_RETRY_S)
