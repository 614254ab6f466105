"""The queues and the balancer that `PersistentStreams` is given: objects, names, or a function.

Owns: turning them into objects of the contracts' shapes. Names are entry points
(`runtime.plugins`), so an installed provider of another project is found as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from millstream.runtime import ConfigError, Grain
from millstream.runtime.extending import load_plugin

from .host import AdapterHost
from .mapping import QueueBalancer
from .queue import QueueAdapter, QueueAdapterFactory
from .shapes import capabilities_of, require_shape

__all__ = ["OpenAdapter", "OpenedByFunction", "balancer_of", "factory_of"]

OpenAdapter = Callable[[str, AdapterHost], Awaitable[QueueAdapter]]


class OpenedByFunction:
    """A factory that wraps a function which opens an adapter.

    `capabilities` is None until the adapter is opened, unless the function has the attribute.
    """

    def __init__(self, function: OpenAdapter) -> None:
        self._function = function
        self.capabilities: Any = getattr(function, "capabilities", None)
        self.grains: Sequence[type[Grain]] = getattr(function, "grains", ())

    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter:
        """Open the adapter and learn its capabilities."""
        adapter = await self._function(provider, host)
        if self.capabilities is None:
            where = f"stream provider {provider!r}: {self._function!r} opened"
            if not hasattr(adapter, "capabilities"):
                await adapter.aclose()
                raise ConfigError(
                    f"{where} a {type(adapter).__name__} without `capabilities`: declare them in "
                    "the adapter, or set them on the function"
                )
            self.capabilities = capabilities_of(adapter, where)  # type: ignore[arg-type]
        return adapter


def factory_of(queues: QueueAdapterFactory | OpenAdapter | str) -> QueueAdapterFactory:
    """The adapter factory. Raises ConfigError: the name is unknown, or the shape is wrong."""
    found: Any = load_plugin("millstream.queues", queues) if isinstance(queues, str) else queues
    if inspect.iscoroutinefunction(found):
        found = OpenedByFunction(found)
    require_shape(found, QueueAdapterFactory, "PersistentStreams(queues)")
    factory: QueueAdapterFactory = found
    return factory


def balancer_of(balancer: QueueBalancer | str) -> QueueBalancer:
    """The balancer. Raises ConfigError: the name is unknown, or the shape is wrong."""
    found: Any = balancer
    if isinstance(balancer, str):
        found = load_plugin("millstream.balancers", balancer)
    require_shape(found, QueueBalancer, "PersistentStreams(balancer=...)")
    made: QueueBalancer = found
    return made
