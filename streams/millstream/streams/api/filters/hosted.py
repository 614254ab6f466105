"""Filters of the grain classes that this silo hosts, for the agents of this silo.

Owns: finding them. Not: calling them (`agent.delivery`). Invariant: if the silo does not host the
class, or its version has no such filter, none is found, and the consumer's side calls the filter.
"""

from __future__ import annotations

from functools import cached_property

from millstream.runtime import DefinitionError
from millstream.runtime.extending import GrainType, SiloServices, codec_of
from millstream.streams.api.handlers import items_codec_of
from millstream.streams.api.implicit import ImplicitSubscription
from millstream.streams.api.subscribe import SubscribeMark
from millstream.streams.api.subscription_rows import SubscriptionRow

from .event_filter import EventFilter, filter_in
from .known import KnownFilter, item_of, parse_known_name

__all__ = ["PROGRAMS_MAX", "HostedFilters"]

PROGRAMS_MAX = 1_000
"""Filters of programs that a silo keeps ready."""


class HostedFilters:
    """The filters that one silo has."""

    def __init__(self, services: SiloServices) -> None:
        self._services = services
        self._programs: dict[str, EventFilter | None] = {}

    @cached_property
    def _types(self) -> dict[str, GrainType]:
        return {one.name: one for one in self._services.grain_types()}

    def of_mark(self, one: ImplicitSubscription, /) -> EventFilter | None:
        """The filter of a `@subscribe` mark. None: it has none, or its type is not hosted here."""
        grain_type = self._types.get(one.grain_type)
        for mark in () if grain_type is None else grain_type.marks.get(one.handler, ()):
            if isinstance(mark, SubscribeMark) and mark.namespace.name == one.namespace:
                return mark.filter_for(self._services.runtime)
        return None

    def of_row(self, row: SubscriptionRow, /) -> EventFilter | None:
        """The filter of an explicit subscription, or of a program outside the cluster. None: it has
        none, or it is unknown here."""
        if row.session:
            return self._find(row.where)
        grain_type = self._types.get(row.grain_type)
        if grain_type is None:
            return None
        where = filter_in(grain_type.cls, row.where)
        handler = getattr(grain_type.cls, row.handler, None)
        if where is None or handler is None:
            return None
        try:
            codec = items_codec_of(handler)
        except DefinitionError:
            return None  # the consumer's side reports the error
        label = f"{grain_type.name}.{row.where}"
        return EventFilter(label, where, codec, self._services.runtime, row.policy.give_up_on)

    def _find(self, name: str) -> EventFilter | None:
        """The filter of a program, looked up once for each name. None: it is unknown here."""
        if name not in self._programs:
            if len(self._programs) >= PROGRAMS_MAX:
                self._programs.clear()
            self._programs[name] = self._find_known(name)
        return self._programs[name]

    def _find_known(self, name: str) -> KnownFilter | None:
        kind, method = parse_known_name(name)
        grain_type = self._types.get(kind)
        where = None if grain_type is None else filter_in(grain_type.cls, method)
        item = None if where is None else item_of(where)
        if where is None or item is None:
            return None
        try:
            return KnownFilter(name, where, codec_of(item, name), self._services.runtime)
        except DefinitionError:
            return None  # the program calls it
