"""The subscription rows of many streams are read by few scans."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import MemoryStateStore, Row, StorageUnavailable
from millstream.streams import StreamId
from millstream.streams.api import subscription_rows
from millstream.streams.api.implicit import ImplicitSubscription
from millstream.streams.api.rendezvous import rendezvous_key
from millstream.streams.api.subscription_rows import (
    HERE,
    WHOLE_STREAM,
    SubscriptionRow,
    SubscriptionState,
    find_held,
    implicit_row,
    is_kept_while_held,
    row_data,
    row_key,
    rows_of_namespace,
    rows_of_streams,
    rows_under,
    stream_row,
)

KEYS = ["a", "a\x1fb", "ab", "a/b", "", "b\x1b0", "c", "\x1f"]
NAMES = ["one", "two/x", "with\x1fseparator"]


class CountingStore(MemoryStateStore):
    def __init__(self) -> None:
        super().__init__()
        self.scanned: list[str] = []  # prefixes

    @property
    def scans(self) -> int:
        return len(self.scanned)

    def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
        self.scanned.append(prefix)
        return super().range(prefix, after, limit)


def put(store: MemoryStateStore, stream: StreamId, name: str, provider: str = "default") -> None:
    row = SubscriptionRow(name, "Reader", "r", "_on", False, "next")
    key = row_key(rendezvous_key(provider, stream), name)
    store.put(key, row_data(key, row), None, 0)


streams = st.builds(StreamId, st.sampled_from(["n", "n\x1fm", "m"]), st.sampled_from(KEYS))


@given(
    stored=st.sets(st.tuples(streams, st.sampled_from(NAMES))),
    wanted=st.sets(streams, max_size=8),
    page=st.integers(1, 4),
)
async def test_each_stream_has_the_rows_that_a_scan_of_it_alone_finds(
    stored: set[tuple[StreamId, str]], wanted: set[StreamId], page: int
) -> None:
    store = CountingStore()
    for stream, name in stored:
        put(store, stream, name)
        put(store, stream, name, provider="other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscription_rows, "ROWS_PER_SCAN", page)
        found = await rows_of_streams(store, "default", wanted)
    assert found.keys() == wanted
    for stream, rows in found.items():
        alone = await rows_under(store, row_key(rendezvous_key("default", stream)))
        assert rows == [row for row, _ in alone]
        assert {row.id for row in rows} == {name for one, name in stored if one == stream}


@pytest.mark.parametrize("others", [0, 500])
async def test_many_streams_are_read_by_one_scan(others: int) -> None:
    store = CountingStore()
    for number in range(others):
        put(store, StreamId("n", f"other-{number}"), "one")
    put(store, StreamId("n", "wanted-7"), "one")
    wanted = [StreamId("n", f"wanted-{number}") for number in range(1_000)]
    found = await rows_of_streams(store, "default", wanted)
    assert store.scans == 1
    assert [stream.key for stream, rows in found.items() if rows] == ["wanted-7"]


async def test_streams_without_rows_among_many_that_have_some_are_skipped() -> None:
    store = CountingStore()
    for number in range(5_000):
        put(store, StreamId("n", f"{number:05}"), "one")
    wanted = [StreamId("n", key) for key in ("00001", "00002", "04999", "05000", "x")]
    found = await rows_of_streams(store, "default", wanted)
    assert [len(rows) for rows in found.values()] == [1, 1, 1, 0, 0]
    assert store.scans == 2


async def test_a_store_that_is_away_says_so() -> None:
    class Away(MemoryStateStore):
        def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
            raise StorageUnavailable("no disk")

    with pytest.raises(StorageUnavailable):
        await rows_of_streams(Away(), "default", [StreamId("n", "a")])
    assert await rows_of_streams(Away(), "default", []) == {}


async def test_one_stream_of_a_namespace_is_read_without_its_neighbours() -> None:
    store = CountingStore()
    one, other = StreamId("n", "a"), StreamId("m", "a")
    await rows_of_streams(store, "default", [one, other])
    assert store.scanned == [row_key(rendezvous_key("default", each)) for each in (other, one)]


async def test_the_held_subscriptions_of_a_namespace_are_read_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription_rows, "ROWS_PER_SCAN", 2)
    store = CountingStore()
    for key in ("a", "b\x1f", "c"):
        put(store, StreamId("n", key), "with\x1fseparator")
    put(store, StreamId("other", "a"), "one")
    found = await rows_of_namespace(store, "default", "n")
    assert [(stream.key, row.id) for stream, row in found] == [
        (key, "with\x1fseparator") for key in ("a", "b\x1f", "c")
    ]
    assert store.scans == 2


async def test_a_damaged_row_of_a_namespace_counts_as_paused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, stream = CountingStore(), StreamId("n", "a\x1f")
    key = row_key(rendezvous_key("default", stream), "one\x1ftwo")
    put(store, stream, "one\x1ftwo")
    row = store.get(key)
    assert row is not None
    store.put(key, row.data[:-1] + b"\xff", row.etag, 0)
    found = await rows_of_namespace(store, "default", "n")
    wanted = SubscriptionRow("one\x1ftwo", "", stream.key, "", False, HERE, state="paused")
    assert found == [(stream, wanted)]
    assert "no event is delivered to subscription one" in caplog.text


def test_the_row_of_a_mark_is_active_and_goes_on_where_it_is() -> None:
    one = ImplicitSubscription("default", "n", "both", "Reader", "on", None, True)
    row = SubscriptionRow(one.subscription, "Reader", "k", "on", False, HERE, state="active")
    assert implicit_row(one, "k") == row


def test_rows_say_how_a_subscription_is_held() -> None:
    whole = stream_row(StreamId("n", "a"))
    assert whole == SubscriptionRow("*", "", "a", "", False, HERE, state="active")
    states: list[SubscriptionState] = ["pending", "active", "faulted", "paused"]
    held = [find_held(msgspec.structs.replace(whole, state=state)) for state in states]
    assert held == ["", "", "faulted", "paused"]
    kept = [is_kept_while_held(name) for name in (WHOLE_STREAM, "implicit/n/r/on", "explicit/x")]
    assert kept == [True, True, False]
