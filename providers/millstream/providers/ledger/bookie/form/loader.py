"""Reading the frames and index files of a directory into the memory of a bookie.

Owns: `Loader`, `LoadedDirectory`. Not: finding and opening files (`startup`). Invariants: an
acknowledged entry is in the index, or its ledger is in doubt. Only a last frame without a valid
frame after it may be dropped. The last frame of a segment without an index file may be in the
operating system's cache alone, since its writer may have crashed in the sync. Its entries are
returned, and are written again before any caller hears of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millstream.providers.ledger.protocol.entry import NOTHING, head_of

from .envelope import Newer, NotWhole
from .frame import JournalRecord, RecordKind
from .index import Index
from .sealed import Sealed
from .segment import place_of
from .state import DirectoryState, state_bytes, state_in
from .tail import SegmentTail
from .walk import Walk, Walked

__all__ = ["ANEW", "Doubt", "LoadedDirectory", "Loader", "is_same"]

ANEW = 0
"""Replaces the check of the previous frame, where frames were lost. The state that follows says
which ledgers are in doubt."""


class Doubt(NamedTuple):
    """Why missing entries may have been stored, and where this was noticed; segment 0: in the
    identity."""

    segment: int
    offset: int
    why: str

    def __str__(self) -> str:
        where = f"segment {self.segment}, offset {self.offset}: " if self.segment else ""
        return where + self.why


@dataclass(frozen=True, slots=True)
class LoadedDirectory:
    """The content of a directory.

    `sequence`, `check`: the frame after which the journal continues. `seen`: the highest sequence.
    `carried`: entries to be written again first. `unsealed`: index files to be written. `empty`:
    segments without a frame. `ends`: the used bytes of each segment. `doubts`: why missing entries
    may have been stored. `damaged`: the number of stored entries that cannot be read.
    """

    index: Index
    state: DirectoryState
    sequence: int
    check: int
    seen: int
    carried: tuple[JournalRecord, ...]
    unsealed: tuple[Sealed, ...]
    empty: tuple[int, ...]
    ends: dict[int, int]
    doubts: tuple[Doubt, ...]
    damaged: int


class PendingFrame(NamedTuple):
    """A frame of a segment without an index file, which is not accepted yet. It is the end of the
    journal if no frame follows."""

    tail: SegmentTail
    walked: Walked


class Loader:
    """Takes the segments of a directory in their order.

    Args:
        directory: the name of the directory.
        durable: a sequence that was certainly durable.
    """

    def __init__(self, directory: str, durable: int) -> None:
        self._directory = directory
        self._durable = durable
        self._index = Index()
        self._state = DirectoryState()
        self._sequence = self._seen = self._segment = 0
        self._has_gap = False
        self._check = ANEW
        self._pending: PendingFrame | None = None
        self._unsealed: list[Sealed] = []
        self._empty: list[int] = []
        self._ends: dict[int, int] = {}
        self._doubts: list[Doubt] = []
        self._unreadable: Doubt | None = None
        self._damaged = 0

    # -- segments

    def take_sealed(self, sealed: Sealed) -> None:
        """Take a segment with an index file."""
        self._begin(sealed.segment)
        if sealed.last < 0:
            self._empty.append(sealed.segment)
            return
        at = (sealed.segment, 0)
        self._meet(at, sealed.first, sealed.previous, is_new=True)
        for found in sealed.ledgers:
            rest = found.size_bytes
            for base, places in found.places():
                self._index.put_run(found.ledger, base, places, rest, found.confirmed)
                rest = 0
        self._state = sealed.state_of()
        self._sequence, self._check = sealed.last, sealed.check
        self._seen = max(self._seen, sealed.last)
        self._ends[sealed.segment] = sealed.end
        self._damaged += sealed.damaged

    def take_walk(self, segment: int, walk: Walk) -> None:
        """Take a segment without an index file."""
        self._begin(segment)
        tail = SegmentTail(segment)
        is_empty = True
        for walked in walk:
            if is_empty and self._is_worse(walked):
                continue
            at = (segment, walked.offset)
            self._meet(at, walked.front.sequence, walked.front.previous, is_new=is_empty)
            if walked.lost_before:
                self._doubt(at, "frames before this offset are damaged")
            self._pending = PendingFrame(tail, walked)
            self._seen = max(self._seen, walked.front.sequence)
            is_empty = False
        if walk.has_unreadable:
            self._unreadable = Doubt(segment, walk.end, "a sector cannot be read")
        if is_empty and walk.has_unreadable:
            self._unsealed.append(tail.seal(self._directory, state_bytes(self._state)))
        elif is_empty:
            self._empty.append(segment)

    def finish(self) -> LoadedDirectory:
        """Return the content, after all segments were taken."""
        carried = self._end_pending()
        if self._unreadable is not None:
            self._doubts.append(self._unreadable)
        if self._seen < self._durable:
            text = f"the journal ends at frame {self._seen}, but frame {self._durable} was durable"
            self._doubt((0, 0), text)
        for ledger in [one for one in self._index.ledgers if one in self._state.forgotten]:
            self._index.drop(ledger)
        return LoadedDirectory(
            self._index,
            self._state,
            self._sequence,
            self._check,
            self._seen,
            carried,
            tuple(self._unsealed),
            tuple(self._empty),
            self._ends,
            tuple(self._doubts),
            self._damaged,
        )

    # -- frames

    def _begin(self, segment: int) -> None:
        """Begin a segment. After a removed segment, frames may be missing without damage."""
        self._has_gap = self._has_gap or segment != self._segment + 1
        self._segment = segment

    def _is_worse(self, walked: Walked) -> bool:
        """Whether this is a torn copy of the last frame, of which there is a whole copy."""
        return self._pending is not None and (
            is_same(self._pending.walked, walked.front.sequence, walked.front.previous)
            and bool(walked.bad)
            and not self._pending.walked.bad
        )

    def _meet(self, at: tuple[int, int], sequence: int, previous: int, is_new: bool) -> None:
        """Decide about the pending frame, because another frame follows.

        The following frame may be the first of a segment.
        """
        pending = self._pending
        if pending is not None:
            if not (is_new and is_same(pending.walked, sequence, previous)):
                self._believe(pending)
            self._pending = None
            if is_new:
                self._seal(pending.tail)
        if (sequence - 1, previous) == (self._sequence, self._check):
            self._unreadable = None  # so there was no frame
        elif not (is_new and previous == ANEW) and not (
            self._has_gap and sequence > self._sequence
        ):
            self._doubt(at, f"frame {sequence} does not follow frame {self._sequence}")
        self._has_gap = False

    def _end_pending(self) -> tuple[JournalRecord, ...]:
        """Decide about the last frame, which no frame follows.

        It is torn, or its entries must be written again.
        """
        if self._pending is None:
            return ()
        tail, walked = self._pending
        front = walked.front
        if walked.bad and front.sequence > self._durable:
            self._seen = self._sequence
            self._seal(tail)
            return ()
        if walked.bad:
            self._believe(self._pending)
            self._seal(tail)
            return ()
        self._seal(tail)
        for row, body in zip(front.rows, walked.bodies, strict=True):
            if row.kind == RecordKind.STATE:
                self._state = state_in(body)
            self._state.apply(row)
        return tuple(
            JournalRecord(row.kind, row.ledger, row.entry, body)
            for row, body in zip(front.rows, walked.bodies, strict=True)
            if row.kind == RecordKind.ENTRY
        )

    def _seal(self, tail: SegmentTail) -> None:
        """Accept no more frames of this segment."""
        if tail.last >= 0:
            self._unsealed.append(tail.seal(self._directory, state_bytes(self._state)))
            self._ends[tail.segment] = tail.end
        else:
            self._empty.append(tail.segment)

    def _believe(self, pending: PendingFrame) -> None:
        """Accept a frame as a part of the journal."""
        tail, walked = pending
        front = walked.front
        tail.grow(front.sequence, front.previous, front.check, walked.offset + front.length)
        tail.damaged += len(walked.bad)
        self._damaged += len(walked.bad)
        self._sequence, self._check = front.sequence, front.check
        for at in range(len(front.rows)):
            self._apply(pending, at)

    def _apply(self, pending: PendingFrame, at: int) -> None:
        tail, walked = pending
        row, body = walked.front.rows[at], walked.bodies[at]
        self._state.apply(row)
        if row.kind == RecordKind.STATE:
            self._replace_state(pending, body)
        elif row.kind == RecordKind.ENTRY:
            confirmed = NOTHING if at in walked.bad else head_of(body).confirmed
            place = place_of(tail.segment, walked.offset + row.start)
            for index in (tail.index, self._index):
                index.put(row.ledger, row.entry, place, row.size, confirmed)

    def _replace_state(self, pending: PendingFrame, body: bytes) -> None:
        try:
            self._state = state_in(body)
        except (NotWhole, Newer) as error:
            at = (pending.tail.segment, pending.walked.offset)
            sequence = pending.walked.front.sequence
            self._doubt(at, f"the state in frame {sequence} is damaged: {error}")

    def _doubt(self, at: tuple[int, int], why: str) -> None:
        self._doubts.append(Doubt(*at, why))


def is_same(walked: Walked, sequence: int, previous: int) -> bool:
    """Whether two frames have the same place in the journal."""
    return (walked.front.sequence, walked.front.previous) == (sequence, previous)
