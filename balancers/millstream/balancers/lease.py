"""Balancing by leases: a silo keeps its leased queues, and takes queues without an owner.

Owns: `LeaseBalancer` and its choice (`choose`). Not: the leases themselves, which are those of the
queue records (`ownership.decision`). Source: Orleans' LeaseBasedQueueBalancer; unlike there, a
queue is released only when its deliveries are drained. Invariants: a silo wants no queue that
another live silo keeps. Above its share it releases the queues that it has had longest. If two
silos want the same free queue, the record decides, and the later silo stops wanting it at its next
look.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from millstream.runtime import ConfigError
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import QueueOwner, SiloSet

from .best_fit import rank, shares
from .rounds import CALM_LOOK_S, LOOK_S, Rounds, Wish

__all__ = ["LeaseBalancer", "choose"]


def choose(
    queues: Sequence[QueueId],
    silos: Iterable[str],
    me: str,
    owners: Mapping[QueueId, QueueOwner],
    since_s: Mapping[QueueId, float],
) -> frozenset[QueueId]:
    """The queues that a silo wants: its own up to its share, and free queues up to that.

    `owners`: of owned queues; `since_s`: since when the silo has its own queues.
    """
    counts = Counter(owner.silo for owner in owners.values())
    room = shares(len(queues), sorted(silos), {}, counts)[me]
    mine = [queue for queue in queues if queue in owners and owners[queue].silo == me]
    mine.sort(key=lambda queue: (owners[queue].is_pausing, -since_s[queue], queue))
    free = [queue for queue in queues if is_open(owners.get(queue), me)]
    free.sort(key=lambda queue: rank(queue, me))
    return frozenset((mine + free)[:room])


def is_open(owner: QueueOwner | None, me: str) -> bool:
    """Whether a queue has no owner, or an owner that is handing it over."""
    return owner is None or (owner.is_pausing and owner.silo != me)


class LeaseBalancer:
    """Each silo leases its share of the queues, and takes queues whose lease has run out.

    Its name is `"lease"`. Use it if a silo that is cut off from the state store should lose its
    queues as soon as its leases run out, even before the membership notices. It needs
    `OwnershipOptions(lease_s=...)`.

    A silo keeps its leased queues up to its share, and releases the queues that it has had longest.
    It takes queues without an owner, or with a lease that has run out, without a delay. The
    balancer reads the queue records: every second until each queue has its owner, then every 10 s.
    While the state store does not answer, the last answer stays valid.
    """

    def __init__(self) -> None:
        self._queues: Sequence[QueueId] = ()
        self._silos: SiloSet
        self._since_s: dict[QueueId, float] = {}
        self._rounds: Rounds | None = None

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
        /,
    ) -> None:
        """Answer at once, and again after each look at the records. The provider calls this.

        Args:
            queues: all queues of the provider.
            silos: the live silos and the owners of queues.
            wanted: takes the queues that this silo wants.

        Raises:
            ConfigError: owners have no lease.
        """
        if not silos.lease_s:
            raise ConfigError(
                "LeaseBalancer needs leases of queues: set "
                "StreamOptions(ownership=OwnershipOptions(lease_s=...))"
            )
        self._queues, self._silos = queues, silos
        self._rounds = Rounds(silos, 0.0, wanted, self._wish)
        await self._rounds.start()

    async def aclose(self) -> None:
        """Stop answering. The provider calls this."""
        if self._rounds is not None:
            await self._rounds.aclose()

    async def _wish(self, counted: frozenset[str]) -> Wish:
        known = set(self._queues)
        owners = {
            queue: owner
            for queue, owner in (await self._silos.owners()).items()
            if queue in known and owner.silo in counted and not owner.has_lapsed
        }
        mine = [queue for queue in self._queues if self._has(owners.get(queue))]
        now_s = asyncio.get_running_loop().time()
        self._since_s = {queue: self._since_s.get(queue, now_s) for queue in mine}
        found = choose(self._queues, counted, self._silos.me, owners, self._since_s)
        is_settled = found == set(mine) and len(owners) == len(known)
        return Wish(found, CALM_LOOK_S if is_settled else LOOK_S)

    def _has(self, owner: QueueOwner | None) -> bool:
        return owner is not None and owner.silo == self._silos.me
