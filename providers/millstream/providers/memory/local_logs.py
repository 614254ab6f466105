"""The in-memory queues that are in one silo, used there without a call.

Owns: `LocalLogs`. Invariant: a queue is found here from when its activation serves to when it is
about to move, and not before or after.
"""

from __future__ import annotations

from millstream.streams import QueueId

from .queue_log import QueueLog

__all__ = ["LocalLogs"]


class LocalLogs:
    """The contents of one provider's queues in one silo."""

    __slots__ = ("_logs", "find")

    def __init__(self) -> None:
        self._logs: dict[QueueId, QueueLog] = {}
        self.find = self._logs.get  # for each event: no frame of its own

    def serves(self, queue: QueueId, log: QueueLog) -> None:
        """A queue is here."""
        self._logs[queue] = log

    def serves_no_more(self, queue: QueueId, log: QueueLog) -> None:
        """It is not any more, or about to move; again is harmless."""
        if self._logs.get(queue) is log:
            del self._logs[queue]
