"""In-memory bookies that tests can make unavailable, full, hanging, slow, lossy or forgetful."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from random import Random

from tests.providers.ledger.clocks import LoopClock

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.inspection import BookieLedgers
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.entry import NOTHING, head_of
from millstream.providers.ledger.protocol.errors import BookieAway, BookieReadOnly, LedgerFenced
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.runtime import MemoryStateStore, StateStore
from millstream.runtime.extending import Tasks

CALL_S = 5.0  # the longest time of a call


@dataclass
class One:
    """One bookie. It keeps acknowledged entries and its fences."""

    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    is_away: bool = False
    is_full: bool = False
    is_leaving: bool = False
    seems_there: bool = False
    hangs: bool = False
    is_in_doubt: bool = False
    delay_s: float = 0.001
    losses: float = 0.0  # of requests and of answers
    puts: int = 0


class ModelBookies:
    """`Bookies` over `One`s. The seed decides which calls are late or lost."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.all = {f"b{number}": One() for number in range(count)}
        self.rng = Random(seed)
        self.calls: dict[str, int] = defaultdict(int)
        self.suspected: list[tuple[str, int, int]] = []

    async def _reach(self, bookie: str) -> One:
        self.calls[bookie] += 1
        one = self.all[bookie]
        await asyncio.sleep(one.delay_s * self.rng.uniform(0.5, 1.5))
        if one.hangs or self.rng.random() < one.losses:
            await asyncio.sleep(CALL_S)
            raise BookieAway(f"{bookie} did not answer within {CALL_S} s")
        if one.is_away:
            raise BookieAway(f"{bookie} is away")
        return one

    async def _answer(self, bookie: str) -> None:
        one = self.all[bookie]
        await asyncio.sleep(one.delay_s * self.rng.uniform(0.5, 1.5))
        if one.is_away or self.rng.random() < one.losses:
            raise BookieAway(f"{bookie} has gone before it answered")

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        one = await self._reach(bookie)
        ledger = head_of(entries[0]).ledger
        fence = one.fences.get(ledger, 0)
        if term < fence:
            raise LedgerFenced(f"{bookie}: ledger {ledger} is fenced in term {fence}", fence)
        if one.is_full and term != fence:
            raise BookieReadOnly(f"{bookie} is full")
        one.puts += 1
        for packed in entries:
            one.entries[ledger, head_of(packed).entry] = packed
        await self._answer(bookie)

    def _fenced(self, one: One, ledger: int, term: int) -> None:
        fence = one.fences.get(ledger, 0)
        if 0 < term < fence:
            raise LedgerFenced(f"ledger {ledger} is fenced in term {fence}", fence)
        one.fences[ledger] = max(fence, term)

    def _confirmed(self, one: One, ledger: int) -> int:
        heads = [
            head_of(packed).confirmed for (of, _), packed in one.entries.items() if of == ledger
        ]
        return max([one.told.get(ledger, NOTHING), *heads])

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        one = await self._reach(bookie)
        self._fenced(one, ledger, term)
        await self._answer(bookie)
        return self._confirmed(one, ledger)

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        one = await self._reach(bookie)
        self._fenced(one, ledger, term)
        found: list[bytes] = []
        while len(found) < entries_max and (ledger, first + len(found)) in one.entries:
            found.append(one.entries[ledger, first + len(found)])
            if sum(map(len, found)) >= bytes_max:
                break
        missing = Missing.LIMIT
        if (ledger, first + len(found)) not in one.entries:
            missing = Missing.UNKNOWN if one.is_in_doubt else Missing.ABSENT
        await self._answer(bookie)
        return Found(tuple(found), missing, self._confirmed(one, ledger))

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        one = await self._reach(bookie)
        until_s = asyncio.get_running_loop().time() + wait_s
        while (known := self._confirmed(one, ledger)) <= confirmed:
            if asyncio.get_running_loop().time() >= until_s:
                break
            await asyncio.sleep(0.01)
        return known

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        one = await self._reach(bookie)
        if term >= one.fences.get(ledger, 0):
            one.told[ledger] = max(one.told.get(ledger, NOTHING), confirmed)

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        await self._reach(bookie)
        self.suspected.append((bookie, ledger, entry))

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        return bookies

    async def look(self) -> None:
        """Do nothing, because all bookies are known."""

    def unwilling(self) -> Mapping[str, str]:
        return {name: f"{name} is full" for name, one in self.all.items() if one.is_full}

    def writable(self) -> Mapping[str, float]:
        shut = {
            name
            for name, one in self.all.items()
            if (one.is_away and not one.seems_there) or one.is_full
        }
        leaving = {name for name, one in self.all.items() if one.is_leaving}
        return {name: 1.0 for name in self.all if name not in shut | leaving}


class Process:
    """A process with its own clock, tasks and handles. Rows and bookies are shared."""

    def __init__(
        self,
        bookies: ModelBookies,
        store: StateStore | None = None,
        seed: int = 0,
        options: HandleOptions | None = None,
    ) -> None:
        clock = self.clock = LoopClock(seed)
        self.store = MemoryStateStore() if store is None else store
        metadata = self.metadata = Metadata(self.store, "tests", clock, f"process{seed}")
        self.rows = ledger_rows(metadata)
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        context = HandleContext(bookies, self.rows, clock, self.tasks, options or HandleOptions())
        self.ledgers = BookieLedgers(context, LedgerIds(metadata))

    async def bookies_of(self, ledger: int) -> tuple[str, ...]:
        """Return the bookies of the stored last fragment."""
        record = await self.rows.read(ledger)
        assert record is not None
        return record.fragments[-1].bookies

    async def written(self, entries: int) -> tuple[LedgerWriter, tuple[str, ...]]:
        """Make a ledger with the entries `0`, `1`, ..., and return its writer and bookies."""
        writer = await self.ledgers.create(Quorum(3, 3, 2), "t")
        await asyncio.gather(*[writer.append(b"%d" % number) for number in range(entries)])
        return writer, await self.bookies_of(writer.ledger)
