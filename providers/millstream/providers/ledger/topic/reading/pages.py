"""Reading messages from ledgers.

Owns: `Pages`. Not: the list of ledgers (`record`), the messages in the owner's memory (`tail`).

Invariants:

- At most `READERS_MAX` ledgers stay open, and none is closed while it is read.
- The returned messages were confirmed, begin with the requested one, and have no gap.
- Lost messages are passed over by the reader, not here.
- A ledger is read only while its row and the topic's list agree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import EntriesGivenUp, LedgerError
from millstream.providers.ledger.topic.form import EntryHead, StoredMessage, head_of, messages_of
from millstream.providers.ledger.topic.ledgers import Ledgers, TopicLedgerReader
from millstream.providers.ledger.topic.record import LedgerSpan, contradiction, refuse_other
from millstream.runtime import Corrupt

from .index import EntryIndex
from .tail import PageLimit

__all__ = ["READERS_MAX", "MessagesLost", "Pages"]

READERS_MAX = 8
"""The number of ledgers of a topic that are open for reading in one process."""
INDEXES_MAX = 16
HINTS_MAX = 64
ENTRIES_AT_ONCE = 256


class MessagesLost(LedgerError):
    """Messages were given up with their entries. Attributes: `first`: the next message that is
    kept, or the next one to be appended."""

    first: int

    def __init__(self, number: int, first: int) -> None:
        self.first = first
        super().__init__(
            f"messages {number} to {first - 1} are lost; an operator accepted the loss"
        )


class OpenLedger:
    """A ledger that is open for reading. `hints`: the entries where reading will continue, by
    number."""

    __slots__ = ("hints", "index", "reader", "topic", "users")

    def __init__(self, topic: str, reader: TopicLedgerReader, index: EntryIndex) -> None:
        self.topic = topic
        self.reader = reader
        self.index = index
        self.hints: dict[int, int] = {}
        self.users = 0

    async def entry_of(self, number: int, end: int) -> int:
        """Return the entry with a message, among those before `end`. Costs one read for each step
        of a bisection."""
        hint = self.hints.get(number)
        if hint is not None:
            return hint
        while True:
            low, high = self.index.around_number(number, end)
            if not await self._look_between(low, high):
                return low

    async def entry_at(self, time_ms: int, end: int) -> int:
        """Return the first entry at or after a time; `end`: there is none."""
        while True:
            low, high = self.index.around_time(time_ms, end)
            if not await self._look_between(low, high):
                return high

    async def _look_between(self, low: int, high: int) -> bool:
        """Read the head of an entry between two others. Return False if no head can be read."""
        if high - low <= 1:
            return False
        try:
            return await self.head((low + high) // 2) is not None
        except EntriesGivenUp as lost:
            beside = [one for one in (lost.last + 1, lost.first - 1) if low < one < high]
        return bool(beside) and await self.head(beside[0]) is not None

    async def behind(self, lost: EntriesGivenUp, number: int, end: int) -> int:
        """Return the entry after lost ones from which reading continues. Raises MessagesLost: the
        message `number` is lost."""
        entry = lost.last + 1
        if entry >= end:
            return end
        head = await self.head(entry)
        if head is not None and head.first > number:
            raise MessagesLost(number, head.first)
        return entry

    async def head(self, entry: int) -> EntryHead | None:
        """Return the fields before an entry's messages, or None if the entry is not confirmed."""
        found = await self.reader.read(entry, 1, 1)
        if not found:
            return None
        head = head_of(found[0].payload)
        self.index.note(entry, head.first, head.time_ms)
        return head

    def take(self, entry: int, payload: bytes, number: int, page: PageLimit) -> bool:
        """Take the messages of an entry from `number` on; return whether there is room for more.
        Raises Corrupt: a message before this entry is missing."""
        head = head_of(payload)
        self.index.note(entry, head.first, head.time_ms)
        if head.end <= number:
            return True
        due = page.found[-1].number + 1 if page.found else number
        if head.first > due:
            text = (
                f"no entry of ledger {self.reader.record.ledger} has message {due}: entry {entry}"
            )
            raise contradiction(self.topic, f"{text} begins with message {head.first}")
        has_room = page.take(head.first, head.time_ms, messages_of(payload), number)
        next_number = page.found[-1].number + 1
        if not has_room or next_number == head.end:
            self._expect(next_number, entry + (next_number == head.end))
        return has_room

    def _expect(self, number: int, entry: int) -> None:
        """Record the entry where a page that begins with this message will start."""
        while len(self.hints) >= HINTS_MAX:
            del self.hints[next(iter(self.hints))]
        self.hints[number] = entry


class Pages:
    """Reads the ledgers of one topic, by its name."""

    def __init__(self, ledgers: Ledgers, topic: str) -> None:
        self._ledgers = ledgers
        self._topic = topic
        self._opened: dict[int, OpenLedger] = {}
        self._indexes: dict[int, EntryIndex] = {}

    def index(self, ledger: int) -> EntryIndex:
        """Return the known entries of a ledger. The index that was unused for the longest time is
        dropped first."""
        found = self._indexes.pop(ledger, None) or EntryIndex()
        self._indexes[ledger] = found
        while len(self._indexes) > INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]
        return found

    async def read(
        self,
        span: LedgerSpan,
        number: int,
        messages_max: int,
        bytes_max: int,
        end: int | None = None,
    ) -> list[StoredMessage]:
        """Return messages of one ledger from `number` on, at least one; [] if it has none yet.

        Args:
            end: the entry after the last confirmed one; None: ask the ledger's bookies.

        Raises MessagesLost, LedgerGone, NotRecoverable, EntryDamaged, Corrupt (the ledger
        contradicts the list), StorageError.
        """
        async with self._using(span) as opened:
            if end is None:
                end = await self._end(span, opened)
            entry = await opened.entry_of(number, end) if end else 0
            page, limit = PageLimit(messages_max, bytes_max), min(messages_max, ENTRIES_AT_ONCE)
            is_given_up = number >= span.end - span.left_out
            while entry < end and not page.found:
                try:
                    found = await opened.reader.read(entry, min(limit, end - entry), bytes_max)
                except EntriesGivenUp as lost:
                    entry, is_given_up = await opened.behind(lost, number, end), True
                    continue
                if not found:
                    text = (
                        f"entry {entry} of ledger {span.ledger} is confirmed, but was not returned"
                    )
                    raise contradiction(self._topic, text)
                for at, one in enumerate(found, entry):
                    if not opened.take(at, one.payload, number, page):
                        break
                entry += len(found)
            if page.found or not span.is_sealed or number >= span.end:
                return page.found
            if is_given_up:
                raise MessagesLost(number, span.end)
            text = (
                f"its row (topics/) lists ledger {span.ledger} up to message {span.end - 1}, but "
            )
            raise contradiction(self._topic, f"{text}no entry of that ledger has message {number}")

    async def seek_in(
        self,
        spans: Sequence[LedgerSpan],
        time_ms: int,
        end_in: Callable[[LedgerSpan], int] | None = None,
    ) -> int | None:
        """Return the first number of the first entry at or after a time, or None if there is none.

        Args:
            end_in: returns the entry after the last confirmed one of a ledger.
        """
        for span in spans:
            if span.is_sealed and span.last_ms < time_ms:
                continue
            async with self._using(span) as opened:
                end = await self._end(span, opened) if end_in is None else end_in(span)
                entry = await opened.entry_at(time_ms, end)
                head = await opened.head(entry) if entry < end else None
            if head is not None:
                return head.first
        return None

    async def end_of(self, span: LedgerSpan) -> tuple[int, int]:
        """Return the last confirmed entry of an open ledger, or NOTHING if it has none, and the
        number after its last confirmed message."""
        async with self._using(span) as opened:
            last = entry = await opened.reader.wait(NOTHING, 0.0)
            while entry != NOTHING:
                try:
                    head = await opened.head(entry)
                    return (NOTHING, span.first) if head is None else (last, head.end)
                except EntriesGivenUp as lost:
                    entry = lost.first - 1
            return last, span.first

    async def wait(self, span: LedgerSpan, confirmed: int, wait_s: float) -> int:
        """Return the last confirmed entry of a ledger, as soon as it is above `confirmed`."""
        async with self._using(span) as opened:
            return await opened.reader.wait(confirmed, wait_s)

    async def _end(self, span: LedgerSpan, opened: OpenLedger) -> int:
        if span.is_sealed:
            return span.last + 1
        return await opened.reader.wait(NOTHING, 0.0) + 1

    @asynccontextmanager
    async def _using(self, span: LedgerSpan) -> AsyncIterator[OpenLedger]:
        ledger = span.ledger
        opened = self._opened.pop(ledger, None)
        if opened is None:
            reader = await self._reader(span)
            opened = self._opened.pop(ledger, None)  # another read may have been faster
            if opened is not None:
                await reader.aclose()
            else:
                opened = OpenLedger(self._topic, reader, self.index(ledger))
        self._opened[ledger] = opened
        opened.users += 1
        try:
            yield opened
        finally:
            opened.users -= 1
            await self._close_some(READERS_MAX)

    async def _reader(self, span: LedgerSpan) -> TopicLedgerReader:
        """Return a reader of a listed ledger. Raises Corrupt: its row contradicts the list;
        LedgerGone."""
        reader = await self._ledgers.reader(span.ledger)
        try:
            refuse_other(self._topic, span, reader.record)
        except Corrupt:
            await reader.aclose()
            raise
        return reader

    async def _close_some(self, kept: int) -> None:
        idle = [ledger for ledger, one in self._opened.items() if not one.users]
        for ledger in idle[: max(0, len(self._opened) - kept)]:
            opened = self._opened.pop(ledger, None)
            if opened is not None:
                await opened.reader.aclose()

    async def aclose(self) -> None:
        """Close the ledgers that nobody reads."""
        await self._close_some(0)
