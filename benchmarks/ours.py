"""Millstream as a subject: one silo for calls and activation, two processes for remote calls."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

from benchmarks.measure import in_process, memory_bytes, two_processes
from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Contract, Grain, Silo, connect, grain
from millstream.runtime.run import SiloProcess

__all__ = ["activation", "between_silos", "calls", "make_echo_silo", "make_member", "remote"]

Payload = dict[str, str | int | float | bool | list[str] | None]


class Counter(Grain):
    """A stateful counter and the other methods of the workload."""

    def __init__(self) -> None:
        self.n = 0

    async def add(self, by: int) -> int:
        self.n += by
        return self.n

    async def take(self, order: Payload) -> int:
        return 1

    async def echo(self, order: Payload) -> Payload:
        return order

    async def suspend(self, by: int) -> int:
        await asyncio.sleep(0)
        return by


class Idle(Grain):
    """A grain with only a number, for activation."""

    def __init__(self) -> None:
        self.n = 0

    async def ping(self) -> int:
        return self.n


@grain(name="BenchEcho")
class Echo(Grain):
    """The other end of remote calls."""

    async def echo(self, order: Payload) -> Payload:
        return order


@grain(name="BenchEcho")
class EchoContract(Contract):
    """The caller's contract of `Echo`."""

    async def echo(self, order: Payload) -> Payload:
        raise NotImplementedError


async def calls(work: Path) -> dict[str, float]:
    """Calls inside one silo."""
    async with Silo(grains=[Counter]) as silo:
        grains = [silo.grain(Counter, f"k{i}") for i in range(10_000)]
        for one in grains:
            await one.add(0)
        first = grains[0]
        return await in_process(
            [one.add for one in grains], first.take, first.echo, first.suspend, first.suspend
        )


def make_echo_silo() -> Silo:
    """Return the silo of the other process."""
    return Silo(grains=[Echo])


async def remote(work: Path) -> dict[str, float]:
    """Calls from a client process to a silo process."""
    process = SiloProcess(f"{__name__}:make_echo_silo", {}, work / "silo.log")
    await process.start()
    try:
        async with connect(process.gateway) as client:
            echoes = [client.grain(EchoContract, f"k{i}").echo for i in range(1024)]
            return await two_processes(echoes, [os.getpid(), process.pid])
    finally:
        await process.stop()


def make_member(work: str) -> Silo:
    """Return the silo of a cluster of two that has the grains."""
    return Silo(grains=[Echo], membership=SqliteMembershipTable(work))


async def between_silos(work: Path) -> dict[str, float]:
    """Calls from this silo, which has no grains, to a silo in another process."""
    process = SiloProcess(f"{__name__}:make_member", {"work": str(work)}, work / "silo.log")
    await process.start()
    try:
        async with Silo(grains=[], membership=SqliteMembershipTable(str(work))) as silo:
            echoes = [silo.grain(EchoContract, f"k{i}").echo for i in range(1024)]
            figures = await two_processes(echoes, [os.getpid(), process.pid])
            return {f"silo_{key}": value for key, value in figures.items()}
    finally:
        await process.stop()


async def activation(work: Path) -> dict[str, float]:
    """Activations per second in one silo, without storage; bytes per idle grain."""
    count = 100_000
    async with Silo(grains=[Idle]) as silo:
        await silo.grain(Idle, "warm").ping()
        catalog, kind = silo.assembly.catalog, silo.assembly.references.kinds["Idle"]
        keys = [f"key-{i}" for i in range(count)]
        gc.collect()
        before, started = memory_bytes(), time.perf_counter()
        for key in keys:
            catalog.obtain(kind, key)
        took = time.perf_counter() - started
        gc.collect()
        size = (memory_bytes() - before) / count
        started = time.perf_counter()
        for i in range(20_000):
            await silo.grain(Idle, f"first-{i}").ping()
        first = time.perf_counter() - started
        return {
            "activations_s": count / took,
            "first_calls_s": 20_000 / first,
            "bytes_per_grain": size,
        }
