"""Bookies that are lost, and auditors that copy their entries, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.model_bookies import ModelBookies, Process

from millstream.providers.ledger import Quorum, RecoveryOptions
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.inspection import BookieRecord, LedgerRecord
from millstream.providers.ledger.protocol.entry import is_whole
from millstream.providers.ledger.recovery.auditor import Auditor
from millstream.providers.ledger.recovery.needs import spans_of
from millstream.runtime.testing import FailingStore

PLACE = "ledger/{silo}"
QUICK = HandleOptions(unconfirmed_max_s=3.0, recover_max_s=3.0)
SOON = RecoveryOptions(
    lost_bookie_after_s=6.0,
    open_fragment_after_s=3.0,
    audit_every_s=6.0,
    retry_after_s=20.0,
    page_entries=4,
)
COPIED_S = 60.0
"""Long enough for all copying in these tests."""


class Around:
    """An auditor's view of the model's bookies. `is_first` makes it the auditor that works."""

    def __init__(self, bookies: ModelBookies, is_first: bool) -> None:
        self._bookies = bookies
        self._is_first = is_first

    def list_known(self) -> Mapping[str, BookieRecord]:
        return {
            name: BookieRecord(name, f"silo-{name}", 1, is_draining=one.is_leaving)
            for name, one in self._bookies.all.items()
        }

    def unreadable(self) -> Collection[str]:
        return ()

    def runs(self, bookie: str, /) -> bool:
        return not self._bookies.all[bookie].is_away

    def is_first(self) -> bool:
        return self._is_first


class Audits(Process):
    """A process with an auditor."""

    def __init__(
        self,
        bookies: ModelBookies,
        store: FailingStore,
        seed: int,
        options: RecoveryOptions = SOON,
        is_first: bool = True,
    ) -> None:
        super().__init__(bookies, store, seed, QUICK)
        context = HandleContext(bookies, self.rows, self.clock, self.tasks, QUICK)
        around = (Around(bookies, is_first), options, PLACE, f"auditor{seed}")
        self.auditor = Auditor(context, self.metadata, self.rows, *around)
        self.tasks.start(self.auditor.run())

    def kill(self) -> None:
        self.tasks.cancel()


class Copies:
    """Bookies, rows, and the processes that use them."""

    def __init__(self, bookies: int = 5, seed: int = 0) -> None:
        self.bookies = ModelBookies(bookies, seed)
        self.store = FailingStore()
        self.seed = seed
        self._processes = 0
        self.writer = self.process()
        self.payloads: dict[int, list[bytes]] = {}

    def process(self) -> Process:
        self._processes += 1
        return Process(self.bookies, self.store, 1000 * self.seed + self._processes, QUICK)

    def auditor(self, options: RecoveryOptions = SOON, is_first: bool = True) -> Audits:
        self._processes += 1
        seed = 1000 * self.seed + self._processes
        return Audits(self.bookies, self.store, seed, options, is_first)

    async def ledger(self, quorum: tuple[int, int, int] = (3, 3, 2), entries: int = 10) -> int:
        """Make a closed ledger, and return its number."""
        writer = await self.writer.ledgers.create(Quorum(*quorum), "t")
        self.payloads[writer.ledger] = [b"%d/%d" % (writer.ledger, n) for n in range(entries)]
        await asyncio.gather(*map(writer.append, self.payloads[writer.ledger]))
        await asyncio.sleep(0.1)  # time in which all copies are stored
        await writer.close()
        return writer.ledger

    async def open_ledger(
        self, quorum: tuple[int, int, int], entries: int, lost_at: int | None = None
    ) -> tuple[LedgerWriter, tuple[str, ...]]:
        """Make an open ledger, and return its writer and first bookies. The first bookie is lost
        before the entry `lost_at`.
        """
        writer = await self.writer.ledgers.create(Quorum(*quorum), "t")
        first = (await self.record(writer.ledger)).fragments[0].bookies
        self.payloads[writer.ledger] = [b"%d" % number for number in range(entries)]
        for number, payload in enumerate(self.payloads[writer.ledger]):
            if number == lost_at:
                self.lose(first[0])
            assert await writer.append(payload) == number
        return writer, first

    async def record(self, ledger: int) -> LedgerRecord:
        record = await self.writer.rows.read(ledger)
        assert record is not None
        return record

    def has(self, bookie: str, ledger: int, entry: int) -> bool:
        """Does an available bookie have an undamaged copy?"""
        one = self.bookies.all[bookie]
        packed = one.entries.get((ledger, entry))
        return not one.is_away and packed is not None and is_whole(packed)

    async def missing(self, ledger: int) -> list[tuple[int, str]]:
        """List the entries and bookies of copies that the record names but that are missing."""
        record = await self.record(ledger)
        return [
            (entry, bookie)
            for span in spans_of(record)
            for entry in range(span.first, span.last + 1)
            for bookie in record.holders(entry)
            if not self.has(bookie, ledger, entry)
        ]

    async def check(self, copies: int = 3) -> None:
        """Check that all ledgers have all copies on different bookies, and that reads return the
        payloads.
        """
        for ledger in self.payloads:
            record = await self.record(ledger)
            assert await self.missing(ledger) == [], record
            assert record.quorum.write == copies
            assert record.claim is None and record.complete == record.last
            for fragment in record.fragments:
                assert len(set(fragment.bookies)) == len(fragment.bookies)
        await self.check_readable()

    async def check_readable(self) -> None:
        for ledger, payloads in self.payloads.items():
            reader = await self.process().ledgers.reader(ledger)
            found: list[bytes] = []
            while len(found) < len(payloads):
                found += [entry.payload for entry in await reader.read(len(found), 99, 1 << 20)]
            assert found == payloads

    def lose(self, *bookies: str) -> None:
        for bookie in bookies:
            self.bookies.all[bookie].is_away = True

    def damage(self, bookie: str, ledger: int, entry: int) -> None:
        entries = self.bookies.all[bookie].entries
        packed = bytearray(entries[ledger, entry])
        packed[-1] ^= 1
        entries[ledger, entry] = bytes(packed)

    async def collect(self) -> int:
        """Let each bookie drop the ledgers that do not need it any more by a read of their row.
        Return the count.
        """
        dropped = 0
        for name, one in self.bookies.all.items():
            for ledger in sorted({of for of, _ in one.entries}):
                before = one.puts
                record = await self.writer.rows.read(ledger)
                await asyncio.sleep(self.bookies.rng.uniform(0.0, 0.01))
                if record is not None and not record.needs(name) and one.puts == before:
                    gone = [key for key in one.entries if key[0] == ledger]
                    dropped += len(gone)
                    for key in gone:
                        del one.entries[key]
        return dropped

    async def keep_collecting(self) -> None:
        calls = 0
        while True:
            await self.collect()
            before, calls = calls, sum(self.bookies.calls.values())
            # collects often while entries are copied
            await asyncio.sleep(0.005 if calls > before else 0.5)


Story = Callable[..., Coroutine[Any, Any, None]]


def with_copies(main: Story, bookies: int = 5, seed: int = 0) -> None:
    """Run the test in virtual time."""

    async def run() -> None:
        async with asyncio.timeout(10**6):
            await main(Copies(bookies, seed))

    in_virtual_time(partial(run))
