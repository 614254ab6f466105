"""Appends that are not sent yet, in the order of their calls.

Owns: `AppendQueue`. Not: when there is room (`topic_writer`). Invariants: at most
`waiting_appends_max` appends with `waiting_bytes_max` bytes wait. When an append is given up, later
waiting appends of its producers are given up, too. Otherwise a stored higher sequence would turn a
later attempt with the lower one into a repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.runtime import QueueFull, QueueUnavailable, StreamError

from .outbox import Append

__all__ = ["AppendQueue"]


class AppendQueue:
    """Waiting appends of the topic `what`, in the order of their calls; `appends` is for
    reading."""

    __slots__ = ("_bytes", "_options", "_what", "appends")

    def __init__(self, what: str, options: LedgerTopicOptions) -> None:
        self._what = what
        self._options = options
        self.appends: deque[Append] = deque()
        self._bytes = 0

    @property
    def head(self) -> Append:
        """The next append."""
        return self.appends[0]

    def add(self, append: Append) -> None:
        """Let an append wait."""
        self.appends.append(append)
        self._bytes += append.size_bytes

    def refuse_flood(self, size_bytes: int) -> None:
        """Raise QueueFull if no append of this size may wait."""
        if not self.appends:
            return
        count, limit = len(self.appends), self._options.waiting_appends_max
        if count >= limit:
            raise QueueFull(f"{self._what}: {count} appends wait, waiting_appends_max is {limit}")
        waiting, limit = self._bytes + size_bytes, self._options.waiting_bytes_max
        if waiting > limit:
            text = f"{self._what}: {waiting} bytes would wait"
            raise QueueFull(f"{text}, waiting_bytes_max is {limit}")

    def take(self) -> Append:
        """Remove and return the next append."""
        append = self.appends.popleft()
        self._bytes -= append.size_bytes
        return append

    def expire(self, now_s: float, error: StreamError) -> None:
        """Give up the appends that have waited long enough."""
        late: list[Append] = []
        while self.appends and self.head.deadline_s <= now_s:
            late.append(self.take())
            late[-1].fail(error)
        self.give_up_behind(late)

    def drop_given_up(self) -> None:
        """Drop the next appends, as long as their callers have gone."""
        gone: list[Append] = []
        while self.appends and self.head.done.done():
            gone.append(self.take())
        self.give_up_behind(gone)

    def give_up_behind(self, gone: Sequence[Append]) -> None:
        """Give up later appends of the producers of these appends, which are never sent.

        Costs O(waiting appends).
        """
        producers = producers_of(gone)
        if not producers:
            return
        text = f"{self._what}: not sent, because an earlier append of the producer was not sent"
        for _ in range(len(self.appends)):
            append = self.take()
            own = producers_of([append])
            if producers.isdisjoint(own):
                self.appends.append(append)
                self._bytes += append.size_bytes
            else:
                append.fail(QueueUnavailable(text))
                producers |= own

    def fail_all(self, error: StreamError) -> None:
        """Fail all waiting appends."""
        while self.appends:
            self.take().fail(error)


def producers_of(appends: Sequence[Append]) -> set[str]:
    """Return the names of all producers with sequences in these appends."""
    return {message.producer for one in appends for message in one.messages} - {""}
