"""A local call takes and gives the same as a remote one: values, refusals and errors."""

from __future__ import annotations

import asyncio
import enum
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runtime.callers import runtime_of

from millstream.runtime import (
    PREFER_LOCAL,
    CallCycle,
    CallError,
    Grain,
    GrainError,
    LocalCluster,
    MillstreamError,
    Rejected,
    grain,
)

KEPT: list[Any] = []


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ANN = "ann"


@dataclass
class Box:
    items: list[int] = field(default_factory=list)


@dataclass
class BigBox(Box):
    more: int = 0


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclass(frozen=True)
class Shelf:
    boxes: list[int]


class KnownError(Exception):
    def __init__(self, code: int, *, hint: str = "none") -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


class Handle:
    """A local object that must not leak."""


@grain(placement=PREFER_LOCAL)
class Store(Grain):
    def __init__(self) -> None:
        self._kept: Any = None

    async def ok(self) -> str:
        return "ok"

    async def keep(self, box: Box) -> None:
        self._kept = box

    async def keep_and_change(self, box: Box) -> list[int]:
        box.items.append(99)
        return box.items

    async def kept(self) -> Box:
        found: Box = self._kept
        return found

    async def kept_items(self) -> list[int]:
        return list(self._kept.items)

    async def keep_list(self, items: list[list[int]]) -> list[list[int]]:
        self._kept = items
        return items

    async def change_kept_list(self) -> list[list[int]]:
        self._kept[0].append(7)
        found: list[list[int]] = self._kept
        return found

    async def shelf(self, shelf: Shelf) -> Shelf:
        self._kept = shelf
        shelf.boxes.append(1)
        return shelf

    async def point(self, point: Point) -> Point:
        return point

    async def default_list(self, items: list[int] = []) -> list[int]:  # noqa: B006
        items.append(1)
        return items

    async def take_int(self, value: int) -> int:
        KEPT.append(value)
        return value

    async def take_float(self, value: float) -> float:
        KEPT.append(value)
        return value

    async def take_str(self, value: str) -> str:
        KEPT.append(value)
        return value

    async def take_bool(self, value: bool) -> bool:
        KEPT.append(value)
        return value

    async def take_optional(self, value: int | None) -> int | None:
        KEPT.append(value)
        return value

    async def take_colour(self, value: Colour) -> Colour:
        KEPT.append(value)
        return value

    async def take_any(self, value: Any) -> Any:
        KEPT.append(value)
        return value

    async def take_bytes(self, value: bytes) -> bytes:
        KEPT.append(value)
        return value

    async def take_tuple(self, value: tuple[int, str]) -> tuple[int, str]:
        KEPT.append(value)
        return value

    async def take_ints(self, value: list[int]) -> list[int]:
        KEPT.append(value)
        return value

    async def take_two(self, first: int, *, second: Box) -> int:
        KEPT.append((first, second))
        return first

    async def give_str_for_int(self) -> int:
        return "five"  # type: ignore[return-value]

    async def give_bool_for_int(self) -> int:
        return True

    async def give_int_for_float(self) -> float:
        return 3

    async def give_bad_items(self) -> list[int]:
        return [1, "two"]  # type: ignore[list-item]

    async def give_big_box(self) -> Box:
        return BigBox([1], 2)

    async def give_huge_int(self) -> int:
        return 2**70

    async def raise_value_error(self) -> None:
        raise ValueError("bad", 5)

    async def raise_known(self) -> None:
        raise KnownError(7, hint="look left")

    async def raise_unknown(self) -> None:
        class HiddenError(Exception):
            pass

        raise HiddenError("nobody knows me")

    async def raise_from(self) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    async def raise_in_handler(self) -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    async def raise_with_handle(self) -> None:
        handle = Handle()
        KEPT.append(weakref.ref(handle))
        error = ValueError("with a handle")
        error.handle = handle  # type: ignore[attr-defined]
        raise error

    async def raise_the_same_again(self) -> None:
        if self._kept is None:
            self._kept = ValueError("kept")
        raise self._kept

    async def raise_group(self) -> None:
        raise ExceptionGroup("several", [ValueError("one"), KnownError(2)])

    async def raise_os_error(self) -> None:
        raise FileNotFoundError(2, "no such file", "/nowhere")

    async def raise_cycle_of_its_own(self) -> None:
        raise CallCycle("X/1", "Y/2", "X/1")

    async def pass_on(self, key: str) -> None:
        await self.grain(Store, key).raise_known()


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster with `a` in the first silo."""
    KEPT.clear()
    async with LocalCluster(silos=2, grains=[Store]) as started:
        await started.silos[0].grain(Store, "a").ok()
        yield started


@pytest.fixture(params=["local", "silo", "client"])
def ref(request: pytest.FixtureRequest, cluster: LocalCluster) -> Store:
    return runtime_of(cluster, request.param).grain(Store, "a")


# --- values --------------------------------------------------------------------------------------


async def test_changing_an_argument_after_the_call_does_not_reach_the_grain(ref: Store) -> None:
    box = Box([1])
    await ref.keep(box)
    box.items.append(2)
    assert await ref.kept_items() == [1]


async def test_changing_an_argument_before_the_call_starts_does_not_reach_the_grain(
    cluster: LocalCluster,
) -> None:
    for runtime in (cluster.silos[0], cluster.silos[1], cluster.client):
        box = Box([1])
        task = asyncio.create_task(runtime.grain(Store, "a").keep(box))
        await asyncio.sleep(0)  # the call is made, whether it has run or not
        box.items.append(2)
        await task
        assert await runtime.grain(Store, "a").kept_items() == [1]


async def test_a_queued_call_has_the_argument_as_it_was_when_it_was_made(
    cluster: LocalCluster,
) -> None:
    ref = cluster.silos[0].grain(Store, "queued")
    box = Box([1])
    task = asyncio.create_task(ref.keep(box))  # waits for the activation
    await asyncio.sleep(0)
    box.items.append(2)
    await task
    assert await ref.kept_items() == [1]


async def test_a_grain_that_changes_an_argument_does_not_change_the_callers(ref: Store) -> None:
    box = Box([1])
    assert await ref.keep_and_change(box) == [1, 99]
    assert box.items == [1]


async def test_changing_a_result_does_not_reach_the_grain(ref: Store) -> None:
    await ref.keep(Box([1]))
    (await ref.kept()).items.append(2)
    assert await ref.kept_items() == [1]


async def test_a_grain_that_changes_what_it_returned_does_not_change_the_callers(
    ref: Store,
) -> None:
    given = [[1]]
    got = await ref.keep_list(given)
    assert got == given and got is not given and got[0] is not given[0]
    assert await ref.change_kept_list() == [[1, 7]]
    assert got == [[1]] and given == [[1]]


async def test_a_frozen_dataclass_with_a_list_is_copied(ref: Store) -> None:
    shelf = Shelf([])
    assert await ref.shelf(shelf) == Shelf([1])
    assert shelf.boxes == []


async def test_a_mutable_default_is_not_shared_between_calls(ref: Store) -> None:
    assert await ref.default_list() == [1]
    assert await ref.default_list() == [1]


async def test_what_cannot_change_passes_locally_as_it_is(cluster: LocalCluster) -> None:
    ref = cluster.silos[0].grain(Store, "a")
    point, text = Point(1, 2), "".join(["a", "b"])
    assert await ref.point(point) is point
    assert await ref.take_str(text) is text


SAME_EVERYWHERE: list[tuple[str, Any, Any]] = [
    ("take_int", True, 1),
    ("take_int", Level.LOW, 1),
    ("take_int", 2**64 - 1, 2**64 - 1),
    ("take_int", -(2**63), -(2**63)),
    ("take_float", 3, 3.0),
    ("take_float", True, 1.0),
    ("take_str", Name.ANN, "ann"),
    ("take_str", "åß", "åß"),
    ("take_bool", True, True),
    ("take_optional", None, None),
    ("take_optional", True, 1),
    ("take_colour", Colour.RED, Colour.RED),
    ("take_bytes", b"ab", b"ab"),
    ("take_tuple", (1, "a"), (1, "a")),
    ("take_ints", [1, 2], [1, 2]),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("method", "value", "expected"), SAME_EVERYWHERE)
async def test_a_value_arrives_and_returns_the_same_locally_and_remotely(
    ref: Store, method: str, value: Any, expected: Any
) -> None:
    got = await getattr(ref, method)(value)
    assert got == expected and type(got) is type(expected)
    (seen,) = KEPT
    assert seen == expected and type(seen) is type(expected)


REFUSED: list[tuple[str, Any]] = [
    ("take_int", "5"),
    ("take_int", 5.0),
    ("take_int", None),
    ("take_int", 2**64),
    ("take_float", "3"),
    ("take_str", 5),
    ("take_str", b"x"),
    ("take_str", "\ud800"),
    ("take_bool", 1),
    ("take_colour", "red"),
    ("take_bytes", "x"),
    ("take_tuple", (1, 2)),
    ("take_ints", [1, "2"]),
    ("take_ints", "12"),
    ("point", Shelf([])),
    ("keep", BigBox([1], 2)),
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("method", "value"), REFUSED)
async def test_a_wrong_argument_is_refused_by_name_and_never_runs(
    ref: Store, method: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=rf"Store\.{method}: argument `"):
        await getattr(ref, method)(value)
    assert KEPT == []
    assert await ref.ok() == "ok"


async def test_the_message_of_a_wrong_argument_is_the_same_everywhere(
    cluster: LocalCluster,
) -> None:
    for method, value in REFUSED:
        texts = set()
        for runtime in (cluster.silos[0], cluster.silos[1], cluster.client):
            with pytest.raises(TypeError) as caught:
                await getattr(runtime.grain(Store, "a"), method)(value)
            texts.add(str(caught.value))
        assert len(texts) == 1, texts


async def test_a_keyword_argument_is_named_too(ref: Store) -> None:
    with pytest.raises(TypeError, match=r"Store\.take_two: argument `second`"):
        await ref.take_two(1, second=Point(1, 2))  # type: ignore[arg-type]


async def test_a_subclass_that_would_lose_fields_is_refused_with_the_fields(ref: Store) -> None:
    with pytest.raises(TypeError, match=r"`box`.*BigBox.*lose fields `more`"):
        await ref.keep(BigBox([1], 2))


@pytest.mark.parametrize(
    "method", ["give_str_for_int", "give_bad_items", "give_big_box", "give_huge_int"]
)
async def test_a_wrong_result_is_refused_and_named(ref: Store, method: str) -> None:
    with pytest.raises(TypeError, match=rf"Store\.{method}: result"):
        await getattr(ref, method)()
    assert await ref.ok() == "ok"


async def test_results_widen_like_arguments(ref: Store) -> None:
    one = await ref.give_bool_for_int()
    assert type(one) is int and one == 1
    three = await ref.give_int_for_float()
    assert type(three) is float and three == 3.0


async def test_a_bare_object_cannot_be_sent_as_any(ref: Store) -> None:
    with pytest.raises(TypeError, match=r"Store\.take_any: argument `value`"):
        await ref.take_any(Handle())
    # `Any` carries plain values, so local and remote calls convert others alike
    assert await ref.take_any((1, [2])) == [1, [2]]


# --- errors --------------------------------------------------------------------------------------


async def test_an_error_arrives_with_its_type_arguments_and_the_callees_traceback(
    ref: Store,
) -> None:
    with pytest.raises(ValueError) as caught:
        await ref.raise_value_error()
    assert type(caught.value) is ValueError and caught.value.args == ("bad", 5)
    (note,) = caught.value.__notes__
    assert (
        "Store/a" in note and "raise_value_error" in note and 'raise ValueError("bad", 5)' in note
    )


async def test_a_known_error_keeps_its_attributes(ref: Store) -> None:
    with pytest.raises(KnownError) as caught:
        await ref.raise_known()
    assert (caught.value.code, caught.value.hint) == (7, "look left")


async def test_an_unknown_error_arrives_as_grain_error(ref: Store) -> None:
    with pytest.raises(GrainError) as caught:
        await ref.raise_unknown()
    assert caught.value.type_name.endswith("HiddenError")
    assert caught.value.message == "nobody knows me"


@pytest.mark.parametrize("method", ["raise_from", "raise_in_handler", "raise_with_handle"])
async def test_an_error_brings_no_local_objects_along(ref: Store, method: str) -> None:
    with pytest.raises(ValueError) as caught:
        await getattr(ref, method)()
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert not isinstance(getattr(caught.value, "handle", None), Handle)
    if method != "raise_with_handle":
        assert "KeyError: 'inner'" in caught.value.__notes__[-1]  # the cause is told as text


async def test_the_callees_frames_are_freed_though_the_caller_keeps_the_error(
    cluster: LocalCluster,
) -> None:
    kept: ValueError | None = None
    try:
        await cluster.silos[0].grain(Store, "a").raise_with_handle()
    except ValueError as error:
        kept = error
    gc.collect()
    assert kept is not None and KEPT[0]() is None


async def test_an_error_raised_again_and_again_is_fresh_each_time(ref: Store) -> None:
    caught: list[ValueError] = []
    for _ in range(3):
        with pytest.raises(ValueError) as info:
            await ref.raise_the_same_again()
        caught.append(info.value)
    assert len({id(error) for error in caught}) == 3
    assert all(len(error.__notes__) == 1 for error in caught)


async def test_a_group_arrives_member_by_member(ref: Store) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await ref.raise_group()
    one, two = caught.value.exceptions
    assert type(one) is ValueError and type(two) is KnownError and two.code == 2


async def test_an_os_error_keeps_its_file_name(ref: Store) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        await ref.raise_os_error()
    assert caught.value.filename == "/nowhere" and caught.value.errno == 2


async def test_a_millstream_error_keeps_its_attributes(ref: Store) -> None:
    with pytest.raises(CallCycle) as caught:
        await ref.raise_cycle_of_its_own()
    assert caught.value.path == ("X/1", "Y/2", "X/1")


async def test_an_error_that_passes_through_a_grain_names_both(cluster: LocalCluster) -> None:
    await cluster.silos[1].grain(Store, "far").ok()
    with pytest.raises(KnownError) as caught:
        await cluster.grain(Store, "a").pass_on("far")
    assert caught.value.code == 7
    notes = "\n".join(caught.value.__notes__)
    assert "Store/far" in notes and "Store/a" in notes


# --- failing starts ------------------------------------------------------------------------------


@grain(placement=PREFER_LOCAL)
class Stillborn(Grain):
    async def on_activate(self) -> None:
        class SecretError(Exception):
            pass

        if self.key == "unknown":
            raise SecretError("from on_activate")
        raise KnownError(3)

    async def ok(self) -> str:
        return "ok"


async def test_an_error_of_on_activate_is_fresh_for_each_caller_and_isolated() -> None:
    async with LocalCluster(silos=2, grains=[Stillborn]) as cluster:
        for runtime in (cluster.silos[0], cluster.silos[1], cluster.client):
            ref = runtime.grain(Stillborn, "known")
            found = await asyncio.gather(ref.ok(), ref.ok(), ref.ok(), return_exceptions=True)
            assert [type(error) for error in found] == [KnownError] * 3
            assert len({id(error) for error in found}) == 3
            for error in found:
                assert isinstance(error, KnownError) and error.code == 3
                assert "on_activate" in error.__notes__[-1]
            with pytest.raises(GrainError, match="from on_activate"):
                await runtime.grain(Stillborn, "unknown").ok()


async def test_refusals_of_the_runtime_are_call_errors(cluster: LocalCluster) -> None:
    assert issubclass(Rejected, CallError) and issubclass(CallError, MillstreamError)
