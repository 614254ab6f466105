"""The limit of streams: framed batches over one connection, each acknowledged by the consumer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgpack

from benchmarks.feed import Arrivals, Run, Sample, measure_feed, produce
from benchmarks.frames import Framed

__all__ = ["producer", "streams"]


class Putter(Framed):
    """Writes a frame at once."""

    def put(self, frame: bytes) -> None:
        self.transport.write(len(frame).to_bytes(4, "little") + frame)


class Receiver(Putter):
    """Decodes each batch and each event of it, and acknowledges the batch."""

    arrivals: Arrivals

    def take(self, frame: bytes) -> None:
        batch = [Sample(*msgpack.unpackb(body)) for body in msgpack.unpackb(frame)]
        Receiver.arrivals.note(batch)
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


class SocketConsumer:
    """One connection for all keys."""

    pids = (os.getpid(),)

    def __init__(self, port: int) -> None:
        self.address = str(port)

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        Receiver.arrivals = arrivals


async def streams(work: Path) -> dict[str, float]:
    """Listen in this process."""
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    async with server:
        return await measure_feed(
            "limit_streams", SocketConsumer(server.sockets[0].getsockname()[1])
        )


async def producer(address: str) -> None:
    """Connect and send."""
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_connection(Sender, "127.0.0.1", int(address))
    await produce(sender.send)
