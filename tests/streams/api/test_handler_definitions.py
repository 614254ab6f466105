"""Stream handlers that cannot work are refused where they are written, with file and line.

Handlers with `@subscribe` are checked when their class is defined; those of explicit subscriptions
when they are first used. The line is that of the handler's first decorator, or of its `def`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, DefinitionError, Grain, Silo, State, state
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    Token,
    subscribe,
)

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


@dataclass
class Move:
    plane: str


@dataclass
class Landed(Move):
    delay_min: int = 0


@dataclass
class Diverted:
    plane: str


@dataclass
class Tally:
    count: int = 0


class Opaque:
    pass


LANDINGS = StreamNamespace("landings", Landed)
ENDS = StreamNamespace[Landed | Diverted]("ends")
NO_ITEM = StreamNamespace("no_item")  # type: ignore[var-annotated]
OPAQUE = StreamNamespace("opaque", Opaque)
WORDS = StreamNamespace("words", str)
COUNTS = StreamNamespace("counts", dict[str, int])
UserId = NewType("UserId", str)
USERS = StreamNamespace[UserId]("users")
NAMESPACES: dict[str, StreamNamespace[Any]] = {
    namespace.name: namespace for namespace in (LANDINGS, ENDS, WORDS, USERS)
}


def line_of(text: str) -> int:
    """Return the number of the line of this file that ends with `# text`."""
    lines = linecache.getlines(__file__)
    (found,) = [at for at, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    return found


def refused(define: Callable[[], object], at: str, *words: str) -> None:
    """Check that defining the class raises DefinitionError with the file, the line `at` and the
    words."""
    with pytest.raises(DefinitionError) as caught:
        define()
    text = str(caught.value)
    assert text.startswith(f"{__file__}:{line_of(at)}: Bad.on_event: "), text
    for word in words:
        assert word in text, text


# --- the function --------------------------------------------------------------------------------


def test_a_handler_that_is_not_async_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # not async
            def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    refused(define, "not async", "a stream handler must be `async def`")


def test_a_handler_that_yields_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # yields
            async def on_event(self, event: Event[Landed]) -> Any:
                yield event

        return Bad

    refused(define, "yields", "must be `async def`")


def test_a_handler_without_an_event_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # no event
            async def on_event(self) -> None: ...

        return Bad

    refused(define, "no event", "takes one argument, the event")


def test_a_batch_handler_without_events_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # no events
            async def on_event(self) -> None: ...

        return Bad

    refused(define, "no events", "takes one argument, the events")


def test_a_handler_with_a_second_argument_is_refused_even_if_it_is_optional() -> None:
    def second() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # second argument
            async def on_event(self, event: Event[Landed], more: int) -> None: ...

        return Bad

    def optional() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # optional argument
            async def on_event(self, event: Event[Landed], more: int = 0) -> None: ...

        return Bad

    refused(second, "second argument", "takes one argument")
    refused(optional, "optional argument", "takes one argument")


def test_a_handler_whose_event_cannot_be_given_by_position_is_refused() -> None:
    def many() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # any number of events
            async def on_event(self, *events: Event[Landed]) -> None: ...

        return Bad

    def by_name() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # event by name
            async def on_event(self, *, event: Event[Landed]) -> None: ...

        return Bad

    for define, at in ((many, "any number of events"), (by_name, "event by name")):
        refused(define, at, "takes one argument, the event: `event: Event[Landed]`")


def test_a_handler_that_is_no_method_is_refused() -> None:
    def above() -> object:
        class Bad(Grain):
            @staticmethod  # static above
            @subscribe(LANDINGS)  # type: ignore[arg-type]
            async def on_event(event: Event[Landed]) -> None: ...

        return Bad

    def below() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # static below
            @staticmethod
            async def on_event(event: Event[Landed]) -> None: ...

        return Bad

    def of_the_class() -> object:
        class Bad(Grain):
            @classmethod  # class above
            @subscribe(LANDINGS)
            async def on_event(cls, event: Event[Landed]) -> None: ...

        return Bad

    refused(above, "static above", "a method of the grain", "remove `@staticmethod`")
    refused(below, "static below", "remove `@staticmethod`")
    refused(of_the_class, "class above", "remove `@classmethod`")


@pytest.mark.parametrize(
    "value", [None, 5, property(lambda self: None)], ids=lambda value: type(value).__name__
)
def test_an_inherited_handler_that_is_replaced_by_a_value_is_named_with_its_class(
    value: object,
) -> None:
    with pytest.raises(DefinitionError) as caught:

        class Bad(Base):  # replaced by a value
            on_event = value  # type: ignore[assignment]

    text = str(caught.value)
    assert text.startswith(f"{__file__}:{line_of('replaced by a value')}: Bad.on_event: "), text
    assert "must be `async def`" in text and repr(value) in text


# --- the mark ------------------------------------------------------------------------------------


def test_a_mark_without_parentheses_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe  # type: ignore[call-overload]  # no parentheses
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    refused(define, "no parentheses", "write `@subscribe(NAMESPACE)`")


def test_a_mark_without_parentheses_on_a_static_method_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe  # type: ignore[call-overload]  # no parentheses, static
            @staticmethod
            async def on_event(event: Event[Landed]) -> None: ...

        return Bad

    refused(define, "no parentheses, static", "write `@subscribe(NAMESPACE)`")


@pytest.mark.parametrize("value", ["landings", Landed, None, 5], ids=repr)
def test_a_mark_with_something_else_than_a_namespace_is_refused(value: Any) -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(value)  # no namespace
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    refused(define, "no namespace", f"not {value!r}", 'StreamNamespace("arrivals", Item)')


def test_two_marks_for_streams_of_one_name_are_refused() -> None:
    elsewhere = StreamNamespace("landings", Landed, provider="elsewhere")

    def same() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # marked twice
            @subscribe(LANDINGS, retries=5)
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    def other() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # marked for two providers
            @subscribe(elsewhere)
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    refused(same, "marked twice", "two marks for streams named 'landings': keep one")
    refused(other, "marked for two providers", "two marks for streams named 'landings'")


def test_marks_for_streams_of_two_names_are_accepted() -> None:
    class Both(Grain):
        @subscribe(LANDINGS)
        @subscribe(ENDS)
        async def on_event(self, event: Event[Landed | Diverted]) -> None: ...

    assert len(Both.__millstream_type__.marks["on_event"]) == 2


# --- the annotation ------------------------------------------------------------------------------


def test_a_handler_without_an_annotation_is_told_what_to_write() -> None:
    def single() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # no annotation
            async def on_event(self, event) -> None: ...  # type: ignore[no-untyped-def]

        return Bad

    def batch() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # no batch annotation
            async def on_event(self, events) -> None: ...  # type: ignore[no-untyped-def]

        return Bad

    refused(single, "no annotation", "annotate the event", "`event: Event[Landed]`")
    refused(batch, "no batch annotation", "`events: list[Event[Landed]]`")


def test_a_handler_of_another_item_is_told_what_the_namespace_has() -> None:
    def other() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # another item
            async def on_event(self, event: Event[Diverted]) -> None: ...

        return Bad

    def narrower() -> object:
        class Bad(Grain):
            @subscribe(ENDS)  # type: ignore[arg-type]  # narrower item
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    words = ("StreamNamespace('landings')", "items of Landed", "`event: Event[Landed]`", "Diverted")
    refused(other, "another item", *words)
    refused(narrower, "narrower item", "StreamNamespace('ends')", "Diverted")


@pytest.mark.parametrize("kind", ["item", "open", "any", "optional"])
def test_a_handler_whose_argument_is_no_event_is_refused(kind: str) -> None:
    def item() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # bare item
            async def on_event(self, event: Landed) -> None: ...

        return Bad

    def open_event() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # open event
            async def on_event(self, event: Event) -> None: ...  # type: ignore[type-arg]

        return Bad

    def anything() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # anything
            async def on_event(self, event: Any) -> None: ...

        return Bad

    def optional() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # optional event
            async def on_event(self, event: Event[Landed] | None) -> None: ...

        return Bad

    define, at = {
        "item": (item, "bare item"),
        "open": (open_event, "open event"),
        "any": (anything, "anything"),
        "optional": (optional, "optional event"),
    }[kind]
    refused(define, at, "`event: Event[Landed]`, not ")


def test_a_handler_that_takes_a_list_without_batch_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS)  # type: ignore[arg-type]  # list without batch
            async def on_event(self, event: list[Event[Landed]]) -> None: ...

        return Bad

    refused(define, "list without batch", "`event: Event[Landed]`", "not list[")


def test_a_batch_handler_that_takes_one_event_is_refused() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch without list
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    refused(define, "batch without list", "`event: list[Event[Landed]]`")


def test_a_batch_handler_of_another_item_or_of_bare_items_is_refused() -> None:
    def other() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch of another item
            async def on_event(self, events: list[Event[Diverted]]) -> None: ...

        return Bad

    def bare() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch of bare items
            async def on_event(self, events: list[Landed]) -> None: ...

        return Bad

    def untyped() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # batch of anything
            async def on_event(self, events: list) -> None: ...  # type: ignore[type-arg]

        return Bad

    refused(other, "batch of another item", "`events: list[Event[Landed]]`", "Diverted")
    refused(bare, "batch of bare items", "`events: list[Event[Landed]]`")
    refused(untyped, "batch of anything", "`events: list[Event[Landed]]`")


def test_a_batch_handler_that_takes_what_a_list_is_not_is_refused() -> None:
    def mapping() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch as dict
            async def on_event(self, events: dict[Event[Landed], int]) -> None: ...

        return Bad

    def one() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch as tuple of one
            async def on_event(self, events: tuple[Event[Landed]]) -> None: ...

        return Bad

    def many() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch as tuple
            async def on_event(self, events: tuple[Event[Landed], ...]) -> None: ...

        return Bad

    def every() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, batch=True)  # type: ignore[arg-type]  # batch as set
            async def on_event(self, events: set[Event[Landed]]) -> None: ...

        return Bad

    for define, at in (
        (mapping, "batch as dict"),
        (one, "batch as tuple of one"),
        (many, "batch as tuple"),
        (every, "batch as set"),
    ):
        refused(define, at, "`events: list[Event[Landed]]`")


class Base(Grain):
    @subscribe(LANDINGS)
    async def on_event(self, event: Event[Landed]) -> None: ...


def test_an_override_without_a_mark_is_checked_as_a_handler_at_its_own_line() -> None:
    def other() -> object:
        class Bad(Base):
            async def on_event(self, event: Event[Diverted]) -> None: ...  # type: ignore[override]  # override of another item

        return Bad

    def sync() -> object:
        class Bad(Base):
            def on_event(self, event: Event[Landed]) -> None: ...  # type: ignore[override]  # override that is not async

        return Bad

    refused(other, "override of another item", "items of Landed")
    refused(sync, "override that is not async", "must be `async def`")


def test_an_inherited_handler_is_not_refused_again() -> None:
    class Derived(Base):
        async def other(self) -> int:
            return 1

    assert list(Derived.__millstream_type__.marks) == ["on_event"]
    assert list(Derived.__millstream_type__.specs) == ["other"]


def test_handlers_of_wider_items_are_accepted() -> None:
    class Wide(Grain):
        @subscribe(LANDINGS)
        async def on_base(self, event: Event[Move]) -> None: ...

        @subscribe(LANDINGS)
        async def on_object(self, event: Event[object]) -> None: ...

        @subscribe(LANDINGS)
        async def on_any(self, event: Event[Any]) -> None: ...

        @subscribe(LANDINGS, batch=True)
        async def on_sequence(self, events: Sequence[Event[Move]]) -> None: ...

        @subscribe(LANDINGS, batch=True)
        async def on_iterable(self, events: Iterable[Event[Landed]]) -> None: ...

        @subscribe(ENDS)
        async def on_union(self, event: Event[Diverted | Landed]) -> None: ...

    assert len(Wide.__millstream_type__.marks) == 6


class HasPlane(Protocol):
    plane: str


def test_handlers_of_unions_and_generic_types_wider_than_the_item_are_accepted() -> None:
    kinds = StreamNamespace[Literal["a", "b"]]("kinds")
    numbers = StreamNamespace("numbers", list[int])

    class Wide(Grain):
        @subscribe(LANDINGS)
        async def on_more(self, event: Event[Landed | Diverted]) -> None: ...

        @subscribe(LANDINGS)
        async def on_base_or_none(self, event: Event[Move | None]) -> None: ...

        @subscribe(ENDS)
        async def on_each(self, event: Event[Move | Diverted | None]) -> None: ...

        @subscribe(ENDS)
        async def on_object(self, event: Event[object]) -> None: ...

        @subscribe(ENDS)
        async def on_protocol(self, event: Event[HasPlane]) -> None: ...

        @subscribe(COUNTS)
        async def on_dict_as_object(self, event: Event[object]) -> None: ...

        @subscribe(COUNTS)
        async def on_mapping(self, event: Event[Mapping[str, int]]) -> None: ...

        @subscribe(numbers)
        async def on_floats(self, event: Event[Sequence[float] | None]) -> None: ...

        @subscribe(USERS)
        async def on_user(self, event: Event[str]) -> None: ...

        @subscribe(kinds)
        async def on_kind(self, event: Event[str]) -> None: ...

        @subscribe(kinds)
        async def on_more_kinds(self, event: Event[Literal["c", "b", "a"]]) -> None: ...

    assert len(Wide.__millstream_type__.marks) == 11


def test_handlers_of_unions_and_generic_types_that_leave_something_out_are_refused() -> None:
    def one_member() -> object:
        class Bad(Grain):
            @subscribe(ENDS)  # type: ignore[arg-type]  # union that leaves one out
            async def on_event(self, event: Event[Landed | None]) -> None: ...

        return Bad

    def element() -> object:
        class Bad(Grain):
            @subscribe(COUNTS)  # type: ignore[arg-type]  # another element
            async def on_event(self, event: Event[dict[str, str]]) -> None: ...

        return Bad

    def narrower() -> object:
        class Bad(Grain):
            @subscribe(WORDS)  # type: ignore[arg-type]  # narrower name
            async def on_event(self, event: Event[UserId]) -> None: ...

        return Bad

    refused(one_member, "union that leaves one out", "`event: Event[Landed | Diverted]`")
    refused(element, "another element", "`event: Event[dict[str, int]]`")
    refused(narrower, "narrower name", "`event: Event[str]`")


def test_annotations_that_are_not_defined_yet_are_left_to_type_checkers() -> None:
    @dataclass
    class Inner:
        value: int

    class Early(Grain):
        @subscribe(LANDINGS)  # type: ignore[arg-type]
        async def on_local(self, event: Event[Inner]) -> None: ...

        @subscribe(LANDINGS)  # type: ignore[arg-type]
        async def on_hidden(self, event: Event[OnlyForCheckers]) -> None: ...

    assert list(Early.__millstream_type__.marks) == ["on_hidden", "on_local"]


# --- the options ---------------------------------------------------------------------------------


class Other(Grain):
    tally = state(Tally)


def test_commit_with_what_is_no_state_of_the_class_is_refused() -> None:
    def text() -> object:
        class Bad(Grain):
            tally = state(Tally)

            @subscribe(LANDINGS, commit_with="tally")  # type: ignore[call-overload,untyped-decorator]  # state as text
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    def cls() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, commit_with=Tally)  # type: ignore[call-overload,untyped-decorator]  # class for state
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    def other() -> object:
        class Bad(Grain):
            tally = state(Tally)

            @subscribe(LANDINGS, commit_with=Other.tally)  # state of another class
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    def hidden() -> object:
        class Bad(Other):
            tally = state(Tally)

            @subscribe(LANDINGS, commit_with=Other.tally)  # state that is hidden
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    def number() -> object:
        class Bad(Grain):
            number = 5

            @subscribe(LANDINGS, commit_with=number)  # type: ignore[call-overload,untyped-decorator]  # number of the class
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    def plain_property() -> object:
        class Bad(Grain):
            @property
            def _tally(self) -> Tally:
                return Tally()

            @subscribe(LANDINGS, commit_with=_tally)  # type: ignore[call-overload,untyped-decorator]  # property of the class
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    for define, at in (
        (text, "state as text"),
        (cls, "class for state"),
        (other, "state of another class"),
        (hidden, "state that is hidden"),
        (number, "number of the class"),
        (plain_property, "property of the class"),
    ):
        refused(define, at, "commit_with must be a state field of Bad")


def test_commit_with_a_state_that_is_declared_by_annotation_is_accepted() -> None:
    class Level(Grain):
        level: State[int | None] = state(default=lambda: None)

        @subscribe(LANDINGS, commit_with=level)
        async def on_event(self, event: Event[Landed]) -> None: ...

    (mark,) = Level.__millstream_type__.marks["on_event"]
    assert getattr(mark, "commit_name", None) == "level"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": True, "max_events": 0}, ("max_events is 0", "at least 1")),
        ({"batch": True, "max_events": -5}, ("max_events is -5", "at least 1")),
        ({"batch": True, "max_events": 1.5}, ("max_events is 1.5", "at least 1")),
        ({"max_events": 5}, ("max_events=5", "batch=True")),
        ({"retries": -1}, ("retries is -1", "at least 0")),
        ({"retries": "3"}, ("retries is '3'", "at least 0")),
    ],
    ids=repr,
)
def test_an_option_beyond_its_limits_is_refused(
    options: dict[str, Any], words: tuple[str, ...]
) -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(LANDINGS, **options)  # type: ignore[untyped-decorator]  # option beyond its limits
            async def on_event(self, event: Any) -> None: ...

        return Bad

    refused(define, "option beyond its limits", *words)


def test_options_at_their_limits_are_accepted() -> None:
    class Least(Grain):
        @subscribe(LANDINGS, batch=True, max_events=1, retries=0)
        async def on_event(self, events: list[Event[Landed]]) -> None: ...

    assert list(Least.__millstream_type__.marks) == ["on_event"]


def test_commit_with_an_inherited_state_is_accepted() -> None:
    class Derived(Other):
        @subscribe(LANDINGS, commit_with=Other.tally)
        async def on_event(self, event: Event[Landed]) -> None: ...

    (mark,) = Derived.__millstream_type__.marks["on_event"]
    assert getattr(mark, "commit_name", None) == "tally"


def test_an_option_that_does_not_exist_fails_in_the_line_of_the_handler() -> None:
    with pytest.raises(TypeError, match="'start'") as caught:

        class Bad(Grain):
            @subscribe(LANDINGS, start="latest")  # type: ignore[call-overload,untyped-decorator]  # no such option
            async def on_event(self, event: Event[Landed]) -> None: ...

    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (__file__, line_of("no such option"))


# --- the namespace -------------------------------------------------------------------------------


def test_a_namespace_without_an_item_type_is_refused_when_a_handler_is_defined() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(NO_ITEM)  # namespace without item
            async def on_event(self, event: Event[Landed]) -> None: ...

        return Bad

    words = ("StreamNamespace('no_item') has no item type", "StreamNamespace('no_item', Item)")
    refused(define, "namespace without item", *words)


def test_a_namespace_of_items_that_cannot_be_encoded_is_refused_when_a_handler_is_defined() -> None:
    def define() -> object:
        class Bad(Grain):
            @subscribe(OPAQUE)  # namespace of opaque items
            async def on_event(self, event: Event[Opaque]) -> None: ...

        return Bad

    words = ("items of StreamNamespace('opaque')", "`Opaque` has no encoding")
    refused(define, "namespace of opaque items", *words)


@dataclass
class Unfinished:
    part: OnlyForCheckers


def test_a_namespace_of_items_with_an_undefined_field_is_refused_by_name() -> None:
    unfinished = StreamNamespace("unfinished", Unfinished)

    def define() -> object:
        class Bad(Grain):
            @subscribe(unfinished)  # namespace of unfinished items
            async def on_event(self, event: Event[Unfinished]) -> None: ...

        return Bad

    words = ("items of StreamNamespace('unfinished')", "'OnlyForCheckers' is not defined")
    refused(define, "namespace of unfinished items", *words)


@pytest.mark.parametrize("value", ["none", "", None, True, ["both"]], ids=repr)
def test_a_namespace_names_the_kinds_of_subscription_that_there_are(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamNamespace("landings", Landed, subscriptions=value)
    text = str(caught.value)
    assert text.startswith("StreamNamespace('landings'): ") and repr(value) in text
    assert all(f"'{kind}'" in text for kind in ("both", "implicit", "explicit")), text


@pytest.mark.parametrize("value", [Landed, None, 5, b"landings"], ids=repr)
def test_a_namespace_says_that_its_first_argument_is_the_name(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        StreamNamespace(value)
    assert str(caught.value).startswith(f"StreamNamespace({value!r}): the first argument must be ")
    assert "a str" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "/"])
def test_a_namespace_is_refused_when_its_name_cannot_be_part_of_a_path(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamNamespace(name, Landed)
    assert str(caught.value).startswith(f"StreamNamespace({name!r}): ")


def test_a_namespace_knows_its_item_from_either_form() -> None:
    assert LANDINGS.item is Landed
    assert ENDS.item == Landed | Diverted


# --- explicit subscriptions ----------------------------------------------------------------------


class Quiet(Grain):
    async def on_quiet(self, event: Event[Landed]) -> None: ...


class Listener(Grain):
    async def listen(self, handler: str) -> str:
        landings = self.stream(LANDINGS, self.key)
        return (await landings.subscribe(getattr(self, handler))).id

    async def listen_to(self, namespace: str, handler: str) -> str:
        stream = self.stream(NAMESPACES[namespace], self.key)
        return (await stream.subscribe(getattr(self, handler))).id

    async def listen_from(self, text: str) -> str:
        values: dict[str, Any] = {"token": Token(0, 1), "tuple": (0, 1, 0)}
        start = values.get(text, text)
        return (await self.stream(LANDINGS, self.key).subscribe(self._on_landed, start=start)).id

    async def resume_from(self, text: str) -> None:
        (held,) = await self.stream(LANDINGS, self.key).subscriptions(self)
        start: Any = Token(0, 1) if text == "token" else text
        await held.resume(start=start)

    async def change_handles(self) -> tuple[list[str], list[str], list[str]]:
        """Return the attributes that could be set, and their values before and after."""
        stream = self.stream(LANDINGS, self.key)
        held = await stream.subscribe(self._on_landed, name="main")
        changed = []
        before = [stream.key, str(stream.id), held.id, held.name]
        for handle, name in ((stream, "key"), (stream, "id"), (held, "id"), (held, "name")):
            try:
                setattr(handle, name, "other")
            except AttributeError:
                continue
            changed.append(name)
        return changed, before, [stream.key, str(stream.id), held.id, held.name]

    async def starts(self) -> list[str]:
        rendezvous = self.stream(LANDINGS, self.key).rendezvous_grain()
        return [row.start for row in await rendezvous.rows()]

    async def subscriptions_of(self, what: str) -> int:
        values: dict[str, Any] = {
            "self": self,
            "key": self.key,
            "class": Listener,
            "none": None,
            "method": self.heard,
            "fresh": Listener(),
            "reference": self.grain(Listener, self.key),
        }
        return len(await self.stream(LANDINGS, self.key).subscriptions(values[what]))

    async def listen_through_a_reference(self) -> str:
        other = self.grain(Quiet, "a")
        return (await self.stream(LANDINGS, self.key).subscribe(other.on_quiet)).id

    async def listen_with(self, what: str) -> str:
        async def function(event: Event[Landed]) -> None: ...

        handlers: dict[str, Any] = {
            "function": function,
            "lambda": lambda event: None,
            "text": "_on_landed",
            "static": self._static,
            "class": self._class,
        }
        return (await self.stream(LANDINGS, self.key).subscribe(handlers[what])).id

    async def heard(self, namespace: str = "landings") -> list[str]:
        stream = self.stream(NAMESPACES[namespace], self.key)
        return [one.id for one in await stream.subscriptions(self)]

    async def _on_landed(self, event: Event[Landed]) -> None: ...

    async def _on_landings(self, events: list[Event[Landed]]) -> None: ...

    async def _no_event(self) -> None: ...  # explicit without event

    async def _two(self, event: Event[Landed], more: int) -> None: ...  # explicit with two

    async def _bare(self, event) -> None: ...  # type: ignore[no-untyped-def]  # explicit without annotation

    async def _item(self, event: Landed) -> None: ...  # explicit with bare item

    async def _items(self, events: list[Landed]) -> None: ...  # explicit with bare items

    async def _open(self, event: Event) -> None: ...  # type: ignore[type-arg]  # explicit with open event

    async def _opaque(self, event: Event[Opaque]) -> None: ...  # explicit with opaque item

    async def _many(self, *events: Event[Landed]) -> None: ...  # explicit with any number

    async def _by_name(self, *, event: Event[Landed]) -> None: ...  # explicit by name

    async def _one_tuple(self, events: tuple[Event[Landed]]) -> None: ...  # explicit with tuple

    async def _by_event(self, events: dict[Event[Landed], int]) -> None: ...  # explicit with dict

    async def _hidden(self, event: Event[OnlyForCheckers]) -> None: ...  # explicit with hidden name

    async def _unfinished(self, event: Event[Unfinished]) -> None: ...  # explicit with hidden field

    def _sync(self, event: Event[Landed]) -> None: ...  # explicit that is not async

    async def on_public(self, event: Event[Landed]) -> None: ...  # explicit with public name

    async def _on_diverted(self, event: Event[Diverted]) -> None: ...  # explicit with another item

    async def _on_others(self, events: list[Event[Diverted]]) -> None: ...  # explicit with others

    async def _on_move(self, event: Event[Move]) -> None: ...  # explicit that loses fields

    async def _on_end(self, event: Event[Landed | Diverted]) -> None: ...  # explicit with a union

    async def _on_any(self, event: Event[Any]) -> None: ...

    async def _on_word(self, event: Event[str]) -> None: ...

    async def _on_user(self, event: Event[UserId]) -> None: ...

    async def _on_landed_or_none(self, event: Event[Landed | None]) -> None: ...

    async def __on_mangled(self, event: Event[Landed]) -> None: ...  # explicit with mangled name

    @subscribe(ENDS)
    async def on_marked(self, event: Event[Landed | Diverted]) -> None: ...

    @subscribe(LANDINGS)
    async def on_marked_landing(self, event: Event[Landed]) -> None: ...

    @staticmethod
    async def _static(event: Event[Landed]) -> None: ...

    @classmethod
    async def _class(cls, event: Event[Landed]) -> None: ...


def silo_of(*grains: type[Grain]) -> Silo:
    streams = PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0),
    )
    return Silo(grains=grains, streams={"default": streams})


@pytest.mark.parametrize(
    ("handler", "at", "words"),
    [
        ("_no_event", "explicit without event", "takes one argument, the event: `event: Event["),
        ("_two", "explicit with two", "takes one argument, the event: `event: Event["),
        ("_bare", "explicit without annotation", "annotate the event: Event["),
        ("_item", "explicit with bare item", "annotate the event: Event["),
        ("_items", "explicit with bare items", "annotate the event: Event["),
        ("_open", "explicit with open event", "annotate the event: Event["),
        ("_opaque", "explicit with opaque item", "`Opaque` has no encoding"),
        ("_many", "explicit with any number", "takes one argument, the event: `event: Event["),
        ("_by_name", "explicit by name", "takes one argument, the event: `event: Event["),
        ("_one_tuple", "explicit with tuple", "annotate the event: Event["),
        ("_by_event", "explicit with dict", "annotate the event: Event["),
        ("_hidden", "explicit with hidden name", "'OnlyForCheckers' is not defined"),
        ("_unfinished", "explicit with hidden field", "'OnlyForCheckers' is not defined"),
        ("_sync", "explicit that is not async", "must be `async def`"),
        ("on_public", "explicit with public name", "name it `_on_public`"),
        ("_on_diverted", "explicit with another item", "`event: Event[Landed]`, not Diverted"),
        ("_on_others", "explicit with others", "`events: list[Event[Landed]]`, not Diverted"),
        ("_on_move", "explicit that loses fields", "`event: Event[Landed]`, not Move"),
        ("_on_end", "explicit with a union", "`event: Event[Landed]`, not Landed | Diverted"),
        ("_Listener__on_mangled", "explicit with mangled name", "no method `__on_mangled`"),
    ],
)
async def test_an_explicit_handler_that_cannot_work_is_refused_at_its_first_use(
    handler: str, at: str, words: str
) -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        for _ in range(2):
            with pytest.raises(DefinitionError) as caught:
                await listener.listen(handler)
            text = str(caught.value)
            name = handler.removeprefix("_Listener")
            assert text.startswith(f"{__file__}:{line_of(at)}: Listener.{name}: "), text
            # of two unions that differ in order, `typing` keeps the one that was made first
            assert words in text.replace("Diverted | Landed", "Landed | Diverted")
        assert await listener.heard() == []


@pytest.mark.parametrize("what", ["function", "lambda", "text", "static", "class"])
async def test_an_explicit_handler_that_is_no_method_of_the_grain_is_refused(what: str) -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        with pytest.raises(ConfigError, match="give a method of the subscribing grain"):
            await listener.listen_with(what)
        assert await listener.heard() == []


async def test_explicit_handlers_of_one_event_and_of_lists_are_accepted() -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        made = [await listener.listen("_on_landed"), await listener.listen("_on_landings")]
        assert sorted(await listener.heard()) == sorted(made)


@pytest.mark.parametrize(
    ("namespace", "handler"),
    [
        ("ends", "_on_landed"),
        ("ends", "_on_landings"),
        ("ends", "_on_landed_or_none"),
        ("words", "_on_landed"),
        ("words", "_on_user"),
        ("users", "_on_landed"),
    ],
)
async def test_an_explicit_handler_of_a_narrower_or_another_item_is_refused(
    namespace: str, handler: str
) -> None:
    async with silo_of(Listener) as silo:
        with pytest.raises(DefinitionError, match=f"Listener.{handler}: "):
            await silo.grain(Listener, "BOS").listen_to(namespace, handler)
        assert await silo.grain(Listener, "BOS").heard(namespace) == []


async def test_explicit_handlers_that_decode_the_items_as_they_are_are_accepted() -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        for handler in ("_on_landed", "_on_landed_or_none", "_on_any"):
            assert await listener.listen(handler) in await listener.heard()
        assert await listener.listen_to("ends", "_on_end")
        assert await listener.listen_to("words", "_on_word")
        assert await listener.listen_to("users", "_on_word")
        assert await listener.listen_to("users", "_on_user")


async def test_a_public_handler_is_accepted_for_an_explicit_subscription_if_it_is_marked() -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        assert await listener.listen("on_marked_landing") in await listener.heard()
        assert await listener.listen_to("ends", "on_marked")


@pytest.mark.parametrize("start", ["latest", "", "now", "tuple", "here", str(Token(0, 1))])
async def test_an_unknown_start_is_refused_before_a_subscription_is_stored(start: str) -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        with pytest.raises(ConfigError, match="'next', 'earliest', a Token"):
            await listener.listen_from(start)
        assert await listener.heard() == []
        await listener.listen_from("earliest")
        if start != "tuple":
            with pytest.raises(ConfigError, match="'next', 'earliest', a Token"):
                await listener.resume_from(start)
        assert await listener.starts() == ["earliest"]


@pytest.mark.parametrize("start", ["next", "earliest", "token"])
async def test_a_known_start_is_stored(start: str) -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        await listener.listen_from(start)
        wanted = str(Token(0, 1)) if start == "token" else start
        assert await listener.starts() == [wanted]
        await listener.resume_from("next")
        await listener.resume_from(start)
        assert await listener.starts() == [wanted]


@pytest.mark.parametrize("what", ["key", "class", "method", "fresh", "reference"])
async def test_subscriptions_say_that_they_want_the_grain_itself(what: str) -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        with pytest.raises(TypeError, match=r"give the grain itself: `subscriptions\(self\)`"):
            await listener.subscriptions_of(what)
        assert await listener.subscriptions_of("self") == 0


async def test_a_method_of_a_reference_is_refused_as_a_handler() -> None:
    async with silo_of(Listener, Quiet) as silo:
        listener = silo.grain(Listener, "BOS")
        with pytest.raises(ConfigError, match="give a method of the subscribing grain"):
            await listener.listen_through_a_reference()


async def test_handles_of_streams_and_subscriptions_cannot_be_changed() -> None:
    async with silo_of(Listener) as silo:
        changed, before, after = await silo.grain(Listener, "BOS").change_handles()
    assert changed == []
    assert before == after and before[0] == "BOS" and before[-1] == "main"
