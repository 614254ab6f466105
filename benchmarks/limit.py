"""The limits: plain asyncio, written by hand for this purpose only."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgpack

from benchmarks.frames import Framed
from benchmarks.measure import in_process, two_processes

__all__ = ["calls", "remote", "serve"]


class Plain:
    """A counter with a lock."""

    __slots__ = ("lock", "n")

    def __init__(self) -> None:
        self.n = 0
        self.lock = asyncio.Lock()

    async def add(self, by: int) -> int:
        async with self.lock:
            self.n += by
            return self.n

    async def give(self, value: Any) -> Any:
        async with self.lock:
            return value

    async def suspend(self, by: int) -> int:
        async with self.lock:
            await asyncio.sleep(0)
            return by


async def calls(work: Path) -> dict[str, float]:
    """Lock and await."""
    many = [Plain() for _ in range(10_000)]
    first = many[0]
    return await in_process(
        [one.add for one in many], first.give, first.give, first.suspend, first.suspend
    )


class Caller(Framed):
    """MessagePack in frames; messages of one iteration are sent together."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[bytes] = []
        self.loop = asyncio.get_running_loop()
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.sent = 0

    def push(self, message: Any) -> None:
        if not self.out:
            self.loop.call_soon(self.flush)
        packed = msgpack.packb(message)
        self.out += (len(packed).to_bytes(4, "little"), packed)

    def flush(self) -> None:
        out, self.out = self.out, []
        self.transport.write(b"".join(out))

    def take(self, frame: bytes) -> None:
        message = msgpack.unpackb(frame)
        self.waiting.pop(message[0]).set_result(message[2])

    async def echo(self, value: Any) -> Any:
        self.sent += 1
        future = self.waiting[self.sent] = self.loop.create_future()
        self.push([self.sent, 1, "Echo", "customer-000042", "echo", [value]])
        return await future


class Server(Caller):
    """Answers each frame with its argument."""

    def take(self, frame: bytes) -> None:
        message = msgpack.unpackb(frame)
        self.push([message[0], 0, message[5][0]])


async def serve() -> None:
    """Listen on a free port, print it, and run until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def remote(work: Path) -> dict[str, float]:
    """A hand-written framed RPC."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks", "--serve", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Caller, "127.0.0.1", port)
    try:
        return await two_processes([client.echo], [os.getpid(), process.pid])
    finally:
        process.kill()
        await process.wait()
