"""The longest stops of the loop, and the cost of single operations next to many others.

Each function has one or two rows: `async (work, size) -> figures`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Client, RuntimeOptions, Silo, connect, with_options
from millstream.runtime.run import SiloProcess
from millstream.runtime.wire import Call, encode_messages, frame
from millstream.streams import PersistentStreams

from .programs import LINES, Crowd, Gate, Hearer, Idle, Reentrant, Tap, Target, silo_process
from .watch import LoopWatch, sized

__all__ = [
    "deadline_sweep",
    "idle_collection",
    "interleaving",
    "one_way_local",
    "one_way_remote",
    "options_per_header",
    "plain",
    "read_only",
    "recovery",
    "reentrant",
    "runner_tasks",
    "unknown_type",
    "wide_stream",
]

CALLS = 60_000
Figures = dict[str, float]


async def _repeat(call: Callable[[int], Awaitable[Any]], count: int) -> float:
    """Return the longest stop in ms while one program calls without a pause."""
    await call(0)
    async with LoopWatch() as watch:
        for number in range(count):
            await call(number)
    return watch.longest_ms


async def plain(work: Path, size: float) -> Figures:
    async with Silo(grains=[Target]) as silo:
        call = silo.grain(Target, "a").plain
        return {"plain_stop_ms": await _repeat(call, sized(CALLS, size))}


async def read_only(work: Path, size: float) -> Figures:
    async with Silo(grains=[Target]) as silo:
        return {
            "read_only_stop_ms": await _repeat(silo.grain(Target, "a").look, sized(CALLS, size))
        }


async def reentrant(work: Path, size: float) -> Figures:
    async with Silo(grains=[Reentrant]) as silo:
        call = silo.grain(Reentrant, "a").plain
        return {"reentrant_stop_ms": await _repeat(call, sized(CALLS, size))}


async def one_way_local(work: Path, size: float) -> Figures:
    """All calls must run: a caller that is too fast must wait, and must not lose calls."""
    count = sized(30_000, size)
    async with Silo(grains=[Target]) as silo:
        call = silo.grain(Target, "a").note
        Target.noted = -1  # the first call warms up
        longest = await _repeat(lambda _: call("x"), count)
        await _settle(lambda: Target.noted, count)
    return {"one_way_stop_ms": longest, "one_way_lost": count - Target.noted}


async def _settle(count: Callable[[], int], wanted: int) -> None:
    """Wait until all have arrived, or until none has arrived for a second."""
    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            last, at = count(), time.perf_counter()
            while last < wanted and time.perf_counter() - at < 1:
                await asyncio.sleep(0.02)
                if count() != last:
                    last, at = count(), time.perf_counter()


async def one_way_remote(work: Path, size: float) -> Figures:
    """200 MB in one-way calls to another process; counts the bytes that wait in this process."""
    import tracemalloc

    count, text = sized(20_000, size), "x" * 10_000
    async with silo_process(work) as process, connect(process.gateway) as client:
        target = client.grain(Target, "a")
        await target.plain(1)
        longest = await _repeat(lambda _: target.note(text), count)
        await target.plain(1)
        tracemalloc.start()
        for _ in range(count):
            await target.note(text)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        await target.plain(1)
    return {"one_way_remote_stop_ms": longest, "one_way_remote_bytes": peak}


async def interleaving(work: Path, size: float) -> Figures:
    """`@always_interleave` calls while 5,000 others wait for the same grain."""
    options = RuntimeOptions(call_timeout_s=300)
    async with Silo(grains=[Gate], options=options) as silo:
        gate = silo.grain(Gate, "a")
        waiting = [asyncio.ensure_future(gate.wait()) for _ in range(sized(5_000, size))]
        await asyncio.sleep(0.1)  # they are in the mailbox now
        await gate.peek()
        started = time.perf_counter()
        for _ in range(500):
            await gate.peek()
        took = time.perf_counter() - started
        await gate.open()
        await asyncio.gather(*waiting)
    return {"interleaving_us": took / 500 * 1e6}


async def idle_collection(work: Path, size: float) -> Figures:
    """50,000 grains become idle together."""
    options = RuntimeOptions(idle_after_s=1.0, collect_every_s=0.5)
    async with Silo(grains=[Idle], options=options) as silo:
        for number in range(sized(50_000, size)):
            await silo.grain(Idle, str(number)).ping()
        async with LoopWatch() as watch, asyncio.timeout(60):
            while Idle.alive:
                await asyncio.sleep(0.1)
    return {"idle_collection_stop_ms": watch.longest_ms}


async def recovery(work: Path, size: float) -> Figures:
    """A second silo joins and acquires its range of a directory of 50,000 grains."""
    silo = Silo(grains=[Idle], membership=SqliteMembershipTable(str(work)))
    factory = "benchmarks.bounds.programs:idle_silo"
    other = SiloProcess(factory, {"work": str(work)}, work / "silo.log")
    async with silo:
        for number in range(sized(50_000, size)):
            await silo.grain(Idle, str(number)).ping()
        try:
            async with LoopWatch() as watch:
                await other.start()
                await asyncio.sleep(1)
        finally:
            await other.stop()
    return {"recovery_stop_ms": watch.longest_ms}


async def runner_tasks(work: Path, size: float) -> Figures:
    """Tasks that remain in a silo two seconds after it served 5,000 calls at once."""
    async with Silo(grains=[Gate]) as silo, connect(silo.gateway) as client:
        gates = [client.grain(Gate, str(number)) for number in range(sized(5_000, size))]
        await gates[0].peek()
        before = len(asyncio.all_tasks())
        waiting = [asyncio.ensure_future(gate.wait()) for gate in gates]
        await asyncio.gather(*(gate.open() for gate in gates))
        await asyncio.gather(*waiting)
        await asyncio.sleep(2)
        return {"runner_tasks_left": len(asyncio.all_tasks()) - before}


async def deadline_sweep(work: Path, size: float) -> Figures:
    """CPU of a silo in which 90 turns wait for 1,000 calls each, and nothing else happens."""
    options = RuntimeOptions(call_timeout_s=300)
    async with Silo(grains=[Crowd, Gate], options=options) as silo:
        keys = [str(number) for number in range(sized(90, size, 1))]
        each = sized(1_000, size)
        waiting = [asyncio.ensure_future(silo.grain(Crowd, key).call(each)) for key in keys]
        await asyncio.sleep(2)
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(2)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        await asyncio.gather(*(silo.grain(Gate, key).open() for key in keys))
        await asyncio.gather(*waiting)
    return {"deadline_sweep_percent": share * 100}


async def options_per_header(work: Path, size: float) -> Figures:
    """`with_options` with a header that is new each time, such as the id of a request."""
    count = sized(2_000, size)
    async with Silo(grains=[Target]) as silo:
        target = silo.grain(Target, "a")
        with_options(target, headers={"id": "warm"})
        started = time.perf_counter()
        for number in range(count):
            with_options(target, headers={"id": str(number)})
        took = time.perf_counter() - started
    return {"options_per_header_us": took / count * 1e6}


async def unknown_type(work: Path, size: float) -> Figures:
    """One frame of 200,000 calls to a type that no silo hosts."""
    body = msgspec.Raw(b"\x90")
    calls = [
        Call(number, "Nobody", "k", "m", body, 30.0, "", [], 0, None)
        for number in range(1, sized(200_000, size) + 1)
    ]
    flood, tap = frame(encode_messages(calls)), Tap()
    async with (
        Silo(grains=[Target]) as silo,
        Client([silo.gateway], transport=tap) as client,
    ):
        await client.grain(Target, "a").plain(1)
        tap.links[0].reading(False)
        async with LoopWatch() as watch:
            tap.links[0].write(flood)
            await asyncio.sleep(1)
        tap.links[0].abort()
    return {"unknown_type_stop_ms": watch.longest_ms}


async def wide_stream(work: Path, size: float) -> Figures:
    """Three events of a stream with 10,000 subscriptions, the first of them cold."""
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    async with Silo(grains=[Hearer], streams={"default": streams}) as silo:
        count = sized(10_000, size)
        for number in range(count):
            await silo.grain(Hearer, str(number)).listen()
        Hearer.heard = 0
        async with LoopWatch() as watch, asyncio.timeout(120):
            for number in range(1, 4):
                await silo.stream(LINES, "s").publish(number)
                while Hearer.heard < number * count:
                    await asyncio.sleep(0.01)
    return {"wide_stream_stop_ms": watch.longest_ms}
