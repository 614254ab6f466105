"""The row of a managed topic: what holds for all of its partitions.

Owns: `ManagedRecord`. Not: the rows of its partitions (`topic.record`). Invariant: the number of
partitions never changes, so equal keys stay together, in order.
"""

from __future__ import annotations

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows

__all__ = ["ManagedRecord", "make_managed_rows"]


class ManagedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A managed topic. `created_s`: wall time, in seconds since 1970."""

    topic: str
    partitions: int
    created_s: float = 0.0
    operation: str = ""

    def names(self) -> list[str]:
        """Its partitions, as topics."""
        return [f"{self.topic}/{partition}" for partition in range(self.partitions)]


def make_managed_rows(metadata: Metadata) -> RecordRows[str, ManagedRecord]:
    """The records of managed topics, by name."""
    return RecordRows(metadata, "managed/", ManagedRecord, key_part, is_witnessed=True)
