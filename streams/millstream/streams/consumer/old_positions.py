"""Finds stored positions of subscriptions that no longer exist.

The next write of the `State` leaves these positions out. Invariants: a position is forgotten only
if the subscription is not stored and has not been made again meanwhile. One activation checks at
most `ASKED_MAX` subscriptions.
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
    """The search for old positions in one activation."""

    __slots__ = ("_asked", "_grain", "_joined")

    def __init__(self, grain: ExtendedGrain) -> None:
        self._grain = grain
        self._joined: dict[str, None] = {}  # subscriptions that were made during the search
        self._asked: dict[int, None] = {}  # states that were searched

    def on_joining(self, subscription: str) -> None:
        """Keep the positions of a subscription that is being made."""
        self._joined[subscription] = None
        for state in self._grain.states:
            state.keep_position(subscription)

    def on_removed(self, subscription: str) -> None:
        """Forget the positions of a subscription that this activation has removed."""
        for state in self._grain.states:
            state.forget_position(subscription)

    def look(self, state: State[Any], living: Collection[str]) -> None:
        """Search a state once, in the background. `living` are the subscriptions with a position
        here."""
        if id(state) in self._asked:
            return
        self._asked[id(state)] = None
        found = [name for name in state.cursors if name not in living]
        known = [name for name in found if _is_explicit(name)]
        if known:
            begin = crc32((state.etag or "").encode()) % len(known)  # varies with the row
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
                text = "it is unknown whether subscription %s still exists: %s"
                log.info(text, show_text(name), error)
                return
            if not is_stored and name not in self._joined:
                state.forget_position(name)


def _is_explicit(name: str) -> bool:
    try:
        parse_subscription_id(name)
    except ValueError:
        return False
    return True
