"""Damaged rows as a queue's users hear of them.

Owns: `damage_is_unavailable`. Invariant: nothing is given out of a queue whose rows are damaged;
its agent starts again, later and later, until an operator has restored them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.runtime import Corrupt, QueueUnavailable
from millstream.streams import QueueId

__all__ = ["damage_is_unavailable"]


@contextmanager
def damage_is_unavailable(queue: QueueId) -> Iterator[None]:
    """Corrupt becomes QueueUnavailable, with the same text."""
    try:
        yield
    except Corrupt as error:
        raise QueueUnavailable(f"{queue}: {error}") from error
