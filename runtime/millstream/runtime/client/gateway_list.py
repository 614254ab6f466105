"""The gateways that a client may use, and in which order. No I/O, no clock.

Owns: `GatewayList`. Not: connections (`peers`), asking for the list (`gateways`). Invariants: what
`connect` was given is never forgotten and comes last, with the addresses of gateways that the
cluster told: whoever was restarted there may be known to nobody else. A list that is older than
the latest one, or that of another membership table, changes nothing, unless no known gateway is
left that could contradict it. A gateway that comes or goes changes the way of its own share of the
names only. A gateway that said goodbye or was evicted is not used again. A name
is `host:port@generation`, so one that was restarted at its address is another gateway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.runtime.cluster.ring import Ring, hash_of
from millstream.runtime.wire.address import endpoint_of
from millstream.runtime.wire.message import GatewayView

__all__ = ["ADDRESSES_KEPT_MAX", "EVICTED_KEPT_MAX", "GatewayList"]

ADDRESSES_KEPT_MAX = 100
"""Addresses that a client was told and remembers, beside those that it was given."""
EVICTED_KEPT_MAX = 1000
"""Names of evicted gateways that a client remembers."""


class GatewayList:
    """What a client knows of gateways.

    Attributes: `given`, addresses for the last resort; `known`, names that the cluster told last;
    `only`, the one of `known` if there are no others, else empty.
    """

    __slots__ = (
        "_evicted",
        "_last",
        "_leaving",
        "_ring",
        "_table_id",
        "_told",
        "_version",
        "given",
        "known",
        "only",
    )

    def __init__(self, given: Sequence[str]) -> None:
        self.given = list(dict.fromkeys(given))
        self.known: list[str] = []
        self.only = ""
        self._ring = Ring(())
        self._table_id: str | None = None  # of the silos that told
        self._version = -math.inf  # of the latest list
        self._leaving: set[str] = set()
        self._evicted: dict[str, None] = {}  # by age
        self._told: list[str] = []  # addresses, the latest first
        self._last = self.given  # where somebody may be, or be again

    def order(self, name: str) -> list[str]:
        """All gateways, the one first that carries calls to `name` as long as it works.

        `only` says so quicker, where there is one.
        """
        known, first = self.known, self._ring.owner(hash_of(name))
        if first is None:
            return [*self._last]
        start = known.index(first)
        return [*known[start:], *known[:start], *self._last]

    def learn(self, view: GatewayView, table_id: str) -> None:
        """The cluster's gateways, as one of them sees it; it may not know yet who leaves.

        Args:
            table_id: names the membership table that this gateway follows.
        """
        found = view.gateways
        if self._table_id is None:
            self._table_id = table_id
        if found and table_id == self._table_id and view.version >= self._version:
            self._version = view.version
            self._keep(found)
            self._leaving.intersection_update(found)
            unusable = self._leaving | self._evicted.keys()
            self._know([name for name in found if name not in unusable])

    def start_over(self, view: GatewayView, table_id: str) -> None:
        """A list that is believed whatever was known, since no known gateway answers.

        After a backup was restored, the silos follow another table, or one of lower versions.
        """
        self._table_id, self._version = table_id, -math.inf
        self.learn(view, table_id)

    def suggest(self, addresses: Sequence[str]) -> None:
        """Gateways may be there; they are a last resort, before those that were told earlier."""
        self._keep(addresses)

    def leave(self, name: str) -> None:
        """A gateway said goodbye."""
        self._leaving.add(name)
        self._know([known for known in self.known if known != name])

    def evict(self, name: str) -> None:
        """A gateway is dead in the table, though others or itself may not know it yet."""
        self._evicted[name] = None
        while len(self._evicted) > EVICTED_KEPT_MAX:
            del self._evicted[next(iter(self._evicted))]
        self._know([known for known in self.known if known != name])

    def is_evicted(self, name: str) -> bool:
        """Is the gateway known to be dead?"""
        return name in self._evicted

    def _keep(self, found: Sequence[str]) -> None:
        """Remember where these are: a gateway that is gone may come back at its address."""
        told = dict.fromkeys([*map(endpoint_of, found), *self._told])
        self._told = [address for address in told if address not in self.given]
        del self._told[ADDRESSES_KEPT_MAX:]
        self._last = [*self.given, *self._told]

    def _know(self, names: list[str]) -> None:
        if set(names) != set(self.known):  # several gateways tell the same
            self._ring = Ring(names)
        self.known = names
        (self.only,) = names if len(names) == 1 else ("",)

    def check(self) -> None:
        """Assert the invariants."""
        assert not self._leaving.intersection(self.known)
        assert not self._evicted.keys() & set(self.known)
        assert [self.only] == self.known or not self.only
        assert self._last == [*self.given, *self._told]
        assert len(self._told) <= ADDRESSES_KEPT_MAX
        assert len(set(self.known)) == len(self.known)
        assert self._ring.silos == tuple(sorted(self.known))
