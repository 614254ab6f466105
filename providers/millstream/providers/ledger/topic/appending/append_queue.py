"""Appends that are not sent yet, first come first served.

Owns: `AppendQueue`. Not: when there is room (`topic_writer`). Invariants: at most
`waiting_appends_max` and `waiting_bytes_max` wait; when one is given up, what its producers gave
behind it is too, since a higher sequence that is stored would make the lower one a repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.runtime import QueueFull, QueueUnavailable, StreamError

from .outbox import Append

__all__ = ["AppendQueue"]


class AppendQueue:
    """Appends in the order of their calls, of the topic `what`; `appends` is for reading."""

    __slots__ = ("_bytes", "_options", "_what", "appends")

    def __init__(self, what: str, options: LedgerTopicOptions) -> None:
        self._what = what
        self._options = options
        self.appends: deque[Append] = deque()
        self._bytes = 0

    @property
    def head(self) -> Append:
        """Whose turn it is."""
        return self.appends[0]

    def add(self, append: Append) -> None:
        """It waits from now on."""
        self.appends.append(append)
        self._bytes += append.size_bytes

    def refuse_flood(self, size_bytes: int) -> None:
        """Raise QueueFull if no append of this size may wait behind those that do."""
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
        """The head, which waits no longer."""
        append = self.appends.popleft()
        self._bytes -= append.size_bytes
        return append

    def expire(self, now_s: float, error: StreamError) -> None:
        """Give up those that have waited long enough."""
        late: list[Append] = []
        while self.appends and self.head.deadline_s <= now_s:
            late.append(self.take())
            late[-1].fail(error)
        self.give_up_behind(late)

    def drop_given_up(self) -> None:
        """Drop the heads whose callers are gone."""
        gone: list[Append] = []
        while self.appends and self.head.done.done():
            gone.append(self.take())
        self.give_up_behind(gone)

    def give_up_behind(self, gone: Sequence[Append]) -> None:
        """These are never sent; nor is what their producers gave behind them. O(those that wait)"""
        producers = producers_of(gone)
        if not producers:
            return
        text = f"{self._what}: what its producer gave before it was not sent, so this was not"
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
        """Nothing is sent any more."""
        while self.appends:
            self.take().fail(error)


def producers_of(appends: Sequence[Append]) -> set[str]:
    """The names of all whose sequences they have."""
    return {message.producer for one in appends for message in one.messages} - {""}
