"""The choice of a partition for an item, and of partitions for a consumer, as pure functions.

Equal keys go to one partition, in every process and for ever. The partitions of a group are
contiguous ranges whose sizes differ by at most one, the larger first.
"""

from __future__ import annotations

from itertools import pairwise

import xxhash

__all__ = ["deal", "partition_of_key"]


def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition of a key that is text: xxh3_64 in UTF-8. Raises TypeError otherwise."""
    if not isinstance(key, str):
        raise TypeError(f"the key of an item is {key!r}, it must be text")
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")) % partitions


def deal(partitions: int, consumers: int) -> list[range]:
    """Return the range of partitions of each consumer."""
    each, larger = divmod(partitions, consumers)
    ends = [each * at + min(at, larger) for at in range(consumers + 1)]
    return [range(start, end) for start, end in pairwise(ends)]
