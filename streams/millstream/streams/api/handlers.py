"""Handlers of streams: methods that take one event of a stream, or a list of events.

Owns: the rules that `@subscribe` and `Stream.subscribe` have in common, and the codec of the items
of an explicit handler. The annotation decides: `Event[T]` or `list[Event[T]]`. Invariants:
references cannot call an explicit handler, so it is named `_like_this` or has a mark. The agent
knows the handler by name only, so items are decoded as the handler annotates them, and it annotates
the namespace's item itself.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from millstream.runtime import DefinitionError
from millstream.runtime.extending import (
    Codec,
    Mark,
    bare,
    codec_of,
    marks_of,
    needs_wrappers,
    show_hint,
    source_of,
    union_members,
)

from .event import Event

__all__ = [
    "HandlerMark",
    "accepts",
    "check_explicit",
    "commits",
    "events_of",
    "gives_back",
    "is_batch_handler",
    "items_codec_of",
    "label_of",
    "parameter_of",
    "show_wanted",
    "text_of",
]

EXPLICIT = "__explicit_handler__"
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Events(msgspec.Struct, frozen=True):
    """The argument of a handler: events of an item type, one by one or in lists."""

    item: Any
    is_batch: bool


class HandlerMark(Mark):
    """A mark that makes a method a handler."""

    needs_one_activation = True

    def commits(self, namespace: str) -> bool:
        """Whether a write of a state acknowledges the events of such streams."""
        raise NotImplementedError


class Explicit(msgspec.Struct, frozen=True):
    """An explicit handler; analysed once per function."""

    events: Events
    parameter: str
    codec: Codec[Any]


# --- the form of a method ------------------------------------------------------------------------


def label_of(fn: Any) -> str:
    """The method with the class that it was written in: `Airport.on_landing`."""
    name: str = inspect.unwrap(fn).__qualname__
    return name.rpartition("<locals>.")[2]


def parameter_of(fn: Any, subject: str, wanted: str) -> str:
    """Name of the argument that takes the event. Raises DefinitionError.

    `wanted`: the annotation that the argument should have.
    """
    if not inspect.iscoroutinefunction(fn):
        raise DefinitionError(f"{subject}: a stream handler must be `async def`")
    parameters = list(inspect.signature(fn).parameters.values())
    if len(parameters) != 2 or any(p.kind not in POSITIONAL for p in parameters):
        events = "event" if wanted.startswith("Event") else "events"
        raise DefinitionError(
            f"{subject}: a stream handler takes one argument, the {events}: `{events}: {wanted}`"
        )
    return parameters[1].name


def events_of(hint: Any) -> Events | None:
    """The events of an annotation, or None if it is neither `Event[T]` nor a type that a list of
    events fits."""
    is_batch = get_origin(hint) is not Event
    event = _element_of(hint) if is_batch else hint
    items = get_args(event)
    if get_origin(event) is not Event or len(items) != 1:
        return None
    return Events(items[0], is_batch)


def _element_of(hint: Any) -> Any:
    """T of `list[T]`, `Sequence[T]` and every other type that a list fits; else None."""
    origin, arguments = get_origin(hint), get_args(hint)
    is_list = isinstance(origin, type) and len(arguments) == 1 and _is_subclass(list, origin)
    return arguments[0] if is_list else None


def show_wanted(item: Any, *, is_batch: bool) -> str:
    """The annotation to write, for error messages."""
    return f"list[Event[{text_of(item)}]]" if is_batch else f"Event[{text_of(item)}]"


def text_of(hint: Any) -> str:
    """Return an annotation as a person writes it: `list[Event[Landed]]`."""
    if get_origin(hint) is None or get_origin(hint) is Literal or union_members(hint):
        return show_hint(hint)
    arguments = ", ".join("..." if one is ... else text_of(one) for one in get_args(hint))
    return f"{text_of(get_origin(hint))}[{arguments}]"


# --- items ---------------------------------------------------------------------------------------


def accepts(wanted: Any, item: Any) -> bool:
    """Whether a handler whose annotation is `wanted` takes each value of type `item`, as type
    checkers see it. In doubt, True."""
    if wanted == item:
        return True
    members = union_members(item) or (item,)
    choices = union_members(wanted) or (_plain(wanted),)
    return all(any(_fits(choice, member) for choice in choices) for member in members)


def _fits(wanted: Any, item: Any) -> bool:
    """`accepts` for a type that is no union."""
    if wanted is Any or wanted is object or wanted == item:
        return True
    if get_origin(item) is Literal and get_origin(wanted) is Literal:
        return set(get_args(item)) <= set(get_args(wanted))
    if get_origin(item) is Literal:
        return all(_fits(wanted, type(value)) for value in get_args(item))
    item = bare(item)
    cls, base = get_origin(item) or item, get_origin(wanted) or wanted
    if not isinstance(cls, type) or not isinstance(base, type):
        return bool(wanted == item)
    if not _is_subclass(cls, base) and (cls, base) != (int, float):
        return False
    # compare element types where both have them; leave other cases to the type checker
    given, taken = get_args(item), get_args(wanted)
    return len(given) != len(taken) or all(map(accepts, taken, given))


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_subclass(cls: type, base: type) -> bool:
    try:
        return issubclass(cls, base)
    except TypeError:
        return True  # a Protocol or similar: a type checker compares it


def gives_back(wanted: Any, item: Any) -> bool:
    """Whether a handler whose annotation is `wanted` gets each value of type `item` as it was sent.

    It does if it accepts the type, and if the codec of `wanted` decodes each value to an equal one.
    """
    return accepts(wanted, item) and _is_decoded(wanted, item)


def _is_decoded(wanted: Any, item: Any) -> bool:
    """Whether a codec of `wanted` decodes each value of type `item` to an equal value."""
    if wanted is Any or wanted == item:
        return True
    if needs_wrappers(wanted) or needs_wrappers(item):
        return False  # only the same union has the same form on the wire
    choices = union_members(wanted) or (bare(wanted),)
    return all(member in choices for member in union_members(item) or (bare(item),))


# --- explicit handlers ---------------------------------------------------------------------------


def check_explicit(handler: Any, item: Any, label: str) -> None:
    """Refuse a method that cannot handle the items of `label`. Raises DefinitionError."""
    fn = handler.__func__
    subject = f"{source_of(fn)}: {label_of(fn)}"
    _check_name(handler.__self__, fn, subject)
    found = _explicit(fn)
    taken = found.events.item
    if not gives_back(taken, item):
        wanted = show_wanted(item, is_batch=found.events.is_batch)
        raise DefinitionError(
            f"{subject}: {label} has items of {text_of(item)}, and an explicit handler must take "
            f"them: annotate `{found.parameter}: {wanted}`, not {text_of(taken)}"
        )


def _check_name(grain: Any, fn: Any, subject: str) -> None:
    """Refuse a name that references could call, or that is not found on the class.

    The subscription is stored with the name of the handler.
    """
    name: str = fn.__name__
    if not hasattr(type(grain), name):
        raise DefinitionError(
            f"{subject}: {type(grain).__name__} has no method `{name}`: a handler is looked up by "
            "the name of its `def`, so the method needs this name, without two leading underscores"
        )
    if name.startswith("_") or any(mark.makes_local for mark in marks_of(type(grain), name)):
        return
    raise DefinitionError(
        f"{subject}: a public method can be called through references: name it `_{name}`, or mark "
        "it with `@subscribe`"
    )


def items_codec_of(handler: Any) -> Codec[Any]:
    """Codec of the items that a handler takes, bound or not. Raises DefinitionError."""
    return _explicit(getattr(handler, "__func__", handler)).codec


def commits(handler: Any, namespace: str) -> bool:
    """Whether a mark of the handler writes a state with the position in such streams."""
    marks = marks_of(type(handler.__self__), handler.__name__)
    return any(isinstance(one, HandlerMark) and one.commits(namespace) for one in marks)


def is_batch_handler(handler: Any) -> bool:
    """Whether the handler takes a list of events. Raises DefinitionError."""
    return _explicit(handler.__func__).events.is_batch


def _explicit(fn: Any) -> Explicit:
    found: Explicit | None = getattr(fn, EXPLICIT, None)
    if found is None:
        subject = f"{source_of(fn)}: {label_of(fn)}"
        try:
            found = _read_explicit(fn, subject)
        except NameError as error:
            raise DefinitionError(
                f"{subject}: event: {error}; annotations must be importable at run time (not only "
                "under TYPE_CHECKING)"
            ) from None
        setattr(fn, EXPLICIT, found)
    return found


def _read_explicit(fn: Any, subject: str) -> Explicit:
    """Analyse a function. Raises DefinitionError, or NameError: an annotation is not defined."""
    parameter = parameter_of(fn, subject, "Event[...]")
    events = events_of(get_type_hints(fn, include_extras=True).get(parameter))
    if events is None:
        raise DefinitionError(f"{subject}: annotate the event: Event[...]")
    return Explicit(events, parameter, codec_of(events.item, f"{subject}: event"))
