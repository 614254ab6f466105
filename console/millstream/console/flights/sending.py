"""A producer that sends again: each of its calls is stored once, whichever gateway dies.

Owns: `Sender`. Invariant: one call is out at a time, and has the same sequences each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from millstream.runtime import CallError, Client, ClusterError
from millstream.runtime.extending import ask_gateway
from millstream.streams import StreamError
from millstream.streams.publishing.ingest import IngestMessage, IngestTarget

__all__ = ["Sender"]

TRIES_MAX = 120
RETRY_S = 0.25

log = logging.getLogger("millstream.flights")


class Sender:
    """Sends what one producer publishes into a namespace."""

    def __init__(self, client: Client, namespace: str, producer: str, provider: str = "default"):
        self._client = client
        self._namespace = namespace
        self._producer = producer
        self._target = f"{IngestTarget.target_name}/{provider}"
        self._stored = 0

    async def send(self, messages: Sequence[IngestMessage]) -> None:
        """Returns once they are stored. Raises the last error after many tries."""
        await self._try_often(list(messages))
        self._stored = messages[-1].seq

    async def _try_often(self, messages: list[IngestMessage]) -> None:
        for attempt in range(1, TRIES_MAX):
            try:
                return await self._try(messages, is_again=attempt > 1)
            except (ClusterError, StreamError, CallError) as error:
                log.info("%s sends %d again: %s", self._producer, messages[0].seq, error)
                await asyncio.sleep(RETRY_S)
        await self._try(messages, is_again=True)

    async def _try(self, messages: list[IngestMessage], is_again: bool) -> None:
        client, target, producer = self._client, self._target, self._producer
        into = self._namespace
        if is_again:  # perhaps by another gateway, which knows of a failure that is over
            resume = IngestTarget.resume
            await ask_gateway(client, producer, target, resume, into, producer, self._stored)
        publish = IngestTarget.publish
        await ask_gateway(client, producer, target, publish, into, producer, messages)
