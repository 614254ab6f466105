"""Topics over several disks when one of them does not answer at the opening."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from tests.providers.ledger.alone.disks import Disks
from tests.providers.ledger.alone.machine import BOOKIE, VirtualEnv, values
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import LedgerTopic, LedgerTopics, Position, Quorum, open_topics
from millstream.providers.ledger.alone.missing import unmet
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.record import Fragment
from millstream.runtime import ConfigError, MemoryStateStore, StorageUnavailable

NAMES = ("/a", "/b", "/c")


class Machine:
    """Three disks, and programs that open topics on them."""

    def __init__(self) -> None:
        self.disks = Disks(*NAMES)
        self.store = MemoryStateStore()
        self._starts = 0

    def topics(self, **more: Any) -> AbstractAsyncContextManager[LedgerTopics]:
        self._starts += 1
        chosen: dict[str, Any] = {"bookie": BOOKIE, "env": VirtualEnv(self._starts), **more}
        return open_topics(*NAMES, store=self.store, disk=self.disks, **chosen)

    def copies(self, word: str) -> int:
        """Count the disks that have a copy of a value."""
        return sum(
            word.encode() in b"".join(disk.copy_of("/").values())
            for disk in self.disks.all.values()
        )


async def produce(topic: LedgerTopic, numbers: range) -> None:
    for number in numbers:
        assert await topic.produce(None, f"m{number:03}".encode()) == Position(0, number)


async def all_of(topic: LedgerTopic, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        page = await topic.read(Position(0, len(found) + 1))
        assert page
        found += values(page)
    return found


@virtually
async def test_with_two_of_three_disks_topics_open_and_the_third_heals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    async with machine.topics() as topics:
        await produce(await topics.topic("orders"), range(1, 11))
    machine.disks.away = {"/b"}
    async with machine.topics() as topics:
        assert "/b/bookie cannot be used: OSError" in caplog.text
        orders = await topics.topic("orders")
        await produce(orders, range(11, 21))
        assert len(await all_of(orders, 20)) == 20
        assert machine.copies("m015") == 2
        machine.disks.away = set()
        await asyncio.sleep(200)  # the disk is opened again, and missing entries are copied to it
        assert all(machine.copies(f"m{number:03}") == 3 for number in range(1, 21))
        await produce(orders, range(21, 31))
        await asyncio.sleep(1)
        assert machine.copies("m025") == 3
    machine.disks.away = {"/a"}
    async with machine.topics() as topics:
        found = await all_of(await topics.topic("orders"), 30)
        assert found == [f"m{number:03}" for number in range(1, 31)]


@virtually
async def test_after_a_crash_two_disks_are_enough_to_end_what_was_open() -> None:
    machine = Machine()
    opened = machine.topics()
    topics = await opened.__aenter__()
    await produce(await topics.topic("orders"), range(1, 11))
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    for disk in machine.disks.all.values():
        disk.crash()
    machine.disks.away = {"/c"}
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        assert len(await all_of(orders, 10)) == 10
        await produce(orders, range(11, 13))


@virtually
async def test_with_one_of_three_it_is_said_what_is_missing_for_what() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        await produce(await topics.topic("orders"), range(1, 3))
    machine.disks.away = {"/a", "/c"}
    with pytest.raises(StorageUnavailable) as refused:
        async with machine.topics():
            pass
    text = str(refused.value)
    assert "/a/bookie cannot be used: OSError" in text and "/c/bookie" in text
    assert "topic 'orders/0' needs 2 directories (ack_quorum), but only 1 can be used" in text
    machine.disks.away = {"/c"}
    async with machine.topics() as topics:  # the failed start left no locks
        assert len(await all_of(await topics.topic("orders"), 2)) == 2


@virtually
async def test_a_ledger_that_only_the_missing_disk_has_is_named() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        single = await topics.topic("single", ensemble=1, ledger_entries_max=1)
        await produce(single, range(1, 9))
    machine.disks.away = {"/b"}
    with pytest.raises(
        StorageUnavailable, match=r"of single/0 .* cannot be read without the missing"
    ):
        async with machine.topics():
            pass


@virtually
async def test_without_topics_two_disks_must_be_there() -> None:
    machine = Machine()
    machine.disks.away = {"/b"}
    async with machine.topics() as topics:
        await produce(await topics.topic("orders"), range(1, 3))
    machine.disks.away = {"/a", "/b"}
    with pytest.raises(StorageUnavailable):
        async with machine.topics():
            pass


@virtually
async def test_topics_open_without_a_directory_that_is_refused_and_use_it_once_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    async with machine.topics() as topics:
        await produce(await topics.topic("orders"), range(1, 3))
    disk = machine.disks.all["/b"]
    good = disk.copy_of("/b/bookie")
    identity = next(path for path in good if path.endswith("/identity"))
    disk.flip_bit(identity, 40)
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        await produce(orders, range(3, 6))
        assert len(await all_of(orders, 5)) == 5
        assert "/b/bookie cannot be used: DirectoryRefused: /b/bookie/identity: offset 0" in (
            caplog.text
        )
        assert (
            "What can be done" in caplog.text
            and "topics use the other 2 directories" in caplog.text
        )
        await asyncio.sleep(300.0)
        assert caplog.text.count("the bookie cannot run") < 10
        disk.restore("/b/bookie", good)
        await asyncio.sleep(120.0)
        await produce(orders, range(6, 7))
    assert machine.copies("m004") == 3, "what it lacked was copied to it"


@virtually
async def test_two_refused_directories_of_three_are_named_with_what_lacks_them() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        await produce(await topics.topic("orders"), range(1, 3))
    for name in ("/a", "/b"):
        disk = machine.disks.all[name]
        disk.flip_bit(f"{name}/bookie/identity", 40)
    with pytest.raises(ConfigError) as refused:
        async with machine.topics():
            pass
    text = str(refused.value)
    assert "/a/bookie/identity: offset 0" in text and "/b/bookie/identity: offset 0" in text
    assert "topic 'orders/0' needs 2 directories (ack_quorum), but only 1 can be used" in text
    for name in ("/a", "/b"):
        machine.disks.all[name].flip_bit(f"{name}/bookie/identity", 40)
    async with machine.topics() as topics:  # the failed start left no locks
        assert len(await all_of(await topics.topic("orders"), 2)) == 2


@virtually
async def test_the_only_directory_is_never_done_without() -> None:
    machine = Machine()
    async with open_topics("/a", store=machine.store, disk=machine.disks, bookie=BOOKIE):
        pass
    machine.disks.all["/a"].flip_bit("/a/bookie/identity", 40)
    with pytest.raises(ConfigError, match="/a/bookie/identity: offset 0"):
        async with open_topics("/a", store=machine.store, disk=machine.disks, bookie=BOOKIE):
            pass


def record(quorum: Quorum, *fragments: Fragment, **more: Any) -> LedgerRecord:
    return LedgerRecord(7, LedgerState.OPEN, quorum, 1, fragments, "t", **more)


@pytest.mark.parametrize(
    ("quorum", "bookies", "is_met"),
    [
        (Quorum(3, 3, 2), "ab", True),
        (Quorum(3, 3, 2), "a", False),
        (Quorum(3, 3, 3), "a", True),
        (Quorum(3, 2, 2), "ab", True),
        (Quorum(3, 2, 2), "a", False),
        (Quorum(3, 1, 1), "ab", False),
        (Quorum(2, 2, 2), "b", True),
        (Quorum(2, 2, 2), "c", False),
    ],
)
def test_of_an_open_ledger_it_must_be_decided_what_was_acknowledged(
    quorum: Quorum, bookies: str, is_met: bool
) -> None:
    found = record(quorum, Fragment(0, tuple("abc"[: quorum.ensemble])))
    assert (unmet([found], [], Quorum(1, 1, 1), bookies) == "") is is_met


def test_of_a_closed_ledger_with_all_copies_one_of_each_is_enough() -> None:
    known = record(Quorum(3, 3, 2), Fragment(0, ("a", "b", "c")), last=4, complete=4)
    known = msgspec.structs.replace(known, state=LedgerState.CLOSED)
    assert unmet([known], [], Quorum(1, 1, 1), ["a"]) == ""
    unsure = msgspec.structs.replace(known, complete=3)
    text = "ledger 7 of t is on bookies a, b, c, and cannot be read without the missing directories"
    assert unmet([unsure], [], Quorum(1, 1, 1), ["a"]) == text
    moved = msgspec.structs.replace(known, fragments=(Fragment(0, ("d", "e", "f")),))
    assert unmet([moved, known], [], Quorum(1, 1, 1), ["a"])
