"""The memory that one side makes the other side use.

Each function has one or two rows: `async (work, size) -> figures`. `tracemalloc` counts the bytes
of this process. The bytes of another process are its resident memory above that at the start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Address, Env, Grain, RuntimeOptions, Silo, connect
from millstream.runtime.wire.framing import frame
from millstream.runtime.wire.handshake import Identity, hello_of
from millstream.runtime.wire.message import encode_messages
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

from .programs import Target, silo_process
from .watch import held_bytes, settled, sized

__all__ = [
    "error_text",
    "frozen_peer",
    "handled_events",
    "never_greets",
    "never_reads",
    "partial_frames",
]

BLOBS = StreamNamespace("bounds", bytes)
Figures = dict[str, float]


class Sink(Grain):
    """Counts arriving events."""

    count = 0

    @subscribe(BLOBS)
    async def on_blob(self, event: Event[bytes]) -> None:
        Sink.count += 1


async def never_reads(work: Path, size: float) -> Figures:
    """A client requests 100 answers of 4 MB, and freezes."""
    async with silo_process(work) as process:
        before = await settled(process.pid)
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks",
            "--freeze",
            process.gateway,
            str(sized(100, size)),
            str(sized(4_000_000, size)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert client.stdout is not None and await client.stdout.readline() == b"frozen\n"
            await asyncio.sleep(1)
            return {"never_reads_bytes": await settled(process.pid) - before}
        finally:
            client.kill()
            await client.wait()


async def frozen_peer(work: Path, size: float) -> Figures:
    """1,000 calls of one 100 KB object to a frozen process, and the state after cancelling them."""
    data = b"x" * 100_000
    async with silo_process(work) as process, connect(process.gateway) as client:
        targets = [client.grain(Target, str(number)) for number in range(sized(1_000, size))]
        await asyncio.gather(*(target.plain(1) for target in targets))
        os.kill(process.pid, signal.SIGSTOP)
        tracemalloc.start()
        before = held_bytes()
        calls = [asyncio.ensure_future(target.take(data)) for target in targets]
        await asyncio.sleep(2)
        held = held_bytes() - before
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        calls.clear()
        await asyncio.sleep(1)
        cancelled = held_bytes() - before
        tracemalloc.stop()
    return {"frozen_peer_bytes": held, "frozen_peer_cancelled_bytes": cancelled}


async def never_greets(work: Path, size: float) -> Figures:
    """16 connections send 50 MB of one frame each, without a handshake."""
    data = _partial(sized(50_000_000, size))
    async with silo_process(work) as process:
        before = await settled(process.pid)
        address = Address.parse(process.gateway)
        sockets = [socket.create_connection(address) for _ in range(16)]
        try:
            await asyncio.gather(*(_flood(one, data) for one in sockets))
            return {"never_greets_bytes": await settled(process.pid) - before}
        finally:
            for one in sockets:
                one.close()


async def partial_frames(work: Path, size: float) -> Figures:
    """64 clients complete the handshake, and send 50 MB of a frame of 60 MB each, and no more."""
    data = _partial(sized(50_000_000, size))
    async with silo_process(work) as process:
        before = await settled(process.pid)
        address = Address.parse(process.gateway)
        sockets = [socket.create_connection(address) for _ in range(64)]
        try:
            for number, one in enumerate(sockets):
                identity = Identity("dev", f"client-{number}", False)
                hello = hello_of(identity, RuntimeOptions(), Env())
                one.sendall(frame(encode_messages([hello])))
            await asyncio.gather(*(_flood(one, data) for one in sockets))
            return {"partial_frames_bytes": await settled(process.pid) - before}
        finally:
            for one in sockets:
                one.close()


def _partial(count: int) -> bytes:
    """Return the start of a large frame."""
    return (60_000_000).to_bytes(4, "little") + bytes(count)


async def _flood(one: socket.socket, data: bytes) -> None:
    """Send data; the other side may close the connection or stop reading."""
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            await loop.sock_sendall(one, data)


async def handled_events(work: Path, size: float) -> Figures:
    """900 events of 1 MB through a memory queue, each handled before the next."""
    count, data = sized(900, size), bytes(1_000_000)
    provider = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer(rebalance_delay_s=0.1))
    async with Silo(grains=[Sink], streams={"default": provider}) as silo:
        stream: Any = silo.stream(BLOBS, "k")
        await stream.publish(b"warm")
        async with asyncio.timeout(30):
            while not Sink.count:
                await asyncio.sleep(0.01)
        tracemalloc.start()
        before = held_bytes()
        for number in range(count):
            await stream.publish(data)
            async with asyncio.timeout(30):
                while Sink.count < number + 2:
                    await asyncio.sleep(0)
        await asyncio.sleep(3)
        held = held_bytes() - before
        tracemalloc.stop()
    return {"handled_events_bytes": held}


async def error_text(work: Path, size: float) -> Figures:
    """The number of letters of an exception's message of 5 MB that reach the caller."""
    async with Silo(grains=[Target]) as silo, connect(silo.gateway) as client:
        try:
            await client.grain(Target, "a").fail(sized(5_000_000, size))
        except Exception as error:
            return {"error_text_bytes": len(str(error))}
    raise AssertionError("fail() must fail")
