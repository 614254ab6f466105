"""Balancing by leases: a silo keeps what it has leased, and takes what nobody has.

Owns: `LeaseBalancer` and its choice (`choose`). Not: the leases themselves: they are those of the
queue records, renewed and run out as `ownership.decision` says. Source: Orleans'
LeaseBasedQueueBalancer; unlike it, nothing is released before its deliveries are drained.
Invariants: it wants nothing that another live silo has and keeps; more than its share it gives
back, what it has had longest first; two silos that want the same free queue are told apart by the
record, and the one that came second wants it no more at its next look.
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
    """What a silo wants: what it has, up to its share, and free queues up to that.

    Args: `owners`: of queues that are held; `since_s`: since when it has its own.
    """
    counts = Counter(owner.silo for owner in owners.values())
    room = shares(len(queues), sorted(silos), {}, counts)[me]
    mine = [queue for queue in queues if queue in owners and owners[queue].silo == me]
    mine.sort(key=lambda queue: (owners[queue].is_pausing, -since_s[queue], queue))
    free = [queue for queue in queues if is_open(owners.get(queue), me)]
    free.sort(key=lambda queue: rank(queue, me))
    return frozenset((mine + free)[:room])


def is_open(owner: QueueOwner | None, me: str) -> bool:
    """Has a queue no owner, or one that is letting go of it?"""
    return owner is None or (owner.is_pausing and owner.silo != me)


class LeaseBalancer:
    """Each silo leases its share of the queues, and takes those whose lease has run out.

    A silo that is cut off from the store loses its queues when its leases run out, whether the
    membership has noticed or not. Needs `OwnershipOptions(lease_s=...)`.
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
        """Answer at once, and again after each look. Raises ConfigError: there are no leases."""
        if not silos.lease_s:
            raise ConfigError(
                "LeaseBalancer needs leases: StreamOptions(ownership=OwnershipOptions(lease_s=...))"
            )
        self._queues, self._silos = queues, silos
        self._rounds = Rounds(silos, 0.0, wanted, self._wish)
        await self._rounds.start()

    async def aclose(self) -> None:
        """Answer no more."""
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
