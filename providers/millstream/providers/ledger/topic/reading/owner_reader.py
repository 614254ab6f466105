"""Reading a topic for its owner.

Owns: `OwnerReader`. Not: reading ledgers (`pages`), the messages in memory (`tail`), reading
elsewhere (`reader`). Invariants: a message is readable only when it and all before it are
confirmed. Waiting readers are told when the topic ends.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from functools import partial

from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import LedgerError, LedgerGone
from millstream.providers.ledger.topic.appending.outbox import Batch, Outbox
from millstream.providers.ledger.topic.form import StoredMessage, ceil_ms
from millstream.providers.ledger.topic.ledgers import Ledgers
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.record import (
    LedgerSpan,
    TopicRecord,
    contradiction,
    make_listed_and_gone,
)
from millstream.runtime import (
    Corrupt,
    CursorTooOld,
    QueueUnavailable,
    StorageError,
    StreamError,
)
from millstream.runtime.extending import Tasks, show_text

from .pages import MessagesLost, Pages
from .reader import make_unreadable, refuse_trimmed, span_of
from .tail import TopicTail

__all__ = ["OwnerReader"]


class OwnerReader:
    """Reads one topic for its owner: the newest messages from memory, older ones from ledgers."""

    def __init__(
        self,
        ledgers: Ledgers,
        rows: RecordRows[str, TopicRecord],
        owned: OwnedTopic,
        outbox: Outbox,
        cache_bytes_max: int,
        tasks: Tasks,
    ) -> None:
        self._rows = rows
        self._owned = owned
        self._outbox = outbox
        self._tasks = tasks
        self._tail = TopicTail(cache_bytes_max)
        self._pages = Pages(ledgers, owned.name)
        self._waiters: list[tuple[int, Future[None]]] = []
        self._end: StreamError | None = None

    @property
    def first(self) -> int:
        """The number of the oldest message that is kept, or of the next one."""
        return self._owned.record.trimmed

    @property
    def end(self) -> int:
        """The number after the last confirmed message."""
        return self._outbox.confirmed + 1

    async def bounds(self) -> tuple[int, int]:
        """Return the first message that is kept, and the number after the last confirmed one."""
        return self.first, self.end

    async def read(
        self, number: int, messages_max: int = 1000, bytes_max: int = 2**20
    ) -> Sequence[StoredMessage]:
        """Return messages from `number` on, or [] if message `number` does not exist yet.

        Returns up to `messages_max` messages and `bytes_max` bytes of payload, but at least one
        message. The result may be shorter at the end of a ledger. Raises CursorTooOld(first) if
        messages before `first` were deleted or lost, and Corrupt if a message is missing that must
        exist. Also raises QueueUnavailable.
        """
        while True:
            refuse_trimmed(self._owned.record, number)
            if number >= self.end:
                return []
            found = self._tail.read(number, messages_max, bytes_max)
            if found is not None:
                return found
            span = span_of(self._owned.record, number)
            if span is None:
                text = f"its row (topics/) lists no ledger with message {number}"
                raise contradiction(self._owned.name, text)
            try:
                end = self._end_in(span)
                if found := await self._pages.read(span, number, messages_max, bytes_max, end):
                    return found
                text = (
                    f"message {number} is before the end, {self.end}, but is in none of the {end} "
                )
                raise contradiction(self._owned.name, f"{text}entries of ledger {span.ledger}")
            except MessagesLost as lost:
                text = f"topic {show_text(self._owned.name)}: {lost}"
                raise CursorTooOld(text, first=lost.first) from None
            except Corrupt:
                raise
            except (LedgerError, StorageError) as error:
                if not isinstance(error, LedgerGone) or number >= self.first:
                    raise await self._why_unreadable(span.ledger, error) from error

    async def _why_unreadable(self, ledger: int, error: Exception) -> QueueUnavailable | Corrupt:
        """Return the error for a ledger that cannot be read. A ledger that is listed now and gone
        is damage. A ledger in this owner's old list may have been deleted by a later owner."""
        name = self._owned.name
        if isinstance(error, LedgerGone):
            try:
                now = await self._rows.read(name)
            except Corrupt as damage:
                return damage
            except StorageError as unknown:
                return make_unreadable(name, unknown)
            if now is not None and now.lists(ledger):
                return make_listed_and_gone(name, ledger)
        return make_unreadable(name, error)

    def _end_in(self, span: LedgerSpan) -> int:
        """Return the entry after the last one of a ledger that is known to be confirmed."""
        return (span.last if span.is_sealed else self._outbox.confirmed_entry) + 1

    async def wait(self, number: int, wait_s: float) -> bool:
        """Return whether message `number` exists, as soon as it does, or after `wait_s` seconds.

        Raises QueueFenced, QueueUnavailable: the topic has another owner, or is closed.
        """
        if number < self.end:
            return True
        if self._end is not None:
            raise type(self._end)(*self._end.args)
        future: Future[None] = asyncio.get_running_loop().create_future()
        waiter = (number, future)
        self._waiters.append(waiter)
        timer = self._tasks.call_later(wait_s, partial(wake, future))
        try:
            await future
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return number < self.end

    async def seek(self, time_s: float) -> int:
        """Return the first message of the first entry at or after a wall time; the next number if
        there is none.

        Times never go back within a topic, so a clock that was set back has no effect. Raises
        QueueUnavailable.
        """
        spans = self._owned.record.spans
        try:
            found = await self._pages.seek_in(spans, ceil_ms(time_s), self._end_in)
        except Corrupt:
            raise
        except (LedgerError, StorageError) as error:
            raise make_unreadable(self._owned.name, error) from error
        return self.end if found is None else max(found, self.first)

    def add(self, batch: Batch, ledger: int) -> None:
        """Make the messages of a confirmed entry readable."""
        self._pages.index(ledger).note(batch.entry, batch.first, batch.time_ms)
        self._tail.add(batch)
        if self._waiters:
            ready = [waiter for waiter in self._waiters if waiter[0] < self.end]
            for waiter in ready:
                self._waiters.remove(waiter)
                wake(waiter[1])

    def stop(self, error: StreamError) -> None:
        """End reading, because no more messages will be confirmed. Waiting readers get `error`."""
        self._end = error
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))
        self._waiters.clear()

    async def aclose(self) -> None:
        """Close the ledgers that are open for reading."""
        await self._pages.aclose()


def wake(waiter: Future[None]) -> None:
    """End a wait, unless it has ended."""
    if not waiter.done():
        waiter.set_result(None)
