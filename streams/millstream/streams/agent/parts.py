"""The parts that the agents of one provider in one silo share, and the choice of their cache."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from millstream.runtime.extending import Budget, Clock, Runners, SiloServices, Tasks
from millstream.streams.api.filters.hosted import HostedFilters
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.queue import QueueAdapter
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.layout import Layout

from .audience.audience import Known
from .cache.queue_cache import Notes, QueueCache
from .delivery.deaths import Fate
from .delivery.give_ups import GiveUps
from .options import StreamOptions
from .reconciliation import StoredSubscriptions

__all__ = ["AgentParts", "cache_for"]


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts that the agents of one provider in one silo share."""

    adapter: QueueAdapter
    capabilities: frozenset[Capability]
    options: StreamOptions
    provider: str
    services: SiloServices
    give_ups: GiveUps
    known: Known
    clock: Clock
    new_tasks: Callable[[], Tasks]
    runners: Runners  # of reads and delivery calls, until the provider ends
    budget: Budget  # of the silo
    filters: HostedFilters
    stored: StoredSubscriptions
    fate: Callable[[str], Fate]  # the fate of a silo, as far as known
    layout: Layout | None = None  # of providers whose number of queues can change


def cache_for(
    options: StreamOptions, capabilities: Collection[Capability], after: Token | None
) -> QueueCache:
    """Return the cache of a queue with these capabilities.

    A queue without order is read only as fast as it is delivered, because a waiting message could
    no longer be overtaken by a more urgent one.
    """
    limits = options.cache
    is_ordered = Capability.ORDERED in capabilities
    if not is_ordered:
        limits = replace(limits, events_max=min(limits.events_max, options.calls_out_max))
    if not is_ordered:
        notes: Notes = "all"
    else:
        notes = "out_of_turn" if Capability.ITEM_ACK in capabilities else "none"
    gives_back = Capability.ITEM_ACK in capabilities and not is_ordered
    return QueueCache(limits, after, notes=notes, gives_back=gives_back)
