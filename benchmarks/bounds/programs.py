"""Grains, silo processes and bad clients for the rows of `bounds`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import (
    Address,
    Grain,
    Link,
    RuntimeOptions,
    Silo,
    TcpTransport,
    always_interleave,
    connect,
    grain,
    one_way,
    read_only,
)
from millstream.runtime.run import SiloProcess
from millstream.streams import Event, StreamNamespace

__all__ = [
    "LINES",
    "Crowd",
    "Gate",
    "Hearer",
    "Idle",
    "Reentrant",
    "Tap",
    "Target",
    "frozen_client",
    "idle_silo",
    "silo_process",
    "target_silo",
]

LINES = StreamNamespace("lines", int, subscriptions="explicit")


@grain(name="BoundsTarget")
class Target(Grain):
    """One method of each kind."""

    noted = 0

    async def plain(self, value: int) -> int:
        return value

    @read_only
    async def look(self, value: int) -> int:
        return value

    @one_way
    async def note(self, text: str) -> None:
        Target.noted += 1

    async def take(self, data: bytes) -> int:
        return len(data)

    async def give(self, size: int) -> bytes:
        return os.urandom(size)

    async def fail(self, size: int) -> None:
        raise ValueError("x" * size)


@grain(name="BoundsReentrant", reentrant=True)
class Reentrant(Grain):
    """The same with reentrancy."""

    async def plain(self, value: int) -> int:
        return value


@grain(name="BoundsGate")
class Gate(Grain):
    """Lets callers wait until it is opened."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    async def wait(self) -> None:
        await self.is_open.wait()

    @always_interleave
    async def peek(self) -> int:
        return 1

    @always_interleave
    async def open(self) -> None:
        self.is_open.set()


@grain(name="BoundsCrowd")
class Crowd(Grain):
    """Makes calls that wait; their deadline is the rest of its own."""

    async def call(self, count: int) -> None:
        gate = self.grain(Gate, self.key)
        await asyncio.gather(*(gate.wait() for _ in range(count)))


@grain(name="BoundsHearer")
class Hearer(Grain):
    """One of very many subscribers of one stream."""

    heard: ClassVar[int] = 0

    async def listen(self) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line)

    async def _on_line(self, event: Event[int]) -> None:
        Hearer.heard += 1


@grain(name="BoundsIdle")
class Idle(Grain):
    """Counts its instances."""

    alive = 0

    def __init__(self) -> None:
        Idle.alive += 1

    def __del__(self) -> None:
        Idle.alive -= 1

    async def ping(self) -> int:
        return 1


def target_silo() -> Silo:
    """Return the silo of another process."""
    return Silo(grains=[Target], options=RuntimeOptions(greet_timeout_s=30.0))


def idle_silo(work: str) -> Silo:
    """Return a member of a cluster whose table is in a folder."""
    return Silo(grains=[Idle], membership=SqliteMembershipTable(work))


class Tap(TcpTransport):
    """Keeps the links that it opens, to send bytes that no client would send."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []

    async def connect(self, address: Address, /) -> Link:
        link = await super().connect(address)
        self.links.append(link)
        return link


@asynccontextmanager
async def silo_process(work: Path) -> AsyncIterator[SiloProcess]:
    """A silo with `Target` in another process; resumed and stopped at the end."""
    process = SiloProcess(f"{__name__}:target_silo", {}, work / "silo.log")
    await process.start()
    try:
        yield process
    finally:
        if process.is_running:
            os.kill(process.pid, signal.SIGCONT)
        await process.stop()


async def frozen_client(gateway: str, calls: int, answer_bytes: int) -> None:
    """Request large answers, then freeze until another process kills this one."""
    async with connect(gateway) as client:
        target = client.grain(Target, "large")
        await target.plain(1)
        asking = [asyncio.ensure_future(target.give(answer_bytes)) for _ in range(calls)]
        for _ in range(3):
            await asyncio.sleep(0)  # the calls enter the batch, and the batch is written
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.gather(*asking)
