"""A silo that ends without a goodbye, and connections that send nothing: no caller waits long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from millstream.runtime import (
    CallTimeout,
    ConfigError,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    Status,
    connect,
    read_only,
    shielded,
    with_options,
)

IMPATIENT = RuntimeOptions(greet_timeout_s=0.1)


class Desk(Grain):
    async def hold(self) -> None:
        await asyncio.Event().wait()

    async def plain(self) -> str:
        return "here"

    @read_only
    async def look(self) -> str:
        return "here"

    @shielded
    async def write(self) -> str:
        return "here"

    async def via(self, key: str) -> str:
        return await self.grain(Desk, key).plain()

    async def last(self) -> str:
        self.context.deactivate_when_idle()
        return "here"


class Stubborn(Grain):
    async def swallow(self) -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    @read_only
    async def look_and_swallow(self) -> str:
        return await Stubborn.swallow(self)


CALLS: dict[str, Callable[[Silo], Coroutine[Any, Any, str]]] = {
    "plain": lambda silo: silo.grain(Desk, "busy").plain(),
    "read only": lambda silo: silo.grain(Desk, "busy").look(),
    "with options": lambda silo: with_options(silo.grain(Desk, "busy"), timeout=20).plain(),
    "shielded": lambda silo: silo.grain(Desk, "busy").write(),
    "from a turn": lambda silo: silo.grain(Desk, "other").via("busy"),
}


@pytest.mark.parametrize("way", CALLS)
async def test_calls_that_wait_when_their_silo_is_killed_end_with_it(way: str) -> None:
    async with Silo(grains=[Desk]) as silo:
        holding = asyncio.create_task(silo.grain(Desk, "busy").hold())
        await asyncio.sleep(0)
        waiting = asyncio.create_task(CALLS[way](silo))
        for _ in range(3):
            await asyncio.sleep(0)
        await silo.kill()
        for task in (waiting, holding):
            with pytest.raises(SiloUnavailable):
                await asyncio.wait_for(task, 5)


async def test_calls_of_a_silo_that_reads_that_it_is_dead_end() -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Desk], membership=table) as silo:
        holding = asyncio.create_task(silo.grain(Desk, "busy").hold())
        waiting = asyncio.create_task(silo.grain(Desk, "busy").plain())
        await asyncio.sleep(0)
        row = table.view().row(silo.address)
        assert row is not None
        dead = type(row)(row.silo, Status.DEAD, started_s=row.started_s)
        assert table.replace_row(dead, table.view().version)
        await silo.assembly.membership.refresh()
        await silo.wait_stopped()
        for task in (waiting, holding):
            with pytest.raises(SiloUnavailable):
                await asyncio.wait_for(task, 5)


# --- connections that send nothing ----------------------------------------------------------------


async def silent_listener() -> tuple[asyncio.Server, str, list[asyncio.StreamWriter]]:
    """Return a listener that accepts connections and never sends anything."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", writers


async def close_listener(server: asyncio.Server, writers: list[asyncio.StreamWriter]) -> None:
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def test_a_gateway_that_never_greets_is_passed_over() -> None:
    server, silent, writers = await silent_listener()
    async with Silo(grains=[Desk]) as silo:
        async with connect(silent, silo.gateway, options=IMPATIENT) as client:
            assert await client.grain(Desk, "a").plain() == "here"
    await close_listener(server, writers)


async def test_connecting_ends_when_no_gateway_greets() -> None:
    server, silent, writers = await silent_listener()
    with pytest.raises(SiloUnavailable, match=r"no handshake within 0.1 s \(greet_timeout_s\)"):
        async with connect(silent, options=IMPATIENT):
            raise AssertionError("connected")
    await close_listener(server, writers)


async def test_a_silo_closes_a_connection_that_says_nothing() -> None:
    async with Silo(grains=[Desk], options=IMPATIENT) as silo:
        host, _, port = silo.gateway.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        while await asyncio.wait_for(reader.read(1000), 5):
            pass  # the silo's greeting, then the end
        assert not silo.assembly.visitors.inbound
        writer.close()
        await writer.wait_closed()


# --- repeated starts and ends ---------------------------------------------------------------------


@pytest.mark.parametrize("ended", [True, False])
async def test_a_silo_is_started_once(ended: bool) -> None:
    table = MemoryMembershipTable()
    silo = Silo(grains=[Desk], membership=table)
    await silo.start()
    if ended:
        await silo.stop()
    with pytest.raises(ConfigError, match="was already started"):
        await silo.start()
    await silo.stop()
    assert [row.status for row in table.view().rows] == [Status.DEAD]


@pytest.mark.parametrize("callers", [5, 60])
async def test_every_caller_of_a_grain_that_ends_after_each_call_is_answered(callers: int) -> None:
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        desk = cluster.silos[0].grain(Desk, "a")
        async with asyncio.timeout(20):
            assert await asyncio.gather(*(desk.last() for _ in range(callers))) == (
                ["here"] * callers
            )


@pytest.mark.parametrize("way", ["direct", "with options", "read only"])
async def test_a_swallowed_deadline_leaves_the_caller_uncancelled(way: str) -> None:
    async with Silo(grains=[Stubborn], options=RuntimeOptions(call_timeout_s=0.1)) as silo:
        desk = silo.grain(Stubborn, "a")
        calls: dict[str, Callable[[], Coroutine[Any, Any, str]]] = {
            "direct": lambda: desk.swallow(),
            "with options": lambda: with_options(desk, timeout=0.1).swallow(),
            "read only": lambda: desk.look_and_swallow(),
        }
        with pytest.raises(CallTimeout):
            await calls[way]()
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
