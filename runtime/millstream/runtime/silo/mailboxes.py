"""The calls that wait in the mailboxes of a silo, looked at now and then.

This module owns `Mailboxes`. A count at each call would cost every call; a look costs about 0.1 µs
for each activation, in slices, and at most one part in `SHARE` of the time.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.run import Turns

__all__ = ["Mailboxes", "Waiting"]

SCANNED_AT_ONCE = 1_000  # activations between two moments in which the loop may run others
SHARE = 100


class Waiting(NamedTuple):
    """The calls that wait for the activations of one grain type.

    Attributes:
        calls: All of them.
        deepest: Those in the longest mailbox.
    """

    calls: int = 0
    deepest: int = 0


class Mailboxes:
    """The waiting calls of one silo.

    Attributes:
        waiting: The result of the last look, by grain type. Types without a waiting call are left
            out.
    """

    def __init__(self, catalog: Catalog, turns: Turns) -> None:
        self._catalog = catalog
        self._turns = turns
        self.waiting: dict[str, Waiting] = {}

    async def look_while_running(self, every_s: float) -> None:
        """Look again and again; never ends by itself."""
        while True:
            took_s = await self.look()
            await asyncio.sleep(max(every_s, SHARE * took_s))

    async def look(self) -> float:
        """Look once. Returns the seconds that this took, without those of other code."""
        found: dict[str, Waiting] = {}
        took_s, began_s = 0.0, self._turns.loop.time()
        for at, activation in enumerate(self._catalog.all()):
            box = activation.mailbox
            if box is not None and box.waiting:
                depth = len(box.waiting) - box.withdrawn
                known = found.get(activation.kind.name, Waiting())
                now = Waiting(known.calls + depth, max(known.deepest, depth))
                found[activation.kind.name] = now
            if not (at + 1) % SCANNED_AT_ONCE:
                took_s += self._turns.loop.time() - began_s
                await asyncio.sleep(0)
                began_s = self._turns.loop.time()
        self.waiting = {name: one for name, one in found.items() if one.calls}
        return took_s + self._turns.loop.time() - began_s
