"""Upgrades of stored states: the definition, the chain of steps, and the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import decode, encode
from tests.examples import examples
from tests.runtime.definition.state_owner import StateOwner

from millstream.runtime import (
    Conflict,
    DefinitionError,
    Grain,
    MemoryStateStore,
    State,
    StateTooNew,
    StorageError,
    grain,
    state,
    upgrade,
)


@dataclass
class Tally1:
    count: int = 0


@dataclass
class Tally3:
    landed: int = 0


@dataclass
class Tally:
    landed: int = 0
    unit: str = ""


@grain(version=5)
class Port(Grain):
    tally = state(Tally)
    names: State[list[str]] = state(default=list)

    @staticmethod
    @upgrade(tally, from_version=3)
    def tally_of_3(old: Tally3) -> Tally:
        return Tally(old.landed, "planes")

    @upgrade(tally, from_version=1)
    @staticmethod
    def _tally_of_1(old: Tally1) -> Tally3:
        if old.count < 0:
            raise ValueError("a negative count")
        return Tally3(old.count)


def of(cls: type[Grain], name: str, store: MemoryStateStore) -> State[Any]:
    """Return a state of a class, as an activation makes it."""
    grain_type = cls.__millstream_type__
    grain_type.resolve()
    field = grain_type.states[name]
    return State(field, StateOwner(), store, name, None, grain_type.upgrades[name])


def put(store: MemoryStateStore, value: object, version: int, *more: object) -> None:
    """Store a row as a version writes it."""
    fields = [value, {}, *(more or ("", 1, ()))]
    store.put("tally", encode([*fields, version] if version > 1 else fields[:2]), None, 0)


# -- definition


@pytest.mark.parametrize("wrong", [0, -1, 65_535, True, "1", None, 1.0])
def test_from_version_is_a_version_that_another_may_follow(wrong: Any) -> None:
    tally = state(Tally)
    with pytest.raises(DefinitionError, match="write a whole number from 1 to 65534"):
        upgrade(tally, from_version=wrong)


@pytest.mark.parametrize("wrong", ["tally", None, 1, Tally])
def test_the_first_argument_is_a_state(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="pass a state of the class"):
        upgrade(wrong, from_version=1)


def class_with(
    *steps: tuple[int, Callable[..., Any]],
    version: int = 2,
    kind: Callable[..., Any] = staticmethod,
) -> type[Grain]:
    """Define a class with the state `tally` and these steps."""
    tally = state(Tally)
    body: dict[str, Any] = {"tally": tally, "__module__": __name__}
    for number, (from_version, fn) in enumerate(steps):
        fresh = FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, fn.__closure__)
        fresh.__annotations__ = fn.__annotations__
        body[f"step_{number}"] = kind(upgrade(tally, from_version=from_version)(fresh))
    made: type[Grain] = type("Made", (Grain,), body)
    return grain(version=version)(made)


def plain(old: Tally1) -> Tally:
    return Tally(old.count)


def other(old: Tally1) -> Tally:
    return Tally(old.count)


def to_3(old: Tally1) -> Tally3:
    return Tally3(old.count)


def without_result(old: Tally1):  # type: ignore[no-untyped-def]
    return Tally(old.count)


def without_argument(old) -> Tally:  # type: ignore[no-untyped-def]
    return Tally(old.count)


def of_two(old: Tally1, more: int) -> Tally:
    return Tally(old.count + more)


async def later(old: Tally1) -> Tally:
    return Tally(old.count)


def test_a_step_is_below_the_version_of_its_class() -> None:
    with pytest.raises(DefinitionError, match=r"class has version 2: write @grain\(version=3\)"):
        class_with((2, plain))


def test_a_class_without_a_version_is_refused_when_a_silo_hosts_it() -> None:
    class Late(Grain):
        tally = state(Tally)

        @staticmethod
        @upgrade(tally, from_version=1)
        def step(old: Tally1) -> Tally:
            return Tally(old.count)

    with pytest.raises(DefinitionError, match=r"class has version 1: write @grain\(version=2\)"):
        Late.__millstream_type__.resolve()


def test_two_steps_of_one_version_are_refused() -> None:
    with pytest.raises(DefinitionError, match="there twice, as step_0 and as step_1: remove one"):
        class_with((1, plain), (1, other))


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (to_3, r"returns `.*Tally3`, and the type of state `tally` is `.*Tally`: annotate both"),
        (without_result, "`return` needs an annotation"),
        (without_argument, "`old` needs an annotation"),
        (of_two, "is for a plain function of one value: write @staticmethod"),
        (later, "is for a plain function of one value: write @staticmethod"),
    ],
)
def test_a_step_has_one_argument_and_the_type_of_the_state(
    fn: Callable[..., Any], text: str
) -> None:
    with pytest.raises(DefinitionError, match=text):
        class_with((1, fn))


def test_a_gap_between_two_steps_is_refused() -> None:
    with pytest.raises(DefinitionError, match="returns `.*Tally3`, and the argument of step_1 is"):
        class_with((1, to_3), (2, plain), version=3)


@pytest.mark.parametrize("kind", [lambda fn: fn, classmethod])
def test_a_step_is_a_static_method(kind: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError, match="write @staticmethod above"):
        class_with((1, plain), kind=kind)


def test_a_step_of_another_class_is_refused() -> None:
    with pytest.raises(DefinitionError, match="for a state that Other does not have"):

        @grain(version=6)
        class Other(Grain):
            @staticmethod
            @upgrade(Port.tally, from_version=1)
            def step(old: Tally1) -> Tally:
                return Tally(old.count)


def test_a_subclass_inherits_the_steps() -> None:
    class Harbour(Port): ...

    Harbour.__millstream_type__.resolve()
    assert not Harbour.__millstream_type__.upgrades["tally"].is_present(3)


# -- reading


@pytest.mark.parametrize(
    ("stored", "version", "expected"),
    [
        ({"count": 4}, 1, Tally(4, "planes")),
        ({"landed": 4}, 2, Tally(4, "planes")),
        ({"landed": 4}, 3, Tally(4, "planes")),
        ({"landed": 4, "unit": "ships"}, 4, Tally(4, "ships")),
        ({"landed": 4, "unit": "ships"}, 5, Tally(4, "ships")),
    ],
)
async def test_each_step_takes_the_values_of_its_versions(
    stored: object, version: int, expected: Tally
) -> None:
    store = MemoryStateStore()
    put(store, stored, version)
    tally = of(Port, "tally", store)
    before = store.get("tally")
    await tally.read()
    assert tally.value == expected and tally.exists
    await tally.write_if_changed()
    await tally.trim()
    assert store.get("tally") == before, "an upgrade writes nothing by itself"
    tally.restore()
    assert tally.value == expected
    tally.value.landed += 1
    await tally.write_if_changed()
    row = store.get("tally")
    assert row is not None
    value = {"landed": 5, "unit": expected.unit}
    assert decode(row.data) == [value, {}, "", 1, [], 5]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 5), st.lists(st.sampled_from(["write", "clear", "trim", "read"]), max_size=6))
def test_a_row_always_says_which_version_encoded_its_value(
    version: int, actions: list[str]
) -> None:
    async def main() -> None:
        store, count, by = MemoryStateStore(), 4, version
        put(store, OLD_VALUES[version], version)
        tally = of(Port, "tally", store)
        await tally.read()
        for action in actions:
            if action == "write":
                count = tally.value.landed = count + 1
            await getattr(tally, action)()
            count = 0 if action == "clear" else count
            by = 5 if action in ("write", "clear") else by
            tally.restore()
            assert tally.value.landed == count
            again = of(Port, "tally", store)
            await again.read()
            assert again.value == tally.value
            row = store.get("tally")
            assert row is not None
            stored = decode(row.data)
            assert (stored[5] if len(stored) > 5 else 1) == by

    asyncio.run(main())


OLD_VALUES: dict[int, object] = {
    1: {"count": 4},
    2: {"landed": 4},
    3: {"landed": 4},
    4: {"landed": 4, "unit": "planes"},
    5: {"landed": 4, "unit": "planes"},
}


async def test_a_row_of_version_1_is_as_it_was_before_versions() -> None:
    class Plain(Grain):
        tally = state(Tally)

    store = MemoryStateStore()
    tally = of(Plain, "tally", store)
    await tally.read()
    tally.value.landed = 1
    await tally.write()
    row = store.get("tally")
    assert row is not None and row.data == b"\x92\x82\xa6landed\x01\xa4unit\xa0\x80"


async def test_a_value_of_a_later_version_is_not_read_and_not_changed() -> None:
    store = MemoryStateStore()
    put(store, {"quite": "different"}, 6)
    tally = of(Port, "tally", store)
    before = store.get("tally")
    with pytest.raises(StateTooNew, match="stored by version 6 .* hosts version 5: start") as found:
        await tally.read()
    assert (found.value.stored, found.value.hosted) == (6, 5)
    assert tally.value == Tally() and store.get("tally") == before
    with pytest.raises(Conflict):  # it has not become the owner of the row
        await tally.write()
    assert store.get("tally") == before


async def test_a_later_version_that_has_cleared_its_value_is_no_obstacle() -> None:
    store = MemoryStateStore()
    put(store, None, 6)
    tally = of(Port, "tally", store)
    await tally.read()
    assert tally.value == Tally() and not tally.exists
    tally.value.landed = 1
    await tally.write()


async def test_a_step_that_fails_names_itself_and_changes_nothing() -> None:
    store = MemoryStateStore()
    put(store, {"count": -1}, 1)
    before = store.get("tally")
    with pytest.raises(
        StorageError, match=r"Port\._tally_of_1 failed .* version 1: ValueError: a n"
    ):
        await of(Port, "tally", store).read()
    assert store.get("tally") == before


async def test_a_step_whose_result_is_of_another_type_is_an_error() -> None:
    def wrong(old: Tally1) -> Tally:
        return old  # type: ignore[return-value]

    store = MemoryStateStore()
    put(store, {"count": 1}, 1)
    with pytest.raises(StorageError, match="step_0 failed for a value of version 1: TypeError"):
        await of(class_with((1, wrong)), "tally", store).read()


async def test_a_row_that_is_not_of_the_old_type_names_the_row() -> None:
    store = MemoryStateStore()
    put(store, "no tally", 1)
    with pytest.raises(StorageError, match="row 'tally' of store 'default' cannot be read"):
        await of(Port, "tally", store).read()


async def test_steps_run_in_the_order_of_their_versions_whatever_their_names() -> None:
    def of_3(old: Tally3) -> Tally:
        return Tally(old.landed, "planes")

    store = MemoryStateStore()
    put(store, {"count": 3}, 1)
    tally = of(class_with((2, of_3), (1, to_3), version=3), "tally", store)
    await tally.read()
    assert tally.value == Tally(3, "planes")


SHARED = Tally(7)


async def test_the_result_of_a_step_belongs_to_one_activation() -> None:
    def same(old: Tally1) -> Tally:
        return SHARED

    store = MemoryStateStore()
    put(store, {"count": 1}, 1)
    tally = of(class_with((1, same)), "tally", store)
    await tally.read()
    assert tally.value == SHARED and tally.value is not SHARED


async def test_a_state_that_moves_up_is_upgraded_with_its_unwritten_changes() -> None:
    @grain(version=1)
    class Port1(Grain):
        tally = state(Tally1)

    store = MemoryStateStore()
    put(store, {"count": 4}, 1)
    old, new = of(Port1, "tally", store), of(Port, "tally", store)
    await old.read()
    old.value.count = 9
    moved = old.dehydrate()
    new.rehydrate(moved)
    assert new.value == Tally(9, "planes") and new.etag == old.etag
    new.restore()
    assert new.value == Tally(4, "planes")
    with pytest.raises(StateTooNew):
        old.rehydrate(new.dehydrate())
    assert old.value.count == 9


@pytest.mark.parametrize(
    ("row", "trimmed"),
    [
        ([{"count": 4}, {}, "o", 1, [b"x"]], [{"count": 4}, {}, "o", 2, []]),
        ([{"landed": 4}, {}, "o", 1, [b"x"], 3], [{"landed": 4}, {}, "o", 2, [], 3]),
    ],
)
async def test_a_row_without_its_sent_parcels_keeps_value_and_version(
    row: list[object], trimmed: list[object]
) -> None:
    store = MemoryStateStore()
    store.put("tally", encode(row), None, 0)
    tally = of(Port, "tally", store)
    await tally.read()
    tally.parcels.on_done(1)
    await tally.trim()
    stored = store.get("tally")
    assert stored is not None and decode(stored.data) == trimmed
    tally.restore()
    assert tally.value == Tally(4, "planes")
