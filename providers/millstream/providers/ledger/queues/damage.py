"""Damaged rows as an error of a queue.

Owns: `damage_is_unavailable`. Invariant: no message is read from a queue with damaged rows. Its
agent starts again, with growing pauses, until an operator has restored the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.runtime import Corrupt, QueueUnavailable
from millstream.streams import QueueId

__all__ = ["damage_is_unavailable"]


@contextmanager
def damage_is_unavailable(queue: QueueId) -> Iterator[None]:
    """Turn Corrupt into QueueUnavailable, with the same text."""
    try:
        yield
    except Corrupt as error:
        raise QueueUnavailable(f"{queue}: {error}") from error
