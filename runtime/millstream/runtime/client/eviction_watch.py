"""Detection of evicted gateways, since an evicted gateway may not know that it was evicted.

This module owns `SlowCalls` (without I/O) and `EvictionWatch`. A client whose calls are answered in
time asks nothing. Only a row with the status dead, as another gateway reads it, ends a connection:
that status is final, while a missing name may come from an old list.
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
"""Seconds between two looks for waiting calls. Also the longest wait for an answer."""
ASKED_AT_ONCE = 2
"""Gateways that are asked together, since one of them may hang."""


class SlowCalls:
    """The gateways that have not answered a call since the last look. No I/O, no clock."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def look(self, oldest: Mapping[str, int]) -> list[str]:
        """Take the id of the oldest unanswered call of each gateway (0: none); return slow
        gateways.
        """
        slow = [name for name, call in oldest.items() if call and self._before.get(name) == call]
        self._before = dict(oldest)
        return slow


class WatchedGateways(Protocol):
    """The client as the watch uses it."""

    def oldest_calls(self) -> Mapping[str, int]:
        """Return, for each connected gateway, the id of the oldest unanswered call.

        The id is 0 if all calls are answered.
        """
        ...

    def gateways_to_ask(self) -> Sequence[str]:
        """Return the gateways that may answer."""
        ...

    async def ask_evicted(self, gateway: str, silos: list[str], /) -> list[str]:
        """Ask a gateway which of the silos are dead in the membership table. Raises
        MillstreamError."""
        ...

    def drop_evicted(self, silo: str, /) -> None:
        """Never use a gateway again. Calls that wait for it end."""
        ...


class EvictionWatch:
    """Asks other gateways about slow gateways."""

    __slots__ = ("_gateways", "_slow", "_turn")

    def __init__(self, gateways: WatchedGateways) -> None:
        self._gateways = gateways
        self._slow = SlowCalls()
        self._turn = 0

    async def run(self) -> None:
        """Look forever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            slow = self._slow.look(self._gateways.oldest_calls())
            if slow:
                await asyncio.gather(*(self._ask(name, slow) for name in self._next(slow)))

    def _next(self, slow: Sequence[str]) -> list[str]:
        """Choose the gateways to ask: others if there are any, in turn, since one may be cut off
        too.
        """
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
            return  # the next look asks another gateway
        except Exception:
            log.exception("could not ask gateway %s which other gateways are evicted", gateway)
            return
        for silo in evicted:
            if silo in slow:
                self._gateways.drop_evicted(silo)
