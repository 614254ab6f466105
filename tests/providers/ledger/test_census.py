"""The ledgers that bookies may forget: deleted ones, and no number that may still become a
ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

import msgspec
import pytest
from tests.providers.ledger.bookie.kit import new_disk, opened
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.local import LocalBookies
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.inspection import (
    BookieLedgers,
    LedgerError,
    LedgerRecord,
    LedgerState,
    TopicRecord,
)
from millstream.providers.ledger.metadata import ledgers as numbering
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.record import Fragment
from millstream.providers.ledger.serving.census import Census
from millstream.providers.ledger.topic.listed import ListedLedgers
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime import MemoryStateStore
from millstream.runtime.extending import Tasks

ALONE = Quorum(1, 1, 1)


class Process:
    """One process with its block of numbers, ledgers on one bookie, and a census."""

    def __init__(self, store: MemoryStateStore, bookie: Bookie, seed: int) -> None:
        clock = LoopClock(seed)
        metadata = Metadata(store, "c", clock, f"process{seed}")
        self.ids, self.rows = LedgerIds(metadata), ledger_rows(metadata)
        tasks = Tasks(asyncio.get_running_loop(), Context)
        bookies = LocalBookies({bookie.name: bookie})
        context = HandleContext(bookies, self.rows, clock, tasks, HandleOptions())
        self.ledgers = BookieLedgers(context, self.ids)
        self.topics = topic_rows(metadata)
        self.census = Census(metadata, self.ids, ListedLedgers(metadata), "c", clock)

    async def write(self) -> int:
        """Make a ledger with an entry, and return its number."""
        writer = await self.ledgers.create(ALONE, "t")
        await writer.append(b"x")
        await writer.close()
        return writer.ledger


@virtually
async def test_what_was_deleted_is_forgotten_and_what_is_there_is_kept() -> None:
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    first, second, third = [await one.write() for _ in range(3)]
    await one.ledgers.delete(first)
    await one.ledgers.delete(third)
    await one.census.collect(bookie)
    assert bookie.store.ledgers() == [second]
    assert bookie.store.is_forgotten(first) and bookie.store.is_forgotten(third)
    await one.ledgers.delete(second)
    await one.census.collect(bookie)
    assert bookie.store.ledgers() == []
    await bookie.aclose()


@virtually
async def test_a_process_may_use_numbers_that_it_took_before_all_below_was_deleted() -> None:
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one, other = Process(store, bookie, 1), Process(store, bookie, 2)
    await one.ledgers.delete(await one.write())
    kept = await other.write()
    await other.census.collect(bookie)
    assert bookie.store.is_forgotten_below(kept)
    later = await one.write()
    assert not bookie.store.is_forgotten(later)
    assert await one.rows.read(later) is not None
    await bookie.aclose()


@virtually
async def test_a_ledger_that_is_made_while_others_are_forgotten_stays() -> None:
    for late in range(12):
        store, bookie = MemoryStateStore(), await opened(new_disk())
        one, other = Process(store, bookie, 1), Process(store, bookie, 2)
        await one.ledgers.delete(await one.write())
        await other.write()
        collecting = asyncio.ensure_future(other.census.collect(bookie))
        for _ in range(late):
            await asyncio.sleep(0)
        made: list[int] = []
        try:
            made.append(await one.write())
        except LedgerError as error:
            raise AssertionError(f"after {late} steps: {error}") from error
        await collecting
        await other.census.collect(bookie)
        assert set(made) <= set(bookie.store.ledgers())
        await bookie.aclose()


@virtually
async def test_many_numbers_are_forgotten_some_at_a_time() -> None:
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    last = [await one.ids.next() for _ in range(numbering.PROVED_MAX + 20)][-1]
    await one.census.collect(bookie)
    assert bookie.store.is_forgotten_below(numbering.PROVED_MAX)
    assert not bookie.store.is_forgotten_below(last)
    await one.census.collect(bookie)
    assert bookie.store.is_forgotten_below(last)
    await bookie.aclose()


@virtually
async def test_what_a_topic_lists_is_kept_though_its_row_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The row's file was restored from an older copy, or somebody deleted the row."""
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    listed, other, newest = [await one.write() for _ in range(3)]
    await one.topics.create("t", TopicRecord("t").with_ledger(listed))
    await one.ledgers.delete(listed)
    await one.ledgers.delete(other)
    await one.census.collect(bookie)
    assert bookie.store.ledgers() == [listed, newest]
    assert "topic t: its row (topics/) lists ledger 1, but the row of that ledger" in caplog.text
    await one.topics.update("t", lambda _: TopicRecord("t"))
    await one.census.collect(bookie)
    assert bookie.store.ledgers() == [newest]
    await bookie.aclose()


@virtually
async def test_a_ledger_whose_row_is_missing_against_its_witness_is_kept_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    lost, kept, deleted = [await one.write() for _ in range(3)]
    await one.ledgers.delete(deleted)
    key = f"ledger/c/ledgers/{lost:019d}"
    row = store.get(key)
    assert row is not None
    store.remove(key, row.etag, 0)
    for _ in range(2):
        await one.census.collect(bookie)
    assert caplog.text.count(f"row {key} is missing: its witness") == 1
    assert bookie.store.ledgers() == [lost, kept]
    await bookie.aclose()


@virtually
async def test_a_ledger_whose_number_the_rows_have_not_given_out_is_kept() -> None:
    """All rows were restored from an older backup, which does not know the ledger."""
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one, later = Process(store, bookie, 1), Process(MemoryStateStore(), bookie, 2)
    known = await one.write()
    for _ in range(numbering.LEDGER_ID_BLOCK):
        await one.ids.next()
    beyond = await one.write()
    assert await later.ids.next() == known and await later.ids.free() <= beyond
    await later.census.collect(bookie)
    assert bookie.store.ledgers() == [beyond]
    await bookie.aclose()


@virtually
async def test_a_number_that_a_bookie_knows_is_not_given_again_by_older_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All rows were restored from an older backup. A reused number would mix the entries of two
    ledgers.
    """
    bookie, store = await opened(new_disk()), MemoryStateStore()
    one, restored = Process(MemoryStateStore(), bookie, 1), Process(store, bookie, 2)
    known = [await one.write() for _ in range(3)]
    assert await restored.ids.next() == known[0]  # its process has a block of low numbers
    for _ in range(numbering.LEDGER_ID_BLOCK):
        await one.ids.next()
    beyond = await one.write()
    await restored.census.avoid(bookie, "/data")
    assert (
        f"/data: the directory has entries of ledger {beyond}, but the row ledger/c/counter"
        in caplog.text
    )
    made = [await process.write() for process in (restored, Process(store, bookie, 3))]
    assert min(made) > beyond and len(set(made)) == 2
    said = len(caplog.records)
    await restored.census.avoid(bookie, "/data")
    assert len(caplog.records) == said
    await bookie.aclose()


@virtually
async def test_copies_of_a_ledger_that_is_recovered_now_are_kept_wherever_they_are() -> None:
    """The ledger's record may name the bookie again when the ledger is closed."""
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    ledger = await one.write()
    elsewhere = (Fragment(0, ("another",)),)
    for state in (LedgerState.OPEN, LedgerState.RECOVERING, LedgerState.CLOSED):
        await one.rows.update(ledger, moved(state, elsewhere))
        await one.census.collect(bookie)
        is_kept = ledger in bookie.store.index.ledgers
        assert is_kept == (state is not LedgerState.CLOSED), state
    await bookie.aclose()


def moved(
    state: LedgerState, fragments: tuple[Fragment, ...]
) -> Callable[[LedgerRecord | None], LedgerRecord]:
    def change(found: LedgerRecord | None) -> LedgerRecord:
        assert found is not None
        return msgspec.structs.replace(found, state=state, fragments=fragments)

    return change
