"""The decisions of a recovery, which closes a ledger whose writer may still live.

Owns: `RecoveryCore` and its actions. Not: asking bookies, storing the record (`handle`). The
protocol is BookKeeper's; its fences are terms here.

Invariants:

- No entry is read before so many bookies of the last fragment are fenced that no new entry can
  reach an ack quorum on the others. Reads fence, too, so the answer "absent" stays true.
- One replica that passes its check suffices to keep an entry. The ledger ends where `write - ack +
  1` fenced bookies of an entry's write set never acknowledged the entry. If neither can be shown
  for an entry, the attempt ends: a bookie that does not know proves nothing.
- A recovery never looks before the last fragment, whatever the bookies say.
- Each decision is made as soon as possible, without waiting for a bookie that hangs.
"""

from __future__ import annotations

from typing import NamedTuple

from .entry import NOTHING, unpack
from .errors import EntryDamaged, NoCopyLeft, NotRecoverable
from .found import Found, Missing
from .record import LedgerRecord

__all__ = ["Abort", "End", "Fence", "Keep", "Read", "RecoveryCore", "Step"]


class Fence(NamedTuple):
    """Fence the bookie of a place.

    A place is an index into the bookies of the last fragment.
    """

    place: int
    bookie: str


class Read(NamedTuple):
    """Ask the bookie of a place for the entries from `first` on."""

    place: int
    bookie: str
    first: int


class Keep(NamedTuple):
    """The next entry of the ledger, as it was packed. The driver writes the entry again."""

    entry: int
    packed: bytes
    length: int


class End(NamedTuple):
    """The ledger ends with this entry, once all kept entries are on their ack quorums."""

    last: int


class Abort(NamedTuple):
    """The end cannot be decided: see the error. NoCopyLeft does not change by itself. Otherwise try
    again when more bookies answer."""

    error: NotRecoverable


Step = Fence | Read | Keep | End | Abort


class RecoveryCore:
    """The core of one attempt, in the term of the record.

    The core asks the bookies that the record had when the attempt began. It does not ask a bookie
    that replaced another one while entries were written back.
    """

    def __init__(self, record: LedgerRecord) -> None:
        self._record = record
        self._fragment = record.fragments[-1]
        self._fenced: set[int] = set()
        self._silent: set[int] = set()  # gave no answer, and are not asked again
        self._asked: dict[int, int] = {}  # by place: the first entry of the read in flight
        self._known: dict[int, dict[int, bytes]] = {}  # by place: the entries that it sent
        # (place, entry): the bookie never acknowledged it
        self._absent: set[tuple[int, int]] = set()
        # (place, entry): the bookie had it, or may have had it
        self._unsure: set[tuple[int, int]] = set()
        # (place, entry): where its replica is damaged
        self._faults: dict[tuple[int, int], str] = {}
        self._confirmed = self._fragment.first - 1
        self.at = NOTHING  # the entry to decide next
        self._is_reading = self.is_over = False

    @property
    def start(self) -> int:
        """The last entry that needs no decision, once reading has begun."""
        return self._confirmed

    def begin(self) -> list[Step]:
        """Fence all bookies of the last fragment."""
        return [Fence(place, bookie) for place, bookie in enumerate(self._fragment.bookies)]

    def on_fenced(self, place: int, confirmed: int) -> list[Step]:
        """Handle that the bookie of a place is fenced; `confirmed`: the highest entry that it knows
        to be confirmed. Reading begins after the highest of these."""
        self._fenced.add(place)
        if not self._is_reading:
            self._confirmed = max(self._confirmed, confirmed)
        return self._go_on()

    def found(self, place: int, first: int, found: Found) -> list[Step]:
        """Handle the answer to a read."""
        self._asked.pop(place, None)
        known = self._known.setdefault(place, {})
        for entry, packed in enumerate(found.entries, first):
            # of a late answer, the bytes of entries that are decided already are not kept
            if entry >= self.at:
                known[entry] = packed
        after = first + len(found.entries)
        if found.missing is Missing.ABSENT:
            self._absent.add((place, after))
        elif found.missing is Missing.UNKNOWN or not found.entries:
            self._unsure.add((place, after))
            self._faults[place, after] = found.fault
        return self._go_on()

    def on_unanswered(self, place: int) -> list[Step]:
        """Handle that the bookie of a place did not answer in time."""
        self._silent.add(place)
        return self._go_on()

    # --- decisions ---

    def _go_on(self) -> list[Step]:
        if self.is_over:
            return []
        if not self._is_reading:
            if self._record.quorum.is_covered(self._fenced):
                self._is_reading, self.at = True, self._confirmed + 1
            elif len(self._fenced | self._silent) == len(self._fragment.bookies):
                return self._abort(f"{len(self._fenced)} of its bookies could be fenced")
            else:
                return []
        steps: list[Step] = []
        while not self.is_over and (kept := self._copy()) is not None:
            steps.append(kept)
            self.at += 1
        return steps if self.is_over else [*steps, *self._decide()]

    def _copy(self) -> Keep | None:
        """Return a replica of the entry `at` that passes its check, or None."""
        kept: Keep | None = None
        for place, known in self._known.items():
            packed = known.pop(self.at, None)
            if packed is None or kept is not None:
                continue
            try:
                head = unpack(packed, self._record.ledger, self.at).head
                kept = Keep(self.at, packed, head.length)
            except EntryDamaged:
                self._unsure.add((place, self.at))
        return kept

    def _decide(self) -> list[Step]:
        """Decide without a replica: the ledger ends, more bookies are asked, or the attempt
        fails."""
        quorum, places = self._record.quorum, self._record.quorum.write_set(self.at)
        deny = [place for place in places if (place, self.at) in self._absent]
        if len(deny) >= quorum.denials:
            self.is_over = True
            return [End(self.at - 1)]
        over = {p for p in places if p in self._silent or (p, self.at) in self._unsure}
        open_to = [place for place in places if place not in over and place not in deny]
        if not open_to and over and not over & self._silent:
            self.is_over = True
            faults = [self._fault(place) for place in sorted(over)]
            return [Abort(NoCopyLeft(self._record.ledger, self.at, faults))]
        if not open_to:
            self._silent |= over
            return self._abort(f"whether entry {self.at} exists")
        reads: list[Step] = []
        for place in open_to:
            if place not in self._asked:
                self._asked[place] = self.at
                reads.append(Read(place, self._fragment.bookies[place], self.at))
        return reads

    def _fault(self, place: int) -> str:
        """Return why the bookie of a place gave no useful answer about the entry `at`.

        The bookie neither sent the entry nor proved that it never acknowledged it.
        """
        fault = self._faults.get((place, self.at))
        bookie = self._fragment.bookies[place]
        return fault or f"bookie {bookie} may have had the entry, but lost a part of its directory"

    def _abort(self, what: str) -> list[Step]:
        self.is_over = True
        silent = ", ".join(self._fragment.bookies[place] for place in sorted(self._silent))
        ledger = self._record.ledger
        if self._is_reading:
            text = f"ledger {ledger}: it is unknown {what}: no answer, or no conclusive answer, "
            text += f"from {silent or 'enough bookies'}"
        else:
            text = f"ledger {ledger}: only {what}, but {self._record.quorum.denials} of each write "
            text += f"set are needed; no answer from {silent}"
        return [Abort(NotRecoverable(f"{text}; start the missing bookies, then retry"))]
