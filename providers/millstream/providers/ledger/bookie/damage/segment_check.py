"""Checking the entries of one segment of a running bookie, frame by frame.

Owns: `SegmentCheck`, `Checked`. Not: when and how fast (`scrubbing`). Invariants: every byte comes
from the file and none from the cache. The check judges only entries that the index places in this
segment, so frames that are being written and old copies of moved entries do not count. One frame is
in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, ParamSpec, TypeVar

from millstream.providers.ledger.bookie.directory import Directory
from millstream.providers.ledger.bookie.entry_reader import read_alone
from millstream.providers.ledger.bookie.form.segment import (
    FRAMES_START,
    offset_of,
    place_of,
    seed_of,
)
from millstream.providers.ledger.bookie.form.walk import Walk, Walked, is_entry
from millstream.providers.ledger.bookie.store import Store
from millstream.providers.ledger.protocol.errors import BookieAway, BookieOverloaded
from millstream.runtime.extending import DiskFile, DiskThread

__all__ = ["Checked", "SegmentCheck", "on"]

P = ParamSpec("P")
T = TypeVar("T")

Place = tuple[int, int, int]
"""The ledger, the number and the place of an entry."""
PLACES_AT_ONCE = 64
"""The number of entries of a lost frame that one job of the disk thread reads."""


class Checked(NamedTuple):
    """The result of one step, which read `size_bytes` bytes up to `offset`. `damaged`: the entries,
    by ledger and number, that fail their check."""

    offset: int
    size_bytes: int
    damaged: tuple[tuple[int, int], ...] = ()


class SegmentCheck:
    """Checks one segment; made by `Bookie.check`, and closed by its caller.

    Attributes: `is_faulty`: a frame or an entry of the segment was damaged.
    """

    def __init__(
        self, directory: Directory, segment: int, file: DiskFile, store: Store, thread: DiskThread
    ) -> None:
        self.is_faulty = False
        self._segment = segment
        self._file = file
        self._store = store
        self._thread = thread
        # later frames are checked by the next pass
        self._end = store.ends.get(segment, FRAMES_START)
        self._frames = iter(Walk(file, seed_of(directory.identity.directory, segment)))
        self._at = FRAMES_START
        self._lost: list[range] = []  # offsets without a whole frame
        # of entries at these offsets; None: not walked yet
        self._places: Iterator[Place] | None = None

    async def step(self) -> Checked | None:
        """Read and check the next frame.

        Return None at the end of the segment. Raises OSError, BookieAway, and BookieOverloaded if
        too many reads wait; try again then.
        """
        if self._places is None:
            walked = await on(self._thread, next, self._frames, None)
            if walked is not None and walked.offset < self._end:
                return self._judge(walked)
            self._places = iter(self._list_lost_places())
        return await self._check_lost(self._places)

    def _judge(self, walked: Walked) -> Checked:
        if walked.offset > self._at:
            self._lost.append(range(self._at, walked.offset))
        self._at = walked.offset + walked.front.length
        bad = [walked.front.rows[at] for at in walked.bad]
        damaged = [
            (row.ledger, row.entry)
            for row in bad
            if self._is_here(row.ledger, row.entry, walked.offset + row.start)
        ]
        self.is_faulty = self.is_faulty or bool(bad)
        return Checked(self._at, walked.front.length, tuple(damaged))

    def _is_here(self, ledger: int, entry: int, offset: int) -> bool:
        """Whether the bookie would read the entry at this place."""
        return self._store.index.find(ledger, entry) == place_of(self._segment, offset)

    def _list_lost_places(self) -> list[Place]:
        """Return the entries whose frames are damaged, once the whole segment is walked."""
        if self._at < self._end:
            self._lost.append(range(self._at, self._end))
        if not self._lost:
            return []
        self.is_faulty = True
        found = self._store.index.entries_in(self._segment)
        return [one for one in found if any(offset_of(one[2]) in gap for gap in self._lost)]

    async def _check_lost(self, places: Iterator[Place]) -> Checked | None:
        """Read the next entries one by one, because their frames are damaged. None: all are
        read."""
        part = list(islice(places, PLACES_AT_ONCE))
        if not part:
            return None
        size_bytes, bad = await on(self._thread, read_each, self._file, part)
        damaged = [
            (ledger, entry) for ledger, entry, place in bad if self._has(ledger, entry, place)
        ]
        return Checked(self._end, size_bytes, tuple(damaged))

    def _has(self, ledger: int, entry: int, place: int) -> bool:
        return self._store.index.find(ledger, entry) == place

    def close(self) -> None:
        """Close the file."""
        self._file.close()


async def on(thread: DiskThread, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread of a bookie that may stop. Raises BookieOverloaded, BookieAway,
    and errors of `fn`."""
    try:
        job = thread.run(fn, *args, **kwargs)
    except BlockingIOError as error:
        raise BookieOverloaded(f"too many reads wait: {error}") from None
    except ValueError as error:
        raise BookieAway(f"this bookie has stopped: {error}") from None
    return await job


def read_each(file: DiskFile, places: list[Place]) -> tuple[int, list[Place]]:
    """Read entries one by one. Returns the bytes of all, and the entries that fail their check."""
    size_bytes, bad = 0, list[Place]()
    for ledger, entry, place in places:
        body = read_alone(file, offset_of(place))
        size_bytes += len(body or b"")
        if body is None or not is_entry(ledger, entry, body):
            bad.append((ledger, entry, place))
    return size_bytes, bad
