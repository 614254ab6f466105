"""One bookie: a directory of entries, and the decision which terms may add to which ledger.

Owns: `Bookie`. Not: the journal (`journal`), the index (`store`), the files (`directory`), deletion
(`collection`). As in BookKeeper, all ledgers of a bookie share one journal.

Invariants:

- A bookie acknowledges nothing before it is durable.
- To deny an entry is to answer that the bookie never acknowledged it. A bookie denies only entries
  that it never acknowledged.
- Callers may rely for ever on an answer to a fence, even if the answer had no entry.
- The checks of an add and its place in the journal are one synchronous step.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from millstream.providers.ledger.protocol.entry import NOTHING, head_of, is_whole
from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieError,
    BookieOverloaded,
    BookieReadOnly,
    DirectoryRefused,
    EntryDamaged,
    LedgerFenced,
)
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.runtime.extending import Disk, DiskFull

from .cache import Cache
from .collection import Collected, Collection, IsElsewhere, IsGone, here_alone
from .damage.segment_check import SegmentCheck, on
from .damage.suspects import Suspects
from .directory import ADVICE, Directory, make_refused
from .disk_space import DiskSpace
from .entry_reader import EntryReader, SegmentFiles
from .form.frame import JournalRecord, RecordKind
from .form.loader import LoadedDirectory
from .form.segment import offset_of, segment_name, segment_of
from .form.state import DOUBT_ALL, FENCES_MAX, TERM_MAX
from .journal import Journal
from .options import AskKnown, BookieOptions, HighWater, nothing_known
from .startup import OpenedDirectory, Scanned, open_directory
from .store import Store
from .watches import Watches

__all__ = ["Bookie", "BookieState", "Figures"]

log = logging.getLogger("millstream.bookie")


READ_ENTRIES_MAX = 1_024
"""The largest number of entries of one answer. A caller that wants more asks again."""


class BookieState(Enum):
    """The state of a bookie, which decides the requests that it accepts."""

    WRITABLE = "writable"
    READ_ONLY = "read_only"  # its disk is full: it reads, fences, and takes entries of recoveries
    STOPPED = "stopped"  # something failed that cannot be repeated


class Figures(NamedTuple):
    """The numbers of a bookie, for tools.

    `scanned`: how much was read at the start, which took `opened_s`. `doubt_below`: the bookie
    denies no entries of ledgers below this one. `damaged`: the number of entries that were found
    damaged, at the start or later.
    """

    state: BookieState
    reason: str
    high_water: HighWater
    ledgers: int
    segments: int
    used_bytes: int
    live_bytes: int
    free_bytes: int
    unsynced_bytes: int
    cache_bytes: int
    watches: int
    fences: int
    doubt_below: int
    damaged: int
    scanned: Scanned
    opened_s: float


class Bookie:
    """An open directory. Made by `open`; its methods are called on one event loop.

    Attributes: `name`, the directory's, by which ensembles know the bookie; `boot`, which rises
    with every start.
    """

    def __init__(
        self,
        opened: OpenedDirectory,
        options: BookieOptions,
    ) -> None:
        directory, threads, loaded = opened.directory, opened.threads, opened.loaded
        self.name = directory.identity.directory
        self.boot = directory.identity.boot
        self.opened_s = 0.0
        self.scanned = opened.scanned
        self.directory = directory
        self.options = options
        self.threads = threads
        self._watches = Watches(options.watches_max)
        self._room = DiskSpace(options.reserve_bytes)
        self._cache = Cache(options.cache_bytes)
        self.store = Store(self.name, loaded.index, loaded.state, loaded.ends, self._watches.wake)
        self.files = SegmentFiles(directory, options.files_max)
        self.suspects = Suspects()
        self.reading = EntryReader(
            loaded.index, self._cache, self.files, threads.read, options.read_ahead_bytes
        )
        self._damaged = loaded.damaged
        self.journal = Journal(
            directory,
            options,
            (threads.commit, threads.ahead),
            self.store,
            self,
            segment=directory.identity.last_segment + 1,
            sequence=loaded.sequence,
            check=loaded.check,
        )
        self.collection = Collection(
            directory,
            options,
            self.store,
            self.journal,
            self.files,
            (threads.commit, threads.read),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        disk: Disk,
        path: str,
        options: BookieOptions | None = None,
        *,
        cluster: str,
        fresh: str,
        ask_known: AskKnown = nothing_known,
    ) -> Bookie:
        """Lock a directory, read it, and begin a new segment.

        Args:
            path: the directory; it is made with mode 0700 if it is missing.
            cluster: the cluster of the ledgers. A directory of another cluster is refused.
            fresh: the name for a new directory, 32 hex digits that no other directory has.
            ask_known: returns what the metadata know about the directory; called while it is
                locked.

        Raises DirectoryInUse (wait, and try again), DirectoryRefused, OSError, and errors of
        `ask_known`.
        """
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        options = options or BookieOptions()
        found = await open_directory(disk, path, cluster, fresh, ask_known)
        try:
            bookie = cls(found, options)
            await bookie.begin(found.loaded)
        except BaseException:
            found.release()
            raise
        bookie.opened_s = loop.time() - begin_s
        return bookie

    async def begin(self, loaded: LoadedDirectory) -> None:
        """Begin a segment with the state and the entries that may not have been durable. Then seal
        the former segment, and start the background tasks."""
        self.free(await self.threads.commit.run(self.directory.free_bytes))
        await self.journal.write(loaded.carried)
        for sealed in loaded.unsealed:
            await self.threads.commit.run(self.directory.seal, sealed)
        if loaded.empty:
            await self.threads.commit.run(self.directory.remove, loaded.empty)
        self._tasks = [
            asyncio.create_task(self.journal.work(), name="bookie journal"),
            asyncio.create_task(self._watch_files(), name="bookie files"),
        ]

    async def aclose(self) -> None:
        """Write waiting records, seal the journal, and release the directory. It does no harm to
        close twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self.journal.close()
        self._watches.end(BookieAway("this bookie is closing"))
        try:
            if self._tasks:
                await self._tasks[0]
                self._tasks[1].cancel()
            await self.journal.seal()
        except OSError as error:
            log.warning("%s: the journal was not sealed: %s", self.directory.path, error)
        finally:
            self.journal.close_files()
            self.files.close()
            self.directory.release()
            self.threads.close()

    # -- the contract of bookies

    async def add(self, term: int, entries: Sequence[bytes]) -> None:
        """Store packed entries of one ledger; return when all of them are on disk.

        Cancelling the call does not take them back. Raises EntryDamaged, LedgerFenced,
        BookieReadOnly, BookieOverloaded, BookieError (an entry is too large): none is stored;
        BookieAway: they may be.
        """
        self.journal.refuse()
        heads = [head_of(entry) for entry in entries]
        if not heads:
            return
        ledger = heads[0].ledger
        for head, entry in zip(heads, entries, strict=True):
            self._check_entry(ledger, head.ledger, head.entry, entry)
        self._admit(ledger, term)
        records = [
            JournalRecord(RecordKind.ENTRY, ledger, head.entry, entry)
            for head, entry in zip(heads, entries, strict=True)
        ]
        await self.journal.append(records)
        for head, entry in zip(heads, entries, strict=True):
            self._cache.put(ledger, head.entry, entry)

    def _check_entry(self, ledger: int, found: int, entry: int, packed: bytes) -> None:
        if len(packed) > self.options.entry_bytes_max:
            what, limit = f"entry {entry} of ledger {found}", self.options.entry_bytes_max
            raise BookieError(f"{what} has {len(packed)} bytes, entry_bytes_max is {limit}")
        if found != ledger or entry < 0 or found > TERM_MAX or not is_whole(packed):
            what = f"entry {entry} of ledger {found}, sent for ledger {ledger}"
            raise EntryDamaged(f"{what}, is invalid or fails its checksum")

    def _admit(self, ledger: int, term: int) -> None:
        """Raise unless this term may add to the ledger now."""
        store, fenced = self.store, self.store.term_of(ledger)
        if store.is_forgotten(ledger):
            raise LedgerFenced(f"ledger {ledger} was deleted", TERM_MAX)
        if term < fenced:
            raise LedgerFenced(
                f"ledger {ledger} is fenced in term {fenced}; term {term} is older", fenced
            )
        is_recovery = 0 < term == fenced
        if not is_recovery and ledger < store.state.doubt_below:
            text = (
                f"ledger {ledger} may have been fenced: the directory of this bookie lost records"
            )
            raise BookieReadOnly(f"{text}; write to other bookies")
        if not is_recovery and self._room.is_full:
            raise BookieReadOnly(self.why_read_only())

    async def fence(self, ledger: int, term: int) -> int:
        """Refuse from now on, for ever, entries of the ledger that are added in a lower term.

        Returns the highest entry that is known to be confirmed, as soon as the fence and all
        earlier adds are durable. Raises LedgerFenced, BookieOverloaded, BookieReadOnly, BookieAway.
        """
        self.journal.refuse()
        assert 0 < term < TERM_MAX, term
        store, known = self.store, self.store.term_of(ledger)
        if store.is_forgotten(ledger):
            return NOTHING  # nothing will be added in any term
        if term < known:
            raise LedgerFenced(
                f"ledger {ledger} is fenced in term {known}; term {term} is older", known
            )
        if store.is_fenced(ledger, term):
            await self.journal.wait_settled()
        else:
            await self._fence(ledger, term)
        return store.index.find_confirmed(ledger)

    def _fence(self, ledger: int, term: int) -> asyncio.Future[None]:
        fences = len(self.store.state.fences)
        if fences >= FENCES_MAX and ledger not in self.store.state.fences:
            raise BookieOverloaded(f"{fences} ledgers are fenced, FENCES_MAX is {FENCES_MAX}")
        future = self.journal.append(
            (JournalRecord(RecordKind.FENCE, ledger, term),), is_control=True
        )
        self.store.ask_fence(ledger, term)
        return future

    async def read(
        self, ledger: int, first: int, entries_max: int, bytes_max: int, term: int = 0
    ) -> Found:
        """Return consecutive entries from `first` on, up to the limits but at least one.

        With a term above 0 the ledger is durably fenced first, even if there is no entry. Raises
        LedgerFenced, BookieOverloaded, BookieReadOnly, BookieAway.
        """
        self.journal.refuse()
        if term:
            await self.fence(ledger, term)
        entries: list[bytes] = []
        size = 0
        while len(entries) < max(1, min(entries_max, READ_ENTRIES_MAX)):
            if not self.store.index.find(ledger, first + len(entries)):
                return self._found(entries, ledger, self._deny(ledger))
            packed = await self._entry(ledger, first + len(entries))
            if packed is None:
                fault = self._fault(ledger, first + len(entries))
                return self._found(entries, ledger, Missing.UNKNOWN, fault)
            size += len(packed)
            if entries and size > bytes_max:
                break
            entries.append(packed)
        return self._found(entries, ledger, Missing.LIMIT)

    def _found(self, entries: list[bytes], ledger: int, missing: Missing, fault: str = "") -> Found:
        return Found(tuple(entries), missing, self.store.index.find_confirmed(ledger), fault)

    def _fault(self, ledger: int, entry: int) -> str:
        """List a stored entry that cannot be read as a suspect, and return its file and offset."""
        if not self.has(ledger, entry):
            return ""  # it was deleted in the meantime
        self.suspects.put(ledger, entry)
        file, offset = self.where(ledger, entry)
        return f"{file}: offset {offset}: entry {entry} of ledger {ledger} fails its checksum"

    def _deny(self, ledger: int) -> Missing:
        """Return the answer for an entry that is not stored here."""
        return Missing.ABSENT if self.store.denies(ledger) else Missing.UNKNOWN

    async def _entry(self, ledger: int, entry: int) -> bytes | None:
        try:
            return await self.reading.entry(ledger, entry)
        except (DirectoryRefused, FileNotFoundError) as error:
            self.stop(error)
            raise BookieAway(f"this bookie has stopped: {error}") from None
        except (OSError, ValueError) as error:
            raise BookieAway(f"entry {entry} of ledger {ledger}: {error}") from None

    async def watch(self, ledger: int, confirmed: int, wait_s: float) -> int:
        """Return the highest entry known to be confirmed, as soon as it is above `confirmed`.

        It returns the present value after `wait_s` seconds, or when the ledger is fenced here.
        Raises BookieOverloaded, BookieAway.
        """
        self.journal.refuse()
        if self.store.index.find_confirmed(ledger) <= confirmed:
            await self._watches.wait(ledger, confirmed, wait_s)
        return self.store.index.find_confirmed(ledger)

    async def tell(self, ledger: int, term: int, confirmed: int) -> None:
        """Store the last confirmed entry, although no head of a later entry names it yet.

        The value is kept in memory, for ledgers with entries here. A lower term than the fence
        changes nothing. Raises BookieAway.
        """
        self.journal.refuse()
        if term >= self.store.term_of(ledger):
            self.store.tell(ledger, confirmed)

    # -- damage

    def suspect(self, ledger: int, entry: int) -> None:
        """Handle a report of a caller that a replica here is damaged or missing.

        The next read of the entry uses the disk. Raises BookieAway.
        """
        self.journal.refuse()
        if not self.store.is_forgotten(ledger):
            self._cache.drop(ledger, entry)
            self.suspects.put(ledger, entry)

    def has(self, ledger: int, entry: int) -> bool:
        """Whether there is a replica of an entry, damaged or not."""
        return self.store.index.find(ledger, entry) != 0

    def where(self, ledger: int, entry: int) -> tuple[str, int]:
        """Return the file and the offset of an entry; the directory and 0 if there is none."""
        place = self.store.index.find(ledger, entry)
        if not place:
            return self.directory.path, 0
        return self.directory.file(segment_name(segment_of(place))), offset_of(place)

    async def is_damaged(self, ledger: int, entry: int) -> bool:
        """Whether the replica of an entry on this bookie's disk is damaged. False if the bookie has
        none. Raises BookieError."""
        self._cache.drop(ledger, entry)
        return self.has(ledger, entry) and await self._entry(ledger, entry) is None

    def begin_repair(self, ledger: int, entries: Iterable[int]) -> set[int]:
        """Mark the segments with the old replicas of these entries, and return them.

        Call this before new replicas are written, and `end_repair` with the result after that. The
        next collections empty and remove the segments.
        """
        places = (self.store.index.find(ledger, entry) for entry in entries)
        segments = {segment_of(place) for place in places if place}
        for segment in segments:
            self.collection.wear_out(segment)
        return segments

    def end_repair(self, segments: Iterable[int]) -> None:
        """Record that the new replicas of a repair are stored. `segments`: from `begin_repair`."""
        self.collection.on_repaired(segments)

    def segments(self) -> list[int]:
        """Return the numbers of all segments that have frames, in order."""
        return sorted(self.store.ends)

    async def check(self, segment: int) -> SegmentCheck:
        """Begin to check a segment. Raises DirectoryRefused, OSError, BookieError."""
        self.journal.refuse()
        thread = self.threads.read
        file = await on(thread, self.directory.open_segment, segment)
        return SegmentCheck(self.directory, segment, file, self.store, thread)

    @property
    def waiting(self) -> tuple[int, int]:
        """The bytes of entries that wait for a sync, and the number of disk reads in flight."""
        return self.journal.unsynced_bytes, self.reading.waiting

    async def collect(
        self, is_gone: IsGone, oldest: int = 0, is_elsewhere: IsElsewhere = here_alone
    ) -> Collected:
        """Collect once: forget deleted ledgers, drop entries that are only needed elsewhere,
        compact segments, and remove files.

        Args:
            is_gone: True only if the metadata prove, by a read of this one ledger, that it was
                deleted. An error ends the round before anything was forgotten.
            oldest: no ledger below this one exists any more.
            is_elsewhere: True only if the metadata prove, by a read of this one ledger, that it is
                closed and that none of its entries is needed here.

        A call while another one is running does nothing. Raises BookieOverloaded, BookieReadOnly,
        BookieAway.
        """
        self.journal.refuse()
        try:
            return await self.collection.round(is_gone, oldest, is_elsewhere)
        except DiskFull as error:
            self.on_refused(error)
            raise BookieReadOnly(f"the bookie could not free space: {error}") from None
        except OSError as error:
            self.stop(error)
            raise BookieAway(f"this bookie has stopped: {error}") from None

    # -- state

    @property
    def state(self) -> BookieState:
        if self.journal.failure is not None or self._is_closed:
            return BookieState.STOPPED
        is_full = self._room.is_full or self.store.state.doubt_below == DOUBT_ALL
        return BookieState.READ_ONLY if is_full else BookieState.WRITABLE

    @property
    def free_bytes(self) -> int:
        """The free bytes of the disk, as they were seen last."""
        return self._room.free_bytes

    @property
    def high_water(self) -> HighWater:
        """The progress of the bookie, which the metadata store and return at the next start."""
        return HighWater(self.boot, self.journal.sequence)

    def figures(self) -> Figures:
        """Return the numbers of the bookie."""
        store, failure = self.store, self.journal.failure
        return Figures(
            state=self.state,
            reason="" if failure is None else str(failure),
            high_water=self.high_water,
            ledgers=len(store.index.ledgers),
            segments=len(store.ends),
            used_bytes=sum(store.ends.values()),
            live_bytes=store.live_bytes(),
            free_bytes=self._room.free_bytes,
            unsynced_bytes=self.journal.unsynced_bytes,
            cache_bytes=self._cache.size_bytes,
            watches=len(self._watches),
            fences=len(store.state.fences),
            doubt_below=store.state.doubt_below,
            damaged=self._damaged + self.reading.damaged,
            scanned=self.scanned,
            opened_s=self.opened_s,
        )

    def stop(self, error: Exception) -> None:
        """Stop for good: acknowledge and answer nothing more."""
        self.journal.stop(error)

    def on_failed(self, error: Exception) -> None:
        """Handle that the journal has stopped: log it, and fail all waiting callers."""
        log.error("%s: bookie %s has stopped: %s", self.directory.path, self.name, error)
        self._watches.end(BookieAway(f"this bookie has stopped: {error}"))

    def free(self, free_bytes: int) -> None:
        """Record the free bytes of the disk."""
        if not self._room.see(free_bytes):
            return
        path = self.directory.path
        if self._room.is_full:
            log.warning("%s: the bookie is read-only: %s", path, self._why_full())
        else:
            log.info("%s: the bookie is writable again: %d bytes are free", path, free_bytes)

    def on_refused(self, error: DiskFull) -> None:
        """Handle a write that found no room.

        Quotas and limits of files do not show in the free bytes.
        """
        if error.errno == errno.ENOSPC:
            self.free(0)
        elif self._room.refuse(str(error)):
            log.warning("%s: the bookie is read-only: %s", self.directory.path, self._why_full())

    def why_read_only(self) -> str:
        """Return why the bookie refuses entries, or "" if it accepts them."""
        if self.state is not BookieState.READ_ONLY:
            return ""
        if not self._room.is_full:
            return f"{self.directory.path}: it is unknown which entries and fences this bookie had"
        return f"{self.directory.path}: the disk is full: {self._why_full()}; free space there"

    def _why_full(self) -> str:
        if self._room.refusal:
            return f"a write was refused: {self._room.refusal}"
        return (
            f"{self._room.free_bytes} bytes are free, reserve_bytes is {self.options.reserve_bytes}"
        )

    async def _watch_files(self) -> None:
        """Check the files and the free space until something is wrong."""
        while self.journal.failure is None:
            await asyncio.sleep(self.options.watch_s)
            try:
                missing, free_bytes = await self.threads.commit.run(look_at, self.directory)
            except OSError as error:
                self.stop(error)
                return
            if missing:
                self.stop(
                    make_refused(missing[0], 0, "the file was removed while it was in use", ADVICE)
                )
            else:
                self.free(free_bytes)


def look_at(directory: Directory) -> tuple[list[str], int]:
    """Return the missing files, and the free bytes."""
    missing = directory.missing()
    return missing, 0 if missing else directory.free_bytes()
