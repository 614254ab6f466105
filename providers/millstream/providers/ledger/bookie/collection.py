"""Deletion: entries of deleted ledgers are dropped, and segments that nobody needs are removed.

Owns: `Collection`, `Collected`. As in BookKeeper, bookies find out by themselves which ledgers were
deleted.

Invariants:

- A ledger is dropped only after the metadata have proved that it was deleted. Its tombstone is
  durable before any of its entries is dropped.
- If other bookies have the entries of a ledger, its entries are dropped, unless an entry was added
  after the metadata were asked. From then on no entry of this ledger is denied.
- A moved entry is durable at its new place before the old one is removed.
- A segment with a damaged entry stays, since otherwise the knowledge of that entry would be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from millstream.providers.ledger.protocol.errors import BookieReadOnly
from millstream.runtime.extending import DiskFile, DiskThread

from .directory import Directory
from .entry_reader import SegmentFiles, read_alone
from .form.frame import JournalRecord, RecordKind
from .form.segment import offset_of
from .form.walk import is_entry
from .journal import Journal
from .options import BookieOptions
from .store import Store

log = logging.getLogger("millstream.bookie")

__all__ = ["Collected", "Collection", "IsElsewhere", "IsGone", "here_alone"]

MOVED_BYTES = 1 << 20
"""How many bytes are moved at a time. Adds of callers come in between."""

TOMBSTONES_MAX = 1_024
"""The largest number of tombstones in one frame."""

IsGone = Callable[[int], Awaitable[bool]]
"""Whether the metadata prove that a ledger was deleted, by a read of the ledger's own row."""

IsElsewhere = Callable[[int], Awaitable[bool]]
"""Whether the row of a ledger proves that the ledger is closed and not needed here."""


async def here_alone(ledger: int) -> bool:
    """Return False: where one bookie has all entries, none is elsewhere."""
    return False


class Collected(NamedTuple):
    """The work of one round.

    `ledgers` is the number of ledgers that were forgotten or dropped, and `segments` the number of
    removed files.
    """

    ledgers: int = 0
    segments: int = 0
    moved_bytes: int = 0


class Collection:
    """Removes deleted ledgers and unneeded segments from one directory, one round at a time.

    Args:
        threads: the thread that removes files, and the one that reads entries.
    """

    def __init__(
        self,
        directory: Directory,
        options: BookieOptions,
        store: Store,
        journal: Journal,
        files: SegmentFiles,
        threads: tuple[DiskThread, DiskThread],
    ) -> None:
        self._directory = directory
        self._options = options
        self._store = store
        self._journal = journal
        self._files = files
        self._commit, self._read = threads
        self._damaged: set[int] = set()  # not compacted until some of their entries are repaired
        self._worn: set[int] = set()
        self._is_running = False

    def wear_out(self, segment: int) -> None:
        """Mark a damaged segment. Its readable entries are then moved, so that the file can be
        removed."""
        self._worn.add(segment)

    def on_repaired(self, segments: Iterable[int]) -> None:
        """Let the next round compact these segments again.

        Some of their damaged entries have good replicas in other bookies by now.
        """
        self._damaged.difference_update(segments)

    async def round(
        self, is_gone: IsGone, oldest: int = 0, is_elsewhere: IsElsewhere = here_alone
    ) -> Collected:
        """Forget deleted ledgers, drop entries that other bookies have, compact segments, and
        remove empty ones.

        Args:
            is_gone: called for every ledger here. An error ends the round before anything is
                forgotten.
            oldest: no ledger below this one exists anywhere, so one tombstone covers all of them.
            is_elsewhere: called for every ledger with entries here.

        Raises BookieAway, BookieOverloaded, BookieReadOnly, OSError.
        """
        if self._is_running:
            return Collected()
        self._is_running = True
        try:
            gone = [one for one in self._store.ledgers() if one < oldest or await is_gone(one)]
            await self._forget(gone, oldest)
            left = await self._leave(is_elsewhere)
            segments = await self._remove_empty()  # first, since moving entries takes room
            moved = await self._compact_sparse()
            return Collected(len(gone) + left, segments + await self._remove_empty(), moved)
        finally:
            self._is_running = False

    async def _forget(self, gone: Sequence[int], oldest: int) -> None:
        """Write tombstones. The store drops the entries when the tombstones are durable."""
        records = [JournalRecord(RecordKind.FORGET, one, one) for one in gone if one >= oldest]
        if oldest > 0 and not self._store.is_forgotten_below(oldest):
            records.insert(0, JournalRecord(RecordKind.FORGET, 0, oldest - 1))
        for at in range(0, len(records), TOMBSTONES_MAX):
            future = self._journal.append(records[at : at + TOMBSTONES_MAX], is_control=True)
            self._store.ask_forget(gone)
            await future

    async def _leave(self, is_elsewhere: IsElsewhere) -> int:
        """Drop entries that other bookies have, and return the number of ledgers.

        A record is written first. From then on this bookie does not answer that it never had such
        an entry.
        """
        store, found = self._store, dict[int, int]()
        for ledger in sorted(store.index.ledgers):
            puts = store.index.puts(ledger)  # before it is asked: entries that arrive later stay
            if not store.is_forgotten(ledger) and await is_elsewhere(ledger):
                found[ledger] = puts
        new = [
            JournalRecord(RecordKind.LEAVE, one, 0) for one in found if one not in store.state.left
        ]
        for at in range(0, len(new), TOMBSTONES_MAX):
            await self._journal.append(new[at : at + TOMBSTONES_MAX], is_control=True)
        return sum(store.leave(ledger, puts) for ledger, puts in found.items())

    # -- segments

    async def _compact_sparse(self) -> int:
        """Compact segments as far as there is room; return the number of moved bytes."""
        moved = 0
        try:
            if self._journal.segment in self._worn:
                await self._journal.roll()
            for segment in self._sparse():
                moved += await self._compact(segment)
        except BookieReadOnly as error:
            log.info("the compaction of segments is postponed: %s", error)
        return moved

    def _old(self) -> list[int]:
        """Return the segments that are no longer written."""
        return [one for one in sorted(self._store.ends) if one < self._journal.segment]

    def _sparse(self) -> list[int]:
        """Return the segments that have damage, or too few needed bytes for their size."""
        ratio, least = self._options.live_ratio_min, self._options.allocate_bytes
        found = []
        for segment in self._old():
            use = self._store.index.segments.get(segment)
            limit = ratio * max(least, self._store.ends[segment])
            is_sparse = use is not None and use.entries > 0 and use.size_bytes < limit
            is_worn = use is not None and use.entries > 0 and segment in self._worn
            if (is_sparse or is_worn) and segment not in self._damaged:
                found.append(segment)
        return found

    async def _compact(self, segment: int) -> int:
        """Write the needed entries of a segment again, by ledger, and return their bytes."""
        places = list(self._store.index.entries_in(segment))
        file, at, moved = self._files.get(segment), 0, 0
        while at < len(places):
            part, is_damaged = await self._read.run(read_again, file, places[at:])
            at += len(part)
            if is_damaged:
                self._damaged.add(segment)
            records = [record for record, place in part if record and self._is_at(record, place)]
            if records:
                await self._journal.append(records)
            moved += sum(len(record.body) for record in records)
        return moved

    def _is_at(self, record: JournalRecord, place: int) -> bool:
        """Whether an entry has not been moved or dropped in the meantime."""
        return self._store.index.find(record.ledger, record.entry) == place

    async def _remove_empty(self) -> int:
        """Remove segments without entries, and return their number.

        The newest of them stays until the present segment has a frame.
        """
        empty = [one for one in self._old() if self._is_empty(one)]
        if not empty or not self._journal.has_frames:
            return 0
        await self._commit.run(self._directory.remove, empty)
        for segment in empty:
            self._files.drop(segment)
            self._store.on_removed(segment)
            self._worn.discard(segment)
            self._damaged.discard(segment)
        return len(empty)

    def _is_empty(self, segment: int) -> bool:
        use = self._store.index.segments.get(segment)
        return use is None or use.entries == 0


def read_again(
    file: DiskFile, places: Sequence[tuple[int, int, int]]
) -> tuple[list[tuple[JournalRecord | None, int]], bool]:
    """Read at most MOVED_BYTES of entries, or one larger entry.

    Returns a list of entries, each with its place, and whether any entry was damaged. The list has
    None in place of a damaged entry.
    """
    found: list[tuple[JournalRecord | None, int]] = []
    size = 0
    for ledger, entry, place in places:
        body = read_alone(file, offset_of(place))
        size += len(body or b"")
        if found and size > MOVED_BYTES:
            break
        is_right = body is not None and is_entry(ledger, entry, body)
        found.append(
            (
                JournalRecord(RecordKind.ENTRY, ledger, entry, body or b"") if is_right else None,
                place,
            )
        )
    return found, any(record is None for record, _ in found)
