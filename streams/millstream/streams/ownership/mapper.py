"""Maps streams to queues with a hash ring over queue ids.

Owns the frozen hash and the ring. The provider's options give the number of queues, and a balancer
chooses the silo that reads each queue.

Invariants: the mapping is pure, so equal inputs give equal answers in every process and version. A
change of hash or ring is a new `epoch`. All events of a stream are in one queue.
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
    """Spreads streams evenly over queues by a hash; the default mapper, with 8 queues.

    The hash never changes: a stream has the same queue in every process and for ever, while the
    number of queues stays the same. Change the number with `resize` only, because another number
    sends streams to other queues.

    Queue i is the point i · (2^64 // queues) of a ring. A stream belongs to the first point at or
    after the xxh3_64 of UTF-8 `namespace NUL key`. After the last point, queue 0 follows. Cost:
    O(1) per stream.

    Args:
        queues: number of queues, 1 to 65,536, named `prefix-0`, `prefix-1`, ...
        prefix: prefix of the names of the queues.

    Raises:
        ConfigError: an argument is not valid.
    """

    __slots__ = ("_epoch", "_prefix", "_queues", "_step")

    def __init__(self, *, queues: int, prefix: str = "queue") -> None:
        if type(queues) is not int or not 1 <= queues <= QUEUES_MAX:
            raise ConfigError(
                f"HashRingMapper(queues={queues!r}): give a whole number from 1 to {QUEUES_MAX}"
            )
        check_text("HashRingMapper(prefix=...)", prefix)
        if not prefix:
            raise ConfigError(
                "HashRingMapper(prefix=''): give a prefix, because the names of the queues begin "
                "with it"
            )
        self._queues: tuple[QueueId, ...] = tuple(f"{prefix}-{n}" for n in range(queues))
        self._step = RING_SIZE // queues
        self._prefix = prefix
        self._epoch = 1

    @property
    def epoch(self) -> int:
        """The version of hash and ring; each change of the number of queues adds one."""
        return self._epoch

    def with_queues(self, queues: int, epoch: int, /) -> HashRingMapper:
        """Return the ring of another number of queues, in a later epoch; `resize` calls this.

        Args:
            queues: number of queues.
            epoch: the new epoch.

        Raises:
            ConfigError: the number of queues is not valid.
        """
        ring = HashRingMapper(queues=queues, prefix=self._prefix)
        ring._epoch = epoch
        return ring

    def queues(self) -> Sequence[QueueId]:
        """Return the names of all queues, in the order of the ring."""
        return self._queues

    def queue_for(self, stream: StreamId, /) -> QueueId:
        """Return the queue of a stream.

        Args:
            stream: the stream.
        """
        text = f"{stream.namespace}\0{stream.key}"
        point = -(-xxhash.xxh3_64_intdigest(text.encode()) // self._step)
        return self._queues[point if point < len(self._queues) else 0]
