"""Filters of the grain classes that this silo hosts, for the agents that read in it.

Owns: finding them. Not: asking them (`agent.delivery`). Invariant: where the class is not
hosted, or this version of it has no such filter, none is found, and the consumer's silo asks it.
"""

from __future__ import annotations

from functools import cached_property

from millstream.runtime import DefinitionError
from millstream.runtime.extending import GrainType, SiloServices
from millstream.streams.api.handlers import items_codec_of
from millstream.streams.api.implicit import ImplicitSubscription
from millstream.streams.api.subscribe import SubscribeMark
from millstream.streams.api.subscription_rows import SubscriptionRow

from .event_filter import EventFilter, filter_in

__all__ = ["HostedFilters"]


class HostedFilters:
    """What one silo has of them (`Filters`)."""

    def __init__(self, services: SiloServices) -> None:
        self._services = services

    @cached_property
    def _types(self) -> dict[str, GrainType]:
        return {one.name: one for one in self._services.grain_types()}

    def of_mark(self, one: ImplicitSubscription, /) -> EventFilter | None:
        """The filter of a `@subscribe` mark."""
        grain_type = self._types.get(one.grain_type)
        for mark in () if grain_type is None else grain_type.marks.get(one.handler, ()):
            if isinstance(mark, SubscribeMark) and mark.namespace.name == one.namespace:
                return mark.filter_for(self._services.runtime)
        return None

    def of_row(self, row: SubscriptionRow, /) -> EventFilter | None:
        """The filter of an explicit subscription."""
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
            return None  # the consumer's side says what is wrong
        label = f"{grain_type.name}.{row.where}"
        return EventFilter(label, where, codec, self._services.runtime, row.policy.give_up_on)
