"""Silo processes with a bookie each: killed, stopped, without disk space, and all killed at
once."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from tests.real.ledger_kit import ENDS_S, Publisher, check, process

from millstream.runtime import Client, MillstreamError, connect
from millstream.runtime.run import SiloProcess, SiloProcesses
from millstream.streams import StreamNamespace

pytestmark = pytest.mark.real

FILLER = StreamNamespace("filler", bytes)
MIB = 1 << 20


def silo(tmp_path: Path, name: str, **more: object) -> SiloProcess:
    return process(tmp_path, name, ledger="ledger/{silo}", **more)


@asynccontextmanager
async def publishing(client: Client, behind: int = 0) -> AsyncIterator[Publisher]:
    """Run a publisher inside the `async with` block."""
    publisher = Publisher(client, behind)
    running = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        publisher.is_over = True
        await running


async def test_a_bookie_and_then_a_writer_are_killed_under_load(tmp_path: Path) -> None:
    made = [silo(tmp_path, "one"), silo(tmp_path, "two"), silo(tmp_path, "shelf", is_bookie=True)]
    async with SiloProcesses(made) as processes, connect(processes[0].gateway) as client:
        async with publishing(client) as publisher:
            await publisher.has_more(30)
            await processes[2].kill()
            await publisher.has_more(30)
            again = silo(tmp_path, "shelf", is_bookie=True, address=processes[2].gateway)
            await processes.replace(2, again)
            await publisher.has_more(30)
            await processes[1].kill()
            await publisher.has_more(30)
        await check(client, [publisher])


async def test_what_was_accepted_is_there_after_all_were_killed_at_once(tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    async with SiloProcesses([silo(tmp_path, name) for name in names]) as processes:
        gateways = [one.gateway for one in processes]
        async with connect(*gateways) as client, publishing(client) as publisher:
            await publisher.has_more(50)
            await processes.kill()
    made = [silo(tmp_path, name, address=at) for name, at in zip(names, gateways, strict=True)]
    async with SiloProcesses(made), connect(*gateways) as client:
        await check(client, [publisher])
        async with publishing(client, 1_000_000) as later:
            await later.has_more(10)
        await check(client, [publisher, later])


async def evicted(client: Client, silo: str) -> None:
    """Wait until a gateway reports the eviction. A request may be lost with the dead silo, so
    repeat it.
    """
    while True:
        with suppress(MillstreamError):
            if silo not in [one.address for one in await client.members()]:
                return
        await asyncio.sleep(0.1)


def is_unlocked(file: Path) -> bool:
    """Can another connection write to a SQLite file within a second?"""
    with closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as rows:
        try:
            rows.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        rows.execute("ROLLBACK")
        return True


async def stop_without_a_lock(silo: SiloProcess, rows: Path) -> None:
    """Stop a process while it does not hold the lock of the rows that all silos share.

    A stopped process that holds the lock of a SQLite file delays every silo of its machine.
    """
    while True:
        os.kill(silo.pid, signal.SIGSTOP)
        if all(is_unlocked(file) for file in rows.glob("*.db")):
            return
        os.kill(silo.pid, signal.SIGCONT)
        await asyncio.sleep(0.01)


async def test_a_zombie_stores_nothing_more_and_what_it_had_accepted_is_kept(
    tmp_path: Path,
) -> None:
    made = [silo(tmp_path, name) for name in ("one", "two", "zombie")]
    async with SiloProcesses(made) as processes:
        zombie = processes[2]
        others = [processes[0].gateway, processes[1].gateway]
        async with connect(*others) as client, connect(zombie.gateway) as its_client:
            async with publishing(client) as publisher:
                async with publishing(its_client, 1_000_000) as through:
                    await publisher.has_more(20)
                    await through.has_more(20)
                    await stop_without_a_lock(zombie, tmp_path / "data" / "rows")
                    async with asyncio.timeout(ENDS_S):
                        await evicted(client, zombie.address)
                    await publisher.has_more(20)  # other silos own the queues of the stopped one
                    os.kill(zombie.pid, signal.SIGCONT)
                    async with asyncio.timeout(ENDS_S):
                        assert await zombie.wait() == 3, "it learns that it was evicted"
                    await publisher.has_more(20)
            await check(client, [publisher, through])


async def fill(client: Client, size_bytes: int) -> None:
    """Publish `size_bytes` to all queues together."""
    item = bytes(64 * 1024)
    for number in range(size_bytes // len(item)):
        try:
            await client.stream(FILLER, f"{number % 16}").publish(item)
        except MillstreamError:
            await asyncio.sleep(0.1)  # other silos take over soon


async def test_the_others_go_on_when_one_has_no_room(tmp_path: Path) -> None:
    segment_bytes = 48 * MIB  # the segment grows by 12 MiB, and the limit of files is 8 MiB
    names = ["one", "two", "full"]
    made = [silo(tmp_path, name, segment_bytes=segment_bytes) for name in names]
    async with SiloProcesses(made) as processes, connect(processes[0].gateway) as client:
        async with publishing(client) as publisher:
            await publisher.has_more(20)
            limit = (8 * MIB, resource.RLIM_INFINITY)
            resource.prlimit(processes[2].pid, resource.RLIMIT_FSIZE, limit)
            await fill(client, 14 * MIB)
            log = tmp_path / "full.log"
            async with asyncio.timeout(ENDS_S):
                while "the bookie is read-only" not in log.read_text():
                    await asyncio.sleep(0.1)
            await publisher.has_more(30)
            assert processes[2].is_running
            free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(processes[2].pid, resource.RLIMIT_FSIZE, free)
            await publisher.has_more(30)
        await check(client, [publisher])
