"""The writer of one ledger, as decisions: what goes where, what is confirmed, who is replaced.

Owns: `AppendCore` and its actions. Not: sending, choosing bookies, storing the record (`handle`).
Ideas: spec/ledger.md 2.2 to 2.7, 4.40 (what is complete), 10.5.6 (one synchronous step).
Invariants:
- entries are confirmed in order, each when it and all before it are on an ack quorum of the places
  that the stored record names (I7);
- while bookies are being changed nothing is confirmed, so the first entry of the new fragment
  stands (I6); dropping the acknowledgements of the replaced, sending again and confirming is one
  step;
- an acknowledgement counts for the bookie that it was asked of, not for a later one of its place;
- what one place owes is bounded: beyond that it has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from .entry import HEAD_BYTES, NOTHING, EntryHeader, pack
from .errors import LedgerClosed, LedgerError
from .record import LedgerRecord

__all__ = ["Action", "AppendCore", "Change", "Confirm", "FailAppends", "PlaceState", "Send"]


class Send(NamedTuple):
    """Send entries to the bookie of a place; answers name `change` too."""

    place: int
    bookie: str
    change: int
    entries: tuple[int, ...]


class Confirm(NamedTuple):
    """Everything up to and with this entry is confirmed."""

    upto: int


class Change(NamedTuple):
    """These places need other bookies from an entry on: {place: the bookie that failed}."""

    first: int
    places: Mapping[int, str]


class FailAppends(NamedTuple):
    """Nothing is appended any more; what is not confirmed may or may not be in the ledger."""

    error: LedgerError


Action = Send | Confirm | Change | FailAppends


class PlaceState(Enum):
    """What is known of the bookie of a place."""

    GOOD = "good"
    AWAY = "away"  # the others may do without it
    FULL = "full"  # it takes nothing more: it is replaced as soon as there is another


class EnsemblePlace:
    """One place of the ensemble: its bookie, since which change, and what it owes."""

    __slots__ = ("bookie", "owed_bytes", "since", "state")

    def __init__(self, bookie: str, since: int) -> None:
        self.bookie = bookie
        self.since = since
        self.state = PlaceState.GOOD
        self.owed_bytes = 0


class PendingEntry:
    """An entry that is not yet on all of its places; `acks`, `owed`: bits of places."""

    __slots__ = ("acks", "owed", "packed", "places")

    def __init__(self, packed: bytes, places: tuple[int, ...]) -> None:
        self.packed = packed
        self.places = places
        self.acks = self.owed = 0


class AppendCore:
    """The core of one writer.

    Args:
        record: the ledger as it is stored, open for this writer's term, or under its recovery.
        confirmed, length: where it goes on; a new ledger begins with nothing.
        owed_bytes_max: so much may be sent to a bookie and not acknowledged.
    """

    def __init__(
        self,
        record: LedgerRecord,
        owed_bytes_max: int,
        confirmed: int = NOTHING,
        length: int = 0,
    ) -> None:
        self.ledger = record.ledger
        self.quorum = record.quorum
        self.confirmed = confirmed
        self.confirmed_length = self._length = length
        self.failed: LedgerError | None = None
        self._owed_bytes_max = owed_bytes_max
        self._next = confirmed + 1
        self._places = [EnsemblePlace(bookie, 0) for bookie in record.fragments[-1].bookies]
        self.are_all_good = True  # no place is away
        self._write_sets = [self.quorum.write_set(at) for at in range(self.quorum.ensemble)]
        self._pending: dict[int, PendingEntry] = {}  # by entry, in order
        self._short: int | None = None  # the first entry that is without all its copies for good
        self._change = 0  # how often bookies were changed, not how often there were none
        self._is_changing = False

    # --- what is asked for ---

    @property
    def next_entry(self) -> int:
        """The number that the next entry gets."""
        return self._next

    @property
    def complete(self) -> int:
        """Up to here every entry is on all of its places."""
        known = min(next(iter(self._pending), self._next) - 1, self.confirmed)
        return known if self._short is None else min(known, self._short - 1)

    @property
    def is_changing(self) -> bool:
        return self._is_changing

    def bookies(self) -> tuple[str, ...]:
        """The ensemble, by place."""
        return tuple(place.bookie for place in self._places)

    def away(self) -> list[int]:
        """Places whose bookie does not answer, or is full."""
        return [at for at, p in enumerate(self._places) if p.state is not PlaceState.GOOD]

    def find_packed(self, entry: int) -> bytes | None:
        """An entry that may still have to be sent; None: nobody waits for it any more."""
        pending = self._pending.get(entry)
        return None if pending is None else pending.packed

    # --- events ---

    def append(self, payload: bytes) -> list[Action]:
        """A payload becomes the next entry; its number was `next_entry`."""
        length = self._length + len(payload)
        head = EntryHeader(
            self.ledger, self._next, self.confirmed, self.complete, length, len(payload)
        )
        return self.append_packed(pack(head, payload), length)

    def append_packed(self, packed: bytes, length: int) -> list[Action]:
        """An entry as it was packed before becomes the next one (a recovery writes it back)."""
        assert self.failed is None, self.failed
        entry, self._next, self._length = self._next, self._next + 1, length
        places = self._write_sets[entry % self.quorum.ensemble]
        self._pending[entry] = PendingEntry(packed, places)
        return [*self._send(entry), *self._judge()]

    def on_acknowledged(self, place: int, change: int, entries: tuple[int, ...]) -> list[Action]:
        """The bookie that had the place at `change` has these entries on disk."""
        if self.failed is not None or change < self._places[place].since:
            return []
        for entry in entries:
            self._settle(entry, place, has_it=True)
        return self._confirm()

    def on_unanswered(self, place: int, change: int, state: PlaceState) -> list[Action]:
        """The bookie that had the place at `change` did not do what was asked."""
        if self.failed is not None or change < self._places[place].since:
            return []
        self._gave_up(place, state)
        return self._judge()

    def on_returned(self, place: int) -> list[Action]:
        """The bookie of a place is there again: it gets what is not confirmed yet."""
        if self.failed is not None or self._places[place].state is PlaceState.GOOD:
            return []
        self._places[place].state = PlaceState.GOOD
        self.are_all_good = not self.away()
        return list(self._send_again([place]))

    def on_changed(self, instead: Mapping[int, str]) -> list[Action]:
        """The stored record has these bookies now, from `confirmed + 1` on; none: no others exist.

        What the replaced ones acknowledged does not count any more, from this step on.
        """
        assert self._is_changing
        self._is_changing = False
        if self.failed is not None:
            return []
        self._change += bool(instead)
        for place, bookie in instead.items():
            self._gave_up(place, PlaceState.AWAY)
            self._places[place] = EnsemblePlace(bookie, self._change)
        self.are_all_good = not self.away()
        for entry in range(self.confirmed + 1, self._next):
            for place in instead:
                self._pending[entry].acks &= ~(1 << place)
        again = self._judge() if instead else []
        return [*self._send_again(list(instead)), *again, *self._confirm()]

    def stop(self, error: LedgerError) -> list[Action]:
        """Nothing more is appended: it is closed, was taken over, or waited for too long."""
        if self.failed is not None:
            return []
        self.failed = error
        known = self.complete
        self._short = None if known == self.confirmed else known + 1
        self._pending.clear()
        return [FailAppends(error)]

    def close(self) -> list[Action]:
        """Its writer ends it behind what is confirmed."""
        text = f"ledger {self.ledger} was closed behind entry {self.confirmed}"
        return self.stop(LedgerClosed(text))

    def try_change(self) -> list[Action]:
        """There may be other bookies by now: replace those that do not answer, if need be."""
        return self._judge() if self.failed is None else []

    # --- decisions ---

    def _send(self, entry: int) -> list[Send]:
        pending, sends = self._pending[entry], list[Send]()
        for at in pending.places:
            place = self._places[at]
            if place.state is not PlaceState.GOOD:
                continue
            pending.owed |= 1 << at
            place.owed_bytes += len(pending.packed)
            sends.append(Send(at, place.bookie, self._change, (entry,)))
            if place.owed_bytes > self._owed_bytes_max:
                self._gave_up(at, PlaceState.AWAY)
        return sends

    def _send_again(self, places: list[int]) -> Iterator[Send]:
        """All that is not confirmed, to places whose bookie is new or back, each in one go."""
        for at in places:
            place, entries = self._places[at], list[int]()
            for entry in range(self.confirmed + 1, self._next):
                pending = self._pending[entry]
                if at in pending.places and not (pending.acks | pending.owed) >> at & 1:
                    pending.owed |= 1 << at
                    place.owed_bytes += len(pending.packed)
                    entries.append(entry)
            if entries:
                yield Send(at, place.bookie, self._change, tuple(entries))

    def _settle(self, entry: int, at: int, has_it: bool) -> None:
        """A place owes an entry no more: it has it, or is not expected to any more."""
        pending = self._pending.get(entry)
        if pending is None:
            return
        bit = 1 << at
        if pending.owed & bit:
            pending.owed &= ~bit
            self._places[at].owed_bytes -= len(pending.packed)
        if has_it:
            pending.acks |= bit
        if entry <= self.confirmed and not pending.owed:
            self._let_go(entry)

    def _let_go(self, entry: int) -> None:
        """Nobody owes a confirmed entry any more; it may have fewer copies than it should."""
        pending = self._pending.pop(entry)
        if pending.acks.bit_count() < self.quorum.write:  # a later one may have come before it
            self._short = entry if self._short is None else min(entry, self._short)

    def _gave_up(self, at: int, state: PlaceState) -> None:
        """Nothing is expected of a place any more; what it did acknowledge stays."""
        self._places[at].state = state
        self.are_all_good = False
        for entry in [e for e, pending in self._pending.items() if pending.owed >> at & 1]:
            self._settle(entry, at, has_it=False)

    def _judge(self) -> list[Action]:
        """Must bookies be changed? Not while an ack quorum of every write set still answers."""
        if self._is_changing or self.are_all_good:
            return []
        away = self.away()
        is_full = any(self._places[at].state is PlaceState.FULL for at in away)
        good = set(range(self.quorum.ensemble)) - set(away)
        writable = all(
            len(good.intersection(self.quorum.write_set(first))) >= self.quorum.ack
            for first in range(self.quorum.ensemble)
        )
        if writable and not is_full:
            return []
        self._is_changing = True
        return [Change(self.confirmed + 1, {at: self._places[at].bookie for at in away})]

    def _confirm(self) -> list[Action]:
        before = self.confirmed
        while not self._is_changing and self.failed is None:
            pending = self._pending.get(self.confirmed + 1)
            if pending is None or pending.acks.bit_count() < self.quorum.ack:
                break
            self.confirmed += 1
            self.confirmed_length += len(pending.packed) - HEAD_BYTES
            if not pending.owed:
                self._let_go(self.confirmed)
        return [Confirm(self.confirmed)] if self.confirmed > before else []
