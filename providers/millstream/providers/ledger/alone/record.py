"""The row of a topic without a silo, for all of its partitions.

Owns: `ManagedRecord`. Not: the rows of its partitions (`topic.record`). Invariant: the number of
partitions never changes, so equal keys stay together, in order.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows

__all__ = ["ManagedRecord", "make_managed_rows"]


class ManagedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A topic. `created_s`: wall time, in seconds since 1970."""

    topic: str
    partitions: int
    created_s: float = 0.0
    operation: str = ""

    def names(self) -> list[str]:
        """Return the topic names of its partitions."""
        return [f"{self.topic}/{partition}" for partition in range(self.partitions)]


def make_managed_rows(metadata: Metadata) -> RecordRows[str, ManagedRecord]:
    """Return the records of topics, by name."""
    return RecordRows(metadata, "managed/", ManagedRecord, key_part, is_witnessed=True)
