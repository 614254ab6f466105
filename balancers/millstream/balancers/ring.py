"""Balancing by a consistent ring: a silo reads the queues of its arcs.

Owns: `RingBalancer` and the ring. Not: the moments of its answers (`rounds`). Source: Orleans'
ConsistentRingQueueBalancer and its virtual buckets. Invariants: pure in the names of silos and
queues, so it reads no record. When a silo joins, queues move only to it, and when a silo is gone,
only its own queues move. Shares are even by chance only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import xxhash

from millstream.runtime import ConfigError
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import SiloSet

from .rounds import Rounds, Wish, check_number

__all__ = ["RingBalancer", "ring_owner"]

BUCKETS_MAX = 1_000


def point(text: str) -> int:
    """The position of a name on the ring."""
    return xxhash.xxh3_64_intdigest(text.encode())


def ring_owner(queues: Sequence[QueueId], silos: Sequence[str], buckets: int) -> dict[QueueId, str]:
    """The silo of each queue: that of the first bucket at or behind its point; {} without silos."""
    stands = sorted((point(f"{silo}\0{n}"), silo) for silo in silos for n in range(buckets))
    if not stands:
        return {}
    places = [place for place, _ in stands]
    return {q: stands[bisect_left(places, point(q)) % len(stands)][1] for q in queues}


class RingBalancer:
    """Each silo reads the queues on its arcs of a ring; its name is `"ring"`.

    It reads no queue records, and moves few queues when silos join or are gone. Shares are even by
    chance only: of few queues a silo may get none. `DeploymentBalancer` shares evenly.

    Args:
        buckets: points of a silo on the ring, 1 to 1,000; more points make shares more even.
        rebalance_delay_s: seconds for which joins are collected before queues move to new silos, at
            most three times that in all; 0 or more. When a silo is gone, its queues move at once.

    Raises:
        ConfigError: an argument is not valid.
    """

    def __init__(self, *, buckets: int = 30, rebalance_delay_s: float = 5.0) -> None:
        if type(buckets) is not int or not 1 <= buckets <= BUCKETS_MAX:
            raise ConfigError(
                f"buckets is {buckets!r}; it must be a whole number from 1 to {BUCKETS_MAX}"
            )
        check_number("rebalance_delay_s", rebalance_delay_s)
        self._buckets = buckets
        self._delay_s = rebalance_delay_s
        self._rounds: Rounds | None = None

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
        /,
    ) -> None:
        """Answer at once, and again after each change. The provider calls this.

        Args:
            queues: all queues of the provider.
            silos: the live silos.
            wanted: takes the queues that this silo wants.
        """

        async def wish(counted: frozenset[str]) -> Wish:
            owners = ring_owner(queues, sorted(counted), self._buckets)
            return Wish(frozenset(queue for queue, silo in owners.items() if silo == silos.me))

        self._rounds = Rounds(silos, self._delay_s, wanted, wish)
        await self._rounds.start()

    async def aclose(self) -> None:
        """Stop answering. The provider calls this."""
        if self._rounds is not None:
            await self._rounds.aclose()
