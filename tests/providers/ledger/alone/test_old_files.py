"""One file of the store is restored from an older copy. Topics on real bookies lose no message
silently."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.alone.machine import Machine
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import LedgerTopics, Position
from millstream.providers.sqlite.storage import FILES, file_index
from millstream.runtime import MemoryStateStore, StorageError, StreamError

Rows = dict[str, bytes]
TOPICS = ("orders", "refunds", "flights")


def rows_of(store: MemoryStateStore) -> Rows:
    return {key: row.data for key, row in store.range("", "", 10_000)}


def put_back(store: MemoryStateStore, old: Rows, file: int) -> bool:
    """Put the rows of one file back, and return whether they differ."""
    now = rows_of(store)
    keys = [key for key in now.keys() | old.keys() if file_index(key) == file]
    changed = [key for key in keys if now.get(key) != old.get(key)]
    for key in changed:
        row = store.get(key)
        if row is not None:
            store.remove(key, row.etag, 0)
        if key in old:
            store.put(key, old[key], None, 0)
    return bool(changed)


class Program:
    """The messages that one run of a program stores, and its checks of earlier messages.

    `stored` holds the values by topic and number.
    """

    def __init__(self) -> None:
        self.stored: dict[str, dict[int, bytes]] = {name: {} for name in TOPICS}
        self.errors: list[Exception] = []

    async def produce(self, topics: LedgerTopics, name: str, what: str) -> None:
        topic = await topics.topic(name, ledger_entries_max=2)
        for at in range(5):
            value = f"{name} {what} {at}".encode()
            position = await topic.produce(None, value)
            assert position is not None
            known = self.stored[name]
            assert position.number not in known, f"{name}: {position} is given again"
            known[position.number] = value

    async def consume(self, topics: LedgerTopics, name: str) -> None:
        """Check that the topic delivers every stored value that was not acknowledged."""
        topic = await topics.topic(name)
        billing = await topic.subscribe("billing")
        found: dict[int, bytes] = {}
        while batch := await billing.batch():
            found |= {one.position.number: one.value for one in batch}
        wanted = {n: value for n, value in self.stored[name].items() if n > 2}
        assert wanted.items() <= found.items(), f"{name}: {wanted.keys() - found.keys()} are lost"

    async def acknowledge(self, topics: LedgerTopics, name: str) -> None:
        billing = await (await topics.topic(name)).subscribe("billing")
        billing.acknowledge_upto(Position(0, 2))
        await billing.flush()

    async def try_all(self, topics: LedgerTopics) -> None:
        for name in TOPICS:
            for act in (self.consume(topics, name), self.produce(topics, name, "last")):
                try:
                    await act
                except (StorageError, StreamError) as error:
                    assert "row ledger/" in str(error) or "(topics/)" in str(error), repr(error)
                    self.errors.append(error)


async def past(machine: Machine) -> tuple[Program, list[Rows]]:
    """Run two programs, and return copies of the store from the time between."""
    program, copies = Program(), [dict[str, bytes]()]
    for run in ("first", "second"):
        topics = await machine.topics().__aenter__()
        for name in TOPICS:
            await program.produce(topics, name, run)
            copies.append(rows_of(machine.store))
            await program.acknowledge(topics, name)
        machine.die()
        await asyncio.sleep(0)
    return program, copies


@pytest.mark.parametrize("file", range(FILES))
@virtually
async def test_an_old_file_of_the_store_is_noticed_or_does_no_harm(file: int) -> None:
    count, changed = 7, 0
    for at in range(count):
        machine = Machine()
        program, copies = await past(machine)
        assert len(copies) == count
        if not put_back(machine.store, copies[at], file):
            continue
        changed += 1
        try:
            topics = await machine.topics().__aenter__()
        except StorageError as error:
            assert "row ledger/" in str(error), repr(error)
            continue
        await program.try_all(topics)
        machine.die()
        await asyncio.sleep(0)
    assert changed >= 1


@virtually
async def test_without_an_old_file_all_is_there() -> None:
    machine = Machine()
    program, _ = await past(machine)
    async with machine.topics() as topics:
        await program.try_all(topics)
    assert not program.errors
    assert [sorted(known) for known in program.stored.values()] == [list(range(1, 16))] * 3


@virtually
async def test_numbers_of_ledgers_are_not_given_again_after_all_files_came_from_a_backup(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    topics = await machine.topics().__aenter__()
    await Program().produce(topics, "orders", "before")
    backup = rows_of(machine.store)
    lost = Program()
    for at in range(40):  # more ledgers than a block of numbers
        topic = await topics.topic("refunds", ledger_entries_max=1)
        await topic.produce(None, b"%d" % at)
    machine.die()
    await asyncio.sleep(0)
    for file in range(FILES):
        put_back(machine.store, backup, file)
    async with machine.topics() as topics:
        assert "but the row ledger/topics/counter knew no ledger from" in caplog.text
        await lost.produce(topics, "refunds", "after")
        topic = await topics.topic("refunds")
        audit = await topic.subscribe("audit", start="earliest")
        found = {one.position.number: one.value for one in await audit.batch()}
        assert found == lost.stored["refunds"]
