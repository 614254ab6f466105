"""Calls of later versions when something is late, old or missing, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.runtime.cluster.test_versions import (
    LOG,
    BookOf1,
    BookOf2,
    CallsOf1,
    CallsOf2,
    CallsOf3,
    World,
    play,
)

from millstream.runtime import Client, MemberRow, Silo, TableView, VersionNotHosted


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    yield


@pytest.mark.parametrize("caller", ["silo-0", "silo-1", "silo-2"])
def test_a_method_that_only_version_2_has_moves_an_activation_up(caller: str) -> None:
    async def main(world: World) -> None:
        key = await world.find_old()
        assert await world.at(caller, lambda silo: silo.grain(CallsOf2, key).close()) == 2
        assert await world.flights("silo-0", key) == ["first"]

    play(main, 1, 2, 0)


def test_a_client_gets_the_error_of_its_gateway_also_if_the_grain_is_there() -> None:
    async def main(world: World) -> None:
        async def calls(client: Client) -> None:
            await client.grain(CallsOf1, "BOS").land("one")
            for contract in (CallsOf2, CallsOf3):
                with pytest.raises(VersionNotHosted, match="silos host 1"):
                    await client.grain(contract, "BOS").land("more")
            assert await client.grain(CallsOf1, "BOS").flights() == ["one"]

        await world.as_client(calls)

    play(main, 1)


@pytest.mark.parametrize("caller", ["silo-0", "silo-1", "silo-2"])
def test_an_old_entry_of_the_directory_is_replaced_without_running_version_1(
    caller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The activation is gone, and the message that removes its entry was lost."""

    async def main(world: World) -> None:
        key = await world.find_old()

        async def lost(activation: Any) -> None:
            activation.version = 0

        with monkeypatch.context() as patched:
            registrar = world.silo("silo-0").assembly.catalog.registrar
            patched.setattr(registrar, "unregister", lost)
            await world.at("silo-0", lambda silo: silo.grain(CallsOf1, key).end())
            await asyncio.sleep(1.0)
        LOG.clear()
        number, at = await world.at(caller, lambda silo: silo.grain(CallsOf2, key).land("two"))
        assert (number, at) == (2, world.address("silo-1"))
        assert LOG == [f"{key}: version 2 starts"]

    play(main, 1, 2, 0)


def test_a_move_that_is_refused_ends_the_activation_and_its_callers_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(world: World) -> None:
        key = await world.find_old()
        taking = world.silo("silo-1").assembly.catalog

        async def refuse(*_: Any) -> bool:
            return False

        async def land(contract: type[CallsOf1]) -> tuple[int, str]:
            return await world.at("silo-0", lambda silo: silo.grain(contract, key).land("x"))

        with monkeypatch.context() as patched:
            patched.setattr(taking, "receive", refuse)
            async with asyncio.TaskGroup() as group:
                two = group.create_task(land(CallsOf2))
                await asyncio.sleep(0.001)
                one = group.create_task(land(CallsOf1))
        assert (two.result()[0], one.result()[0]) == (2, 2)
        assert await world.flights("silo-0", key) == ["x", "x"]  # it started from its store

    play(main, 1, 2)


def test_the_end_of_the_only_later_silo_during_a_call_is_a_typed_error() -> None:
    async def main(world: World) -> None:
        key = await world.find_old()

        async def hold(silo: Silo) -> None:
            await silo.grain(CallsOf1, key).land("held", 3.0)

        async def newer(silo: Silo) -> object:
            return await silo.grain(CallsOf2, key).land("two")

        async with asyncio.TaskGroup() as group:
            group.create_task(world.at("silo-0", hold))
            await asyncio.sleep(0.5)
            call = group.create_task(refusal(world.at("silo-0", newer)))
            await asyncio.sleep(0.5)
            await world.cluster.remove_silo("silo-1")
        assert isinstance(call.result(), VersionNotHosted)
        assert await world.peek("silo-0", key) == 1

    play(main, 1, 2)


async def refusal(call: Any) -> BaseException | None:
    """Return the error of a call."""
    try:
        await call
    except VersionNotHosted as error:
        return error
    return None


def test_a_row_that_an_older_silo_wrote_back_gets_its_versions_again() -> None:
    async def main(world: World) -> None:
        table, name = world.cluster.table, world.address("silo-1")

        def own(view: TableView) -> MemberRow:
            row = view.row(name)
            assert row is not None
            return row

        row = own(table.view())
        assert dict(row.versions)["Port"] == 2
        old = msgspec.structs.replace(row, versions=())
        assert table.replace_row(old, table.view().version)
        await asyncio.sleep(10.0)
        assert dict(own(table.view()).versions)["Port"] == 2
        assert await world.peek("silo-0", "BOS", CallsOf2) == 2

    play(main, 1, 2)


def test_a_grain_that_moves_chooses_among_the_silos_of_its_version() -> None:
    async def main(world: World) -> None:
        await world.at("silo-0", lambda silo: silo.grain(CallsOf2, "BOS").land("two"))
        for _ in range(10):
            await world.at("silo-0", lambda silo: silo.grain(CallsOf1, "BOS").leave())
            await asyncio.sleep(1.0)
            assert await world.peek("silo-0", "BOS") == 2
        assert await world.flights("silo-0", "BOS") == ["two"]
        assert LOG.count("BOS: version 2 ends: migrating") == 10

    play(main, 1, 2, 1, 2, 1)


def test_a_grain_stays_if_all_other_silos_host_earlier_versions() -> None:
    async def main(world: World) -> None:
        await world.at("silo-0", lambda silo: silo.grain(CallsOf2, "BOS").land("two"))
        await world.at("silo-0", lambda silo: silo.grain(CallsOf1, "BOS").leave())
        await asyncio.sleep(1.0)
        assert await world.flights("silo-0", "BOS") == ["two"]
        assert LOG == ["BOS: version 2 starts"]

    play(main, 1, 2, 1)


def test_a_grain_leaves_directly_for_the_version_that_a_call_wants() -> None:
    async def main(world: World) -> None:
        for _ in range(5):
            key = await world.find_old()
            assert await world.peek("silo-0", key, CallsOf2) == 2
            assert LOG == [f"{key}: version 1 ends: outgrown", f"{key}: version 2 starts"]

    play(main, 1, 1, 1, 1, 2)


@pytest.mark.parametrize(("before_s", "after_s"), [(1.0, 0.0), (0.0, 1.0)])
def test_an_outdated_state_does_not_move_up(before_s: float, after_s: float) -> None:
    """A call of version 2 arrives before or after the conflict, while the turn runs."""

    async def main(world: World) -> None:
        keys, store = [f"B{number}" for number in range(30)], world.cluster.stores["default"]

        async def find(silo: Silo) -> str:
            return next(iter([k for k in keys if await silo.grain(BookOf1, k).add("one") == 1]))

        key = await world.at("silo-0", find)
        name = f"Book/{key}/log"
        row = store.get(name)
        assert row is not None
        store.put(name, msgspec.msgpack.encode([{"lines": ["other"]}, {}]), row.etag, row.fence)

        async def clash(silo: Silo) -> None:
            await silo.grain(BookOf1, key).clash(before_s, after_s)

        async with asyncio.TaskGroup() as group:
            group.create_task(world.at("silo-0", clash))
            await asyncio.sleep(0.5)
            found = group.create_task(
                world.at("silo-0", lambda silo: silo.grain(BookOf2, key).lines())
            )
        assert found.result() == ["other"]

    play(main, 1, 2)


def test_version_1_runs_no_code_for_the_state_of_version_2() -> None:
    async def main(world: World) -> None:
        keys = [f"B{number}" for number in range(10)]

        async def write(silo: Silo) -> None:
            for key in keys:
                await silo.grain(BookOf2, key).add("two")
                await silo.grain(BookOf1, key).end()
            await asyncio.sleep(1.0)

        async def read(silo: Silo) -> None:
            for key in keys:
                assert await silo.grain(BookOf1, key).lines() == ["two"]

        await world.at("silo-1", write)
        LOG.clear()
        await world.at("silo-2", read)  # it remembers no location, so it tries version 1, too
        assert LOG == []

    play(main, 1, 2, 0, 1)
