"""The bytes of calls that wait for grains are limited for each activation and for the silo."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conditions import spin, until
from tests.runtime.pinned import pin

from millstream.runtime import (
    PREFER_LOCAL,
    CallTimeout,
    Client,
    Grain,
    LocalCluster,
    Overloaded,
    RuntimeOptions,
    Silo,
    connect,
    grain,
    one_way,
    read_only,
    with_options,
)

KB = 1024
LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    yield


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def hold(self) -> None:
        LOG.append("holds")
        await GATES[self.key].wait()

    async def leave(self) -> None:
        self.context.deactivate_when_idle()
        await self.hold()

    async def put(self, data: bytes) -> int:
        LOG.append("put")
        return len(data)

    @one_way
    async def note(self, data: bytes) -> None:
        LOG.append("noted")

    @read_only
    async def look(self, data: bytes) -> int:
        return len(data)


@grain(placement=PREFER_LOCAL)
class Slow(Desk):
    async def on_activate(self) -> None:
        await GATES["start"].wait()


@grain(name="Anywhere")
class Anywhere(Desk):
    pass


@grain(name="Late")
class Late(Slow):
    pass


def limits(each: int = 100 * KB, everything: int = 1000 * KB) -> RuntimeOptions:
    return RuntimeOptions(waiting_bytes_max=each, silo_waiting_bytes_max=everything)


@asynccontextmanager
async def held(
    options: RuntimeOptions, *keys: str
) -> AsyncIterator[tuple[Silo, Client, list[asyncio.Task[None]]]]:
    """Run a silo with busy grains, and a client."""
    async with Silo(grains=[Desk, Slow], options=options) as silo, connect(silo.gateway) as client:
        holding = [asyncio.ensure_future(silo.grain(Desk, key).hold()) for key in keys]
        await until(lambda: LOG.count("holds") == len(keys))
        yield silo, client, holding
        for key in keys:
            GATES[key].set()
        await asyncio.gather(*holding)
        assert used(silo) == 0


def used(silo: Silo) -> int:
    return silo.assembly.turns.waiting_bytes.used


def refused(results: Sequence[object]) -> list[Overloaded]:
    return [one for one in results if isinstance(one, Overloaded)]


async def test_calls_that_wait_for_one_activation_are_bounded_in_bytes() -> None:
    async with held(limits(), "a") as (silo, client, _):
        ref = client.grain(Desk, "a")
        calls = [asyncio.ensure_future(ref.put(bytes(30 * KB))) for _ in range(10)]
        await until(lambda: sum(call.done() for call in calls) == 7)
        assert 90 * KB <= used(silo) <= 91 * KB
        GATES["a"].set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        (error, *others) = refused(results)
        assert len(others) == 6 and results[:3] == [30 * KB] * 3
        assert (error.limit_name, error.limit) == ("waiting_bytes_max", 100 * KB)
        assert "Desk/a: 9" in str(error) and "bytes of calls wait, no room for 3" in str(error)
        assert used(silo) == 0
        assert await ref.put(bytes(300 * KB)) == 300 * KB


async def test_calls_that_wait_in_a_silo_are_bounded_in_bytes() -> None:
    async with held(limits(everything=200 * KB), *"abc") as (silo, client, _):
        calls = [
            asyncio.ensure_future(client.grain(Desk, key).put(bytes(40 * KB)))
            for _ in range(2)
            for key in "abc"
        ]
        await until(lambda: sum(call.done() for call in calls) == 2)
        for key in "abc":
            GATES[key].set()
        errors = refused(await asyncio.gather(*calls, return_exceptions=True))
        limit = ("silo_waiting_bytes_max", 200 * KB)
        assert [(error.limit_name, error.limit) for error in errors] == [limit] * 2
        assert "wait in this process" in str(errors[0])


async def test_a_call_that_is_larger_than_the_limits_waits_alone() -> None:
    async with held(limits(100, 100), "a") as (_, client, _holding):
        ref = client.grain(Desk, "a")
        large = asyncio.ensure_future(ref.put(bytes(30 * KB)))
        await spin(100)
        with pytest.raises(Overloaded, match="waiting_bytes_max is 100"):
            await ref.put(b"x")
        GATES["a"].set()
        assert await large == 30 * KB


async def test_one_way_calls_that_wait_count_also_after_their_sender_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with held(limits(), "a") as (silo, _, _holding):
        async with connect(silo.gateway) as sender:
            for _ in range(10):
                await sender.grain(Desk, "a").note(bytes(30 * KB))
            await until(lambda: caplog.text.count("did not run") == 7)
        await until(lambda: len(silo.assembly.visitors.inbound) == 1)
        assert used(silo) >= 90 * KB and "waiting_bytes_max is 102400" in caplog.text
        GATES["a"].set()
        await until(lambda: LOG.count("noted") == 3)
        assert used(silo) == 0


async def test_a_local_sender_of_one_way_calls_is_refused_itself() -> None:
    async with held(limits(), "a") as (silo, _, _holding):
        ref = silo.grain(Desk, "a")
        for _ in range(3):
            await ref.note(bytes(30 * KB))
        with pytest.raises(Overloaded, match="waiting_bytes_max"):
            await ref.note(bytes(30 * KB))
        GATES["a"].set()
        await until(lambda: LOG.count("noted") == 3)


async def test_calls_whose_sender_has_left_wait_no_longer_and_hold_nothing() -> None:
    async with held(limits(), "a") as (silo, client, _holding):
        async with connect(silo.gateway) as sender:
            ref = sender.grain(Desk, "a")
            keeps = asyncio.ensure_future(client.grain(Desk, "a").put(b"keeps"))
            leaving = [asyncio.ensure_future(ref.put(bytes(20 * KB))) for _ in range(4)]
            await until(lambda: used(silo) > 80 * KB)
        await until(lambda: used(silo) < KB)
        box = silo.assembly.catalog.of("Desk")["a"].mailbox
        assert box is not None
        entries: list[Any] = list(box.waiting)
        assert sum(len(memoryview(entry.call.body)) for entry in entries) < KB
        GATES["a"].set()
        assert await keeps == 5
        await asyncio.gather(*leaving, return_exceptions=True)
        assert LOG.count("put") == 1


async def test_calls_that_wait_for_an_activation_that_ends_give_their_bytes_back() -> None:
    async with held(limits()) as (silo, client, _):
        leaving = asyncio.ensure_future(silo.grain(Desk, "a").leave())
        await until(lambda: LOG == ["holds"])
        calls = [asyncio.ensure_future(client.grain(Desk, "a").put(bytes(30 * KB))) for _ in "abc"]
        await until(lambda: used(silo) > 90 * KB)
        GATES["a"].set()
        await leaving
        assert await asyncio.gather(*calls) == [30 * KB] * 3


async def test_a_call_that_expires_while_it_waits_gives_its_bytes_back() -> None:
    async with held(limits(), "a") as (silo, client, _holding):
        with pytest.raises(CallTimeout):
            await with_options(client.grain(Desk, "a"), timeout=0.05).put(bytes(90 * KB))
        await until(lambda: used(silo) == 0)


async def test_readers_that_are_let_in_together_give_their_bytes_back() -> None:
    async with held(limits(), "a") as (silo, client, _holding):
        calls = [asyncio.ensure_future(client.grain(Desk, "a").look(bytes(20 * KB))) for _ in "abc"]
        calls.append(asyncio.ensure_future(client.grain(Desk, "a").put(bytes(20 * KB))))
        await until(lambda: used(silo) > 80 * KB)
        GATES["a"].set()
        assert await asyncio.gather(*calls) == [20 * KB] * 4


async def test_local_calls_hold_their_encoded_arguments_while_their_grain_is_looked_for() -> None:
    async with LocalCluster(silos=2, grains=[Anywhere], options=limits()) as cluster:
        for key in map(str, range(6)):  # some of the grains are in this silo, some in the other one
            ref = cluster.silos[0].grain(Anywhere, key)
            calls = [ref.put(bytes(30 * KB)) for _ in range(5)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert results[:3] == [30 * KB] * 3
            assert [error.limit_name for error in refused(results)] == ["waiting_bytes_max"] * 2
            assert "is not located yet" in str(results[4])
        assert used(cluster.silos[0]) == 0


async def test_local_calls_that_were_sent_on_hold_their_encoded_arguments() -> None:
    async with LocalCluster(silos=2, grains=[Late], options=limits()) as cluster:
        silo = cluster.silos[0]
        calls = [
            asyncio.ensure_future(silo.grain(Late, f"{i}").put(bytes(30 * KB))) for i in range(9)
        ]
        catalogs = [one.assembly.catalog for one in cluster.silos]
        await until(lambda: sum(catalog.count for catalog in catalogs) == 9)
        await spin(100)
        assert catalogs[0].count and used(silo) > catalogs[0].count * 30 * KB
        GATES["start"].set()
        assert await asyncio.gather(*calls) == [30 * KB] * 9
        assert used(silo) == 0


async def test_calls_that_wait_for_a_start_are_bounded_in_bytes() -> None:
    async with held(limits()) as (_, client, _holding):
        ref = client.grain(Slow, "a")
        calls = [asyncio.ensure_future(ref.put(bytes(30 * KB))) for _ in range(5)]
        await until(lambda: sum(call.done() for call in calls) == 2)
        GATES["start"].set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[:3] == [30 * KB] * 3
        assert [error.limit_name for error in refused(results)] == ["waiting_bytes_max"] * 2


async def test_a_gateway_counts_the_calls_that_it_has_relayed_until_they_are_answered() -> None:
    options = limits(each=1000 * KB, everything=100 * KB)
    async with LocalCluster(silos=2, grains=[Desk], options=options) as cluster:
        home, gateway = cluster.silos
        holding = asyncio.ensure_future(home.grain(Desk, "a").hold())
        await until(lambda: LOG == ["holds"])
        async with connect(gateway.gateway) as client:
            pin(client, gateway.gateway)
            ref = client.grain(Desk, "a")
            calls = [asyncio.ensure_future(ref.put(bytes(30 * KB))) for _ in range(5)]
            await until(lambda: sum(call.done() for call in calls) == 2)
            assert used(gateway) >= 90 * KB
            GATES["a"].set()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert results[:3] == [30 * KB] * 3 and len(refused(results)) == 2
            assert used(gateway) == used(home) == 0
            GATES["a"].clear()
            leaving = [asyncio.ensure_future(client.grain(Desk, "a").hold()) for _ in "ab"]
            await until(lambda: used(gateway) > 0 and LOG.count("holds") == 2)
        await until(lambda: used(gateway) == 0)
        GATES["a"].set()
        await asyncio.gather(holding, *leaving, return_exceptions=True)


async def test_a_small_call_that_waits_does_not_keep_the_frame_that_it_came_in() -> None:
    async with held(RuntimeOptions(), "busy") as (silo, client, _):
        idle, busy = client.grain(Desk, "idle"), client.grain(Desk, "busy")
        await idle.put(b"")
        tracemalloc.start()
        try:
            before, waiting = tracemalloc.get_traced_memory()[0], []
            for _ in range(50):
                waiting.append(asyncio.ensure_future(busy.put(b"x")))
                # shares a frame with the small call
                await asyncio.ensure_future(idle.put(bytes(60 * KB)))
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < 1000 * KB
        finally:
            tracemalloc.stop()
        GATES["busy"].set()
        assert await asyncio.gather(*waiting) == [1] * 50
