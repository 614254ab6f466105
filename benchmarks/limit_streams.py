"""The limit of streams: framed batches over one connection, each acknowledged by the consumer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgpack

from benchmarks.feed import RUNS, WIDE_RUNS, Arrivals, Run, Sample, measure_feed, produce
from benchmarks.frames import Framed

__all__ = ["producer", "streams", "wide"]


class Putter(Framed):
    """Writes a frame at once."""

    def put(self, frame: bytes) -> None:
        self.transport.write(len(frame).to_bytes(4, "little") + frame)


class Receiver(Putter):
    """Decodes each batch and each of its events for each subscriber, and acknowledges the batch."""

    arrivals: Arrivals
    subscribers = 1

    def take(self, frame: bytes) -> None:
        for number in range(Receiver.subscribers):
            batch = [Sample(*msgpack.unpackb(body)) for body in msgpack.unpackb(frame)]
            Receiver.arrivals.note(batch, number)
        self.put(b"\xc0")


class Sender(Putter):
    """Sends a batch and waits for its acknowledgement."""

    answered: asyncio.Future[None]

    def take(self, frame: bytes) -> None:
        self.answered.set_result(None)

    async def send(self, key: str, samples: list[Sample]) -> None:
        self.answered = asyncio.get_running_loop().create_future()
        self.put(msgpack.packb([msgpack.packb(sample) for sample in samples]))
        await self.answered

    async def send_each(self, key: str, keys: list[str], samples: list[Sample]) -> None:
        await self.send(key, samples)


class SocketConsumer:
    """One connection for all keys."""

    pids = (os.getpid(),)

    def __init__(self, port: int) -> None:
        self.address = str(port)

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        Receiver.arrivals, Receiver.subscribers = arrivals, run.subscribers


async def streams(work: Path) -> dict[str, float]:
    """One subscriber and one stream at a time."""
    return await _measure(RUNS)


async def wide(work: Path) -> dict[str, float]:
    """Many subscribers, or many streams, which a socket does not distinguish."""
    return await _measure(WIDE_RUNS)


async def _measure(runs: Sequence[Run]) -> dict[str, float]:
    """Listen in this process."""
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    async with server:
        return await measure_feed(
            "limit_streams", SocketConsumer(server.sockets[0].getsockname()[1]), runs
        )


async def producer(address: str) -> None:
    """Connect and send."""
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_connection(Sender, "127.0.0.1", int(address))
    await produce(sender.send, sender.send_each)
