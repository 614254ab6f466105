"""What `PersistentStreams` takes for queues and balancer: objects, names, or a function.

Owns: turning them into objects of the contracts' shapes. Names are entry points
(`runtime.plugins`), so a provider of others is found once it is installed.
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
    """The factory around a function; what it opens says what it can do, if the function does not.

    `capabilities` is None until then.
    """

    def __init__(self, function: OpenAdapter) -> None:
        self._function = function
        self.capabilities: Any = getattr(function, "capabilities", None)
        self.grains: Sequence[type[Grain]] = getattr(function, "grains", ())

    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter:
        adapter = await self._function(provider, host)
        if self.capabilities is None:
            where = f"stream provider {provider!r}: {self._function!r} opened"
            if not hasattr(adapter, "capabilities"):
                await adapter.aclose()
                raise ConfigError(
                    f"{where} a {type(adapter).__name__} without `capabilities`: say what it can "
                    "do, or set them on the function"
                )
            self.capabilities = capabilities_of(adapter, where)  # type: ignore[arg-type]
        return adapter


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
