"""Tells of queues that nobody reads.

Owns: `Audit`. Not: when a queue is told of (`ownership.unread`). Invariant: of the silos that may
read the provider's queues one does it, the first by address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from millstream.runtime import StorageError
from millstream.streams.contracts.identity import QueueId
from millstream.streams.ownership.unread import LOOK_EVERY_S, Unread

from .silo_view import ManagerSilo, QueueSilos

__all__ = ["Audit"]

log = logging.getLogger("millstream.streams")

NAMES_MAX = 5


class Audit:
    """Looks at the owners of one provider's queues, for as long as the silo runs."""

    def __init__(
        self, provider: str, queues: Sequence[QueueId], silos: QueueSilos, all_silos: ManagerSilo
    ) -> None:
        self._provider = provider
        self._queues = queues
        self._silos = silos
        self._all_silos = all_silos
        self._unread = Unread()

    async def run(self) -> None:
        """Look every few seconds; never ends by itself."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._silos.me != min(self._silos.silos(), default=""):
                self._unread = Unread()
                continue
            try:
                await self.look()
            except StorageError:
                continue  # who owns queues says that the store is away

    async def look(self) -> None:
        """Compare the records with who is alive. Raises StorageError."""
        owners, held = await self._silos.owners_and_held()
        live = self._all_silos.live()
        read = held | {queue for queue, owner in owners.items() if owner.silo in live}
        now_s = asyncio.get_running_loop().time()
        found = self._unread.see([queue for queue in self._queues if queue not in read], now_s)
        if found:
            names = ", ".join(list(found)[:NAMES_MAX])
            more = f" and {len(found) - NAMES_MAX} more" if len(found) > NAMES_MAX else ""
            text = "%s: no silo has read %s%s for %.0f s; the balancers want it nowhere, or fail"
            log.warning(text, self._provider, names, more, max(found.values()))
