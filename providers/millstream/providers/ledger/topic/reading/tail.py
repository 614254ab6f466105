"""The newest messages of a topic, in its owner's memory.

Owns: `TopicTail`. Pure. Invariants: the messages are consecutive, up to the last confirmed one. A
message is added only when it is confirmed. The last entry is always present.
"""

from __future__ import annotations

from bisect import bisect_right

from millstream.providers.ledger.topic.appending.outbox import Batch
from millstream.providers.ledger.topic.form import StoredMessage, TopicMessage

__all__ = ["TopicTail"]

COMPACT_AT = 256  # dropped batches, before the list is compacted


class TopicTail:
    """Confirmed batches of up to `bytes_max` bytes, oldest first."""

    __slots__ = ("_batches", "_bytes", "_bytes_max", "_firsts", "_gone")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: list[Batch | None] = []
        self._firsts: list[int] = []
        self._gone = 0
        self._bytes = 0

    @property
    def first(self) -> int | None:
        """The oldest message here, or None if there is none."""
        return self._firsts[self._gone] if self._gone < len(self._firsts) else None

    def add(self, batch: Batch) -> None:
        """Add a confirmed batch."""
        if not batch.messages:
            return
        self._batches.append(batch)
        self._firsts.append(batch.first)
        self._bytes += batch.size_bytes
        while self._bytes > self._bytes_max and self._gone < len(self._batches) - 1:
            oldest = self._batches[self._gone]
            assert oldest is not None
            self._bytes -= oldest.size_bytes
            self._batches[self._gone] = None
            self._gone += 1
        if self._gone >= COMPACT_AT and 2 * self._gone >= len(self._batches):
            del self._batches[: self._gone], self._firsts[: self._gone]
            self._gone = 0

    def read(self, number: int, messages_max: int, bytes_max: int) -> list[StoredMessage] | None:
        """Return messages from `number` on, at least one.

        Return None if message `number` is not here.
        """
        if self.first is None or number < self.first:
            return None
        at = bisect_right(self._firsts, number, self._gone) - 1
        page = PageLimit(messages_max, bytes_max)
        for batch in self._batches[at:]:
            assert batch is not None
            if not page.take(batch.first, batch.time_ms, batch.messages, number):
                break
        return page.found


class PageLimit:
    """The messages of a page, up to its limits, but at least one.

    Attributes: `found`.
    """

    __slots__ = ("_bytes_left", "_messages_left", "found")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_left = messages_max
        self._bytes_left = bytes_max
        self.found: list[StoredMessage] = []

    def take(
        self, first: int, time_ms: int, messages: list[TopicMessage], from_number: int
    ) -> bool:
        """Take the messages of an entry from `from_number` on; return whether there is room for
        more."""
        skip = max(0, from_number - first)
        for number, message in enumerate(messages[skip:], first + skip):
            size = len(message.payload)
            if self.found and (self._messages_left < 1 or size > self._bytes_left):
                return False
            self.found.append(StoredMessage(number, time_ms, message))
            self._messages_left -= 1
            self._bytes_left -= size
        return self._messages_left > 0 and self._bytes_left > 0
