"""Filters of programs outside the cluster that silos know too: static methods of grain classes.

Owns: their names, finding the class of a function, `KnownFilter`. Not: the call in the program
(`stream_events`), which happens in any case. Invariants: a filter gets a name only if it is
certainly the same and decodes the same on both sides. A filter that fails in a silo passes its
event on, so that the program sees the failure.
"""

from __future__ import annotations

import sys
from typing import Any, get_type_hints

from millstream.runtime import Contract
from millstream.runtime.extending import kind_of
from millstream.streams.api.handlers import events_of, gives_back
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item

from .event_filter import EventFilter, Where, filter_in

__all__ = ["KnownFilter", "find_name", "item_of", "parse_known_name"]


class KnownFilter(EventFilter):
    """A filter of a program, in a silo: it passes on events that it cannot judge."""

    def fits(self, item: Item, stream: StreamId, subscription: str) -> bool:
        """Whether the event may be for the program."""
        try:
            return super().fits(item, stream, subscription)
        except Exception:
            return True


def find_name(where: Where, item: object) -> str:
    """The name by which silos may know a program's filter of such items, or "" if there is none."""
    cls = class_of(where)
    name = getattr(where, "__name__", "")
    if cls is None or not same_function(filter_in(cls, name), where):
        return ""
    taken = item_of(where)
    return f"{kind_of(cls)}.{name}" if taken is not None and gives_back(taken, item) else ""


def parse_known_name(name: str) -> tuple[str, str]:
    """Grain type and static method."""
    kind, _, method = name.rpartition(".")
    return kind, method


def class_of(where: Where) -> type[Contract] | None:
    """The grain class that contains a function.

    None means that no class does, or only a local one.
    """
    found: object = getattr(where, "__self__", None)
    if found is None:
        *path, _ = getattr(where, "__qualname__", "").split(".")
        found = sys.modules.get(getattr(where, "__module__", "")) if path else None
        for part in path:
            found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Contract) else None


def same_function(one: object, other: object) -> bool:
    """Whether both are the same function, bound or not."""
    return getattr(one, "__func__", one) is getattr(other, "__func__", other)


def item_of(where: Where) -> Any | None:
    """The item type that a filter's argument is annotated with, as `Event[T]`, or None if it has
    another annotation."""
    try:
        hints = get_type_hints(where, include_extras=True)
    except NameError:
        return None
    hints.pop("return", None)
    events = events_of(next(iter(hints.values()))) if len(hints) == 1 else None
    return None if events is None or events.is_batch else events.item
