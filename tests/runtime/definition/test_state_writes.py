"""The values that writes of a state store, and their order: the state alone, without a silo."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import spin, until

from millstream.runtime import Etag, MemoryStateStore, NotInCluster, Row, State, StorageError, state
from millstream.runtime.definition.names import grain_id, parse_grain_id, row_key

T = TypeVar("T")
KEY = "Counter/a/tally"


@dataclass
class Tally:
    count: int = 0
    names: list[str] = field(default_factory=list)


class Owner:
    """The owner of the state."""

    def __init__(self) -> None:
        self.version = 7
        self.conflicts = 0
        self.has_ended = False

    def check_running(self) -> None:
        if self.has_ended:
            raise NotInCluster("ended")

    def on_conflict(self) -> None:
        self.conflicts += 1

    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        return asyncio.ensure_future(coro)


class GatedStore(MemoryStateStore):
    """Each write waits until the test lets it through. The store keeps the written values."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []
        self.written: list[Any] = []

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        self.written.append(msgspec.msgpack.decode(data))
        return await super().write(key, data, expect, fence)

    async def let(self, number: int) -> None:
        """Let write `number` through, once it has begun."""
        await until(lambda: len(self.gates) > number)
        self.gates[number].set()


class Holder:
    tally = state(Tally)


def made(store: MemoryStateStore, owner: Owner | None = None) -> State[Tally]:
    return State(Holder.__dict__["tally"], owner or Owner(), store, KEY, None)


async def test_a_write_stores_the_value_of_the_moment_it_was_asked_for() -> None:
    store = GatedStore()
    tally = made(store)
    first = asyncio.create_task(tally.write())
    await until(lambda: len(store.gates) == 1)
    tally.value.count = 1
    second = asyncio.create_task(tally.write())  # waits for the first
    await spin()
    tally.value.count = 2  # a later turn is half done, and has not asked for a write
    tally.value.names.append("half")
    await store.let(0)
    await store.let(1)
    await asyncio.gather(first, second)
    assert [data for data, _cursors in store.written] == [
        {"count": 0, "names": []},
        {"count": 1, "names": []},
    ]


async def test_a_write_stores_the_value_of_the_moment_though_nothing_was_under_way() -> None:
    store = GatedStore()
    tally = made(store)
    asked = asyncio.create_task(tally.write())
    await asyncio.sleep(0)
    tally.value.count = 9
    await store.let(0)
    await asked
    assert store.written[0][0]["count"] == 0


async def test_a_later_write_takes_the_place_of_one_that_waits() -> None:
    store = GatedStore()
    tally = made(store)
    writes = [asyncio.create_task(tally.write())]
    await until(lambda: len(store.gates) == 1)
    for count in (1, 2, 3):
        tally.value.count = count
        writes.append(asyncio.create_task(tally.write()))
        await spin()
    await store.let(0)
    await store.let(1)
    await asyncio.gather(*writes)
    assert [data["count"] for data, _ in store.written] == [0, 3]


async def test_a_write_that_cannot_be_encoded_does_not_harm_the_one_that_waits() -> None:
    store = GatedStore()
    tally = made(store)
    first = asyncio.create_task(tally.write())
    await until(lambda: len(store.gates) == 1)
    tally.value.count = 1
    second = asyncio.create_task(tally.write())
    await spin()
    tally.value.count = "no number"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="Counter/a/tally"):
        await tally.write()
    await store.let(0)
    await store.let(1)
    await asyncio.gather(first, second)
    assert store.written[-1][0]["count"] == 1


async def test_writes_and_commits_are_stored_in_the_order_in_which_they_were_asked_for() -> None:
    store = GatedStore()
    tally = made(store)
    asked = []
    for count, ask in enumerate(
        [tally.write, tally.write, lambda: tally.commit("s", "q", (1, 1, 1)), tally.write]
    ):
        tally.value.count = count
        asked.append(asyncio.create_task(ask()))
        await spin()
    for number in range(4):
        await store.let(number)
    await asyncio.gather(*asked)
    assert [(data["count"], cursors) for data, cursors in store.written] == [
        (0, {}),
        (1, {}),
        (2, {"s": {"q": [1, 1, 1]}}),
        (3, {"s": {"q": [1, 1, 1]}}),
    ]


async def test_two_commits_at_once_keep_each_others_positions() -> None:
    store = GatedStore()
    tally = made(store)
    one = asyncio.create_task(tally.commit("one", "q", (1, 1, 0)))
    await until(lambda: len(store.gates) == 1)
    two = asyncio.create_task(tally.commit("two", "q", (1, 2, 0)))
    await spin()
    await store.let(0)
    await store.let(1)
    await asyncio.gather(one, two)
    assert tally.cursors == {"one": {"q": (1, 1, 0)}, "two": {"q": (1, 2, 0)}}
    assert store.written[-1][1] == {"one": {"q": [1, 1, 0]}, "two": {"q": [1, 2, 0]}}


async def test_clear_sets_the_default_at_once_and_keeps_what_is_changed_after_it() -> None:
    store = GatedStore()
    tally = made(store)
    tally.value.count = 5
    clearing = asyncio.create_task(tally.clear())
    await spin()
    assert tally.value.count == 0
    tally.value.count = 1  # a turn that runs while the row is being written
    await store.let(0)
    await clearing
    assert not tally.exists and tally.value.count == 1
    changed = asyncio.create_task(tally.write_if_changed())
    await store.let(1)
    await changed
    assert [data for data, _ in store.written] == [None, {"count": 1, "names": []}]
    await tally.write_if_changed()
    assert len(store.written) == 2


async def test_a_conflict_is_told_to_the_owner_and_to_who_wrote() -> None:
    owner, store = Owner(), MemoryStateStore()
    tally = made(store, owner)
    store.put(KEY, b"other", None, 0)
    with pytest.raises(StorageError, match="etag"):
        await tally.write()
    assert owner.conflicts == 1


async def test_nothing_is_stored_for_an_owner_that_has_ended() -> None:
    owner, store = Owner(), MemoryStateStore()
    tally = made(store, owner)
    owner.has_ended = True
    with pytest.raises(NotInCluster):
        await tally.write()
    assert store.get(KEY) is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "truncated"),
        (b"\xc1\xff", "malformed"),
        (msgspec.msgpack.encode([{"count": "many", "names": []}, {}]), "count"),
        (msgspec.msgpack.encode("no row"), "array"),
    ],
)
async def test_a_row_that_cannot_be_read_is_named_with_state_and_store(
    data: bytes, says: str
) -> None:
    store = MemoryStateStore()
    store._rows[KEY] = Row(data, "1", 0)
    with pytest.raises(StorageError) as caught:
        await made(store).read()
    for part in ("`tally`", KEY, "'default'", "`Tally`", says):
        assert part in str(caught.value)


PARTS = st.text(st.sampled_from("a/%2F5$é\n"), max_size=6)


@given(st.tuples(PARTS, PARTS, PARTS), st.tuples(PARTS, PARTS, PARTS))
def test_rows_of_different_states_have_different_keys(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (row_key(*one) == row_key(*other)) == (one == other)


@given(PARTS.filter(bool), PARTS)
def test_the_name_of_a_grain_gives_back_its_type_and_key(kind: str, key: str) -> None:
    assert parse_grain_id(grain_id(kind, key)) == (kind, key)


def test_ordinary_names_stand_in_keys_of_rows_as_they_are() -> None:
    assert row_key("Account", "eu:1", "tally") == "Account/eu:1/tally"
    assert row_key("Account", "eu/1", "tally") == "Account/eu%2F1/tally"
    assert row_key("Account/eu", "1", "tally") == "Account%2Feu/1/tally"
    assert grain_id("Account", "eu/1") == "Account/eu/1"


@pytest.mark.parametrize("text", ["", "no slash", "/key"])
def test_text_that_is_no_name_of_a_grain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Type/key"):
        parse_grain_id(text)
