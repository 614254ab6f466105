"""Decides when to log queues that no silo reads. Pure.

`record` says which silo owns a queue. Invariants: a queue is logged only after `UNREAD_S` seconds
without an owner, by this silo's clock. The log repeats at most every `TELL_S` seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.streams.contracts.identity import QueueId

__all__ = ["LOOK_EVERY_S", "TELL_S", "UNREAD_S", "Unread"]

LOOK_EVERY_S = 5.0
UNREAD_S = 10.0
TELL_S = 60.0


class Unread:
    """Remembers since when queues have had no owner."""

    __slots__ = ("_since", "_told_s")

    def __init__(self) -> None:
        self._since: dict[QueueId, float] = {}
        self._told_s: float | None = None

    def see(self, queues: Iterable[QueueId], now_s: float) -> dict[QueueId, float]:
        """Record the queues that have no owner now.

        Returns the queues to log, each with its seconds without an owner.
        """
        self._since = {queue: self._since.get(queue, now_s) for queue in queues}
        long = {q: now_s - since_s for q, since_s in self._since.items()}
        long = {queue: for_s for queue, for_s in long.items() if for_s >= UNREAD_S}
        if not long or (self._told_s is not None and now_s < self._told_s + TELL_S):
            return {}
        self._told_s = now_s
        return long
