"""Publishing to broadcast channels from outside: the entry for clients.

Owns: the target `$broadcast/<provider>`. Not: the listeners (`fan_out`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from millstream.runtime.extending import Role, SystemTarget, open_to

__all__ = ["BroadcastTarget", "Broadcaster"]


class Broadcaster(Protocol):
    """A silo's part that calls the listeners."""

    def broadcast(self, name: str, key: str, body: bytes, /) -> Coroutine[Any, Any, None]: ...


class BroadcastTarget(SystemTarget):
    """Takes items that clients publish."""

    target_name = "$broadcast"

    def __init__(self, into: Broadcaster) -> None:
        self._into = into

    @open_to(Role.CLIENT)
    async def publish(self, name: str, key: str, body: bytes) -> None:
        """Call every listener. Raises their errors, if the provider waits for them."""
        await self._into.broadcast(name, key, body)
