"""The other silos of a cluster, as a `$rewind` target asks them.

Owns: `OtherSilos`. Not: what they are asked for (`target`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from millstream.runtime.extending import SiloServices

from .item_columns import Column
from .target import Extent, RewindTarget

__all__ = ["OtherSilos"]


class OtherSilos:
    """Those that are active, whether they have the provider or not (`Others`)."""

    def __init__(self, services: SiloServices, provider: str) -> None:
        self._services = services
        self._target = f"{RewindTarget.target_name}/{provider}"

    def silos(self) -> Sequence[str]:
        """Their addresses."""
        services = self._services
        return [silo for silo in services.members.active() if silo != services.address]

    def extents(self, silo: str, queues: list[str], /) -> Coroutine[Any, Any, list[Extent]]:
        """How far one knows that queues go."""
        call = self._services.targets.call
        return call(silo, self._target, RewindTarget.extents_here, queues)

    def columns(self, silo: str, namespace: str, /) -> Coroutine[Any, Any, list[Column]]:
        """The columns of a namespace's items, as one knows them."""
        call = self._services.targets.call
        return call(silo, self._target, RewindTarget.columns_here, namespace)
