"""After any power failure, a bookie has all acknowledged entries and never denies one of them.

A random history is compared with a dictionary. It has concurrent adds, fences, deletions, and clean
and unclean restarts. The power fails after any number of changes of the disk, also while a bookie
starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from tests.providers.ledger.bookie.kit import entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieError,
    LedgerFenced,
)
from millstream.providers.ledger.protocol.found import Missing
from millstream.runtime.extending import Disk, DiskFile, DiskThread
from millstream.runtime.testing import SimDisk

LEDGERS = range(1, 5)
SIZES = (0, 10, 300, 900, 3_000)


class History:
    """The history of one bookie, with the answers that it may and must give."""

    def __init__(self, seed: int, disk: Disk | None = None) -> None:
        self.collects = seed % 2 == 1
        self.rng = Random(f"history/{seed}")
        self.sim = new_disk(seed)
        self.disk: Disk = disk or self.sim
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.next = dict.fromkeys(LEDGERS, 0)
        self.fences: dict[int, int] = {}  # answered fences
        self.asked: dict[int, int] = {}  # requested fences, answered or not
        # the term of a fenced read that denied the entry
        self.denied: dict[tuple[int, int], int] = {}
        self.gone: set[int] = set()
        self.crashes = self.found = 0
        self.collected = [0, 0, 0]  # ledgers, segments, moved bytes

    async def run(self, lives: int = 6) -> None:
        for _ in range(lives):
            if self.rng.random() < 0.9:
                self.sim.cut_power_after(self.rng.randrange(1, 120), self.crash)
            with suppress(OSError):
                await self.live()
            self.sim.keep_power()
        bookie = None
        while bookie is None:
            with suppress(OSError):  # from syncs that were planned to fail
                bookie = await opened(self.disk)
        await self.check(bookie)

    def crash(self) -> None:
        self.crashes += 1
        self.sim.crash()

    async def live(self) -> None:
        bookie = await opened(self.disk)
        await self.check(bookie)
        work = [self.write(bookie, ledger) for ledger in LEDGERS]
        await asyncio.gather(*work, self.trouble(bookie), return_exceptions=False)
        if self.rng.random() < 0.5:
            await bookie.aclose()
        else:
            self.crash()
        self.sim.make_room()

    async def write(self, bookie: Bookie, ledger: int) -> None:
        """Add entries in several concurrent calls, in the term of the last requested fence."""
        term = self.asked.get(ledger, 0) + self.rng.choice((0, 1))
        for _ in range(self.rng.randrange(12)):
            calls = [self.add(bookie, ledger, term) for _ in range(self.rng.randrange(1, 5))]
            await asyncio.gather(*calls)
            await asyncio.sleep(self.rng.choice((0, 0, 0.001)))

    async def add(self, bookie: Bookie, ledger: int, term: int) -> None:
        first = self.next[ledger]
        count = self.rng.randrange(1, 4)
        if self.rng.random() < 0.1:
            first = max(0, first - 2)  # add the same entries again
        else:
            self.next[ledger] += count + self.rng.choice((0, 0, 2))
        numbers = range(first, first + count)
        sizes = {number: SIZES[number % len(SIZES)] for number in numbers}
        entries = [entry(ledger, number, sizes[number]) for number in numbers]
        with suppress(BookieError, LedgerFenced):
            await bookie.add(term, entries)
            assert term >= self.fences.get(ledger, 0) or ledger in self.gone
            for number, packed in zip(numbers, entries, strict=True):
                key = (ledger, number)
                assert term >= self.denied.get(key, 0), f"{key} was denied"
                self.acknowledged[key] = packed

    async def trouble(self, bookie: Bookie) -> None:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.003)))
            if self.rng.random() < 0.05:
                self.sim.fail_sync()  # stops the bookie
            if self.rng.random() < 0.05:
                self.sim.fill_up(self.rng.choice((0, 3_000, 20_000)))
            elif self.rng.random() < 0.2:
                self.sim.make_room()
            if self.collects:
                with suppress(BookieError):
                    await self.collect(bookie)
            ledger = self.rng.choice(LEDGERS)
            with suppress(BookieError, LedgerFenced):
                match self.rng.choice(("fence", "read", "read", "delete", "collect")):
                    case "fence":
                        await self.fence(bookie, ledger)
                    case "read":
                        await self.read(bookie, ledger)
                    case "delete":
                        self.gone |= {ledger} if self.rng.random() < 0.3 else set()
                    case "collect":
                        await self.collect(bookie)

    async def fence(self, bookie: Bookie, ledger: int) -> None:
        term = self.asked.get(ledger, 0) + 1
        self.asked[ledger] = term
        await bookie.fence(ledger, term)
        self.fences[ledger] = max(term, self.fences.get(ledger, 0))

    async def read(self, bookie: Bookie, ledger: int) -> None:
        """Read as a recovery does. No older writer may add an entry that this read denied."""
        term = self.asked[ledger] = self.asked.get(ledger, 0) + 1
        first = self.rng.randrange(self.next[ledger] + 2)
        found = await bookie.read(ledger, first, 3, 4_000, term)
        self.fences[ledger] = max(term, self.fences.get(ledger, 0))
        denied = (ledger, first + len(found.entries))
        if found.missing is Missing.ABSENT:
            assert denied not in self.acknowledged, denied
            self.denied[denied] = term

    async def collect(self, bookie: Bookie) -> None:
        async def is_gone(ledger: int) -> bool:
            await asyncio.sleep(0)
            return ledger in self.gone

        self.collected = [
            one + more
            for one, more in zip(self.collected, await bookie.collect(is_gone), strict=True)
        ]

    async def check(self, bookie: Bookie) -> None:
        """Check that every acknowledged entry is unchanged, and that fences still refuse old
        writers.
        """
        for ledger in LEDGERS:
            if ledger in self.gone:
                continue
            for number in range(self.next[ledger] + 3):
                found = await bookie.read(ledger, number, 1, 0)
                want = self.acknowledged.get((ledger, number))
                if want is not None:
                    assert found.entries == (want,), (ledger, number, found.missing)
                    self.found += 1
                elif found.entries:  # sent, but not acknowledged
                    assert found.entries[0] == entry(ledger, number, SIZES[number % len(SIZES)])
                else:
                    assert found.missing is Missing.ABSENT, (ledger, number)
            term = self.fences.get(ledger, 0)
            if term:
                with pytest.raises((LedgerFenced, BookieAway)):
                    await bookie.add(term - 1, [entry(ledger, 0)])
        assert bookie.figures().doubt_below == 0 and bookie.figures().damaged == 0


@pytest.mark.one_in(8)
@pytest.mark.parametrize("block", range(8))
def test_what_was_acknowledged_is_there_whenever_the_power_goes(block: int) -> None:
    crashes = found = 0
    collected = [0, 0, 0]
    for seed in range(block * 10, block * 10 + 10):
        history = History(seed)
        on_loop(history.run)
        crashes, found = crashes + history.crashes, found + history.found
        collected = [one + more for one, more in zip(collected, history.collected, strict=True)]
    assert crashes > 20 and found > 100 and any(collected), (crashes, found, collected)


class HastyThread:
    """A thread that reports writes as durable before the sync."""

    def __init__(self, thread: DiskThread) -> None:
        self._thread = thread
        self.run = thread.run
        self.close = thread.close

    def flush(self, file: DiskFile, offset: int, parts: Sequence[bytes], /) -> asyncio.Future[None]:
        written = self._thread.run(file.write_at, offset, *parts)
        synced = self._thread.run(file.datasync)
        synced.add_done_callback(lambda done: done.cancelled() or done.exception())
        return written


class HastyDisk:
    """A disk whose threads acknowledge writes before the sync."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def start_thread(self, name: str, /) -> HastyThread:
        return HastyThread(self._disk.start_thread(name))


@pytest.mark.spare
def test_a_bookie_that_acknowledges_before_the_sync_fails() -> None:
    failed = 0
    for seed in range(24):
        history = History(seed)
        history.disk = HastyDisk(history.sim)  # type: ignore[assignment]
        try:
            on_loop(history.run)
        except AssertionError:
            failed += 1
    assert failed >= 3, failed
