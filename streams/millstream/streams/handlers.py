"""Handlers of explicit subscriptions: methods of the subscribing grain, stored by name.

Owns: which methods can be handlers and the codec of their items. Source: their annotation,
`Event[T]` or `list[Event[T]]`. Invariant: a handler is named `_like_this`, or marked, so that it
is not callable through references.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

from millstream.runtime.codec import Codec, build_codec
from millstream.runtime.definition import place_of
from millstream.runtime.errors import DefinitionError

from .event import Event

__all__ = ["codec_of", "is_batch_handler"]

CODEC = "__millstream_item_codec__"


def codec_of(handler: Any) -> Codec[Any]:
    """Codec of the items that a handler takes. Raises DefinitionError."""
    fn = handler.__func__
    found: Codec[Any] | None = getattr(fn, CODEC, None)
    if found is None:
        found = build_codec(_item_of(fn), f"{place_of(fn)}: {fn.__qualname__}: event")
        setattr(fn, CODEC, found)
    return found


def is_batch_handler(handler: Any) -> bool:
    """Does the handler take a list of events?"""
    return get_origin(_event_hint(handler.__func__)) is not Event


def _event_hint(fn: Any) -> Any:
    hints = [hint for name, hint in get_type_hints(fn).items() if name != "return"]
    if len(hints) != 1:
        raise DefinitionError(f"{place_of(fn)}: {fn.__qualname__}: annotate the event: Event[...]")
    return hints[0]


def _item_of(fn: Any) -> Any:
    hint = _event_hint(fn)
    if get_origin(hint) is not Event:
        hint = next(iter(get_args(hint)), None)
    items = get_args(hint)
    if get_origin(hint) is not Event or len(items) != 1:
        raise DefinitionError(f"{place_of(fn)}: {fn.__qualname__}: annotate the event: Event[...]")
    return items[0]
