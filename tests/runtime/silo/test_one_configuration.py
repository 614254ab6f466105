"""A cluster has one configuration. A silo with another one cannot join, and the error names both
sides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import (
    ConfigError,
    Grain,
    MemberRow,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    Status,
    TableView,
    state,
)
from millstream.runtime.cluster.agreement import check_agreement
from millstream.runtime.extending import SiloPart
from millstream.runtime.silo.agreement import AGREEMENT_BYTES_MAX, agreement_of
from millstream.streams import HashRingMapper, PersistentStreams


class Tally(Grain):
    count = state(int)

    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value


class Stateless(Grain):
    async def ping(self) -> None: ...


def streams(queues: int) -> PersistentStreams:
    mapper = HashRingMapper(queues=queues)
    return PersistentStreams(MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer())


async def test_eight_queues_here_and_four_there_do_not_join() -> None:
    table = MemoryMembershipTable()

    def silo(name: str, queues: int) -> Silo:
        # a private store does not affect the check of queues
        stores = {"default": MemoryStateStore(private=True)}
        parts = {"default": streams(queues)}
        return Silo(grains=[], name=name, membership=table, stores=stores, streams=parts)

    match = (
        r"\(four\) cannot join: mapper of 'default' is 'HashRingMapper of 4 queues, queue-0 to "
        r"queue-3, epoch 1' here and 'HashRingMapper of 8 queues.*' at .* \(eight\)"
    )
    async with silo("eight", 8) as one:
        with pytest.raises(ConfigError, match=match):
            await silo("four", 4).start()
        rows = {row.name: row.status for row in table.view().rows}
        assert rows == {"eight": Status.ACTIVE, "four": Status.DEAD}
        async with silo("eight too", 8):
            assert len(one.members()) == 2
    async with silo("four", 4):  # the earlier silos are gone, and do not count
        pass


async def test_of_two_that_join_at_once_and_differ_one_is_refused() -> None:
    table, stores = MemoryMembershipTable(), {"default": MemoryStateStore()}
    silos = [
        Silo(grains=[], membership=table, stores=stores, streams={"default": streams(queues)})
        for queues in (4, 8)
    ]
    ends = await asyncio.gather(*(silo.start() for silo in silos), return_exceptions=True)
    assert sorted(isinstance(end, ConfigError) for end in ends) == [False, True]
    assert len(table.view().with_status(Status.ACTIVE)) == 1
    await asyncio.gather(*(silo.stop() for silo in silos))


async def test_a_shared_table_with_another_store_in_memory_is_refused() -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Tally], membership=table):
        with pytest.raises(ConfigError, match="store 'default' is 'MemoryStateStore of one proc"):
            await Silo(grains=[Tally], membership=table).start()
        async with Silo(grains=[Stateless], membership=table):
            pass  # its grains use no store


async def test_membership_options_that_differ_are_named() -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Stateless], membership=table):
        options = MembershipOptions(votes_for_death=3, probe_every_s=5)
        with pytest.raises(ConfigError, match="is 'votes_for_death=3, .*'votes_for_death=2"):
            await Silo(grains=[Stateless], membership=table, membership_options=options).start()


def test_a_table_of_many_processes_with_a_store_of_one_is_refused_unless_told_so(
    tmp_path: Path,
) -> None:
    table = SqliteMembershipTable(tmp_path / "table")
    with pytest.raises(ConfigError, match=r"shared.*store 'default'.*MemoryStateStore\(private=T"):
        Silo(grains=[Tally], membership=table)
    Silo(grains=[Stateless], membership=table)
    Silo(grains=[Tally], membership=table, stores={"default": MemoryStateStore(private=True)})
    Silo(grains=[Tally], membership=table, stores={"default": SqliteStateStore(tmp_path / "state")})


async def test_silos_with_private_stores_agree() -> None:
    table = MemoryMembershipTable()

    def silo() -> Silo:
        stores = {"default": MemoryStateStore(private=True)}
        return Silo(grains=[Tally], membership=table, stores=stores)

    async with silo() as one, silo():
        assert len(one.members()) == 2


class Chatty(SiloPart):
    def agreement(self) -> Mapping[str, str]:
        return {"book": "x" * 5_000}


class Exact(SiloPart):
    def __init__(self, size: int) -> None:
        self.size = size

    def agreement(self) -> Mapping[str, str]:
        return {"book": "x" * self.size}


def test_what_a_silo_brings_may_have_just_so_many_bytes() -> None:
    bare = agreement_of({}, MembershipOptions(), {"exact": Exact(0)})
    spare = AGREEMENT_BYTES_MAX - sum(len(what) + len(text) for what, text in bare)
    assert agreement_of({}, MembershipOptions(), {"exact": Exact(spare)})
    with pytest.raises(ConfigError):
        agreement_of({}, MembershipOptions(), {"exact": Exact(spare + 1)})


def test_a_part_that_brings_too_much_is_refused() -> None:
    with pytest.raises(ConfigError, match="a member's row has room for 4000"):
        Silo(grains=[], parts={"chatty": Chatty()})


async def test_a_silo_with_a_table_of_its_own_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream.silo")
    async with Silo(grains=[], name="lonely"):
        pass
    assert "silo lonely has its own membership table" in caplog.text


ROW = MemberRow("a:1@1", Status.JOINING, "a", agreement=(("queues", "8"), ("mine", "1")))


@pytest.mark.parametrize("status", [Status.JOINING, Status.STOPPING, Status.DEAD])
def test_only_active_silos_bind(status: Status) -> None:
    other = MemberRow("b:1@1", status, "b", agreement=(("queues", "4"),))
    check_agreement(ROW, TableView(1, (ROW, other)))
    active = msgspec.structs.replace(other, status=Status.ACTIVE)
    with pytest.raises(ConfigError, match="queues is '8' here and '4' at b:1@1"):
        check_agreement(ROW, TableView(1, (ROW, active)))


def test_what_only_one_side_has_is_no_difference() -> None:
    for agreement in ((), (("queues", "8"), ("theirs", "2"))):
        other = MemberRow("b:1@1", Status.ACTIVE, "b", agreement=agreement)
        check_agreement(ROW, TableView(1, (ROW, other)))
    other = MemberRow("b:1@1", Status.ACTIVE, "b", agreement=(("mine", "2"),))
    with pytest.raises(ConfigError, match=r"mine is '1' here and '2' at b:1@1 \(b\)"):
        check_agreement(ROW, TableView(1, (ROW, other)))
