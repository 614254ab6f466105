"""Which partition an item goes to, and which partitions a consumer gets. Pure.

Invariants: equal keys go to one partition, in every process and for ever; the partitions of a group
are contiguous ranges whose sizes differ by one at most, the larger first (spec/queues.md A2.5).
"""

from __future__ import annotations

from itertools import pairwise

import xxhash

__all__ = ["deal", "partition_of_key"]


def partition_of_key(key: str, partitions: int) -> int:
    """The partition of a key: xxh3_64 of its UTF-8 bytes. Raises TypeError for no text."""
    if not isinstance(key, str):
        raise TypeError(f"the key of an item is {key!r}, it must be a text")
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) % partitions


def deal(partitions: int, consumers: int) -> list[range]:
    """The range of each consumer."""
    each, larger = divmod(partitions, consumers)
    ends = [each * at + min(at, larger) for at in range(consumers + 1)]
    return [range(start, end) for start, end in pairwise(ends)]
