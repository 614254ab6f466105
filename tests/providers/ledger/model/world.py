"""A state of the model, and the effect of a message on bookies and the row store.

Owns: `Bounds`, `Shape`, `State`, `Bookie`, `Message`, `Mail`. A bookie keeps acknowledged entries
and its fences. It acts on a message at once or never, because it answers only after the sync.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import LedgerRecord
from millstream.providers.ledger.protocol.entry import NOTHING, head_of
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced
from millstream.providers.ledger.protocol.record import close, recovering, with_ensemble

from .cores import Numbers

LEDGER = 7
WRITER = 0  # recoveries are 1, 2, ...
FIRST_TERM = 1


class Bounds(NamedTuple):
    """The number of times that each event may happen.

    `give_ups`: an actor stops waiting for an answer. `returns`: a writer learns that a bookie is
    back. `closes`: the writer closes its ledger. `doubts`: the answer of the row store is lost, and
    the actor asks again. `restores`: a bookie's directory is replaced by an older copy. `damages`:
    the bytes of an entry change. `fills`: a bookie's disk becomes full. `hangs`: a bookie stops
    answering.
    """

    entries: int = 1
    recoveries: int = 1
    give_ups: int = 0
    returns: int = 0
    closes: int = 0
    doubts: int = 0
    restores: int = 0
    damages: int = 0
    fills: int = 0
    hangs: int = 0


class Shape(NamedTuple):
    """An explored configuration.

    `page` is the number of entries in one answer to a read. `spares` counts the bookies beside
    those of the ensemble. With `must_end`, a ledger must be closed when no move is left, unless an
    actor stopped waiting. With `is_prompt`, answers arrive at once, which leaves orders out.
    """

    quorum: Quorum
    spares: int
    bounds: Bounds
    page: int = 9
    owed_bytes_max: int = 10_000
    must_end: bool = False
    is_prompt: bool = False

    @property
    def bookies(self) -> int:
        return self.quorum.ensemble + self.spares

    @property
    def quorum_text(self) -> str:
        return "/".join(map(str, self.quorum))

    @property
    def bounds_text(self) -> str:
        """The bounds as text."""
        counts = [f"{n} {name}" for name, n in self.bounds._asdict().items() if n]
        counts += ["prompt"] if self.is_prompt else []
        return ", ".join(counts).replace("_", "-")


class Left(IntEnum):
    """The indices of `State.left`."""

    GIVE_UPS = 0
    RETURNS = 1
    CLOSES = 2
    DOUBTS = 3
    RESTORES = 4
    DAMAGES = 5
    FILLS = 6
    HANGS = 7


class State(NamedTuple):
    """A state, as numbers of its parts. `model.Model` has the values.

    `network` holds the messages to and from each bookie, `rows` those to and from the row store,
    and `left` the events that may still happen, by `Left`.
    """

    record: int
    writer: int
    recoverers: tuple[int, ...]
    rows: int
    bookies: tuple[int, ...]
    network: tuple[int, ...]
    left: tuple[int, ...]


class Bookie(NamedTuple):
    """One bookie. `entries` holds pairs of an entry and the number of its bytes, in order."""

    term: int = 0
    entries: tuple[tuple[int, int], ...] = ()
    is_full: bool = False
    is_in_doubt: bool = False
    hangs: bool = False

    def has(self, entry: int) -> int | None:
        """Return the number of an entry's bytes, or None."""
        return dict(self.entries).get(entry)


class Kind(IntEnum):
    """The kind of a message."""

    ADD = 1
    FENCE = 2
    READ = 3
    CHANGE = 4  # to the row store: replace bookies
    CLOSE = 5  # to the row store: close the record
    LOCAL = 6  # to the actor itself: bookies of a recovery, which only the end stores

    STORED = 11
    FULL = 12
    REFUSED = 13
    FENCED = 14
    FOUND = 15
    CHANGED = 16

    @property
    def is_answer(self) -> bool:
        return self >= Kind.STORED


class Message(NamedTuple):
    """A message. `body` depends on the kind, and an answer repeats the fields of its request."""

    kind: Kind
    who: int
    place: int = 0
    change: int = 0
    term: int = 0
    body: tuple[object, ...] = ()
    is_awaited: bool = True


Act = Callable[["Mail", Bookie, Message], tuple[Bookie, Message | None]]


class Mail:
    """The bytes of entries and the groups of messages, by number."""

    def __init__(self) -> None:
        self.packed: Numbers[bytes] = Numbers()
        self.bookies: Numbers[Bookie] = Numbers()
        self.records: Numbers[LedgerRecord] = Numbers()
        self.groups: Numbers[tuple[Message, ...]] = Numbers()
        self.places: list[int] = []  # by group: the number of the group without places
        self._placeless: Numbers[tuple[Message, ...]] = Numbers()
        self._messages: Numbers[Message] = Numbers()
        self._acts: dict[tuple[int, Message], tuple[int, Message | None]] = {}
        self._with: dict[tuple[int, Message], int] = {}
        self._without: dict[tuple[int, Message], int] = {}
        self._ended: dict[tuple[int, int], int] = {}
        self.nothing = self.group(())

    def group(self, messages: tuple[Message, ...]) -> int:
        """Return the number of some messages in any order."""
        number = self.groups.of(self._sorted(messages))
        if number == len(self.places):
            placeless = self._sorted(tuple(one._replace(place=0) for one in messages))
            self.places.append(self._placeless.of(placeless))
        return number

    def _sorted(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(sorted(messages, key=self._messages.of))

    def posted(self, group: int, message: Message) -> int:
        key = (group, message)
        if key not in self._with:
            self._with[key] = self.group((*self.groups[group], message))
        return self._with[key]

    def taken(self, group: int, message: Message) -> int:
        key = (group, message)
        if key not in self._without:
            messages = list(self.groups[group])
            messages.remove(message)
            self._without[key] = self.group(tuple(messages))
        return self._without[key]

    def ended(self, group: int, who: int) -> int:
        """Return the group without the answers to an actor that has ended."""
        key = (group, who)
        if key not in self._ended:
            kept = [
                one._replace(is_awaited=False) if one.who == who else one
                for one in self.groups[group]
                if one.who != who or not (one.kind.is_answer or one.kind is Kind.LOCAL)
            ]
            self._ended[key] = self.group(tuple(kept))
        return self._ended[key]

    def dropped(self, group: int, who: int) -> int:
        """Return the group without the messages to and from an actor."""
        key = (group, -1 - who)
        if key not in self._ended:
            kept = [one for one in self.groups[group] if one.who != who]
            self._ended[key] = self.group(tuple(kept))
        return self._ended[key]

    def acted(self, bookie: int, message: Message, page: int) -> tuple[int, Message | None]:
        """Let a bookie act on a message, and return its new number and the answer, if one is
        awaited.
        """
        key = (bookie, message)
        if key not in self._acts:
            after, answer = act(self, self.bookies[bookie], message, page)
            self._acts[key] = (self.bookies.of(after), answer if message.is_awaited else None)
        return self._acts[key]


# --- bookies ---


def act(mail: Mail, bookie: Bookie, message: Message, page: int) -> tuple[Bookie, Message | None]:
    """Return a bookie after a message, and its answer."""
    match message.kind:
        case Kind.ADD:
            return add(bookie, message)
        case Kind.FENCE:
            return fence(mail, bookie, message)
        case _:
            return read(mail, bookie, message, page)


def add(bookie: Bookie, message: Message) -> tuple[Bookie, Message]:
    """Store entries, unless a higher term is known or the disk is full."""
    if message.term < bookie.term:
        return bookie, refused(message, bookie.term)
    is_recovery = 0 < message.term == bookie.term
    if (bookie.is_full or bookie.is_in_doubt) and not is_recovery:
        return bookie, message._replace(kind=Kind.FULL, body=())
    entries = dict(bookie.entries) | dict(message.body)  # type: ignore[arg-type]
    after = bookie._replace(entries=tuple(sorted(entries.items())))
    return after, message._replace(kind=Kind.STORED)


def fence(mail: Mail, bookie: Bookie, message: Message) -> tuple[Bookie, Message]:
    """Refuse lower terms from this point, and answer with the last confirmed entry."""
    if message.term < bookie.term:
        return bookie, refused(message, bookie.term)
    after = fenced(bookie, message.term)
    return after, message._replace(kind=Kind.FENCED, body=(confirmed_of(mail, bookie),))


def read(mail: Mail, bookie: Bookie, message: Message, page: int) -> tuple[Bookie, Message]:
    """Fence the bookie, even if it has no entry. Then return a page of entries and why it ends."""
    if message.term < bookie.term:
        return bookie, refused(message, bookie.term)
    after = fenced_by_read(bookie, message.term)
    (first,) = message.body
    assert isinstance(first, int)
    has, found = dict(bookie.entries), list[int]()
    while len(found) < page and (packed := has.get(first + len(found))) is not None:
        found.append(packed)
    missing = "limit" if len(found) == page else denied(bookie)
    return after, message._replace(kind=Kind.FOUND, body=(first, tuple(found), missing))


def fenced(bookie: Bookie, term: int) -> Bookie:
    return bookie._replace(term=max(bookie.term, term))


def fenced_by_read(bookie: Bookie, term: int) -> Bookie:
    return fenced(bookie, term)


def denied(bookie: Bookie) -> str:
    """The bookie's answer for an entry that it does not have."""
    return "unknown" if bookie.is_in_doubt else "absent"


def refused(message: Message, term: int) -> Message:
    return message._replace(kind=Kind.REFUSED, term=term, body=())


def confirmed_of(mail: Mail, bookie: Bookie) -> int:
    """Return the last confirmed entry in the heads of the entries, ignoring damaged ones."""
    heads = (head_of(mail.packed[packed]) for _, packed in bookie.entries)
    return max((head.confirmed for head in heads), default=NOTHING)


def restored(bookie: Bookie, keeps_entries: bool) -> Bookie:
    """Restore a bookie from a copy without its fence, with or without its entries."""
    entries = bookie.entries if keeps_entries else ()
    return Bookie(entries=entries, is_in_doubt=True)


def damaged(packed: bytes) -> bytes:
    """Return the bytes with another last byte."""
    return packed[:-1] + bytes([packed[-1] ^ 1])


# --- the row store ---


def store(record: LedgerRecord, message: Message) -> LedgerRecord:
    """Change the record. Raises LedgerFenced, LedgerClosed."""
    if message.kind is Kind.CHANGE:
        first, instead = message.body
        return with_ensemble(record, message.term, first, dict(instead))  # type: ignore[arg-type, call-overload]
    return close(record, message.term, *message.body)  # type: ignore[arg-type]


def taken_over(record: LedgerRecord) -> LedgerRecord | None:
    """Return the record under a new recovery, or None if it is closed."""
    try:
        return recovering(record)
    except LedgerClosed:
        return None


REFUSALS = (LedgerFenced, LedgerClosed)
