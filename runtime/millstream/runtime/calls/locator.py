"""Where a call can go, and who knows it.

Owns: the Protocol `Locator`. A silo's router and a client's choice of gateways are the two.
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

    def find(self, kind: GrainKind, key: str, /) -> Destination | None:
        """Where the grain is, if that is known without asking and nobody waits for it.

        Raises SiloUnavailable for a silo that refused a moment ago.
        """

    def wait(
        self, kind: GrainKind, key: str, pause_s: float = 0.0, size_bytes: int = 0, /
    ) -> asyncio.Future[Destination]:
        """Wait with others for the grain's location (see `Searches.wait`)."""
        ...

    def has_waiting(self, kind: str, key: str, /) -> bool:
        """Do calls wait for this grain's location? Later ones must not overtake them."""
        ...

    def on_moved(self, kind: GrainKind, key: str, peer: Peer, silo: str, /) -> None:
        """The grain is not at `peer`; it is at `silo`, if that is not empty."""

    def on_lost(self, kind: GrainKind, key: str, /) -> None:
        """The grain's silo cannot be reached: look it up again next time."""
