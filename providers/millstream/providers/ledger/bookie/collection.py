"""What goes when: entries of ledgers that were deleted, and segments that nobody needs.

Owns: `Collection`, `Collected`. Idea: spec/ledger.md 4.18 (j), 5.5, 10.2.12.
Invariants: a ledger goes only after whoever was asked has proved that it was deleted, and leaves a
tombstone that is durable before anything of it is dropped; of one that others have, only what was
here before it was asked for is dropped, and nothing of it is denied from then on; an entry that is
moved is durable at its new place before the old one is removed; a segment with a damaged entry
stays, since without it nobody would know that the entry was there.
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
"""So many bytes are moved at once; what others add comes in between."""

TOMBSTONES_MAX = 1_024
"""Tombstones in one frame."""

IsGone = Callable[[int], Awaitable[bool]]
"""Does the metadata prove, by a read of this one ledger, that it was deleted?"""

IsElsewhere = Callable[[int], Awaitable[bool]]
"""Does the metadata prove so that a ledger has its end, and nobody looks for any of it here?"""


async def here_alone(ledger: int) -> bool:
    """Nobody copies entries from one bookie to another."""
    return False


class Collected(NamedTuple):
    """What one round did; `ledgers`, that were forgotten or left."""

    ledgers: int = 0
    segments: int = 0
    moved_bytes: int = 0


class Collection:
    """Collects in one directory; one round at a time.

    Args:
        commit, read: where files are removed, and where entries are read.
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
        self._damaged: set[int] = set()  # not compacted until something of them is repaired
        self._worn: set[int] = set()
        self._is_running = False

    def wear_out(self, segment: int) -> None:
        """A segment has damage: what can be read of it is moved, so that the file goes."""
        self._worn.add(segment)

    def on_repaired(self, segments: Iterable[int]) -> None:
        """Entries of these segments have good copies elsewhere: try again to move the rest."""
        self._damaged.difference_update(segments)

    async def round(
        self, is_gone: IsGone, oldest: int = 0, is_elsewhere: IsElsewhere = here_alone
    ) -> Collected:
        """Forget what was deleted, drop what others have, compact, and remove what is empty.

        Args:
            is_gone: asked of every ledger here; what it raises ends the round, which then has
                forgotten nothing.
            oldest: no ledger below it exists any more, wherever it was; so its tombstones are one.
            is_elsewhere: asked of every ledger that has entries here; the same.

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
        """Tombstones first; the store drops entries when they are durable."""
        records = [JournalRecord(RecordKind.FORGET, one, one) for one in gone if one >= oldest]
        if oldest > 0 and not self._store.is_forgotten_below(oldest):
            records.insert(0, JournalRecord(RecordKind.FORGET, 0, oldest - 1))
        for at in range(0, len(records), TOMBSTONES_MAX):
            future = self._journal.append(records[at : at + TOMBSTONES_MAX], is_control=True)
            self._store.ask_forget(gone)
            await future

    async def _leave(self, is_elsewhere: IsElsewhere) -> int:
        """Drop entries that others have: first it is written that none of them may be denied. How
        many ledgers that were."""
        store, found = self._store, dict[int, int]()
        for ledger in sorted(store.index.ledgers):
            puts = store.index.puts(ledger)  # before it is asked: what comes then stays
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
        """Compact as far as there is room; the bytes that were moved."""
        moved = 0
        try:
            if self._journal.segment in self._worn:
                await self._journal.roll()
            for segment in self._sparse():
                moved += await self._compact(segment)
        except BookieReadOnly as error:
            log.info("segments are compacted later: %s", error)
        return moved

    def _old(self) -> list[int]:
        """Segments that are not written any more."""
        return [one for one in sorted(self._store.ends) if one < self._journal.segment]

    def _sparse(self) -> list[int]:
        """Segments of which too little is wanted, beside what is allocated for each, or that have
        damage."""
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
        """Write what is wanted of a segment again, by ledger; returns its bytes."""
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
        """Has an entry not moved, or gone, meanwhile?"""
        return self._store.index.find(record.ledger, record.entry) == place

    async def _remove_empty(self) -> int:
        """Remove segments without entries, but the last one as long as the one that is written has
        no state; returns how many."""
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
    """Read entries, MOVED_BYTES or one of them: each with its place, None for a damaged one; and
    whether one was damaged."""
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
