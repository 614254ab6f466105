"""The queues in memory that are in one silo, for use there without a call.

This module owns `LocalLogs`. A queue is found here exactly while its activation serves: until it is
about to move.
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
        self.find = self._logs.get  # called for each event: saves a call

    def serves(self, queue: QueueId, log: QueueLog) -> None:
        """Add a queue of this silo."""
        self._logs[queue] = log

    def serves_no_more(self, queue: QueueId, log: QueueLog) -> None:
        """Remove a queue that is about to move; a second call has no effect."""
        if self._logs.get(queue) is log:
            del self._logs[queue]
