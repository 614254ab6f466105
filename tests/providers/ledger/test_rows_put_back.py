"""Any row is damaged, swapped or restored to any older version. No message is lost silently."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from itertools import combinations
from random import Random

import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.examples import examples
from tests.providers.ledger.memory_ledgers import Bookies
from tests.providers.ledger.worlds import World, plain

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.metadata.witness import witness_key
from millstream.providers.ledger.topic.topic import Topic
from millstream.providers.sqlite.storage import FILES, file_index
from millstream.runtime import Etag, Row, StorageError, StreamError
from millstream.runtime.testing import FailingStore

SMALL = LedgerTopicSettings(ledger_entries_max=3)
QUICK = LedgerTopicOptions(enqueue_wait_s=2.0, tend_every_s=0.5, cursor_flush_s=0.2)
SCOPE = "ledger/c/"
PROCESSES = 2


class OldStore(FailingStore):
    """A store that can restore any row.

    `versions` holds the values of each key, with None where it had no row. `changes` holds the
    changes of all keys in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, list[bytes | None]] = {}
        self.changes: list[tuple[str, bytes | None]] = []

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        etag = super().put(key, data, expect, fence)
        self.versions.setdefault(key, [None]).append(bytes(data))
        self.changes.append((key, bytes(data)))
        return etag

    def remove(self, key: str, expect: Etag, fence: int) -> None:
        super().remove(key, expect, fence)
        self.versions[key].append(None)
        self.changes.append((key, None))

    def force(self, key: str, data: bytes | None) -> None:
        row: Row | None = self.get(key)
        if row is not None:
            super().remove(key, row.etag, 0)
        if data is not None:
            super().put(key, data, None, 0)

    def now(self, key: str) -> bytes | None:
        row = self.get(key)
        return None if row is None else row.data


class Past:
    """The history before the damage.

    `stored` holds the texts by number. Messages before `trimmed` need not exist. `done` holds the
    numbers that the cursor may have acknowledged since its last seek.
    """

    def __init__(self) -> None:
        self.stored: dict[int, str] = {}
        self.trimmed = 1
        self.done: set[int] = set()
        self.store = OldStore()
        self.bookies = Bookies()

    def world(self) -> World:
        """Return a copy of the world."""
        world = World()
        world.store = copy.deepcopy(self.store)
        world.bookies = copy.deepcopy(self.bookies)
        for _ in range(PROCESSES):
            world.process()  # reserves the earlier processes' names
        return world


async def happened() -> Past:
    """Run two owners with six ledgers, some of which are deleted.

    One cursor was moved back, and another was dropped and created again.
    """
    past, world = Past(), World()
    world.store, past.bookies = past.store, world.bookies
    text = 0

    async def append(topic: Topic, count: int) -> None:
        nonlocal text
        for _ in range(count):
            text += 1
            [number] = await topic.append(plain(f"m{text}"))
            assert number is not None
            past.stored[number] = f"m{text}"

    topic = await world.open(1, QUICK, SMALL)
    await append(topic, 5)
    cursor = await topic.cursors.open("c")
    await topic.cursors.open("other")
    cursor.acknowledge(4)
    await cursor.flush()
    await append(topic, 4)
    await topic.cursors.drop("other")
    await asyncio.sleep(5)
    other = await topic.cursors.open("other", 4)
    cursor.acknowledge(8)
    await cursor.flush()
    await asyncio.sleep(5)
    assert topic.reader.first == 4
    cursor.seek(5)
    await cursor.flush()
    await topic.let_go()
    topic = await world.open(2, QUICK, SMALL)
    await append(topic, 6)
    other = await topic.cursors.open("other")
    other.acknowledge(6)
    await other.flush()
    past.trimmed, past.done = topic.reader.first, set(range(1, 5))
    await topic.let_go()
    await world.aclose()
    return past


def said_so(error: Exception) -> bool:
    return "row ledger/c/" in str(error) or "(topics/)" in str(error) or "ledgers/" in str(error)


class Aftermath:
    """The next process, and all that it does and reads. `errors` holds the errors that name a
    row.
    """

    def __init__(self, past: Past, world: World) -> None:
        self.past, self.world = past, world
        self.errors: list[Exception] = []
        self.seen: dict[int, str] = {}
        self.given: set[int] = set()

    async def run(self) -> None:
        await self.guarded(self.sweep)
        await self.guarded(self.own)
        await self.guarded(self.read_beside)

    async def guarded(self, act: Callable[[], object]) -> None:
        try:
            await act()  # type: ignore[misc]
        except (StorageError, StreamError) as error:
            assert said_so(error), repr(error)
            self.errors.append(error)

    async def sweep(self) -> None:
        await asyncio.sleep(4000)
        await self.world.process().topics.sweep()

    async def own(self) -> None:
        topic = await self.world.open(3, QUICK, SMALL)
        await self.guarded(lambda: self.append(topic))
        await self.guarded(lambda: self.read(topic))
        await self.guarded(lambda: self.consume(topic))
        await asyncio.sleep(10)
        await self.guarded(topic.aclose)

    async def append(self, topic: Topic) -> None:
        for at in range(5):
            [number] = await topic.append(plain(f"new{at}"))
            assert number is not None
            assert number not in self.past.stored, f"number {number} is given again"
            self.past.stored[number] = f"new{at}"

    async def read(self, topic: Topic) -> None:
        number = topic.reader.first
        while number < topic.reader.end:
            page = await topic.reader.read(number, 4)
            assert page and page[0].number == number, (
                f"nothing at {number}, before {topic.reader.end}"
            )
            self.see([(one.number, one.message.payload) for one in page])
            number = page[-1].number + 1
        assert number > max(self.past.stored), f"the topic ends before {number}"

    async def consume(self, topic: Topic) -> None:
        cursor = await topic.cursors.open("c")
        while page := await cursor.read(4, 2**20):
            self.see([(one.number, one.message.payload) for one in page])
            self.given |= {one.number for one in page}
        wanted = {n for n in self.past.stored if n >= self.past.trimmed} - self.past.done
        assert wanted <= self.given, f"the cursor skips {sorted(wanted - self.given)}"

    async def read_beside(self) -> None:
        for one in await self.world.all(self.past.trimmed):
            self.see([(one.number, one.message.payload)])

    def see(self, found: list[tuple[int, bytes]]) -> None:
        for number, payload in found:
            assert self.past.stored.get(number) == payload.decode(), number
            self.seen[number] = payload.decode()

    def judge(self) -> None:
        """Without an error, the contents must be as if there had been no damage."""
        if not self.errors:
            kept = {n: text for n, text in self.past.stored.items() if n >= self.past.trimmed}
            assert kept.items() <= self.seen.items()


async def check(past: Past, change: Callable[[OldStore], None], needs_error: bool = False) -> None:
    world = past.world()
    store = world.store
    assert isinstance(store, OldStore)
    change(store)
    after = Aftermath(copy.copy(past), world)
    after.past.stored = dict(past.stored)
    await after.run()
    after.judge()
    await world.aclose()
    assert after.errors or not needs_error


def keys_of(past: Past) -> list[str]:
    return [key for key in sorted(past.store.versions) if past.store.get(key) is not None]


def older_versions(past: Past) -> Iterator[tuple[str, bytes | None]]:
    for key, versions in sorted(past.store.versions.items()):
        for data in versions:
            if data != past.store.now(key):
                yield key, data


def judged_each(
    of: Callable[[Past], list[Callable[[OldStore], None]]], needs_error: bool = False
) -> None:
    async def main() -> None:
        past = await happened()
        for change in of(past):
            await check(past, change, needs_error)

    in_virtual_time(main)


def test_without_damage_nothing_is_refused() -> None:
    async def main() -> None:
        past = await happened()
        world = past.world()
        after = Aftermath(past, world)
        await after.run()
        after.judge()
        assert not after.errors and max(past.stored) == 20
        await world.aclose()

    in_virtual_time(main)


def test_any_row_that_is_put_back_to_any_older_version_is_harmless_or_named() -> None:
    def changes(past: Past) -> list[Callable[[OldStore], None]]:
        found = list(older_versions(past))
        assert len(found) > 60
        return [lambda store, one=one: store.force(*one) for one in found]  # type: ignore[misc]

    judged_each(changes)


@pytest.mark.parametrize(
    "key", ["topics/t", "counter", "ledgers/0000000000000000003", "cursors/t/c"]
)
def test_what_lies_before_the_last_pinned_version_is_refused(key: str) -> None:
    async def main() -> None:
        past = await happened()
        versions = past.store.versions[SCOPE + key]
        pinned = len(versions) - (1 if key != "cursors/t/c" else 2)
        for data in versions[1:pinned]:
            await check(past, lambda store, data=data: store.force(SCOPE + key, data), True)  # type: ignore[misc]
        await check(past, lambda store: store.force(SCOPE + key, None), True)

    in_virtual_time(main)


def test_any_file_that_is_put_back_to_any_older_state_is_harmless_or_named() -> None:
    """As if state-3.db came from a backup, and the other files did not."""

    def changes(past: Past) -> list[Callable[[OldStore], None]]:
        log = past.store.changes
        ages = [(at, file) for at in range(len(log)) for file in range(FILES)]
        ages = [(at, file) for at, file in ages if file_index(log[at][0]) == file]
        return [lambda store, one=one: put_file_back(store, *one) for one in ages]  # type: ignore[misc]

    judged_each(changes)


def put_file_back(store: OldStore, changes: int, file: int) -> None:
    """Restore the file to its contents after the first `changes` changes of the store."""
    old = dict(store.changes[:changes])
    for key in store.versions:
        if file_index(key) == file and store.now(key) != old.get(key):
            store.force(key, old.get(key))


def test_a_row_and_its_witness_are_in_different_files() -> None:
    async def main() -> None:
        past = await happened()
        rows = [key for key in past.store.versions if "/witness/" not in key]
        assert len(rows) >= 9
        for key in rows:
            witness = witness_key(SCOPE, key)
            assert witness in past.store.versions, key
            assert file_index(key) != file_index(witness)

    in_virtual_time(main)


@pytest.mark.parametrize("is_missing", [True, False])
def test_the_row_of_a_ledger_is_compared_with_its_topic_where_no_witness_is_left(
    is_missing: bool,
) -> None:
    def changes(past: Past) -> list[Callable[[OldStore], None]]:
        folder = f"{SCOPE}ledgers/"
        keys = [key for key in keys_of(past) if key.startswith(folder)]
        found = [one for one in older_versions(past) if one[0] in keys]
        found = [one for one in found if (one[1] is None) == is_missing]
        assert len(found) >= 3
        return [lambda store, one=one: both(store, *one) for one in found]  # type: ignore[misc]

    def both(store: OldStore, key: str, data: bytes | None) -> None:
        store.force(key, data)
        store.force(witness_key(SCOPE, key), None)

    judged_each(changes, needs_error=True)


def flipped(data: bytes | None, bit: int) -> bytes:
    made = bytearray(data or b"")
    made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def test_a_flipped_bit_or_a_cut_in_any_row_is_harmless_or_named() -> None:
    random = Random(7)

    def changes(past: Past) -> list[Callable[[OldStore], None]]:
        found: list[Callable[[OldStore], None]] = []
        for key in keys_of(past):
            data = past.store.now(key) or b""
            for bit in random.sample(range(8 * len(data)), examples(8)):
                found.append(lambda s, k=key, b=bit: s.force(k, flipped(s.now(k), b)))  # type: ignore[misc]
            for size in (0, 1, 27, len(data) - 1):
                found.append(lambda s, k=key, d=data[:size]: s.force(k, d))  # type: ignore[misc]
        return found

    judged_each(changes)


def test_any_two_rows_that_are_swapped_are_harmless_or_named() -> None:
    def changes(past: Past) -> list[Callable[[OldStore], None]]:
        pairs = list(combinations(keys_of(past), 2))
        return [lambda store, one=one: swap(store, *one) for one in pairs]  # type: ignore[misc]

    judged_each(changes)


def swap(store: OldStore, one: str, two: str) -> None:
    first, second = store.now(one), store.now(two)
    store.force(one, second)
    store.force(two, first)
