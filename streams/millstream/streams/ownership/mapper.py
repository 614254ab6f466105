"""Which queue carries a stream: a hash ring over queue ids.

Owns: the frozen hash and the ring. Not: how many queues there are (an option of the provider), or
which silo reads a queue (a balancer).
Invariants: pure, with no memory, so equal inputs give equal answers in every process and for ever;
a change of hash or ring is a new `epoch`. All events of a stream are in one queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_text
from millstream.streams.contracts.identity import QueueId, StreamId

__all__ = ["HashRingMapper"]

QUEUES_MAX = 65_536
RING_SIZE = 1 << 64


class HashRingMapper:
    """Spreads streams evenly over `queues` queues named `prefix-0`, `prefix-1`, ...

    Queue i is the ring's point i · (2^64 // queues). A stream belongs to the first point at or
    after xxh3_64 of UTF-8 `namespace NUL key`; behind the last point comes queue 0.

    Args: `queues`, 1..65,536; part of what is stored: another count sends streams elsewhere.
    Raises: ConfigError. Cost: O(1) per stream.
    """

    __slots__ = ("_epoch", "_prefix", "_queues", "_step")

    def __init__(self, *, queues: int, prefix: str = "queue") -> None:
        if type(queues) is not int or not 1 <= queues <= QUEUES_MAX:
            raise ConfigError(f"HashRingMapper(queues={queues!r}): not in 1..{QUEUES_MAX}")
        check_text("HashRingMapper(prefix=...)", prefix)
        if not prefix:
            raise ConfigError("HashRingMapper(prefix=''): a queue is named by it")
        self._queues: tuple[QueueId, ...] = tuple(f"{prefix}-{n}" for n in range(queues))
        self._step = RING_SIZE // queues
        self._prefix = prefix
        self._epoch = 1

    @property
    def epoch(self) -> int:
        """The version of hash and ring; each change of the number of queues is one more."""
        return self._epoch

    def with_queues(self, queues: int, epoch: int, /) -> HashRingMapper:
        """The ring of another number of queues, in a later epoch. Raises ConfigError."""
        ring = HashRingMapper(queues=queues, prefix=self._prefix)
        ring._epoch = epoch
        return ring

    def queues(self) -> Sequence[QueueId]:
        """All queue ids, in the order of the ring."""
        return self._queues

    def queue_for(self, stream: StreamId, /) -> QueueId:
        """The queue of a stream."""
        text = f"{stream.namespace}\0{stream.key}"
        point = -(-xxhash.xxh3_64_intdigest(text.encode()) // self._step)
        return self._queues[point if point < len(self._queues) else 0]
