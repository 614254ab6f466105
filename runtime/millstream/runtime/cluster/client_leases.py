"""The leases of clients at their gateway, and how long a missing client may come back. Pure.

`Leases` knows each client that is attached to this silo, and `Losses` the silos that were lost a
short time ago. `clients` drives both. A client attaches to one gateway at a time and renews its
lease there. It counts its attachments, so that every silo can see which one is the latest.

Invariants:

- A lease ends `lease_s` after its last renewal, whatever happens to the connection.
- A lease never goes back to an earlier attachment.
- A closed client has a lease that cannot be renewed. It lives on for `lease_s`, so that callers are
  told at once that the client is gone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from millstream.runtime.errors import Overloaded, Rejected

__all__ = ["RENEWALS", "SECRET_BYTES", "Lease", "Leases", "Losses", "name_client"]

RENEWALS = 4
"""How often a client renews its lease within `RuntimeOptions.client_lease_s`."""
SECRET_BYTES = 32
NAME_LETTERS = 32


def name_client(secret: bytes) -> str:
    """Return the name of the client that knows a secret.

    The name follows from the secret, so only the client itself can attach under its name.
    """
    return f"client-{hashlib.sha256(secret).hexdigest()[:NAME_LETTERS]}"


class Lease:
    """The attachment of one client to this silo."""

    __slots__ = ("client", "is_closed", "number", "until_s")

    until_s: float

    def __init__(self, client: str, number: int) -> None:
        self.client = client
        self.number = number
        self.is_closed = False


class Leases:
    """The leases of the clients that are attached to one silo, the oldest renewal first.

    Args:
        lease_s: the duration of a lease, in seconds.
        clients_max: the most leases.
    """

    def __init__(self, lease_s: float, clients_max: int) -> None:
        self._lease_s = lease_s
        self._clients_max = clients_max
        self._leases: OrderedDict[str, Lease] = OrderedDict()
        self.find = self._leases.get
        """Returns the lease of a client, or None. A bound method saves a call."""

    def take(self, client: str, number: int, now_s: float) -> Lease:
        """Give a client a lease for its attachment of this number, or renew it.

        Raises Rejected for an attachment that is not the latest or is closed, and Overloaded.
        """
        lease = self._leases.get(client)
        if lease is None:
            if len(self._leases) >= self._clients_max:
                text = "too many clients with observers are attached"
                raise Overloaded(text, "observing_clients_max", self._clients_max)
            lease = self._leases[client] = Lease(client, number)
        if lease.number > number or lease.is_closed:
            state = "closed" if lease.is_closed else f"attached again ({lease.number})"
            raise Rejected(f"{client} was {state} before its attachment {number} arrived")
        lease.number = number
        self._keep(lease, now_s)
        return lease

    def close(self, client: str, number: int, now_s: float) -> bool:
        """Note that a client was closed in order. Returns False if it has attached again later."""
        lease = self._leases.get(client)
        if lease is None or lease.number > number or lease.is_closed:
            return False
        lease.is_closed = True
        self._keep(lease, now_s)
        return True

    def _keep(self, lease: Lease, now_s: float) -> None:
        lease.until_s = now_s + self._lease_s
        self._leases.move_to_end(lease.client)

    def drop(self, client: str) -> None:
        """Forget a client that is attached elsewhere."""
        self._leases.pop(client, None)

    def expire(self, now_s: float) -> list[Lease]:
        """Remove the leases that have run out, and return them."""
        ended: list[Lease] = []
        while self._leases:
            lease = next(iter(self._leases.values()))
            if lease.until_s > now_s:
                break
            del self._leases[lease.client]
            ended.append(lease)
        return ended

    def next_due_s(self) -> float | None:
        """Return the time at which the next lease runs out, or None if there is none."""
        return next((lease.until_s for lease in self._leases.values()), None)

    def check(self) -> None:
        """Assert the invariants."""
        due = [lease.until_s for lease in self._leases.values()]
        assert due == sorted(due), "a lease is not in the order of its renewal"
        assert len(due) <= self._clients_max, "too many leases"


class Losses:
    """The silos that were lost a short time ago, and their clients with them.

    A silo that is lost takes the rows of its clients with it. Each of these clients attaches to
    another gateway soon. Until `until_s` a client without a row may therefore come back, and after
    that it is gone.
    """

    __slots__ = ("_lease_s", "_live", "until_s")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._live: frozenset[str] | None = None
        self.until_s = 0.0

    def follow(
        self, live: Iterable[str], dead: Mapping[str, float], now_s: float, wall_s: float
    ) -> None:
        """Take a newer view of the membership.

        Args:
            live: the silos that are not dead.
            dead: the dead silos, each with the wall time of its last sign of life.
            now_s: the time of the loop's clock.
            wall_s: the wall time.
        """
        before, self._live = self._live, frozenset(live)
        if before is None:  # this silo has just joined: it was not here when these silos were lost
            ages = [max(wall_s - alive_s, 0.0) for alive_s in dead.values()]
            youngest_s = min(ages, default=self._lease_s)
            if youngest_s < self._lease_s:
                self.until_s = now_s + self._lease_s - youngest_s
        elif before - self._live:
            self.until_s = now_s + self._lease_s
