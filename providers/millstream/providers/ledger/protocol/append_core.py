"""The decisions of a ledger's writer: where entries go, when they are confirmed, which bookies
change.

Owns: `AppendCore` and its actions. Not: sending, choosing bookies, storing the record (`handle`).
The protocol is that of BookKeeper.

Invariants:

- Entries are confirmed in order. An entry is confirmed when it and all entries before it are on an
  ack quorum of the bookies that the stored record names.
- While bookies are being changed, no entry is confirmed, so the first entry of the new fragment
  stays valid. One synchronous step drops the acknowledgements of replaced bookies, sends entries
  again and confirms.
- An acknowledgement counts for the bookie that was asked, and not for a later bookie of the same
  place.
- The unacknowledged bytes of one place have a limit. A place above the limit has failed.
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
    """Send entries to the bookie of a place. The answer must name `change`, too."""

    place: int
    bookie: str
    change: int
    entries: tuple[int, ...]


class Confirm(NamedTuple):
    """Every entry up to and including this one is confirmed."""

    upto: int


class Change(NamedTuple):
    """These places need other bookies from an entry on: {place: the bookie that failed}."""

    first: int
    places: Mapping[int, str]


class FailAppends(NamedTuple):
    """No more entries are appended. Unconfirmed entries may or may not be in the ledger."""

    error: LedgerError


Action = Send | Confirm | Change | FailAppends


class PlaceState(Enum):
    """The state of a place's bookie, as the writer knows it."""

    GOOD = "good"
    AWAY = "away"  # it does not answer; the others may suffice
    FULL = "full"  # it refuses entries: replace it when there is another


class EnsemblePlace:
    """One place of the ensemble: its bookie, the change since which it has the place, and its
    unacknowledged bytes."""

    __slots__ = ("bookie", "owed_bytes", "since", "state")

    def __init__(self, bookie: str, since: int) -> None:
        self.bookie = bookie
        self.since = since
        self.state = PlaceState.GOOD
        self.owed_bytes = 0


class PendingEntry:
    """An entry that is not yet on all of its places. `acks` and `owed` are bits of places."""

    __slots__ = ("acks", "owed", "packed", "places")

    def __init__(self, packed: bytes, places: tuple[int, ...]) -> None:
        self.packed = packed
        self.places = places
        self.acks = self.owed = 0


class AppendCore:
    """The core of one writer.

    Args:
        record: the ledger as it is stored, open in this writer's term or under its recovery.
        owed_bytes_max: the bytes that may be sent to one bookie without an acknowledgement.
        confirmed: the last confirmed entry; a new ledger has none.
        length: the payload bytes up to that entry.
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
        self.are_all_good = True  # every bookie answers
        self._write_sets = [self.quorum.write_set(at) for at in range(self.quorum.ensemble)]
        self._pending: dict[int, PendingEntry] = {}  # by entry, in order
        self._short: int | None = None  # the first entry that will never have all of its replicas
        # changes that replaced bookies; attempts without a substitute do not count
        self._change = 0
        self._is_changing = False

    # --- questions ---

    @property
    def next_entry(self) -> int:
        """The number of the next entry."""
        return self._next

    @property
    def complete(self) -> int:
        """Every entry up to this one is on all of its places."""
        known = min(next(iter(self._pending), self._next) - 1, self.confirmed)
        return known if self._short is None else min(known, self._short - 1)

    @property
    def is_changing(self) -> bool:
        return self._is_changing

    def bookies(self) -> tuple[str, ...]:
        """Return the ensemble, by place."""
        return tuple(place.bookie for place in self._places)

    def away(self) -> list[int]:
        """Return the places whose bookie does not answer or is full."""
        return [at for at, p in enumerate(self._places) if p.state is not PlaceState.GOOD]

    def find_packed(self, entry: int) -> bytes | None:
        """Return an entry that may still have to be sent, or None if no place needs the entry."""
        pending = self._pending.get(entry)
        return None if pending is None else pending.packed

    # --- events ---

    def append(self, payload: bytes) -> list[Action]:
        """Append a payload as the next entry. Its number was `next_entry`."""
        length = self._length + len(payload)
        head = EntryHeader(
            self.ledger, self._next, self.confirmed, self.complete, length, len(payload)
        )
        return self.append_packed(pack(head, payload), length)

    def append_packed(self, packed: bytes, length: int) -> list[Action]:
        """Append an entry that is packed already, as a recovery does when it writes an entry
        back."""
        assert self.failed is None, self.failed
        entry, self._next, self._length = self._next, self._next + 1, length
        places = self._write_sets[entry % self.quorum.ensemble]
        self._pending[entry] = PendingEntry(packed, places)
        return [*self._send(entry), *self._judge()]

    def on_acknowledged(self, place: int, change: int, entries: tuple[int, ...]) -> list[Action]:
        """Handle that the bookie that had the place at `change` has these entries on disk."""
        if self.failed is not None or change < self._places[place].since:
            return []
        for entry in entries:
            self._settle(entry, place, has_it=True)
        return self._confirm()

    def on_unanswered(self, place: int, change: int, state: PlaceState) -> list[Action]:
        """Handle that the bookie that had the place at `change` failed a request."""
        if self.failed is not None or change < self._places[place].since:
            return []
        self._gave_up(place, state)
        return self._judge()

    def on_returned(self, place: int) -> list[Action]:
        """Handle that the bookie of a place answers again: send it all unconfirmed entries."""
        if self.failed is not None or self._places[place].state is PlaceState.GOOD:
            return []
        self._places[place].state = PlaceState.GOOD
        self.are_all_good = not self.away()
        return list(self._send_again([place]))

    def on_changed(self, instead: Mapping[int, str]) -> list[Action]:
        """End a change of bookies.

        Args:
            instead: the new bookies by place, which the stored record has from entry `confirmed +
                1` on. Acknowledgements of the replaced bookies do not count any more. Empty: there
                was no other bookie, and the record is unchanged.
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
        """Append no more entries: the ledger is closed, was taken over, or waited for too long."""
        if self.failed is not None:
            return []
        self.failed = error
        known = self.complete
        self._short = None if known == self.confirmed else known + 1
        self._pending.clear()
        return [FailAppends(error)]

    def close(self) -> list[Action]:
        """Append no more entries, because the writer closes the ledger after the last confirmed
        entry."""
        text = f"ledger {self.ledger} was closed after entry {self.confirmed}"
        return self.stop(LedgerClosed(text))

    def try_change(self) -> list[Action]:
        """Replace bookies that do not answer, if necessary, because others may be available now."""
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
        """Send all unconfirmed entries to places whose bookie is new or back, in one request
        each."""
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
        """Record that the bookie of a place has an entry, or that the bookie has failed."""
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
        """Forget a confirmed entry that no place owes any more. It may have too few replicas."""
        pending = self._pending.pop(entry)
        # an entry with a higher number may have come first
        if pending.acks.bit_count() < self.quorum.write:
            self._short = entry if self._short is None else min(entry, self._short)

    def _gave_up(self, at: int, state: PlaceState) -> None:
        """Expect nothing more of a place. Its earlier acknowledgements still count."""
        self._places[at].state = state
        self.are_all_good = False
        for entry in [e for e, pending in self._pending.items() if pending.owed >> at & 1]:
            self._settle(entry, at, has_it=False)

    def _judge(self) -> list[Action]:
        """Ask for other bookies, unless an ack quorum of every write set still answers."""
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
