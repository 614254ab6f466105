"""Rows and their witnesses step by step: the order of reads and writes, and a crash between two
steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.test_metadata_rows import Sum, adding
from tests.providers.ledger.test_witnessed_rows import KEY, WITNESS
from xxhash import xxh3_64_intdigest

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.metadata.witness import witness_key
from millstream.runtime import Corrupt, Etag, MemoryStateStore, Row

NAMES = {KEY: "row", WITNESS: "witness"}


class Traced(MemoryStateStore):
    """Records each step. `before` runs before each step, and may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.before: Callable[[str], None] = lambda step: None

    def taken(self) -> list[str]:
        steps, self.steps = self.steps, []
        return steps

    def note(self, what: str, key: str) -> None:
        step = f"{what} {NAMES[key]}"
        self.before(step)
        self.steps.append(step)

    async def read(self, key: str, /) -> Row | None:
        self.note("read", key)
        return self.get(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        self.note("write", key)
        return self.put(key, data, expect, fence)

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        self.note("clear", key)
        self.remove(key, expect, fence)

    def crash_before(self, step: str) -> None:
        """Crash every process that reaches this step."""

        def crash(now: str) -> None:
            if now == step:
                raise Crash

        self.before = crash

    def recover(self) -> None:
        self.before = lambda step: None


class Crash(BaseException):
    """The process ends."""


def sums(store: Traced, *, is_witnessed: bool = True, seed: int = 0) -> RecordRows[str, Sum]:
    metadata = Metadata(store, "c", LoopClock(seed), f"process{seed}")
    return RecordRows(metadata, "sums/", Sum, key_part, is_witnessed=is_witnessed)


def forget(store: Traced, key: str) -> None:
    row = store.get(key)
    assert row is not None
    store.remove(key, row.etag, 0)


@pytest.mark.parametrize(("name", "number"), [("0", 0), ("3", 1), ("2", 2), ("5", 5)])
def test_a_witness_is_stored_under_the_first_number_that_puts_it_into_another_file(
    name: str, number: int
) -> None:
    key = f"ledger/c/sums/{name}"
    keys = [f"ledger/c/witness/{at}/sums/{name}" for at in range(number + 1)]
    assert witness_key("ledger/c/", key) == keys[-1]
    *same, other = [xxh3_64_intdigest(one.encode()) % 2 for one in keys]
    assert {xxh3_64_intdigest(key.encode()) % 2} == {*same, 1 - other}


def test_a_row_with_a_witness_costs_what_the_design_says() -> None:
    async def main() -> None:
        store = Traced()
        rows = sums(store)
        look = ["read witness", "read row"]
        assert await rows.read("s") is None and store.taken() == look
        await rows.create("s", Sum((1,)))
        assert store.taken() == [*look, "write witness", "write row", "write witness"]
        await rows.update("s", adding(2))
        assert store.taken() == [*look, "write row", "write witness"]
        await rows.update("s", adding(3), pins=False)
        assert store.taken() == [*look, "write row"]
        await rows.update("s", adding(3), pins=False)
        assert store.taken() == look
        await rows.update("s", adding(3))  # the row is pinned from here
        assert store.taken() == [*look, "write witness"]
        await rows.update("s", adding(3))
        assert store.taken() == look
        await rows.end_deletion("s")
        assert store.taken() == ["read witness"]
        await rows.delete("s")
        gone = ["read row", "read witness", "write witness", "clear row", "clear witness"]
        assert store.taken() == gone
        await rows.delete("s")
        assert store.taken() == ["read row", "read witness"]

    in_virtual_time(main)


def test_a_row_without_a_witness_costs_one_step_each() -> None:
    async def main() -> None:
        store = Traced()
        rows = sums(store, is_witnessed=False)
        assert await rows.read("s") is None and store.taken() == ["read row"]
        await rows.create("s", Sum((1,)))
        assert store.taken() == ["read row", "write row"]
        await rows.update("s", adding(2))
        assert store.taken() == ["read row", "write row"]
        await rows.end_deletion("s")
        assert store.taken() == []
        await rows.delete("s")
        assert store.taken() == ["read row", "clear row"]
        await rows.delete("s")
        assert store.taken() == ["read row"]

    in_virtual_time(main)


@pytest.mark.parametrize("is_witnessed", [True, False])
def test_a_change_may_remove_the_row(is_witnessed: bool) -> None:
    async def main() -> None:
        store = Traced()
        rows = sums(store, is_witnessed=is_witnessed)
        assert await rows.update("s", lambda found: None) is None
        await rows.update("s", adding(1))
        assert await rows.update("s", lambda found: None) is None
        assert store.get(KEY) is None and store.get(WITNESS) is None
        assert (await rows.update("s", adding(2))).parts == (2,)

    in_virtual_time(main)


def test_the_first_version_is_pinned_also_if_the_change_pins_nothing_and_the_second_is_not() -> (
    None
):
    async def main() -> None:
        store = Traced()
        rows = sums(store)
        await rows.update("s", adding(1), pins=False)
        first = store.get(KEY)
        assert first is not None
        forget(store, KEY)
        with pytest.raises(Corrupt, match="is missing"):
            await rows.read("s")
        store.put(KEY, first.data, None, 0)
        await rows.update("s", adding(2), pins=False)
        forget(store, KEY)
        store.put(KEY, first.data, None, 0)
        found = await rows.read("s")
        assert found is not None and found.parts == (1,)

    in_virtual_time(main)


@pytest.mark.parametrize("step", ["write row", "write witness"])
def test_a_creation_that_stopped_halfway_accuses_nobody_and_is_made_again(step: str) -> None:
    async def main() -> None:
        store = Traced()
        rows, others = sums(store), sums(store, seed=1)
        await rows.update("s", adding(1))
        await rows.delete("s")
        store.crash_before(step)
        with pytest.raises(Crash):
            await rows.create("s", Sum((2,)))
        store.recover()
        assert await others.read("s") is None
        assert (await others.create("s", Sum((3,)))).parts == (3,)
        forget(store, KEY)
        with pytest.raises(Corrupt, match="is missing"):
            await rows.read("s")

    in_virtual_time(main)


def test_a_row_whose_writer_crashed_before_it_was_pinned_is_pinned_by_who_changes_it() -> None:
    async def main() -> None:
        store = Traced()
        rows, others = sums(store), sums(store, seed=1)
        written = 0

        def crash(step: str) -> None:
            nonlocal written
            written += step == "write witness"
            if written == 2:
                raise Crash

        store.before = crash
        with pytest.raises(Crash):
            await rows.create("s", Sum((1,)))
        store.recover()
        found = await others.read("s")
        assert found is not None and found.parts == (1,)
        assert (await others.update("s", adding(1))).parts == (1,)
        forget(store, KEY)
        with pytest.raises(Corrupt, match="is missing"):
            await rows.read("s")

    in_virtual_time(main)


@pytest.mark.parametrize("end", ["read", "end", "update", "delete", "none"])
@pytest.mark.parametrize("step", ["clear row", "clear witness"])
def test_a_row_that_is_made_after_a_deletion_that_stopped_halfway_has_a_witness(
    step: str, end: str
) -> None:
    async def main() -> None:
        store = Traced()
        rows, others = sums(store), sums(store, seed=1)
        await rows.update("s", adding(1))
        store.crash_before(step)
        with pytest.raises(Crash):
            await rows.delete("s")
        store.recover()
        if end == "read":
            assert await others.read("s") is None
        elif end == "end":
            await others.end_deletion("s")
        elif end == "update":
            assert await others.update("s", lambda found: found) is None
        elif end == "delete":
            await others.delete("s")
        if end in ("end", "update", "delete"):
            assert store.get(KEY) is None and store.get(WITNESS) is None
        assert (await others.update("s", adding(2))).parts == (2,)
        forget(store, KEY)
        with pytest.raises(Corrupt, match="is missing"):
            await rows.read("s")

    in_virtual_time(main)


def test_a_deletion_of_a_row_that_is_damaged_ends() -> None:
    async def main() -> None:
        store = Traced()
        rows = sums(store)
        await rows.update("s", adding(1))
        forget(store, KEY)
        store.put(KEY, b"?", None, 0)
        await rows.delete("s")
        assert store.get(KEY) is None and store.get(WITNESS) is None

    in_virtual_time(main)


class Stepping(MemoryStateStore):
    """One process's access to a store. Each step waits for a permission."""

    def __init__(self, store: Traced) -> None:
        super().__init__()
        self._steps = store
        self._may = asyncio.Semaphore(0)
        self._made = 0

    async def go(self, *steps: str) -> None:
        """Let the process make these steps, and check that they were the next ones."""
        self._steps.taken()
        for _ in steps:
            made = self._made
            self._may.release()
            while self._made == made:
                await asyncio.sleep(0)
        assert self._steps.taken() == list(steps)

    async def read(self, key: str, /) -> Row | None:
        await self._may.acquire()
        self._made += 1
        return await self._steps.read(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        await self._may.acquire()
        self._made += 1
        return await self._steps.write(key, data, expect, fence)


LOOK = ("read witness", "read row")


def creation(store: Traced, number: int) -> tuple[Stepping, asyncio.Task[Sum]]:
    """Start a process that creates the row step by step."""
    steps = Stepping(store)
    metadata = Metadata(steps, "c", LoopClock(number), f"stepping{number}")
    rows = RecordRows(metadata, "sums/", Sum, key_part, is_witnessed=True)
    return steps, asyncio.ensure_future(rows.create("s", Sum((number,))))


def test_a_row_has_a_witness_though_its_reservation_was_removed_before_it_was_written() -> None:
    async def main() -> None:
        store = Traced()
        others = sums(store)
        steps, made = creation(store, 1)
        await steps.go(*LOOK, "write witness")
        await others.delete("s")
        await steps.go("write row", "write witness")  # in place of the row that disappeared
        await steps.go("read witness", "write witness", "read row", "write witness")
        assert (await made).parts == (1,)
        forget(store, KEY)
        with pytest.raises(Corrupt, match="is missing"):
            await others.read("s")

    in_virtual_time(main)


def test_who_pins_a_row_that_was_deleted_and_made_anew_accuses_the_new_one_of_nothing() -> None:
    async def main() -> None:
        store = Traced()
        others = sums(store)
        slow, made_first = creation(store, 1)
        await slow.go(*LOOK, "write witness", "write row")
        await others.delete("s")
        other, made_then = creation(store, 2)
        await other.go(*LOOK, "write witness")
        await others.delete("s")
        await slow.go("write witness", "read witness", "write witness")
        await other.go("write row")
        await slow.go("read row")
        assert (await made_first).parts == (1,)
        await other.go("write witness", "read witness", "write witness")
        assert (await made_then).parts == (2,)
        found = await others.read("s")
        assert found is not None and found.parts == (2,)
        forget(store, KEY)
        with pytest.raises(Corrupt, match="is missing"):
            await others.read("s")

    in_virtual_time(main)
