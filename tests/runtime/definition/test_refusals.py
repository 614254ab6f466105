"""Errors at the place of the mistake: names, options, hooks and states, with file and line."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from millstream.runtime import (
    ConfigError,
    Contract,
    DeactivationReason,
    DefinitionError,
    Grain,
    LocalCluster,
    MembershipOptions,
    Placement,
    Runtime,
    RuntimeOptions,
    Silo,
    State,
    always_interleave,
    grain,
    one_way,
    read_only,
    shielded,
    state,
    timeout,
)
from millstream.streams import StreamNamespace, subscribe

T = TypeVar("T")


@dataclass
class Tally:
    count: int = 0


class Opaque:
    pass


def refused(define: Callable[[], object], *words: str) -> None:
    """Check that the DefinitionError names the line that ends in `# here`, and the words."""
    lines, first = inspect.getsourcelines(define)
    marked = [first + at for at, line in enumerate(lines) if line.rstrip().endswith("# here")]
    assert len(marked) == 1
    with pytest.raises(DefinitionError) as caught:
        define()
    for word in (f"{__file__}:{marked[0]}: ", *words):
        assert word in str(caught.value)


def built(cls: type[Grain]) -> None:
    """Resolve a class as a silo does that hosts it."""
    cls.__millstream_type__.resolve()


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["$x", "", "a\nb", "\x00", "\ud800", 5, b"x"])
def test_a_name_that_no_grain_can_have_is_refused(name: Any) -> None:
    with pytest.raises((DefinitionError, ConfigError), match=r"test_refusals\.py:\d+: @grain"):
        grain(name=name)


@pytest.mark.parametrize("name", ["x$", "Account/eu", "50%", "ünter", "a b"])
async def test_any_other_text_is_a_name(name: str) -> None:
    @grain(name=name)
    class Named(Grain):
        async def name_of(self, other: Named) -> str:
            return str(other)

    async with LocalCluster(silos=2, grains=[Named]) as cluster:
        ref = cluster.grain(Named, "eu/1")
        runtimes: list[Runtime] = [cluster.client, *cluster.silos]
        for runtime in runtimes:
            assert await runtime.grain(Named, "a").name_of(ref) == str(ref)


def test_a_class_whose_own_name_cannot_be_one_needs_another() -> None:
    odd: Any = type("$odd", (Grain,), {})
    with pytest.raises(DefinitionError, match=r"test_refusals\.py:\d+: the name of .*'\$odd'"):
        built(odd)
    grain(name="Odd")(odd)
    built(odd)


@pytest.mark.parametrize("name", ["", "a\tb", 7])
def test_a_state_needs_a_name_that_can_be_shown(name: Any) -> None:
    with pytest.raises(DefinitionError, match=r"test_refusals\.py:\d+: the name of a state is"):
        state(Tally, name=name)
    with pytest.raises(DefinitionError, match=r"test_refusals\.py:\d+: the store of a state is"):
        state(Tally, store=name)


async def test_grains_of_other_types_and_keys_never_share_a_row() -> None:
    class Base(Grain):
        kept = state(Tally)

        async def add(self) -> int:
            self.kept.value.count += 1
            await self.kept.write()
            return self.kept.value.count

    @grain(name="Account")
    class Account(Base):
        pass

    @grain(name="Account/eu")
    class European(Base):
        pass

    async with Silo(grains=[Account, European]) as silo:
        assert await silo.grain(Account, "eu/1").add() == 1
        assert await silo.grain(European, "1").add() == 1
        assert str(silo.grain(Account, "eu/1")) != str(silo.grain(European, "1"))


# --- marks ---------------------------------------------------------------------------------------


MARKS: dict[str, Callable[[Any], Any]] = {
    "read_only": read_only,
    "always_interleave": always_interleave,
    "one_way": one_way,
    "shielded": shielded,
    "timeout(3)": timeout(3),
    "subscribe(StreamNamespace('n'))": subscribe(StreamNamespace("n", int)),
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("target", [type("Desk", (), {}), 5, None, property(lambda self: 1)])
def test_a_mark_is_for_methods(mark: str, target: Any) -> None:
    with pytest.raises(DefinitionError, match=re.escape(f"`@{mark}` marks a method of a grain")):
        MARKS[mark](target)


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 0, -1, "5", True, None])
def test_a_time_out_is_a_finite_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout\(.*\): pass a positive, finite number"):
        timeout(seconds)


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("reentrant", "yes", "a bool"),
        ("reentrant", 1, "a bool"),
        ("direct", None, "a bool"),
        ("placement", "random", "a Placement"),
        ("idle_after", "5", "a number or None > 0"),
        ("idle_after", 0, "> 0"),
        ("idle_after", -1.0, "> 0"),
        ("idle_after", float("inf"), "> 0"),
        ("name", 5, "a str or None"),
    ],
)
def test_an_option_of_grain_of_another_type_is_refused(
    option: str, value: Any, wanted: str
) -> None:
    pattern = rf"test_refusals\.py:\d+: @grain\({option}=\.\.\.\) is .*; it must be .*{wanted}"
    with pytest.raises(ConfigError, match=pattern):
        grain(**{option: value})


def test_options_of_grain_that_fit_are_taken() -> None:
    decorate: Any = grain(
        name="n", reentrant=True, placement=Placement.HASHED, idle_after=5, direct=False
    )
    options = decorate(type("Fits", (Grain,), {})).__millstream_options__
    assert (options.name, options.reentrant, options.idle_after, options.direct) == (
        "n",
        True,
        5,
        False,
    )


def test_a_subclass_keeps_the_options_of_its_base_and_not_the_name() -> None:
    @grain(name="Base", reentrant=True, placement=Placement.HASHED, idle_after=7, direct=False)
    class Base(Grain):
        pass

    class Derived(Base):
        pass

    options = Derived.__millstream_options__
    assert (options.name, options.reentrant, options.placement) == (None, True, Placement.HASHED)
    assert (options.idle_after, options.direct) == (7, False)
    assert Derived.__millstream_type__.name == "Derived"


@pytest.mark.parametrize("value", ["5", None, True, 0, -1, float("nan"), float("inf"), [1]])
@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (RuntimeOptions, "call_timeout_s"),
        (RuntimeOptions, "waiting_calls_max"),
        (MembershipOptions, "probe_every_s"),
        (MembershipOptions, "votes_for_death"),
    ],
)
def test_an_option_that_is_no_positive_number_is_refused_by_name(
    cls: type, name: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{name} is .*; it must be a .* > 0"):
        cls(**{name: value})


def test_a_count_is_whole_and_seconds_need_not_be() -> None:
    with pytest.raises(ConfigError, match=r"waiting_calls_max is 1\.5; .* a whole number > 0"):
        RuntimeOptions(waiting_calls_max=1.5)  # type: ignore[arg-type]
    assert RuntimeOptions(call_timeout_s=5).call_timeout_s == 5


def test_a_frame_is_no_larger_than_its_length_can_say() -> None:
    assert RuntimeOptions(frame_bytes_max=2**32 - 1)
    with pytest.raises(ConfigError, match="frame_bytes_max is 4294967296; it must be .* at most"):
        RuntimeOptions(frame_bytes_max=2**32)


# --- hooks and the author's names ----------------------------------------------------------------


def test_a_hook_that_is_not_async_is_refused_with_its_line() -> None:
    def on_activate() -> None:
        class Bad(Grain):
            def on_activate(self) -> None:  # type: ignore[override]  # here
                pass

    def on_deactivate() -> None:
        class Bad(Grain):
            def on_deactivate(self, reason: Any, /) -> None:  # type: ignore[override]  # here
                pass

    refused(on_activate, "Bad.on_activate", "async def on_activate(self)")
    refused(on_deactivate, "Bad.on_deactivate", "async def on_deactivate(self, reason)")


def test_a_hook_with_other_parameters_is_refused_with_its_line() -> None:
    def none() -> None:
        class Bad(Grain):
            async def on_deactivate(self) -> None:  # type: ignore[override]  # here
                pass

    def more() -> None:
        class Bad(Grain):
            async def on_activate(self, more: int) -> None:  # type: ignore[override]  # here
                pass

    def static() -> None:
        class Bad(Grain):  # here
            @staticmethod
            async def on_activate() -> None:
                pass

    refused(none, "async def on_deactivate(self, reason)")
    refused(more, "async def on_activate(self)")
    refused(static, "async def on_activate(self)")


async def test_hooks_with_defaults_or_open_parameters_are_taken() -> None:
    class Fine(Grain):
        async def on_activate(self, again: bool = False) -> None:
            self.again = again

        async def on_deactivate(self, *reasons: DeactivationReason) -> None:
            pass

        async def ok(self) -> bool:
            return self.again

    async with Silo(grains=[Fine]) as silo:
        assert await silo.grain(Fine, "a").ok() is False


def test_init_with_arguments_is_refused_with_its_line() -> None:
    def define() -> None:
        class Bad(Grain):
            def __init__(self, size: int) -> None:  # here
                self.size = size

    refused(define, "Bad.__init__(self, size:", "without arguments")


def test_init_that_a_decorator_added_is_refused_when_the_silo_is_built() -> None:
    def define() -> None:
        @dataclass
        class Bad(Grain):  # here
            size: int

        built(Bad)

    refused(define, "Bad.__init__", "without arguments")


@pytest.mark.parametrize("name", ["key", "grain", "stream", "context"])
@pytest.mark.parametrize("base", [Grain, Contract])
def test_an_attribute_that_hides_what_every_grain_has_is_refused(name: str, base: type) -> None:
    def define() -> None:
        type("Bad", (base,), {name: "mine"})  # here

    refused(define, f"Bad.{name}", "another name")


def test_an_attribute_that_a_mixin_hides_is_refused() -> None:
    class Keyed:
        key = "mine"

    def define() -> None:
        class Bad(Keyed, Grain):  # here
            pass

    refused(define, "Bad.key")


def test_the_line_is_right_under_a_mixin_with_a_hook_for_subclasses() -> None:
    class Counted:
        def __init_subclass__(cls) -> None:
            super().__init_subclass__()

    def define() -> None:
        class Bad(Counted, Grain):  # here
            key = "mine"

    refused(define, "Bad.key")


# --- states --------------------------------------------------------------------------------------


def test_two_states_of_one_stored_name_are_refused() -> None:
    def named() -> None:
        class Bad(Grain):
            one = state(Tally)
            two = state(Tally, name="one")  # here

    def twice() -> None:
        class Bad(Grain):
            one = two = state(Tally)  # here

    refused(named, "Bad.two", "Bad.one", "'one'", "name=")
    refused(twice, "Bad.two", "Bad.one", "name=")


def test_states_of_one_name_in_two_stores_are_two_rows() -> None:
    class Fine(Grain):
        one = state(Tally)
        two = state(Tally, name="one", store="other")

    class Derived(Fine):
        one = state(Tally)

    assert [field.store for field in Derived.__millstream_type__.states.values()] == [
        "default",
        "other",
    ]


def test_a_state_that_cannot_be_encoded_is_refused_with_its_line() -> None:
    def opaque() -> None:
        class Bad(Grain):
            kept = state(Opaque)  # here

        built(Bad)

    def wrong_default() -> None:
        class Bad(Grain):
            kept = state(Tally, default=lambda: 5)  # type: ignore[arg-type,return-value]  # here

        built(Bad)

    def unknown() -> None:
        class Bad(Grain):
            kept: State[Missing] = state(default=Tally)  # type: ignore  # noqa: F821  # here

        built(Bad)

    refused(opaque, "Bad.kept", "no encoding")
    refused(wrong_default, "Bad.kept", "default")
    refused(unknown, "Bad.kept", "Missing", "importable")


def test_a_state_without_a_class_or_with_another_way_to_write_is_refused_with_its_line() -> None:
    def nothing() -> None:
        state()  # type: ignore[call-overload]  # here

    def number() -> None:
        state(5)  # type: ignore[call-overload]  # here

    def way() -> None:
        state(Tally, write="always")  # type: ignore[call-overload]  # here

    refused(nothing, "state(None)", "default=")
    refused(number, "state(5)")
    refused(way, "'always'", '"turn"')


def test_a_generic_grain_is_checked_like_others() -> None:
    def define() -> None:
        class Bad(Grain, Generic[T]):
            def on_activate(self) -> None:  # type: ignore[override]  # here
                pass

    refused(define, "Bad.on_activate")
