"""What `PersistentStreams` takes for queues and balancer: objects, names, or a function.

Owns: turning them into objects of the contracts' shapes. Names are entry points
(`runtime.plugins`), so a provider of others is found once it is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from millstream.runtime import Grain
from millstream.runtime.extending import load_plugin

from .queue import AdapterContext, Capability, QueueAdapter, QueueAdapterFactory, QueueBalancer
from .shapes import require_shape

__all__ = ["OpenAdapter", "balancer_of", "factory_of"]

OpenAdapter = Callable[[str, AdapterContext], Awaitable[QueueAdapter]]


class OpenedByFunction:
    """The factory around a function; without a word from it, the adapter can nothing special."""

    def __init__(self, function: OpenAdapter) -> None:
        self._function = function
        self.capabilities: frozenset[Capability] = getattr(function, "capabilities", frozenset())
        self.grains: Sequence[type[Grain]] = getattr(function, "grains", ())

    async def open(self, provider: str, context: AdapterContext, /) -> QueueAdapter:
        return await self._function(provider, context)


def factory_of(queues: QueueAdapterFactory | OpenAdapter | str) -> QueueAdapterFactory:
    """The adapter factory; raises ConfigError: unknown name, or another shape."""
    found: Any = load_plugin("millstream.queues", queues) if isinstance(queues, str) else queues
    if inspect.iscoroutinefunction(found):
        found = OpenedByFunction(found)
    require_shape(found, QueueAdapterFactory, "PersistentStreams(queues)")
    factory: QueueAdapterFactory = found
    return factory


def balancer_of(balancer: QueueBalancer | str) -> QueueBalancer:
    """The balancer; raises ConfigError: unknown name, or another shape."""
    found: Any = balancer
    if isinstance(balancer, str):
        found = load_plugin("millstream.balancers", balancer)
    require_shape(found, QueueBalancer, "PersistentStreams(balancer=...)")
    made: QueueBalancer = found
    return made
