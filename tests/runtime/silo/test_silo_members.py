"""The members of a cluster, the reason of a stop, and immediate calls of a started silo."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.runtime import (
    HASHED,
    LEAST_ACTIVATIONS,
    Contract,
    Env,
    Grain,
    LocalCluster,
    MemberInfo,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    NotInCluster,
    Silo,
    Status,
    StopReason,
    connect,
    grain,
    state,
)
from millstream.runtime.cluster.placement import choose_silo
from millstream.runtime.extending import SiloPart

STILL = MembershipOptions(refresh_s=1000.0, heartbeat_s=1000.0, probe_every_s=1000.0)
"""Nothing reads the table without a cause, so silos only know the news that they were told."""


class Here(Grain):
    async def where(self) -> str:
        return self.context.silo


class There(Grain):
    async def where(self) -> str:
        return self.context.silo


class Counter(Grain):
    count = state(int)

    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value


async def test_a_started_silo_s_grains_are_found_by_every_other_at_once() -> None:
    for _ in range(20):
        table = MemoryMembershipTable()
        async with (
            Silo(grains=[Here], membership=table, membership_options=STILL) as one,
            connect(one.gateway) as client,
            Silo(grains=[There], membership=table, membership_options=STILL) as two,
        ):
            assert await one.grain(There, "k").where() == two.address
            assert await client.grain(There, "k2").where() == two.address


async def test_silos_and_clients_tell_who_is_in_the_cluster() -> None:
    table = MemoryMembershipTable()
    async with (
        Silo(grains=[Here], name="one", membership=table, membership_options=STILL) as one,
        Silo(grains=[There], name="two", membership=table, membership_options=STILL) as two,
        connect(two.gateway) as client,
    ):
        expected = [
            MemberInfo("one", one.address, Status.ACTIVE, ("Here",)),
            MemberInfo("two", two.address, Status.ACTIVE, ("There",)),
        ]
        expected.sort(key=lambda member: member.address)
        assert list(one.members()) == list(two.members()) == expected
        assert list(await client.members()) == expected
        await one.stop()
        assert [member.name for member in two.members()] == ["two"]
        assert [member.name for member in await client.members()] == ["two"]


async def test_a_silo_that_is_not_started_knows_no_members() -> None:
    with pytest.raises(NotInCluster):
        Silo(grains=[]).members()


async def test_what_ended_a_silo_is_told() -> None:
    stopped, killed, evicted = (Silo(grains=[Here]) for _ in range(3))
    for silo in (stopped, killed, evicted):
        await silo.start()
    await stopped.stop()
    await killed.kill()
    evicted.assembly.on_evicted("by a test")
    assert await stopped.wait_stopped() is StopReason.STOPPED
    assert await killed.wait_stopped() is StopReason.KILLED
    assert await evicted.wait_stopped() is StopReason.EVICTED
    await evicted.stop()
    assert await evicted.wait_stopped() is StopReason.EVICTED


async def test_a_silo_that_is_evicted_says_who_voted(caplog: pytest.LogCaptureFixture) -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Here], membership=table, membership_options=STILL) as silo:
        row = table.view().row(silo.address)
        assert row is not None
        dead = type(row)(row.silo, Status.DEAD, suspicions=(("other:1@1", 5.0),))
        table.replace_row(dead, table.view().version)
        await silo.assembly.membership.refresh()
        assert await silo.wait_stopped() is StopReason.EVICTED
    assert "suspected by other:1@1" in caplog.text


class SlowPart(SiloPart):
    """A part whose stop takes time. Two concurrent stops of its silo must stop it once."""

    def __init__(self) -> None:
        self.stops = 0
        self.gate = asyncio.Event()

    async def stop(self) -> None:
        self.stops += 1
        await self.gate.wait()


async def test_two_stops_at_once_are_one() -> None:
    part = SlowPart()
    silo = Silo(grains=[Here], parts={"slow": part})
    await silo.start()
    stops = [asyncio.create_task(silo.stop()) for _ in range(3)]
    await asyncio.sleep(0)
    stops[0].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    part.gate.set()
    assert await asyncio.gather(*stops[1:]) == [None, None]
    assert part.stops == 1
    assert await silo.wait_stopped() is StopReason.STOPPED


async def test_a_kill_cuts_a_stop_short() -> None:
    part = SlowPart()
    silo = Silo(grains=[Here], parts={"slow": part})
    await silo.start()
    stop = asyncio.create_task(silo.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.wait_for(silo.kill(), 5)
    await asyncio.wait_for(stop, 5)
    assert await silo.wait_stopped() is StopReason.KILLED


# --- placement of types that only other silos host -----------------------------------------------


class Fixed(Contract):
    async def where(self) -> str:
        raise NotImplementedError


@grain(name="Fixed", placement=HASHED)
class FixedGrain(Fixed, Grain):
    async def where(self) -> str:
        return self.context.silo


class Even(Contract):
    async def where(self) -> str:
        raise NotImplementedError


@grain(name="Even", placement=LEAST_ACTIVATIONS)
class EvenGrain(Even, Grain):
    async def where(self) -> str:
        return self.context.silo


async def test_a_silo_that_does_not_host_a_type_places_it_as_it_is_defined() -> None:
    table = MemoryMembershipTable()
    async with (
        Silo(grains=[Here], membership=table, membership_options=STILL) as other,
        Silo(grains=[FixedGrain, EvenGrain], membership=table, membership_options=STILL) as one,
        Silo(grains=[FixedGrain, EvenGrain], membership=table, membership_options=STILL) as two,
    ):
        for silo in (one, two):
            other.assembly.loads.learn(silo.address, 1000 if silo is one else 0)
        where = {await other.grain(Even, f"{i}").where() for i in range(20)}
        assert where == {two.address}
        hosts = sorted([one.address, two.address])
        for i in range(20):
            expected = choose_silo(HASHED, hosts, "", f"Fixed/{i}", {}, lambda n: 0)
            assert await other.grain(Fixed, f"{i}").where() == expected


# --- tables in memory ---------------------------------------------------------------------------


async def test_a_table_in_memory_begins_at_unix_milliseconds() -> None:
    class Later(Env):
        def wall_s(self) -> float:
            return 2_000_000_000.5

    assert MemoryMembershipTable(env=Later()).view().version == 2_000_000_000_500
    assert MemoryMembershipTable().view().version > 1_700_000_000_000
    assert MemoryMembershipTable(7).view().version == 7


async def test_state_can_be_written_after_a_restart_with_fewer_silos() -> None:
    """The rows keep a fence of the first cluster, so the new table must begin with a higher
    version.
    """
    store = MemoryStateStore()
    for silos in (3, 1):
        async with LocalCluster(silos=silos, grains=[Counter], stores={"default": store}) as some:
            count = await some.grain(Counter, "k").add()
    assert count == 2


# --- log lines ----------------------------------------------------------------------------------


async def test_members_that_join_and_leave_are_told_in_one_line_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = MemoryMembershipTable()
    with caplog.at_level(logging.INFO, "millstream.member"):
        async with Silo(grains=[Here], membership=table, membership_options=STILL) as one:
            async with Silo(
                grains=[Here], name="two", membership=table, membership_options=STILL
            ) as two:
                pass
    told = [
        record
        for record in caplog.records
        if getattr(record, "member", "") == two.address
        and getattr(record, "silo", "") == one.address
    ]
    texts = [record.getMessage() for record in told]
    words = ["joined the cluster", "is stopping", "left the cluster"]
    assert len(texts) == 3
    assert all(word in text and "(two)" in text for word, text in zip(words, texts, strict=True))
    assert [getattr(record, "status", "") for record in told] == ["active", "stopping", "dead"]
