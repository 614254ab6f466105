"""Finding out that a gateway was evicted, which may not know it itself.

Owns: `SlowCalls` (pure), `EvictionWatch`. Not: connections (`peers`), which gateways may be used
(`gateway_list`). Invariants: a client whose calls are answered in time asks nothing; only a row
that says dead, as another gateway reads it, ends a connection: dead is final, a missing name may be
news of yesterday.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from millstream.runtime.errors import MillstreamError

__all__ = ["LOOK_EVERY_S", "EvictionWatch", "SlowCalls"]

log = logging.getLogger("millstream.client")

LOOK_EVERY_S = 0.4
"""How often calls are looked for that wait; also the longest wait for an answer to a question."""
ASKED_AT_ONCE = 2
"""Gateways that are asked together, of which one may hang."""


class SlowCalls:
    """Which gateways have not answered a call since the last look. No I/O, no clock."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def look(self, oldest: Mapping[str, int]) -> list[str]:
        """Takes the id of the oldest outstanding call by gateway (0: none); returns slow ones."""
        slow = [name for name, call in oldest.items() if call and self._before.get(name) == call]
        self._before = dict(oldest)
        return slow


class WatchedGateways(Protocol):
    """What the watch needs of its client."""

    def oldest_calls(self) -> Mapping[str, int]:
        """The id of the oldest outstanding call of each connected gateway; 0: none."""
        ...

    def gateways_to_ask(self) -> Sequence[str]:
        """Gateways that may answer."""
        ...

    async def ask_evicted(self, gateway: str, silos: list[str], /) -> list[str]:
        """Which of the silos are dead, as a gateway reads the table. Raises MillstreamError."""
        ...

    def drop_evicted(self, silo: str, /) -> None:
        """Never use a gateway again; what waits for it ends."""
        ...


class EvictionWatch:
    """Asks other gateways about those that are slow."""

    __slots__ = ("_gateways", "_slow", "_turn")

    def __init__(self, gateways: WatchedGateways) -> None:
        self._gateways = gateways
        self._slow = SlowCalls()
        self._turn = 0

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            slow = self._slow.look(self._gateways.oldest_calls())
            if slow:
                await asyncio.gather(*(self._ask(name, slow) for name in self._next(slow)))

    def _next(self, slow: Sequence[str]) -> list[str]:
        """Whom to ask: others if there are any, in turn, since one of them may be cut off too."""
        order = self._gateways.gateways_to_ask()
        others = [name for name in order if name not in slow] or list(order)
        self._turn += ASKED_AT_ONCE
        start = self._turn % len(others)
        return list(islice([*others[start:], *others[:start]], ASKED_AT_ONCE))

    async def _ask(self, gateway: str, slow: list[str]) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                evicted = await self._gateways.ask_evicted(gateway, slow)
        except (MillstreamError, TimeoutError):
            return  # the next look asks another one
        except Exception:
            log.exception("gateway %s could not be asked about others", gateway)
            return
        for silo in evicted:
            if silo in slow:
                self._gateways.drop_evicted(silo)
