"""The durable content of a bookie's directory.

Owns: `Store`: the index, fences and tombstones, and the state of segments. The journal tells it
which records became durable. Invariants: everything in the store is on disk. A requested fence
applies to later adds at once, and counts as durable only when its frame is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from millstream.providers.ledger.protocol.entry import head_of

from .form.frame import Frame, JournalRecord, RecordKind
from .form.index import Index
from .form.sealed import Sealed
from .form.segment import place_of
from .form.state import DirectoryState, state_bytes
from .form.tail import SegmentTail

__all__ = ["Store"]


class Store:
    """Entries, fences and tombstones of one directory.

    Args:
        name: the name of the directory.
        ends: the used bytes of each segment.
        changed: called with a ledger and the last confirmed entry that a new entry names; or with
            None, after a call of `tell`, a fence, or the deletion of the ledger.
    """

    def __init__(
        self,
        name: str,
        index: Index,
        state: DirectoryState,
        ends: dict[int, int],
        changed: Callable[[int, int | None], None],
    ) -> None:
        self.index = index
        self.state = state
        self.ends = ends
        self._name = name
        self._changed = changed
        self._tail: SegmentTail | None = None
        self._asked: dict[int, int] = {}
        self._forgetting: set[int] = set()

    # -- fences

    def term_of(self, ledger: int) -> int:
        """Return the fence of a ledger, or 0 if it has none. Adds below the fence are refused."""
        return max(self.state.term_of(ledger), self._asked.get(ledger, 0))

    def is_fenced(self, ledger: int, term: int) -> bool:
        """Whether a fence with this term, or a higher one, is durable."""
        return self.state.term_of(ledger) >= term

    def ask_fence(self, ledger: int, term: int) -> None:
        """Refuse lower terms from now on, because a fence is being written."""
        self._asked[ledger] = max(term, self._asked.get(ledger, 0))
        self._changed(ledger, None)

    def is_forgotten(self, ledger: int) -> bool:
        """Whether a ledger was deleted, or is being deleted."""
        return ledger in self._forgetting or ledger in self.state.forgotten

    def ask_forget(self, ledgers: Sequence[int]) -> None:
        """Record that tombstones of these ledgers are being written."""
        self._forgetting.update(ledgers)

    def is_forgotten_below(self, ledger: int) -> bool:
        """Whether every ledger below this one is forgotten."""
        first, last = next(iter(self.state.forgotten), (1, 0))
        return first == 0 and last >= ledger - 1

    def ledgers(self) -> list[int]:
        """Return all ledgers that are known here, sorted."""
        return sorted(self.index.ledgers.keys() | self.state.fences.keys() | self.state.left)

    def denies(self, ledger: int) -> bool:
        """Whether a missing entry of a ledger was certainly never here."""
        return ledger not in self._forgetting and self.state.denies(ledger)

    def leave(self, ledger: int, puts: int) -> bool:
        """Drop the entries of a ledger, which other bookies have, and return True.

        If `Index.puts` is no longer `puts`, an entry was added in the meantime. Then drop none, and
        return False. A start brings dropped entries back until they are removed from the disk.
        """
        assert ledger in self.state.left, ledger
        if self.index.puts(ledger) != puts:
            return False
        self.index.drop(ledger)
        return True

    def tell(self, ledger: int, confirmed: int) -> None:
        """Store in the index that an entry is confirmed, although no head of an entry says so yet.

        Watchers are woken even if the value is known already, because the ledger may be closed.
        """
        self.index.tell(ledger, confirmed)
        self._changed(ledger, None)

    # -- the journal

    def begin_segment(self, segment: int) -> bytes:
        """Handle the beginning of a segment, and return the state to write first."""
        self._tail = SegmentTail(segment)
        return state_bytes(self.state)

    def end_segment(self) -> Sealed | None:
        """Return the content of the index file of the segment that was begun last. None: it has no
        frames."""
        if self._tail is None or self._tail.last < 0:
            return None
        return self._tail.seal(self._name, state_bytes(self.state))

    def land(
        self,
        offset: int,
        frame: Frame,
        records: Sequence[JournalRecord],
        sequence: int,
        previous: int,
    ) -> None:
        """Handle that a frame of the segment that was begun last is durable."""
        tail = self._tail
        assert tail is not None
        tail.grow(sequence, previous, frame.check, offset + frame.length)
        self.ends[tail.segment] = tail.end
        for (kind, ledger, entry, body), start in zip(records, frame.starts, strict=True):
            if kind == RecordKind.ENTRY:
                self._put(tail, place_of(tail.segment, offset + start), ledger, entry, body)
            elif kind == RecordKind.FENCE:
                self._fence(ledger, entry)
            elif kind == RecordKind.FORGET:
                self._forget(tail, ledger, entry)
            elif kind == RecordKind.LEAVE:
                self.state.left.add(ledger)

    def _put(self, tail: SegmentTail, place: int, ledger: int, entry: int, body: bytes) -> None:
        if ledger in self.state.forgotten:
            return
        size, confirmed = len(body), head_of(body).confirmed
        before = self.index.find_confirmed(ledger)
        tail.index.put(ledger, entry, place, size, confirmed)
        self.index.put(ledger, entry, place, size, confirmed)
        if confirmed > before:
            self._changed(ledger, confirmed)

    def _fence(self, ledger: int, term: int) -> None:
        self.state.fence(ledger, term)
        if self._asked.get(ledger, term + 1) <= term:
            del self._asked[ledger]

    def _forget(self, tail: SegmentTail, first: int, last: int) -> None:
        self.state.forget(first, last)
        for ledger in within(self.index.ledgers, first, last):
            self.index.drop(ledger)
            tail.index.drop(ledger)
            self._changed(ledger, None)
        self._forgetting.difference_update(within(self._forgetting, first, last))
        for ledger in within(self._asked, first, last):
            del self._asked[ledger]

    # -- segments

    def live_bytes(self) -> int:
        return sum(use.size_bytes for use in self.index.segments.values())

    def on_removed(self, segment: int) -> None:
        """Forget a segment whose files were removed."""
        self.ends.pop(segment, None)
        self.index.segments.pop(segment, None)


def within(ledgers: Collection[int], first: int, last: int) -> list[int]:
    """Return the ledgers from `first` to `last`."""
    if last - first < len(ledgers):
        return [ledger for ledger in range(first, last + 1) if ledger in ledgers]
    return [ledger for ledger in ledgers if first <= ledger <= last]
