"""The gateways that a client may use, and their order. No I/O, no clock.

This module owns `GatewayList`. The module `peers` owns the connections, and `list_updates` asks for
the list.

- The addresses that `connect` was given are never forgotten. They come last, with the addresses of
  gateways that the cluster named, because a silo that restarted there may be unknown to the others.
- A list that is older than the latest one, or of another membership table, changes nothing. The
  exception is a client that no known gateway answers.
- A gateway that joins or leaves changes only the gateway of its own share of the names.
- A gateway that said goodbye or was evicted is not used again. A name is `host:port@generation`, so
  a gateway that restarts at its address is another gateway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.runtime.cluster.ring import Ring, hash_of
from millstream.runtime.wire.address import endpoint_of
from millstream.runtime.wire.message import GatewayView

__all__ = ["ADDRESSES_KEPT_MAX", "EVICTED_KEPT_MAX", "GatewayList"]

ADDRESSES_KEPT_MAX = 100
"""Addresses of gateways that a client remembers, in addition to those that it was given."""
EVICTED_KEPT_MAX = 1000
"""Names of evicted gateways that a client remembers."""


class GatewayList:
    """The gateways that a client knows.

    Attributes:
        given: Addresses for the last resort.
        known: The names in the latest list of the cluster.
        only: The only one of `known`; empty if there are none or several.
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
        self._table_id: str | None = None  # of the silos that sent the lists
        self._version = -math.inf  # of the latest list
        self._leaving: set[str] = set()
        self._evicted: dict[str, None] = {}  # by age
        self._told: list[str] = []  # addresses that the cluster named, the latest first
        self._last = self.given  # addresses for the last resort

    def order(self, name: str) -> list[str]:
        """Return all gateways; the first one carries calls to `name` as long as it works.

        If there is only one gateway, `only` gives it faster.
        """
        known, first = self.known, self._ring.owner(hash_of(name))
        if first is None:
            return [*self._last]
        start = known.index(first)
        return [*known[start:], *known[:start], *self._last]

    def learn(self, view: GatewayView, table_id: str) -> None:
        """Take a list of the cluster's gateways, as one of them sees it.

        It may contain gateways that are leaving. `table_id` is the membership table of the sender.
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
        """Replace the known list, even by an older one, because no known gateway answers.

        After a backup was restored, the silos follow another table, or a table with lower versions.
        An empty list is not taken.
        """
        self._table_id, self._version = table_id, -math.inf
        self.learn(view, table_id)

    def suggest(self, addresses: Sequence[str]) -> None:
        """Remember addresses as a last resort, before the earlier ones."""
        self._keep(addresses)

    def leave(self, name: str) -> None:
        """Record the goodbye of a gateway."""
        self._leaving.add(name)
        self._know([known for known in self.known if known != name])

    def evict(self, name: str) -> None:
        """Record that a gateway is dead in the table, though other gateways may not know it yet."""
        self._evicted[name] = None
        while len(self._evicted) > EVICTED_KEPT_MAX:
            del self._evicted[next(iter(self._evicted))]
        self._know([known for known in self.known if known != name])

    def is_evicted(self, name: str) -> bool:
        """Return whether the gateway is known to be dead."""
        return name in self._evicted

    def _keep(self, found: Sequence[str]) -> None:
        """Remember the addresses of gateways, since a gateway may restart at its address."""
        told = dict.fromkeys([*map(endpoint_of, found), *self._told])
        self._told = [address for address in told if address not in self.given]
        del self._told[ADDRESSES_KEPT_MAX:]
        self._last = [*self.given, *self._told]

    def _know(self, names: list[str]) -> None:
        if set(names) != set(self.known):  # several gateways send the same list
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
