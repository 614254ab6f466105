"""Stream handlers that cannot work are refused where they are written, with file and line.

Handlers with `@subscribe` are checked when their class is defined; those of explicit subscriptions
when they are first used. The line is that of the handler's first decorator, or of its `def`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, DefinitionError, Grain, Silo, state
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe

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


def line_of(text: str) -> int:
    """The line of this file that ends with `# text`."""
    lines = linecache.getlines(__file__)
    (found,) = [at for at, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}")]
    return found


def refused(define: Callable[[], object], at: str, *words: str) -> None:
    """Defining the class raises DefinitionError with the file, the line `at` and the words."""
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

        @subscribe(ENDS)
        async def on_union(self, event: Event[Diverted | Landed]) -> None: ...

    assert len(Wide.__millstream_type__.marks) == 5


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

    for define, at in (
        (text, "state as text"),
        (cls, "class for state"),
        (other, "state of another class"),
        (hidden, "state that is hidden"),
    ):
        refused(define, at, "commit_with must be a state field of Bad")


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
    with pytest.raises(DefinitionError) as caught:

        class Bad(Grain):
            @subscribe(NO_ITEM)
            async def on_event(self, event: Event[Landed]) -> None: ...

    assert "StreamNamespace('no_item') has no item type" in str(caught.value)
    assert "StreamNamespace('no_item', Item)" in str(caught.value)


def test_a_namespace_of_items_that_cannot_be_encoded_is_refused_when_a_handler_is_defined() -> None:
    with pytest.raises(DefinitionError) as caught:

        class Bad(Grain):
            @subscribe(OPAQUE)
            async def on_event(self, event: Event[Opaque]) -> None: ...

    assert "items of StreamNamespace('opaque')" in str(caught.value)
    assert "`Opaque` has no encoding" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "/"])
def test_a_namespace_is_refused_when_its_name_cannot_be_part_of_a_path(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamNamespace(name, Landed)
    assert str(caught.value).startswith(f"StreamNamespace({name!r}): ")


def test_a_namespace_knows_its_item_from_either_form() -> None:
    assert LANDINGS.item is Landed
    assert ENDS.item == Landed | Diverted


# --- explicit subscriptions ----------------------------------------------------------------------


class Listener(Grain):
    async def listen(self, handler: str) -> str:
        landings = self.stream(LANDINGS, self.key)
        return (await landings.subscribe(getattr(self, handler))).id

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

    async def heard(self) -> list[str]:
        return [one.id for one in await self.stream(LANDINGS, self.key).subscriptions(self)]

    async def _on_landed(self, event: Event[Landed]) -> None: ...

    async def _on_landings(self, events: list[Event[Landed]]) -> None: ...

    async def _no_event(self) -> None: ...  # explicit without event

    async def _two(self, event: Event[Landed], more: int) -> None: ...  # explicit with two

    async def _bare(self, event) -> None: ...  # type: ignore[no-untyped-def]  # explicit without annotation

    async def _item(self, event: Landed) -> None: ...  # explicit with bare item

    async def _items(self, events: list[Landed]) -> None: ...  # explicit with bare items

    async def _open(self, event: Event) -> None: ...  # type: ignore[type-arg]  # explicit with open event

    async def _opaque(self, event: Event[Opaque]) -> None: ...  # explicit with opaque item

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
        ("_no_event", "explicit without event", "annotate the event: Event["),
        ("_two", "explicit with two", "annotate the event: Event["),
        ("_bare", "explicit without annotation", "annotate the event: Event["),
        ("_item", "explicit with bare item", "annotate the event: Event["),
        ("_items", "explicit with bare items", "annotate the event: Event["),
        ("_open", "explicit with open event", "annotate the event: Event["),
        ("_opaque", "explicit with opaque item", "`Opaque` has no encoding"),
    ],
)
async def test_an_explicit_handler_that_takes_no_event_is_refused_at_its_first_use(
    handler: str, at: str, words: str
) -> None:
    async with silo_of(Listener) as silo:
        listener = silo.grain(Listener, "BOS")
        for _ in range(2):
            with pytest.raises(DefinitionError) as caught:
                await listener.listen(handler)
            text = str(caught.value)
            assert text.startswith(f"{__file__}:{line_of(at)}: Listener.{handler}: "), text
            assert words in text
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
