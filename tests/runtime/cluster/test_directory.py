"""The directory in running silos: registering, losing, ending, recovering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.conditions import until

from millstream.runtime import (
    PREFER_LOCAL,
    DeactivationReason,
    Grain,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    SiloUnavailable,
    Status,
    TableView,
    grain,
    state,
)
from millstream.runtime.cluster.directory.directory import DirectoryTarget, GrainDirectory
from millstream.runtime.cluster.directory.events import Rows, SurvivorsAsked
from millstream.runtime.cluster.directory.partition import Entry
from millstream.runtime.cluster.directory.range import point_of
from millstream.runtime.cluster.ring import HASH_MAX
from millstream.runtime.turns.activation import Activation

STILL = MembershipOptions(refresh_s=1000.0, heartbeat_s=1000.0, probe_every_s=1000.0)
"""Nothing reads the table without a cause."""
RAN: list[str] = []


class Plain(Grain):
    async def where(self) -> str:
        return self.context.silo


@grain(placement=PREFER_LOCAL)
class Noted(Grain):
    def __init__(self) -> None:
        RAN.append("__init__")

    async def on_activate(self) -> None:
        RAN.append("on_activate")

    async def where(self) -> str:
        RAN.append("where")
        return self.context.silo


@grain(placement=PREFER_LOCAL)
class Kept(Grain):
    count = state(int)

    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value


@asynccontextmanager
async def silos(count: int, **options: Any) -> AsyncIterator[list[Silo]]:
    table = MemoryMembershipTable()
    options.setdefault("stores", {"default": MemoryStateStore()})
    made = [
        Silo(grains=[Plain, Noted, Kept], membership=table, membership_options=STILL, **options)
        for _ in range(count)
    ]
    try:
        for silo in made:
            await silo.start()
        yield made
    finally:
        for silo in made:
            await silo.kill()


def key_owned_by(directory: GrainDirectory, silo: Silo, kind: str) -> str:
    """Return a key whose directory entry is at that silo."""
    keys = map(str, range(10_000))
    return next(k for k in keys if directory.range.owner_of(kind, k) == silo.address)


def started(silo: Silo, key: str) -> Activation:
    """Begin an activation in this silo, even if another silo has the grain."""
    return silo.assembly.catalog.obtain(silo.assembly.references.kind_named("Noted"), key)


def entries(silo: Silo) -> int:
    return sum(len(keys) for _, keys in silo.assembly.directory.range._partition.keys())


async def bump(silo: Silo) -> int:
    """Write a newer version into the table without telling any silo."""
    table: Any = silo.assembly.membership._table._table
    view: TableView = table.view()
    row = view.row(silo.address)
    assert row is not None
    assert table.replace_row(msgspec.structs.replace(row, alive_s=5.0), view.version)
    return view.version + 1


async def test_a_registration_behind_the_barrier_reads_the_table_and_is_made_again() -> None:
    """Registrations must not fail until the next scheduled read of the table."""
    async with silos(2) as (one, two):
        version = await bump(one)
        for silo in (one, two):
            silo.assembly.directory.step(SurvivorsAsked(version))
        for number in range(60):
            key = f"{number}"
            await asyncio.wait_for(one.grain(Noted, key).where(), 5)
            activation = one.assembly.catalog.of("Noted")[key]
            assert activation.version >= version


async def test_many_registrations_behind_the_barrier_read_the_table_once() -> None:
    async with silos(1) as (one,):
        reads = 0
        table: Any = one.assembly.membership._table._table
        read = table.read

        async def counted() -> Any:
            nonlocal reads
            reads += 1
            return await read()

        table.read = counted
        version = await bump(one)
        await asyncio.gather(*(one.assembly.membership.refresh_to(version) for _ in range(500)))
        assert reads == 1


async def test_the_loser_of_a_race_runs_no_code_of_its_own() -> None:
    async with silos(2) as (one, two):
        directory = one.assembly.directory
        key = key_owned_by(directory, two, "Noted")
        RAN.clear()
        assert await two.grain(Noted, key).where() == two.address
        assert RAN == ["__init__", "on_activate", "where"]
        RAN.clear()
        # as for a call that was routed before the winner's registration was known
        activation = started(one, key)
        await until(lambda: activation.is_gone)
        assert RAN == []
        assert one.assembly.catalog.of("Noted") == {}
        assert activation.grain is None
        assert await one.grain(Noted, key).where() == two.address
        assert RAN == ["where"]


async def test_no_code_of_a_grain_runs_before_it_is_registered() -> None:
    async with silos(2) as (one, two):
        key = key_owned_by(one.assembly.directory, two, "Noted")
        RAN.clear()
        gate = asyncio.Event()
        owner: Any = two.assembly.directory
        answer = owner.answer

        async def slow(question: Any, version: int) -> Entry | None:
            await gate.wait()
            found: Entry | None = await answer(question, version)
            return found

        owner.answer = slow
        activation = started(one, key)
        for _ in range(200):
            await asyncio.sleep(0)
        assert RAN == [] and activation.version == 0
        gate.set()
        await until(lambda: "on_activate" in RAN)
        assert activation.version > 0


async def test_a_grain_that_cannot_be_registered_does_not_start() -> None:
    async with silos(1) as (one,):

        async def fails(activation: Any) -> str | None:
            raise SiloUnavailable("no directory")

        RAN.clear()
        directory: Any = one.assembly.directory
        directory.register_now = lambda activation: False
        directory.register = fails
        with pytest.raises(SiloUnavailable):
            await one.grain(Noted, "k").where()
        assert RAN == []


async def test_a_lone_silo_s_directory_shrinks_when_its_grains_end() -> None:
    async with silos(1) as (one,):
        for number in range(50):
            await one.grain(Plain, f"{number}").where()
        assert entries(one) == 50
        for activation in one.assembly.catalog.all():
            one.assembly.catalog.deactivate(activation, DeactivationReason.IDLE)
        await until(lambda: one.assembly.catalog.count == 0)
        assert entries(one) == 0


async def test_a_directory_of_two_shrinks_when_grains_end() -> None:
    async with silos(2) as (one, two):
        for number in range(50):
            await one.grain(Plain, f"{number}").where()
        assert entries(one) + entries(two) == 50
        for silo in (one, two):
            for activation in silo.assembly.catalog.all():
                silo.assembly.catalog.deactivate(activation, DeactivationReason.IDLE)
        await until(lambda: not (one.assembly.catalog.count or two.assembly.catalog.count))
        await until(lambda: entries(one) + entries(two) == 0)


async def test_the_fence_of_a_row_is_the_registration_s_and_not_the_present_view_s() -> None:
    store = MemoryStateStore()
    async with silos(1, stores={"default": store}) as (one,):
        await one.grain(Kept, "k").add()
        registered = one.assembly.catalog.of("Kept")["k"].version
        for _ in range(3):
            await bump(one)
        await one.assembly.membership.refresh()
        assert one.assembly.membership.view.version == registered + 3
        assert await one.grain(Kept, "k").add() == 2
        [(_, row)] = await store.scan("", "", 10)
        assert row.fence == registered


async def test_a_recovery_that_meets_an_unexpected_error_is_made_again() -> None:
    """The range must not stay locked."""
    async with silos(2) as (one, two):
        key = key_owned_by(two.assembly.directory, two, "Noted")
        assert await one.grain(Noted, key).where() == one.address
        failures = 0
        told: Any = one.assembly.directory
        tell = told.tell_survivors

        async def fails_at_first(*args: Any) -> None:
            nonlocal failures
            failures += 1
            if failures < 4:
                raise ZeroDivisionError("a fault in the survivor")
            await tell(*args)

        told.tell_survivors = fails_at_first
        for _ in range(2):
            # two versions at once, so `two` skips one and recovers all that it owns
            await bump(one)
        await two.assembly.membership.refresh()
        assert two.assembly.directory.is_locked
        await until(lambda: not two.assembly.directory.is_locked)
        assert failures == 4
        assert await two.grain(Noted, key).where() == one.address


async def test_a_silo_that_skipped_views_knows_what_was_registered_elsewhere_meanwhile() -> None:
    async with silos(2) as (one, two):
        key = key_owned_by(two.assembly.directory, two, "Noted")
        assert await one.grain(Noted, key).where() == one.address
        known = two.assembly.directory.range._partition
        found = known.lookup("Noted", key)
        assert found is not None
        known.unregister("Noted", key, found.silo, found.activation_id)
        for _ in range(2):
            await bump(one)
        await two.assembly.membership.refresh()
        await until(lambda: not two.assembly.directory.is_locked)
        assert known.lookup("Noted", key) == found


async def test_of_two_activations_of_one_grain_the_older_one_ends_in_recovery() -> None:
    async with silos(2) as (one, two):
        key = key_owned_by(two.assembly.directory, two, "Noted")
        assert await one.grain(Noted, key).where() == one.address
        loser = one.assembly.catalog.of("Noted")[key]
        winner = Entry(two.address, 1, loser.version + 1)
        two.assembly.directory.range._partition._types["Noted"][key] = winner
        for _ in range(2):
            await bump(one)
        await two.assembly.membership.refresh()
        await until(lambda: loser.is_gone)


async def test_a_question_whose_asker_went_away_is_forgotten() -> None:
    async with silos(1) as (one,):
        assert await one.assembly.directory.lookup("Plain", "k") is None
        waiting = asyncio.create_task(
            one.assembly.targets.call(
                one.address, "$directory", DirectoryTarget.lookup, "Plain", "k", 2**60
            )
        )
        await asyncio.sleep(0)
        assert one.assembly.directory.range._waiting
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not one.assembly.directory.range._waiting
        assert not one.assembly.directory._answers


async def test_who_waits_for_a_locked_range_is_told_when_the_silo_stops() -> None:
    async with silos(1) as (one,):
        waiting = asyncio.create_task(
            one.assembly.targets.call(
                one.address, "$directory", DirectoryTarget.lookup, "Plain", "k", 2**60
            )
        )
        await asyncio.sleep(0)
        one.assembly.directory.close()
        with pytest.raises(SiloUnavailable):
            await asyncio.wait_for(waiting, 5)


async def test_a_lone_silo_is_never_locked_after_its_start() -> None:
    async with silos(1) as (one,):
        assert one.assembly.directory.is_alone
        assert one.assembly.membership.active() == (one.address,)
        assert Status.ACTIVE in {member.status for member in one.members()}


async def told_by(silo: Silo, asker: Silo, segments: list[tuple[int, int]]) -> list[str]:
    """Return the keys that a survivor tells."""
    told: list[str] = []
    directory: Any = asker.assembly.directory
    step = directory.step

    def noted(event: Any) -> None:
        if isinstance(event, Rows):
            told.extend(key for _, key, _, _ in event.rows)
        else:
            step(event)

    directory.step = noted
    try:
        await silo.assembly.directory.tell_survivors(asker.address, 0, segments)
    finally:
        del directory.step
    return sorted(told)


async def test_survivors_tell_of_what_is_registered_in_the_range_and_of_nothing_else() -> None:
    async with silos(2) as (one, two):
        for key in ("a", "b", "ended", "unregistered"):
            await one.grain(Noted, key).where()
        catalog = one.assembly.catalog
        catalog.of("Noted")["unregistered"].version = 0
        await one.assembly.directory.unregister(catalog.of("Noted")["ended"])
        assert await told_by(one, two, [(0, HASH_MAX)]) == ["a", "b"]
        point = point_of("Noted", "a")
        assert await told_by(one, two, [(point, point)]) == ["a"]


async def test_a_member_that_cannot_be_reached_at_first_is_asked_until_it_answers() -> None:
    async with silos(2) as (one, two):
        directory: Any = one.assembly.directory
        tell, failures = directory.tell_survivors, 0

        async def unreachable_at_first(*args: Any) -> None:
            nonlocal failures
            failures += 1
            if failures < 3:
                raise SiloUnavailable("not yet")
            await tell(*args)

        directory.tell_survivors = unreachable_at_first
        for _ in range(2):
            await bump(one)
        await two.assembly.membership.refresh()
        await until(lambda: not two.assembly.directory.is_locked)
        assert failures == 3


async def test_the_version_of_a_registration_is_the_owner_s() -> None:
    async with silos(2) as (one, two):
        key = key_owned_by(one.assembly.directory, two, "Noted")
        version = await bump(one)
        await two.assembly.membership.refresh()
        assert one.assembly.membership.view.version == version - 1
        await one.grain(Noted, key).where()
        assert one.assembly.catalog.of("Noted")[key].version == version


async def test_an_asker_whose_view_is_behind_reads_the_table() -> None:
    async with silos(2) as (one, two):
        key = key_owned_by(one.assembly.directory, two, "Noted")
        table: Any = one.assembly.membership._table._table
        view: TableView = table.view()
        row = view.row(two.address)
        assert row is not None
        stopping = msgspec.structs.replace(row, status=Status.STOPPING)
        assert table.replace_row(stopping, view.version)
        # `two` owns nothing any more, and `one` does not know it
        await two.assembly.membership.refresh()
        assert await asyncio.wait_for(one.grain(Noted, key).where(), 5) == one.address
        assert one.assembly.membership.view.version == view.version + 1


async def test_what_was_on_a_dead_silo_is_forgotten_and_swept() -> None:
    async with silos(2) as (one, two):
        key = key_owned_by(one.assembly.directory, one, "Noted")
        assert await two.grain(Noted, key).where() == two.address
        assert await one.grain(Noted, key).where() == two.address
        directory = one.assembly.directory
        assert directory.locations.get("Noted", key) == two.address
        assert entries(one) == 1
        await two.kill()
        table: Any = one.assembly.membership._table._table
        row = table.view().row(two.address)
        table.replace_row(msgspec.structs.replace(row, status=Status.DEAD), table.view().version)
        await one.assembly.membership.refresh()
        assert directory.locations.get("Noted", key) is None
        await until(lambda: entries(one) == 0)
