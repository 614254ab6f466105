"""Stored positions of subscriptions that have ended, which nobody would miss.

Owns: `OldPositions`: finding them. Not: writing them (`State`: the next write leaves them out).
Invariants: only what the store of subscriptions does not have is forgotten, and what has joined
meanwhile is not; one activation asks for `ASKED_MAX` at most.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any
from zlib import crc32

from millstream.runtime import MillstreamError, State
from millstream.runtime.extending import ExtendedGrain, show_text
from millstream.streams.api.rendezvous import rendezvous_key, rendezvous_of
from millstream.streams.api.stream import parse_subscription_id

__all__ = ["OldPositions"]

log = logging.getLogger("millstream.consumer")

ASKED_MAX = 16


class OldPositions:
    """Those of one activation."""

    __slots__ = ("_asked", "_grain", "_joined")

    def __init__(self, grain: ExtendedGrain) -> None:
        self._grain = grain
        self._joined: dict[str, None] = {}  # while the rendezvous is asked
        self._asked: dict[int, None] = {}  # states that were looked through

    def on_joining(self, subscription: str) -> None:
        """A subscription is being made: its positions are kept."""
        self._joined[subscription] = None
        for state in self._grain.states:
            state.keep_position(subscription)

    def on_removed(self, subscription: str) -> None:
        """A subscription was removed by this activation."""
        for state in self._grain.states:
            state.forget_position(subscription)

    def look(self, state: State[Any], living: Collection[str]) -> None:
        """Look through a state once, in the background; `living`: what is delivered by now."""
        if id(state) in self._asked:
            return
        self._asked[id(state)] = None
        found = [name for name in state.cursors if name not in living]
        known = [name for name in found if _is_explicit(name)]
        if known:
            begin = crc32((state.etag or "").encode()) % len(known)  # others as the row changes
            chosen = (known[begin:] + known[:begin])[:ASKED_MAX]
            self._grain.grain.context.create_task(self._ask(state, chosen))

    async def _ask(self, state: State[Any], names: Iterable[str]) -> None:
        for name in names:
            self._joined.pop(name, None)
            provider, stream = parse_subscription_id(name)
            key = rendezvous_key(provider, stream)
            try:
                grain = self._grain.grain.grain(rendezvous_of(provider), key)
                is_stored = await grain.is_stored(name)
            except MillstreamError as error:
                log.info("whether %s lives is not known: %s", show_text(name), error)
                return
            if not is_stored and name not in self._joined:
                state.forget_position(name)


def _is_explicit(name: str) -> bool:
    try:
        parse_subscription_id(name)
    except ValueError:
        return False
    return True
