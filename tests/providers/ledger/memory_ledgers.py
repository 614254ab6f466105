"""Ledgers in memory with gates, faults and zombie writers, for tests of the layers above.

An entry *arrives* on the bookies, and later its writer *hears* of that. Between these events the
writer can crash, be fenced, or get an error. A recovery keeps all entries that the writer heard of.
Chance decides how many of the other arrived entries it keeps.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from random import Random

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import Entry, LedgerError, LedgerRecord, LedgerState
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.entry import NOTHING, EntryHeader
from millstream.providers.ledger.protocol.errors import (
    LedgerClosed,
    LedgerFenced,
    LedgerGone,
    NotEnoughBookies,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import Fragment, close, recovering

__all__ = ["Bookies", "MemoryLedgers", "MemoryWriter"]


class Stored:
    """The entries of one ledger on its bookies."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.heard = NOTHING  # the last entry that its writer heard of
        self.term = 1

    def length(self, last: int) -> int:
        return sum(map(len, self.entries[: last + 1]))


class Bookies:
    """The bookies that all processes share, and their faults.

    `delay_s` is the longest delay of an entry or an answer. `faults` lists the faults of the next
    entries in order: "" (none), "refused" (the entry does not arrive), "lost" (the entry arrives,
    but its writer gets an error) or "hang" (the entry arrives, and its writer gets an error after 5
    s). `rate` is the probability of a fault of other entries. No entry arrives while `gate` is
    closed.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.ledgers: dict[int, Stored] = {}
        self.deleted: list[int] = []
        # the entries of deleted ledgers, for the final checks
        self.graveyard: dict[int, Stored] = {}
        self.faults: deque[str] = deque()
        self.rate = 0.0
        self.delay_s = 0.0
        self.refuse_creation = 0
        self.refuse_recovery = 0
        self.closes_failed = False  # can a failed writer still close its ledger?
        self.is_lagging = False  # readers learn of an entry only from the next one
        self.gate = asyncio.Event()
        self.gate.set()

    def fault(self) -> str:
        if self.faults:
            return self.faults.popleft()
        if self.random.random() < self.rate:
            return self.random.choice(["refused", "lost"])
        return ""

    async def pause(self) -> None:
        if self.delay_s:
            await asyncio.sleep(self.random.uniform(0, self.delay_s))
        else:
            await asyncio.sleep(0)

    def of(self, ledger: int) -> Stored:
        if ledger not in self.ledgers:
            raise LedgerGone(f"ledger {ledger}")
        return self.ledgers[ledger]


class MemoryWriter:
    """A `Writer` of a ledger in memory."""

    def __init__(self, bookies: Bookies, ledgers: MemoryLedgers, ledger: int) -> None:
        self._bookies = bookies
        self._ledgers = ledgers
        self._ledger = ledger
        self._failed: Exception | None = None
        self._confirmed = NOTHING
        self._next = 0
        self._pending: deque[tuple[int, bytes, Future[int]]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._record: LedgerRecord | None = None
        self.is_short = False
        self.trouble = ""

    @property
    def ledger(self) -> int:
        return self._ledger

    @property
    def confirmed(self) -> int:
        return self._confirmed

    @property
    def failed(self) -> Exception | None:
        return self._failed

    def append(self, payload: bytes, /) -> Future[int]:
        if self._failed is not None:
            raise self._failed
        future: Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append((self._next, payload, future))
        self._next += 1
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())
        return future

    async def _send(self) -> None:
        while self._pending and self._failed is None:
            entry, payload, future = self._pending[0]
            await self._bookies.pause()
            await self._bookies.gate.wait()
            stored = self._bookies.ledgers.get(self._ledger)
            # a bookie that forgot a ledger accepts entries for it, unless it was fenced
            stored = stored or self._bookies.graveyard[self._ledger]
            if stored.term > 1:
                return self._fail(LedgerFenced(f"ledger {self._ledger} is fenced", 2))
            fault = self._bookies.fault()
            if fault != "refused":
                assert len(stored.entries) == entry
                stored.entries.append(payload)
            if fault in {"refused", "lost"}:
                return self._fail(NotEnoughBookies(f"entry {entry} of {self._ledger}: {fault}"))
            if fault == "hang":
                await asyncio.sleep(5)
                return self._fail(NotEnoughBookies(f"entry {entry} of {self._ledger}: {fault}"))
            await self._bookies.pause()
            if self._failed is None:  # acknowledged, even if fenced in the meantime
                if stored.term > 1 and self._ledgers.was_cut(self._ledger, entry):
                    return self._fail(LedgerFenced(f"ledger {self._ledger} is fenced", 2))
                stored.heard = self._confirmed = entry
                self._pending.popleft()
                if not future.done():
                    future.set_result(entry)
        self._sending = None

    def _fail(self, error: LedgerError) -> None:
        self._failed = error
        while self._pending:
            future = self._pending.popleft()[2]
            if not future.done():
                future.set_exception(error)
                future.exception()

    async def close(self) -> LedgerRecord:
        if self._record is not None:
            return self._record
        if self._failed is None:
            self._fail(LedgerClosed(f"ledger {self._ledger} was closed"))
        if not isinstance(self._failed, LedgerClosed) and not self._bookies.closes_failed:
            assert self._failed is not None
            raise self._failed
        if self._sending is not None:
            self._sending.cancel()
        await self._bookies.pause()
        last = self._confirmed
        length = self._bookies.of(self._ledger).length(last)

        def end(found: LedgerRecord | None) -> LedgerRecord:
            if found is None:
                raise LedgerClosed(f"ledger {self._ledger} is gone")
            return close(found, 1, last, length)

        self._record = await self._ledgers.rows.update(self._ledger, end)
        return self._record

    async def aclose(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        if self._failed is None:
            self._fail(LedgerClosed("let go"))


class MemoryReader:
    """A `Reader` of a ledger in memory."""

    def __init__(self, bookies: Bookies, ledgers: MemoryLedgers, record: LedgerRecord) -> None:
        self._bookies = bookies
        self._ledgers = ledgers
        self._ledger = record.ledger
        self.record = record
        self.is_open = True

    async def _last(self) -> int:
        stored = self._bookies.of(self._ledger)
        record = await self._ledgers.rows.read(self._ledger)
        if record is not None and record.state is LedgerState.CLOSED:
            return record.last
        return stored.heard - 1 if self._bookies.is_lagging and stored.heard >= 0 else stored.heard

    async def read(self, first: int, entries_max: int, bytes_max: int, /) -> Sequence[Entry]:
        assert self.is_open and entries_max >= 1
        await self._bookies.pause()
        self._ledgers.reads += 1
        last, stored = await self._last(), self._bookies.of(self._ledger)
        found: list[Entry] = []
        for entry in range(first, min(last, first + entries_max - 1) + 1):
            payload = stored.entries[entry]
            if found and bytes_max < len(payload):
                break
            bytes_max -= len(payload)
            head = EntryHeader(self._ledger, entry, NOTHING, NOTHING, 0, len(payload))
            found.append(Entry(head, payload))
        return found

    async def wait(self, confirmed: int, wait_s: float, /) -> int:
        ends_s = asyncio.get_running_loop().time() + wait_s
        while True:
            last = await self._last()
            if last > confirmed or asyncio.get_running_loop().time() >= ends_s:
                return last
            await asyncio.sleep(0.01)

    async def aclose(self) -> None:
        assert self.is_open
        self.is_open = False
        self._ledgers.open_readers -= 1


class MemoryLedgers:
    """The `Ledgers` of one process over the shared bookies."""

    def __init__(self, bookies: Bookies, metadata: Metadata) -> None:
        self.bookies = bookies
        self.rows = ledger_rows(metadata)
        self._ids = LedgerIds(metadata)
        self.created: list[int] = []
        self.writers: list[MemoryWriter] = []
        self.reads = self.open_readers = 0
        self.wall_s = 0.0

    async def create(
        self, usual: Quorum | None, topic: str, /, first: int = 0, owner: tuple[int, int] = (0, 0)
    ) -> MemoryWriter:
        await self.bookies.pause()
        if self.bookies.refuse_creation:
            self.bookies.refuse_creation -= 1
            raise NotEnoughBookies("no bookie for a new ledger")
        ledger = await self._ids.next()
        quorum = Quorum(1, 1, 1) if usual is None else usual
        fragments = (Fragment(0, ("b",) * quorum.ensemble),)
        record = LedgerRecord(
            ledger,
            LedgerState.OPEN,
            quorum,
            1,
            fragments,
            topic,
            created_s=self.wall_s,
            first=first,
            owner=owner,
        )
        await self.rows.create(ledger, record)
        self.bookies.ledgers[ledger] = Stored()
        self.created.append(ledger)
        self.writers.append(MemoryWriter(self.bookies, self, ledger))
        return self.writers[-1]

    def was_cut(self, ledger: int, entry: int) -> bool:
        """Did a recovery decide that the entry is not in the ledger?"""
        return len(self.bookies.of(ledger).entries) <= entry

    async def recover(self, ledger: int, /) -> LedgerRecord:
        await self.bookies.pause()
        if self.bookies.refuse_recovery:
            self.bookies.refuse_recovery -= 1
            raise NotRecoverable(f"ledger {ledger}: too few bookies answer")

        def taken(found: LedgerRecord | None) -> LedgerRecord:
            if found is None:
                raise LedgerGone(f"ledger {ledger}")
            return found if found.state is LedgerState.CLOSED else recovering(found)

        record = await self.rows.update(ledger, taken)
        if record.state is LedgerState.CLOSED:
            return record
        stored = self.bookies.of(ledger)
        if stored.term == 1:  # no more entries arrive, and chance decides which ones count
            stored.term = record.term
            kept = self.bookies.random.randint(stored.heard + 1, len(stored.entries))
            del stored.entries[kept:]
        last = len(stored.entries) - 1
        await self.bookies.pause()

        def end(found: LedgerRecord | None) -> LedgerRecord:
            if found is None:
                raise LedgerGone(f"ledger {ledger}")
            if found.state is LedgerState.CLOSED:
                return found
            return close(found, found.term, last, stored.length(last))

        return await self.rows.update(ledger, end)

    async def reader(self, ledger: int, /) -> MemoryReader:
        await self.bookies.pause()
        self.bookies.of(ledger)
        record = await self.rows.read(ledger)
        if record is None:
            raise LedgerGone(f"ledger {ledger}")
        self.open_readers += 1
        return MemoryReader(self.bookies, self, record)

    async def delete(self, ledger: int, /) -> None:
        await self.bookies.pause()
        await self.rows.delete(ledger)
        gone = self.bookies.ledgers.pop(ledger, None)
        if gone is not None:
            self.bookies.graveyard[ledger] = gone
        self.bookies.deleted.append(ledger)

    def kill(self) -> None:
        """Kill the process: its requests do not continue."""
        for writer in self.writers:
            if writer._sending is not None:
                writer._sending.cancel()
