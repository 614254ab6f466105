"""What a state of the model is, and what bookies and the row store make of a message.

Owns: `Bounds`, `Shape`, `State`, `Bookie`, `Message`, `Mail`. A bookie keeps what it acknowledged,
and its fences; a message is acted on at once or never, as its answer comes behind the sync.
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
WRITER = 0  # those who recover are 1, 2, ...
FIRST_TERM = 1


class Bounds(NamedTuple):
    """How often each may happen, from the beginning on.

    `give_ups`: somebody stops waiting for an answer. `returns`: a writer hears that a bookie is
    back. `closes`: the writer ends its ledger. `doubts`: the answer of the row store is lost, and
    it is asked again. `restores`: a bookie's directory is replaced by an older copy. `damages`: the
    bytes of an entry change. `fills`: a bookie has no room. `hangs`: a bookie that answers nothing.
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
    """What is explored. `page`: entries of one answer to a read; `spares`: bookies beside those of
    the ensemble; `must_end`: wherever nothing is left to happen the ledger has an end, unless
    somebody gave up; `is_prompt`: answers arrive as soon as they are given, which leaves orders
    out."""

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
        """What may happen, and how often."""
        counts = [f"{n} {name}" for name, n in self.bounds._asdict().items() if n]
        counts += ["prompt"] if self.is_prompt else []
        return ", ".join(counts).replace("_", "-")


class Left(IntEnum):
    """Places in `State.left`."""

    GIVE_UPS = 0
    RETURNS = 1
    CLOSES = 2
    DOUBTS = 3
    RESTORES = 4
    DAMAGES = 5
    FILLS = 6
    HANGS = 7


class State(NamedTuple):
    """One state: numbers of what it consists of (`model.Model` has the values).

    `network`: by bookie, the messages to and from it; `rows`: those to and from the row store;
    `left`: what may still happen, by `Left`.
    """

    record: int
    writer: int
    recoverers: tuple[int, ...]
    rows: int
    bookies: tuple[int, ...]
    network: tuple[int, ...]
    left: tuple[int, ...]


class Bookie(NamedTuple):
    """One bookie. `entries`: (entry, number of its bytes), in order."""

    term: int = 0
    entries: tuple[tuple[int, int], ...] = ()
    is_full: bool = False
    is_in_doubt: bool = False
    hangs: bool = False

    def has(self, entry: int) -> int | None:
        """The number of an entry's bytes."""
        return dict(self.entries).get(entry)


class Kind(IntEnum):
    """What a message is."""

    ADD = 1
    FENCE = 2
    READ = 3
    CHANGE = 4  # to the row store: other bookies
    CLOSE = 5  # to the row store: an end
    LOCAL = 6  # to oneself: bookies of a recovery, which only the end writes down

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
    """A message. `body` depends on its kind; an answer names what was asked."""

    kind: Kind
    who: int
    place: int = 0
    change: int = 0
    term: int = 0
    body: tuple[object, ...] = ()
    is_awaited: bool = True


Act = Callable[["Mail", Bookie, Message], tuple[Bookie, Message | None]]


class Mail:
    """Bytes of entries and groups of messages, by number."""

    def __init__(self) -> None:
        self.packed: Numbers[bytes] = Numbers()
        self.bookies: Numbers[Bookie] = Numbers()
        self.records: Numbers[LedgerRecord] = Numbers()
        self.groups: Numbers[tuple[Message, ...]] = Numbers()
        self.places: list[int] = []  # by group: the number of the same, at no place
        self._placeless: Numbers[tuple[Message, ...]] = Numbers()
        self._messages: Numbers[Message] = Numbers()
        self._acts: dict[tuple[int, Message], tuple[int, Message | None]] = {}
        self._with: dict[tuple[int, Message], int] = {}
        self._without: dict[tuple[int, Message], int] = {}
        self._ended: dict[tuple[int, int], int] = {}
        self.nothing = self.group(())

    def group(self, messages: tuple[Message, ...]) -> int:
        """The number of some messages, in whatever order."""
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
        """The same without answers to somebody, who waits for none any more."""
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
        """The same without what somebody sent, or waits for."""
        key = (group, -1 - who)
        if key not in self._ended:
            kept = [one for one in self.groups[group] if one.who != who]
            self._ended[key] = self.group(tuple(kept))
        return self._ended[key]

    def acted(self, bookie: int, message: Message, page: int) -> tuple[int, Message | None]:
        """What a bookie is after a message, and its answer, if somebody waits for it."""
        key = (bookie, message)
        if key not in self._acts:
            after, answer = act(self, self.bookies[bookie], message, page)
            self._acts[key] = (self.bookies.of(after), answer if message.is_awaited else None)
        return self._acts[key]


# --- bookies ---


def act(mail: Mail, bookie: Bookie, message: Message, page: int) -> tuple[Bookie, Message | None]:
    """What a bookie makes of a message."""
    match message.kind:
        case Kind.ADD:
            return add(bookie, message)
        case Kind.FENCE:
            return fence(mail, bookie, message)
        case _:
            return read(mail, bookie, message, page)


def add(bookie: Bookie, message: Message) -> tuple[Bookie, Message]:
    """Entries are stored, unless a higher term is known, or there is no room."""
    if message.term < bookie.term:
        return bookie, refused(message, bookie.term)
    is_recovery = 0 < message.term == bookie.term
    if (bookie.is_full or bookie.is_in_doubt) and not is_recovery:
        return bookie, message._replace(kind=Kind.FULL, body=())
    entries = dict(bookie.entries) | dict(message.body)  # type: ignore[arg-type]
    after = bookie._replace(entries=tuple(sorted(entries.items())))
    return after, message._replace(kind=Kind.STORED)


def fence(mail: Mail, bookie: Bookie, message: Message) -> tuple[Bookie, Message]:
    """Lower terms are refused from now on; what is known to be confirmed."""
    if message.term < bookie.term:
        return bookie, refused(message, bookie.term)
    after = fenced(bookie, message.term)
    return after, message._replace(kind=Kind.FENCED, body=(confirmed_of(mail, bookie),))


def read(mail: Mail, bookie: Bookie, message: Message, page: int) -> tuple[Bookie, Message]:
    """Entries from one on, and why no more; it is fenced first, also if it has nothing."""
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
    """What it says of an entry that it has not."""
    return "unknown" if bookie.is_in_doubt else "absent"


def refused(message: Message, term: int) -> Message:
    return message._replace(kind=Kind.REFUSED, term=term, body=())


def confirmed_of(mail: Mail, bookie: Bookie) -> int:
    """As the heads of its entries say; of damaged ones nothing."""
    heads = (head_of(mail.packed[packed]) for _, packed in bookie.entries)
    return max((head.confirmed for head in heads), default=NOTHING)


def restored(bookie: Bookie, keeps_entries: bool) -> Bookie:
    """From an older copy: without its fence, and without its entries, or just before the fence."""
    entries = bookie.entries if keeps_entries else ()
    return Bookie(entries=entries, is_in_doubt=True)


def damaged(packed: bytes) -> bytes:
    """The same with another last byte."""
    return packed[:-1] + bytes([packed[-1] ^ 1])


# --- the row store ---


def store(record: LedgerRecord, message: Message) -> LedgerRecord:
    """A change of the record; raises LedgerFenced, LedgerClosed."""
    if message.kind is Kind.CHANGE:
        first, instead = message.body
        return with_ensemble(record, message.term, first, dict(instead))  # type: ignore[arg-type, call-overload]
    return close(record, message.term, *message.body)  # type: ignore[arg-type]


def taken_over(record: LedgerRecord) -> LedgerRecord | None:
    """Somebody recovers it; None: it has an end."""
    try:
        return recovering(record)
    except LedgerClosed:
        return None


REFUSALS = (LedgerFenced, LedgerClosed)
