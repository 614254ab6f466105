"""Queues that nobody reads: which are to be told of, and when. Pure.

Owns: `Unread`. Not: who owns what (`record`), the log. Invariants: a queue is told of only after
`UNREAD_S` without an owner, counted on this silo's clock; not more often than every `TELL_S`.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.streams.contracts.identity import QueueId

__all__ = ["LOOK_EVERY_S", "TELL_S", "UNREAD_S", "Unread"]

LOOK_EVERY_S = 5.0
UNREAD_S = 10.0
TELL_S = 60.0


class Unread:
    """Since when queues have had no owner."""

    __slots__ = ("_since", "_told_s")

    def __init__(self) -> None:
        self._since: dict[QueueId, float] = {}
        self._told_s: float | None = None

    def see(self, queues: Iterable[QueueId], now_s: float) -> dict[QueueId, float]:
        """Note which queues have no owner now; returns those to tell of, and for how many seconds
        each has had none."""
        self._since = {queue: self._since.get(queue, now_s) for queue in queues}
        long = {q: now_s - since_s for q, since_s in self._since.items()}
        long = {queue: for_s for queue, for_s in long.items() if for_s >= UNREAD_S}
        if not long or (self._told_s is not None and now_s < self._told_s + TELL_S):
            return {}
        self._told_s = now_s
        return long
