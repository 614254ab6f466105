"""The settings of a `PersistentStreams`, as objects of the contracts' shapes.

Owns `Settings`, and the settings that all silos of a cluster must share. Invariant: wrong settings
are refused when the provider is made, before a silo starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from millstream.runtime import ConfigError, Grain
from millstream.runtime.extending import check_kind
from millstream.streams.agent.cache.limits import CacheLimits
from millstream.streams.agent.delivery.give_ups import log_outcome
from millstream.streams.agent.options import StreamOptions
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.factories import (
    OpenAdapter,
    OpenedByFunction,
    balancer_of,
    factory_of,
)
from millstream.streams.contracts.mapping import QueueBalancer, QueueMapper
from millstream.streams.contracts.queue import QueueAdapterFactory
from millstream.streams.contracts.shapes import capabilities_of, require_shape
from millstream.streams.failures.handler import (
    DECISIONS,
    Always,
    DeliveryFailure,
    FailureHandler,
    GiveUpDecision,
    KeepDeadLetters,
)
from millstream.streams.ownership.mapper import HashRingMapper
from millstream.streams.ownership.mapper_record import name_of

__all__ = ["Settings", "settings_of"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The parts that a user chose, and two that tests may replace.

    Tests may replace `consumer`, the extension that receives events, and `gave_up`, which is called
    for every event that is given up.
    """

    factory: QueueAdapterFactory
    mapper: QueueMapper
    balancer: QueueBalancer
    options: StreamOptions
    on_give_up: FailureHandler
    consumer: type[ConsumerExtension] = ConsumerExtension
    gave_up: Callable[[DeliveryFailure, str], None] = log_outcome
    has_own_mapper: bool = True  # False: an adapter may bring one

    def list_capabilities(self) -> frozenset[Capability]:
        """Return the capabilities that the factory declares; those of a function are unknown before
        it opens."""
        if isinstance(self.factory, OpenedByFunction) and not self.factory.capabilities:
            return frozenset()
        return capabilities_of(self.factory, "PersistentStreams(queues)")

    def list_grains(self) -> Sequence[type[Grain]]:
        """Return the grain classes that the adapter needs."""
        found: Sequence[type[Grain]] = getattr(self.factory, "grains", ())
        return found

    def has_bookie(self) -> bool:
        """Say whether the adapter keeps data for all silos, by the factory's declaration."""
        return getattr(self.factory, "has_bookie", False) is True

    def agreement(self) -> Mapping[str, str]:
        """Return the settings that all silos must share; otherwise a stream would be in two
        queues."""
        names, kind = self.mapper.queues(), type(self.mapper).__qualname__
        ends = f"{names[0]} to {names[-1]}" if names else "none"
        name = name_of(self.mapper)
        kind = f"{kind} {name!r}" if name else kind
        mapper = f"{kind} of {len(names)} queues, {ends}, epoch {self.mapper.epoch}"
        queues = type(self.factory).__qualname__
        brought: Mapping[str, str] = getattr(self.factory, "agreement", {})
        return {"mapper": mapper, "queues": queues, "store": self.options.store, **brought}


def settings_of(
    queues: QueueAdapterFactory | OpenAdapter | str,
    mapper: QueueMapper | None,
    balancer: QueueBalancer | str,
    options: StreamOptions | None,
    on_give_up: FailureHandler | GiveUpDecision | None,
) -> Settings:
    """Return the settings, checked and with defaults.

    Raises ConfigError for a value that is not valid.
    """
    found = Settings(
        factory_of(queues),
        HashRingMapper(queues=8) if mapper is None else mapper,
        balancer_of(balancer),
        StreamOptions() if options is None else options,
        handler_of(on_give_up),
        has_own_mapper=mapper is not None,
    )
    require_shape(found.mapper, QueueMapper, "PersistentStreams(mapper=...)")
    check_kind("PersistentStreams(options=...)", found.options, StreamOptions)
    require_shape(found.on_give_up, FailureHandler, "PersistentStreams(on_give_up=...)")
    return found


def check_cache(limits: CacheLimits, capabilities: Collection[Capability], provider: str) -> None:
    """Raise ConfigError if the cache's policy does not fit the adapter."""
    if limits.policy == "streams":
        return
    if Capability.REWIND in capabilities:
        why = "can be read again (REWIND), so a slow subscription does not block it"
    elif Capability.ORDERED not in capabilities:
        why = "has no order (no ORDERED), so it acknowledges each message by itself"
    else:
        return
    raise ConfigError(
        f"stream provider {provider!r}: CacheLimits.policy is {limits.policy!r}, but the queue "
        f"{why}: use the policy 'streams'"
    )


def handler_of(on_give_up: FailureHandler | GiveUpDecision | None) -> FailureHandler:
    """Return the handler that decides about events that were given up.

    Raises ConfigError for a text that is not a known decision.
    """
    if on_give_up is None:
        return KeepDeadLetters()
    if not isinstance(on_give_up, str):
        return on_give_up
    if on_give_up not in DECISIONS:
        known = ", ".join(map(repr, DECISIONS))
        raise ConfigError(f"PersistentStreams(on_give_up={on_give_up!r}): write one of {known}")
    return Always(on_give_up)
