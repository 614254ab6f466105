"""Publishing to broadcast channels from outside: a client's way in.

Owns: the target `$broadcast/<provider>`. Not: who listens (`fan_out`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from millstream.runtime.extending import Role, SystemTarget, open_to

__all__ = ["BroadcastTarget", "Broadcaster"]


class Broadcaster(Protocol):
    """A silo's part, which reaches the listeners."""

    def broadcast(self, name: str, key: str, body: bytes, /) -> Coroutine[Any, Any, None]: ...


class BroadcastTarget(SystemTarget):
    """Takes what clients publish."""

    target_name = "$broadcast"

    def __init__(self, into: Broadcaster) -> None:
        self._into = into

    @open_to(Role.CLIENT)
    async def publish(self, name: str, key: str, body: bytes) -> None:
        """Tell every listener. Raises what they raised, if that is waited for."""
        await self._into.broadcast(name, key, body)
