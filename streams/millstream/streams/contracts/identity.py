"""Names of streams and queues.

Invariants: both are values; two streams with one key and different namespaces are independent.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["QueueId", "StreamId"]

QueueId = str  # `prefix-number`, unique within its provider


class StreamId(NamedTuple):
    """A stream of one provider: namespace name and key."""

    namespace: str
    key: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.key}"
