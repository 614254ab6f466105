"""The interface for finding the destination of a call.

`Locator` has two implementations: a silo's router, and a client's choice of gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.wire.connection import Peer

__all__ = ["Destination", "Locator"]

Destination = Activation | Peer


class Locator(Protocol):
    """Finds grains for the callers of one process."""

    @property
    def looked_for(self) -> Mapping[tuple[str, str], object]:
        """Kind and key of each grain for which calls wait (see `has_waiting`)."""
        ...

    def find(self, kind: GrainKind, key: str, version: int = 1, /) -> Destination | None:
        """Return the grain's destination if it is known without asking and no call waits for it.

        An activation of this process hosts the wanted version of the type or a later one.
        Raises SiloUnavailable for a silo that refused a connection a moment ago.
        """

    def wait(
        self,
        kind: GrainKind,
        key: str,
        pause_s: float = 0.0,
        size_bytes: int = 0,
        version: int = 1,
        /,
    ) -> asyncio.Future[Destination]:
        """Wait for the grain's location together with other calls (see `Searches.wait`).

        Raises VersionNotHosted if silos host only earlier versions of the type than the wanted one.
        """
        ...

    def has_waiting(self, kind: str, key: str, /) -> bool:
        """True if calls wait for this grain's location. Later calls must not overtake them."""
        ...

    def on_moved(self, kind: GrainKind, key: str, peer: Peer, silo: str, /) -> None:
        """The grain is not at `peer`. If `silo` is not empty, the grain is there."""

    def on_lost(self, kind: GrainKind, key: str, /) -> None:
        """The grain's silo cannot be reached. Look the grain up again next time."""
