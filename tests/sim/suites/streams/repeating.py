"""Publishers that number their messages, and repeat a message until its storage is confirmed.

Owns: `Repeater` (in a silo, through the provider), `Writer` (from outside, like Spark).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millstream.runtime import MillstreamError, PublishUnknown
from millstream.runtime.testing import Host
from millstream.streams import OutMessage, ProducerMark, StreamId, StreamNamespace
from millstream.streams.extending import IngestMessage
from millstream.streams.publishing.ingest import IngestTarget, producer_of

from .traffic import Publisher, Traffic

__all__ = ["Repeater", "Writer"]

REPEAT_S = 0.2
WRITE_S = 0.4  # shorter than `enqueue_wait_s`
REPEATS_MAX = 30


class Repeater(Publisher):
    """Numbers its messages, and repeats a message until its storage is confirmed."""

    def __init__(self, run: Traffic, host: Host, name: str) -> None:
        super().__init__(run, host, name)
        self._seq = 0

    async def _send(
        self, runtime: Any, namespace: StreamNamespace[str], key: str, items: list[str]
    ) -> list[str]:
        self._seq += 1
        mark = self._mark(namespace.name)
        for attempt in range(REPEATS_MAX):
            tried = self.try_items(items, attempt)
            self._run.send_again(tried)
            try:
                await self._store(runtime, StreamId(namespace.name, key), tried, mark)
            except MillstreamError as error:
                if self._run.is_over:
                    raise
                self._on_failed(tried, error)
                await asyncio.sleep(REPEAT_S)
            else:
                return self.list_stored(mark, tried)
        return []

    def try_items(self, items: list[str], attempt: int) -> list[str]:
        """Return the items that this attempt sends."""
        return items

    def list_stored(self, mark: ProducerMark, tried: list[str]) -> list[str]:
        """Return the items that are stored under a sequence, after `tried` was accepted."""
        return tried

    def _mark(self, namespace: str) -> ProducerMark:
        return ProducerMark(self._name, self._seq)

    async def _store(
        self, runtime: Any, stream: StreamId, items: list[str], mark: ProducerMark
    ) -> None:
        provider = runtime.services.part("default")
        bodies = [msgspec.msgpack.encode(item) for item in items]
        (outcome,) = await provider.store([OutMessage(stream, bodies, mark=mark)])
        if isinstance(outcome, MillstreamError):
            raise outcome


class Writer(Repeater):
    """Writes numbered messages from outside. Its deadlines are shorter than the wait of a publish
    for a full queue."""

    def _mark(self, namespace: str) -> ProducerMark:
        return ProducerMark(producer_of(namespace, self._name), self._seq)

    async def _store(
        self, runtime: Any, stream: StreamId, items: list[str], mark: ProducerMark
    ) -> None:
        bodies = [msgspec.Raw(msgspec.msgpack.encode(item)) for item in items]
        messages = [IngestMessage(stream.key, mark.seq, bodies)]
        target, publish = f"{IngestTarget.target_name}/default", IngestTarget.publish
        call = (self._name, target, publish, stream.namespace, self._name, messages)
        try:
            async with asyncio.timeout(WRITE_S):
                await runtime.gateway.call(*call)
        except TimeoutError as error:
            raise PublishUnknown(str(error)) from None
