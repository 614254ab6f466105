"""The allowed forms of grain classes, and the errors for others."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from millstream.runtime import (
    PREFER_LOCAL,
    ConfigError,
    Contract,
    DefinitionError,
    Grain,
    LocalCluster,
    NotHosted,
    Runtime,
    Silo,
    State,
    always_interleave,
    grain,
    one_way,
    read_only,
    state,
    timeout,
)

if TYPE_CHECKING:
    from fractions import Fraction as OnlyForCheckers

T = TypeVar("T")


@dataclass
class Flight:
    dest: str


@dataclass
class Tally:
    count: int = 0


class Opaque:
    pass


def line_of(text: str) -> int:
    """Return the line of this file that holds `text`. No other line may hold it, except for the
    call.
    """
    lines = linecache.getlines(__file__)
    (found,) = [at for at, line in enumerate(lines, 1) if text in line and "line_of(" not in line]
    return found


def refused(define: Callable[[], object], *words: str) -> str:
    """Check that a DefinitionError names this file and the words, and return its text."""
    with pytest.raises(DefinitionError) as caught:
        define()
    text = str(caught.value)
    assert f"{__file__}:" in text, text
    for word in words:
        assert word in text, text
    return text


# --- refused -------------------------------------------------------------------------------------


def test_a_public_method_that_is_not_async_is_refused_with_its_line() -> None:
    def define() -> object:
        class Bad(Grain):
            def count(self) -> int:  # sync method
                return 1

        return Bad

    refused(define, f":{line_of('# sync method')}:", "Bad.count", "async def", "_count")


def test_a_missing_argument_annotation_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            async def add(self, by) -> int:  # type: ignore[no-untyped-def]  # no argument type
                return 1

        return Bad

    refused(define, f":{line_of('# no argument type')}:", "Bad.add", "`by`", "annotation")


def test_a_missing_result_annotation_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            async def add(self, by: int):  # type: ignore[no-untyped-def]
                return 1

        return Bad

    refused(define, "Bad.add", "result", "annotation")


def test_an_annotation_without_an_encoding_is_refused() -> None:
    def argument() -> object:
        class Bad(Grain):
            async def add(self, by: list[Opaque]) -> int:
                return 1

        return Bad

    def result() -> object:
        class Bad(Grain):
            async def add(self) -> dict[str, Opaque]:
                return {}

        return Bad

    refused(argument, "Bad.add", "`by`", "Opaque", "no encoding")
    refused(result, "Bad.add", "result", "Opaque", "no encoding")


@pytest.mark.parametrize("name", ["_ms", "_ms_call", "_msx"])
def test_names_with_the_reserved_prefix_are_refused(name: str) -> None:
    async def method(self: Any) -> int:
        return 1

    with pytest.raises(DefinitionError, match="_ms"):
        type("Bad", (Grain,), {name: method})


def test_a_parameter_with_the_reserved_prefix_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            async def add(self, _ms_task: int) -> int:
                return 1

        return Bad

    refused(define, "Bad.add", "_ms")


def test_a_one_way_method_with_a_result_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @one_way  # type: ignore[type-var]
            async def tell(self) -> int:
                return 1

        return Bad

    refused(define, "Bad.tell", "one-way", "-> None")


def test_an_async_def_that_returns_an_iterator_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            async def ticks(self) -> AsyncIterator[int]:
                raise NotImplementedError

        return Bad

    refused(define, "Bad.ticks", "result")


@pytest.mark.parametrize("kind", ["positional", "keyword"])
def test_open_parameter_lists_are_refused(kind: str) -> None:
    def positional() -> object:
        class Bad(Grain):
            async def add(self, *args: int) -> int:
                return 1

        return Bad

    def keyword() -> object:
        class Bad(Grain):
            async def add(self, **kwargs: int) -> int:
                return 1

        return Bad

    refused(positional if kind == "positional" else keyword, "Bad.add", "args")


def test_a_contract_method_that_is_not_implemented_is_refused() -> None:
    class Api(Contract):
        async def count(self) -> int:
            raise NotImplementedError

        async def add(self, by: int) -> int:
            raise NotImplementedError

    def define() -> object:
        class Bad(Grain, Api):
            async def count(self) -> int:
                return 1

        return Bad

    refused(define, "Bad", "`add`", "Api", "implement")


def test_the_grain_decorator_refuses_other_classes() -> None:
    with pytest.raises(DefinitionError, match="Grain"):
        grain(Opaque)  # type: ignore[type-var]
    with pytest.raises(TypeError):
        grain(nmae="typo")  # type: ignore[call-overload]


@pytest.mark.parametrize("seconds", [0, -1, "5s", None, float("nan")])
def test_a_timeout_that_is_no_positive_number_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        timeout(seconds)


def test_state_without_a_class_or_default_is_refused() -> None:
    with pytest.raises(DefinitionError):
        state()  # type: ignore[call-overload]


async def test_a_state_default_of_another_type_is_refused() -> None:
    with pytest.raises(DefinitionError, match="tally"):

        class Bad(Grain):
            tally = state(Tally, default=lambda: 5)  # type: ignore[arg-type,return-value]

            async def count(self) -> int:
                return 1

        async with Silo(grains=[Bad]):
            pass


async def test_a_state_type_without_an_encoding_is_refused() -> None:
    with pytest.raises(DefinitionError, match="kept.*Opaque"):

        class Bad(Grain):
            kept = state(Opaque)

            async def count(self) -> int:
                return 1

        async with Silo(grains=[Bad]):
            pass


async def test_two_classes_of_one_name_are_refused_when_the_silo_is_built() -> None:
    class Twin(Grain):
        async def one(self) -> int:
            return 1

    first = Twin

    def again() -> type[Grain]:
        class Twin(Grain):
            async def two(self) -> int:
                return 2

        return Twin

    with pytest.raises(ConfigError, match="Twin") as caught:
        async with Silo(grains=[first, again()]):
            pass
    assert "again" in str(caught.value) and "name=" in str(caught.value)


async def test_two_classes_with_the_same_given_name_are_refused() -> None:
    @grain(name="Same")
    class One(Grain):
        async def one(self) -> int:
            return 1

    @grain(name="Same")
    class Two(Grain):
        async def one(self) -> int:
            return 2

    with pytest.raises(ConfigError, match="'Same'"):
        async with Silo(grains=[One, Two]):
            pass


@pytest.mark.parametrize("wrong", [Opaque, Flight("x"), "Name", Contract])
async def test_a_silo_refuses_what_is_not_a_grain_class(wrong: Any) -> None:
    with pytest.raises((ConfigError, TypeError), match="rain"):
        async with Silo(grains=[wrong]):
            pass


async def test_a_silo_refuses_a_contract() -> None:
    class Api(Contract):
        async def count(self) -> int:
            raise NotImplementedError

    with pytest.raises((ConfigError, TypeError), match="Api"):
        async with Silo(grains=[Api]):  # type: ignore[list-item]
            pass


# --- pending annotations -------------------------------------------------------------------------


class Early(Grain):
    """Uses a class that is defined below."""

    async def echo(self, late: Late) -> Late:
        return late


@dataclass
class Late:
    value: int
    next: Later | None = None


@dataclass
class Later:
    value: int


async def test_a_name_that_is_defined_later_is_resolved_when_the_silo_is_built() -> None:
    async with LocalCluster(silos=2, grains=[Early]) as cluster:
        late = Late(1, Later(2))
        assert await cluster.grain(Early, "a").echo(late) == late


async def test_a_name_in_the_defining_function_is_resolved() -> None:
    @dataclass
    class Inner:
        value: int

    class UsesInner(Grain):
        async def echo(self, inner: Inner) -> list[Inner]:
            return [inner]

    async with Silo(grains=[UsesInner]) as silo:
        assert await silo.grain(UsesInner, "a").echo(Inner(3)) == [Inner(3)]


class NeedsChecker(Grain):
    async def echo(self, value: OnlyForCheckers) -> int:
        return 1


async def test_a_name_that_only_type_checkers_see_is_refused_when_the_silo_is_built() -> None:
    with pytest.raises(DefinitionError) as caught:
        async with Silo(grains=[NeedsChecker]):
            pass
    text = str(caught.value)
    assert "NeedsChecker.echo" in text and "OnlyForCheckers" in text and "TYPE_CHECKING" in text
    assert f"{__file__}:" in text


# --- generics ------------------------------------------------------------------------------------


async def test_a_generic_grain_is_typed_by_its_subclass() -> None:
    class Shelf(Grain, Generic[T]):
        async def put(self, item: T) -> list[T]:
            return [item]

    class FlightShelf(Shelf[Flight]):
        pass

    class IntShelf(Shelf[int]):
        async def total(self, more: list[int]) -> int:
            return sum(more)

    async with LocalCluster(silos=1, grains=[FlightShelf, IntShelf]) as cluster:
        for runtime in (cluster.silos[0], cluster.client):
            flight = Flight("BOS")
            assert await runtime.grain(FlightShelf, "a").put(flight) == [flight]
            assert await runtime.grain(IntShelf, "a").put(5) == [5]
            assert await runtime.grain(IntShelf, "a").total([5, 6]) == 11
            with pytest.raises(TypeError, match=r"IntShelf\.put: argument `item`"):
                await runtime.grain(IntShelf, "a").put("5")  # type: ignore[arg-type]


async def test_two_generic_bases_may_share_one_type_variable() -> None:
    class Left(Grain, Generic[T]):
        async def left(self, item: T) -> T:
            return item

    class Right(Grain, Generic[T]):
        async def right(self, item: T) -> T:
            return item

    class Both(Left[int], Right[str]):
        pass

    async with Silo(grains=[Both]) as silo:
        assert await silo.grain(Both, "a").left(1) == 1
        assert await silo.grain(Both, "a").right("x") == "x"
        with pytest.raises(TypeError, match="argument `item`"):
            await silo.grain(Both, "a").right(1)  # type: ignore[arg-type]


async def test_an_open_generic_grain_is_refused_by_the_silo() -> None:
    class Shelf(Grain, Generic[T]):
        async def put(self, item: T) -> list[T]:
            return [item]

    with pytest.raises(DefinitionError, match=r"Shelf.*`T`"):
        async with Silo(grains=[Shelf]):
            pass


# --- markers and inheritance ---------------------------------------------------------------------


class Base(Grain):
    @read_only
    async def look(self) -> str:
        return "base"

    @timeout(5)
    async def wait(self) -> str:
        return "base"

    async def plain(self) -> str:
        return "base"


class KeepsMarks(Base):
    async def look(self) -> str:
        return "derived"


class ReplacesMarks(Base):
    @always_interleave
    async def look(self) -> str:
        return "derived"

    @timeout(7)
    async def wait(self) -> str:
        return "derived"


class Mixin:
    async def mixed(self, by: int) -> int:
        return by + 1


class WithMixin(Mixin, Grain):
    async def own(self) -> int:
        return 1


def test_an_override_without_a_marker_keeps_the_inherited_one() -> None:
    spec = KeepsMarks.__millstream_type__.specs["look"]
    assert spec.is_read_only and not spec.is_interleaving


def test_an_override_with_a_marker_replaces_the_inherited_ones() -> None:
    spec = ReplacesMarks.__millstream_type__.specs["look"]
    assert spec.is_interleaving and not spec.is_read_only
    assert ReplacesMarks.__millstream_type__.specs["wait"].timeout_s == 7
    assert Base.__millstream_type__.specs["wait"].timeout_s == 5


async def test_inherited_methods_and_mixins_are_callable() -> None:
    async with Silo(grains=[KeepsMarks, WithMixin]) as silo:
        assert await silo.grain(KeepsMarks, "a").look() == "derived"
        assert await silo.grain(KeepsMarks, "a").plain() == "base"
        assert await silo.grain(WithMixin, "a").mixed(1) == 2


def test_a_subclass_is_a_type_of_its_own_with_the_options_of_its_base() -> None:
    @grain(name="Parent", reentrant=True, placement=PREFER_LOCAL, idle_after=5)
    class One(Grain):
        async def one(self) -> int:
            return 1

    class Two(One):
        pass

    options = Two.__millstream_type__.options
    assert Two.__millstream_type__.name == "Two" and One.__millstream_type__.name == "Parent"
    assert (options.reentrant, options.placement, options.idle_after) == (True, PREFER_LOCAL, 5)


def test_decorators_give_back_the_function_itself() -> None:
    async def method(self: Any) -> None:
        return None

    assert read_only(method) is method and one_way(method) is method
    assert timeout(1)(method) is method


def test_what_is_not_a_public_async_method_stays_local() -> None:
    class Mixed(Grain):
        constant = 5
        tally = state(Tally)

        @property
        def size(self) -> int:
            return 1

        @staticmethod
        def helps() -> int:
            return 1

        def _private(self) -> int:
            return 1

        async def _also_private(self, anything) -> int:  # type: ignore[no-untyped-def]
            return 1

        async def remote(self) -> int:
            return 1

    assert list(Mixed.__millstream_type__.specs) == ["remote"]


# --- contracts -----------------------------------------------------------------------------------


@grain(name="Counter")
class CounterApi(Contract):
    async def add(self, by: int, *, times: int = 1) -> int:
        raise NotImplementedError

    @one_way
    async def poke(self) -> None:
        raise NotImplementedError


@grain(name="Counter")
class Counter(Grain):
    def __init__(self) -> None:
        self._count = 0

    async def add(self, by: int, *, times: int = 1) -> int:
        self._count += by * times
        return self._count

    async def poke(self) -> None:
        self._count += 100

    async def hidden(self) -> int:
        return self._count


@grain(name="Counter")
class WrongApi(Contract):
    async def subtract(self, by: int) -> int:
        raise NotImplementedError


async def test_a_contract_of_the_same_name_reaches_the_grain() -> None:
    async with LocalCluster(silos=2, grains=[Counter]) as cluster:
        runtimes: list[Runtime] = [cluster.silos[0], cluster.silos[1], cluster.client]
        counts = [await r.grain(CounterApi, "a").add(1, times=2) for r in runtimes]
        assert counts == [2, 4, 6]
        await cluster.client.grain(CounterApi, "a").poke()
        assert await cluster.client.grain(CounterApi, "a").add(1) == 107


async def test_a_contract_method_that_the_grain_lacks_is_refused_by_name() -> None:
    async with LocalCluster(silos=2, grains=[Counter]) as cluster:
        for runtime in (cluster.silos[0], cluster.client):
            with pytest.raises(NotHosted, match="Counter.*'subtract'"):
                await runtime.grain(WrongApi, "a").subtract(1)


@grain(name="Counter")
class NarrowApi(Contract):
    async def add(self, by: int) -> int:
        raise NotImplementedError


@grain(name="Counter")
class RenamedApi(Contract):
    async def add(self, amount: int, *, times: int = 1) -> int:
        raise NotImplementedError


async def test_a_contract_with_other_parameters_is_refused_by_name() -> None:
    async with LocalCluster(silos=2, grains=[Counter]) as cluster:
        for runtime in (cluster.silos[0], cluster.client):
            with pytest.raises((NotHosted, TypeError), match=r"\badd\b"):
                await runtime.grain(NarrowApi, "a").add(1)
        with pytest.raises(TypeError, match="`amount`"):
            await cluster.client.grain(RenamedApi, "a").add("1")  # type: ignore[arg-type]


async def test_a_contract_that_a_grain_inherits_reaches_it_under_its_name() -> None:
    @grain(name="Gate")
    class GateApi(Contract):
        async def open(self, wide: bool) -> str:
            raise NotImplementedError

    @grain(name="Gate")
    class Gate(Grain, GateApi):
        async def open(self, wide: bool) -> str:
            return "wide" if wide else "narrow"

    async with LocalCluster(silos=1, grains=[Gate]) as cluster:
        assert await cluster.grain(GateApi, "a").open(True) == "wide"
        assert await cluster.silos[0].grain(GateApi, "a").open(False) == "narrow"


# --- hostile names -------------------------------------------------------------------------------


class Hostile(Grain):
    """Uses names that generated code, the runtime or Python use themselves."""

    async def call(self, task: int, self_: int, act: int, loop: int) -> int:
        return task + self_ + act + loop

    async def slow(self, slow: int, fast: int) -> int:
        return slow - fast

    async def task(self, type: str, int: str, str: str, float: str) -> list[str]:
        return [type, int, str, float]

    async def spec(self, host: str, table: str, args: str, kwargs: str, key: str) -> str:
        return host + table + args + kwargs + key

    async def BaseException(self, BaseException: int, None_: int = 4) -> int:
        return BaseException + None_

    async def request(self, request: bytes, value: int, error: int = 1) -> int:
        return len(request) + value + error

    async def self_(self, cls: int, /, reference: int, *, timeout: int, headers: int = 2) -> int:
        return cls * 1000 + reference * 100 + timeout * 10 + headers

    async def len(self, range: tuple[int, ...], object: int, bool: bool) -> int:
        return sum(range) + object + bool

    async def name(self, name: str) -> str:
        return name + self.key

    async def __call(self) -> int:
        return 1

    async def settle(self, settle: int = 3) -> int:
        return settle

    async def copy(self, copy: list[int]) -> list[int]:
        copy.append(1)
        return copy


async def test_hostile_names_work_everywhere() -> None:
    async with LocalCluster(silos=2, grains=[Hostile]) as cluster:
        for runtime in (cluster.silos[0], cluster.silos[1], cluster.client):
            ref = runtime.grain(Hostile, "k")
            for _ in range(2):
                assert await ref.call(1, 2, act=3, loop=4) == 10
                assert await ref.slow(5, fast=3) == 2
                assert await ref.task("a", "b", "c", float="d") == ["a", "b", "c", "d"]
                assert await ref.spec("a", "b", "c", "d", "e") == "abcde"
                assert await ref.BaseException(1) == 5
                assert await ref.request(b"ab", 2) == 5
                assert await ref.self_(1, 2, timeout=3) == 1232
                assert await ref.self_(1, reference=2, timeout=3, headers=4) == 1234
                assert await ref.len((1, 2), 3, True) == 7
                assert await ref.name("n") == "nk"
                assert await ref.settle() == 3
                assert await ref.copy([0]) == [0, 1]


async def test_the_wrong_type_is_still_found_behind_hostile_names() -> None:
    async with Silo(grains=[Hostile]) as silo:
        ref = silo.grain(Hostile, "k")
        await ref.settle()
        with pytest.raises(TypeError, match="`int`"):
            await ref.task("a", 5, "c", "d")  # type: ignore[arg-type]


def test_the_options_of_the_surface_are_the_documented_ones() -> None:
    names = [name for name in dir(Grain) if not name.startswith("_")]
    assert names == ["context", "grain", "key", "on_activate", "on_deactivate", "stream"]


def test_state_with_an_annotation_takes_types_that_are_not_classes() -> None:
    class Level(Grain):
        level: State[int | None] = state(default=lambda: None)

        async def get(self) -> int | None:
            return self.level.value

    Level.__millstream_type__.resolve()
    assert "level" in Level.__millstream_type__.states


def test_this_file_has_the_place_that_errors_name() -> None:
    assert Path(inspect.getfile(test_this_file_has_the_place_that_errors_name)) == Path(__file__)
