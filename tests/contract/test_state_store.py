"""The contract of `StateStore`, for each store that runs without a server."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.examples import examples

from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import Conflict, MemoryStateStore, Row, StateStore

Open = Callable[[Path], StateStore]
STORES: dict[str, Open] = {
    "memory": lambda directory: MemoryStateStore(),
    "sqlite": lambda directory: SqliteStateStore(directory),
}


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StateStore]:
    opened = STORES[request.param](tmp_path)
    yield opened
    await opened.aclose()


async def test_read_gives_none_when_the_row_is_absent(store: StateStore) -> None:
    assert await store.read("a") is None


@pytest.mark.parametrize("data", [b"", b"\x00\xff", b"x" * 100_000])
async def test_read_gives_what_was_written(store: StateStore, data: bytes) -> None:
    etag = await store.write("é/\x00 key", data, None, 7)
    assert await store.read("é/\x00 key") == Row(data, etag, 7)


async def test_write_that_must_not_exist_conflicts_when_the_row_exists(store: StateStore) -> None:
    etag = await store.write("a", b"1", None, 0)
    with pytest.raises(Conflict):
        await store.write("a", b"2", None, 9)
    assert await store.read("a") == Row(b"1", etag, 0)


async def test_write_gives_a_new_etag_each_time(store: StateStore) -> None:
    first = await store.write("a", b"1", None, 0)
    second = await store.write("a", b"1", first, 0)
    assert first != second
    assert await store.read("a") == Row(b"1", second, 0)


@pytest.mark.parametrize("etag", ["", "99", "-1", "01", "x", "²", "9" * 30])
async def test_write_conflicts_and_changes_nothing_when_the_etag_differs(
    store: StateStore, etag: str
) -> None:
    right = await store.write("a", b"1", None, 0)
    for refused in (store.write("a", b"2", etag, 9), store.clear("a", etag, 9)):
        with pytest.raises(Conflict):
            await refused
    assert await store.read("a") == Row(b"1", right, 0)


async def test_write_conflicts_when_an_etag_is_expected_of_an_absent_row(store: StateStore) -> None:
    for refused in (store.write("a", b"2", "1", 9), store.clear("a", "1", 9)):
        with pytest.raises(Conflict):
            await refused
    assert await store.read("a") is None


async def test_write_conflicts_when_the_fence_is_lower(store: StateStore) -> None:
    etag = await store.write("a", b"1", None, 5)
    for refused in (store.write("a", b"2", etag, 4), store.clear("a", etag, 4)):
        with pytest.raises(Conflict):
            await refused
    assert await store.read("a") == Row(b"1", etag, 5)


async def test_write_keeps_the_fence_of_the_last_writer(store: StateStore) -> None:
    etag = await store.write("a", b"1", None, 5)
    etag = await store.write("a", b"2", etag, 5)
    etag = await store.write("a", b"3", etag, 1 << 60)
    assert await store.read("a") == Row(b"3", etag, 1 << 60)


async def test_clear_then_write_gives_a_row_that_an_old_etag_does_not_fit(
    store: StateStore,
) -> None:
    seen = [await store.write("a", b"1", None, 0)]
    seen.append(await store.write("a", b"2", seen[-1], 0))
    await store.clear("a", seen[-1], 0)
    assert await store.read("a") is None
    seen.append(await store.write("a", b"3", None, 0))
    seen.append(await store.write("a", b"4", seen[-1], 0))
    assert len(set(seen)) == len(seen)


async def test_scan_gives_a_prefix_in_key_order_after_a_key_up_to_a_limit(
    store: StateStore,
) -> None:
    keys = [*(f"p/{number:03}" for number in range(40)), "p", "p.", "p0", "q/1", "p/\U0010ffff"]
    etags = {key: await store.write(key, key.encode(), None, 3) for key in keys}
    inside = sorted(key for key in keys if key.startswith("p/"))
    expected = [(key, Row(key.encode(), etags[key], 3)) for key in inside]
    assert list(await store.scan("p/", "", 100)) == expected
    assert list(await store.scan("p/", "p/010", 100)) == expected[11:]
    assert list(await store.scan("p/", "p/0105", 5)) == expected[11:16]
    assert list(await store.scan("p/", "q", 5)) == []
    assert list(await store.scan("p/", "", 0)) == []
    assert [key for key, _ in await store.scan("", "", 100)] == sorted(keys)


async def test_write_lets_one_win_when_many_write_the_same_row_at_once(store: StateStore) -> None:
    etag = await store.write("a", b"start", None, 0)
    tries = [store.write("a", bytes([number]), etag, 0) for number in range(50)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    won = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, str)]
    assert len(won) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 49
    assert await store.read("a") == Row(bytes(won), str(outcomes[won[0]]), 0)


async def test_write_counts_every_success_when_many_increment_one_row(store: StateStore) -> None:
    await store.write("a", b"0", None, 0)

    async def increment() -> None:
        while True:
            row = await store.read("a")
            assert row is not None
            try:
                await store.write("a", b"%d" % (int(row.data) + 1), row.etag, 0)
                return
            except Conflict:
                await asyncio.sleep(0)

    await asyncio.gather(*(increment() for _ in range(20)))
    row = await store.read("a")
    assert row is not None and row.data == b"20"


KEYS = st.sampled_from(["", "a", "a/1", "a/2", "a/10", "b"])


class StoreMachine(RuleBasedStateMachine):
    """Compares random writes, clears and scans, valid and invalid, with a dict."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.store = STORES[self.kind](Path(self.directory.name))
        self.rows: dict[str, Row] = {}
        self.used: dict[str, list[str]] = {}

    def teardown(self) -> None:
        self.runner.run(self.store.aclose())
        self.runner.close()
        self.directory.cleanup()

    def accepts(self, key: str, expect: str | None, fence: int) -> bool:
        row = self.rows.get(key)
        found = None if row is None else row.etag
        return found == expect and (row is None or row.fence <= fence)

    def pick(self, key: str, choice: int) -> str | None:
        """Return None, the valid etag, or one of the last etags of the key."""
        row = self.rows.get(key)
        right = None if row is None else row.etag
        choices = [right, None, right, *self.used.get(key, [])[-2:]]
        return choices[choice % len(choices)]

    @rule(key=KEYS, data=st.binary(max_size=8), choice=st.integers(0, 4), fence=st.integers(0, 3))
    def write(self, key: str, data: bytes, choice: int, fence: int) -> None:
        used = self.used.setdefault(key, [])
        expect = self.pick(key, choice)
        if not self.accepts(key, expect, fence):
            with pytest.raises(Conflict):
                self.runner.run(self.write_row(key, data, expect, fence))
            return
        etag = self.runner.run(self.write_row(key, data, expect, fence))
        assert etag not in used
        used.append(etag)
        self.rows[key] = Row(data, etag, fence)

    @rule(key=KEYS, choice=st.integers(0, 4), fence=st.integers(0, 3))
    def clear(self, key: str, choice: int, fence: int) -> None:
        expect = self.pick(key, choice) or "0"
        if not self.accepts(key, expect, fence):
            with pytest.raises(Conflict):
                self.runner.run(self.clear_row(key, expect, fence))
            return
        self.runner.run(self.clear_row(key, expect, fence))
        del self.rows[key]

    @rule(prefix=KEYS, after=KEYS, limit=st.integers(0, 6))
    def scan(self, prefix: str, after: str, limit: int) -> None:
        keys = sorted(key for key in self.rows if key.startswith(prefix) and key > after)
        found = self.runner.run(self.scan_rows(prefix, after, limit))
        assert found == [(key, self.rows[key]) for key in keys[:limit]]

    @invariant()
    def rows_are_the_same(self) -> None:
        assert self.runner.run(self.read_rows()) == self.rows

    async def write_row(self, key: str, data: bytes, expect: str | None, fence: int) -> str:
        return await self.store.write(key, data, expect, fence)

    async def clear_row(self, key: str, expect: str, fence: int) -> None:
        await self.store.clear(key, expect, fence)

    async def scan_rows(self, prefix: str, after: str, limit: int) -> list[tuple[str, Row]]:
        return list(await self.store.scan(prefix, after, limit))

    async def read_rows(self) -> dict[str, Row]:
        keys = ["", "a", "a/1", "a/2", "a/10", "b"]
        rows = {key: await self.store.read(key) for key in keys}
        return {key: row for key, row in rows.items() if row is not None}


class SqliteMachine(StoreMachine):
    kind = "sqlite"


@pytest.mark.parametrize("machine", [StoreMachine, SqliteMachine])
@pytest.mark.spare
def test_store_behaves_as_a_dict_with_compare_and_set(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples(20), stateful_step_count=25),
    )
