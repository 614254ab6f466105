"""The gateways that a client may use, and in which order. No I/O, no clock.

Owns: `GatewayList`. Not: connections (`peers`), asking for the list (`client`). Invariants: what
`connect` was given is never forgotten and comes last; a gateway that said goodbye is not used
again. A name is `host:port@generation`, so one that was restarted where it was is another gateway.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.runtime.cluster.ring import hash_of

__all__ = ["GatewayList"]


class GatewayList:
    """What a client knows of gateways.

    Attributes: `given`, addresses for the last resort; `known`, names that the cluster told last.
    """

    __slots__ = ("_leaving", "given", "known")

    def __init__(self, given: Sequence[str]) -> None:
        self.given = list(given)
        self.known: list[str] = []
        self._leaving: set[str] = set()

    def order(self, name: str) -> list[str]:
        """All gateways, the one first that carries calls to `name` as long as it works."""
        known = self.known
        start = hash_of(name) % len(known) if len(known) > 1 else 0
        return [*known[start:], *known[:start], *self.given]

    def learn(self, found: Sequence[str]) -> None:
        """The cluster's gateways, as one of them sees it; it may not know yet who leaves."""
        if found:
            self._leaving.intersection_update(found)
            self.known = [name for name in found if name not in self._leaving]

    def leave(self, name: str) -> None:
        """A gateway said goodbye."""
        self._leaving.add(name)
        self.known = [known for known in self.known if known != name]

    def check(self) -> None:
        """Assert the invariants."""
        assert not self._leaving.intersection(self.known)
        assert len(set(self.known)) == len(self.known)
