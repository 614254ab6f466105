"""A simulated protocol: messages of writers, recoveries and bookies arrive in any order.

The cores are the real ones. Everything else is as simple as possible: bookies are dictionaries, the
record is one value, and a message is a function that waits for its call. A seed decides which
message is next, which is lost before or after it takes effect, and who stops waiting when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.append_core import (
    Action,
    AppendCore,
    Change,
    Confirm,
    FailAppends,
    PlaceState,
    Send,
)
from millstream.providers.ledger.protocol.entry import HEAD_BYTES, NOTHING, head_of, unpack
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.providers.ledger.protocol.record import Fragment, close, recovering, with_ensemble
from millstream.providers.ledger.protocol.recovery_core import (
    Abort,
    End,
    Fence,
    Keep,
    Read,
    RecoveryCore,
    Step,
)

LEDGER = 7
OWED_BYTES_MAX = 10_000


@dataclass
class ModelBookie:
    """The promises of a bookie, in memory. It never loses an acknowledged entry or a fence."""

    entries: dict[int, bytes] = field(default_factory=dict)
    term: int = 0
    is_full: bool = False

    def add(self, term: int, packed: list[bytes]) -> None:
        if term < self.term:
            raise LedgerFenced("an add of a lower term", self.term)
        if self.is_full and term != self.term:
            raise BlockingIOError
        for one in packed:
            self.entries[head_of(one).entry] = one

    def fence(self, term: int) -> int:
        if term < self.term:
            raise LedgerFenced("a fence of a lower term", self.term)
        self.term = term
        return max((head_of(one).confirmed for one in self.entries.values()), default=NOTHING)

    def read(self, first: int, entries_max: int, term: int) -> Found:
        self.fence(term)
        found: list[bytes] = []
        while len(found) < entries_max and first + len(found) in self.entries:
            found.append(self.entries[first + len(found)])
        is_all = len(found) == entries_max
        return Found(tuple(found), Missing.LIMIT if is_all else Missing.ABSENT)


class World:
    """One ledger, its bookies, its writer and recoveries, and the messages between them."""

    def __init__(self, seed: int, quorum: Quorum, bookies: int, losses: float) -> None:
        self.rng = Random(seed)
        self.losses = losses
        self.bookies = {f"b{number}": ModelBookie() for number in range(bookies)}
        names = tuple(self.bookies)[: quorum.ensemble]
        self.record = LedgerRecord(LEDGER, LedgerState.OPEN, quorum, 1, (Fragment(0, names),))
        self.messages: list[Callable[[], None]] = []
        # the last entry that the writer confirmed, whatever happened to the writer later
        self.confirmed = NOTHING
        self.checks = 0

    def send(self, act: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Send a request, which takes effect some time or never. The answer arrives some time or
        never.
        """

        def arrive() -> None:
            if self.rng.random() < self.losses:
                self.messages.append(lambda: answer(None))
                if self.rng.random() < 0.5:  # the request was late, not lost
                    self.messages.append(lambda: quietly(act))
                return
            told = quietly(act)
            is_lost = self.rng.random() < self.losses
            self.messages.append(lambda: answer(None if is_lost else told))

        self.messages.append(arrive)

    def store(self, change: Callable[[LedgerRecord], LedgerRecord]) -> LedgerRecord:
        """Change the record in one step, as compare-and-set does."""
        before, self.record = self.record, change(self.record)
        assert before.state is not LedgerState.CLOSED or before == self.record
        assert self.record.term >= before.term
        return self.record

    def step(self) -> bool:
        if not self.messages:
            return False
        self.messages.pop(self.rng.randrange(len(self.messages)))()
        self.check()
        return True

    def check(self) -> None:
        """Check the invariants, after every step."""
        self.checks += 1
        record = self.record
        if record.state is LedgerState.CLOSED:
            assert self.confirmed <= record.last, "a confirmed entry is behind the end"
        for entry in range(self.confirmed + 1):
            self.check_copies(entry, record.quorum.ack)

    def check_copies(self, entry: int, copies: int) -> None:
        """Check that enough of the record's bookies have the entry unchanged."""
        found = 0
        for name in self.record.holders(entry):
            packed = self.bookies[name].entries.get(entry)
            if packed is not None:
                assert unpack(packed, LEDGER, entry).payload == payload_of(entry)
                found += 1
        assert found >= copies, f"entry {entry} has {found} copies where the record says"

    def check_end(self) -> None:
        """Check a closed ledger: each entry is on an ack quorum, and the length is right."""
        assert self.record.state is LedgerState.CLOSED
        length = 0
        for entry in range(self.record.last + 1):
            self.check_copies(entry, self.record.quorum.ack)
            length += len(payload_of(entry))
        assert self.record.length == length


def payload_of(entry: int) -> bytes:
    return b"%d" % entry * 3


def quietly(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:
        return error


class ModelWriter:
    """The driver of an `AppendCore`, for a writer or for the writing back of a recovery."""

    def __init__(
        self, world: World, core: AppendCore, term: int, is_recovery: bool = False
    ) -> None:
        self.world, self.core, self.term = world, core, term
        self.is_recovery = is_recovery
        self.fragments = list(world.record.fragments)
        self.failed: Exception | None = None

    def append(self) -> None:
        if self.core.failed is None and self.core.next_entry < 12:
            self.do(self.core.append(payload_of(self.core.next_entry)))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Confirm(upto):
                    if not self.is_recovery:
                        self.world.confirmed = max(self.world.confirmed, upto)
                case Change():
                    self._change(action)
                case FailAppends(error):
                    self.failed = error

    def _send(self, send: Send) -> None:
        packed = [one for e in send.entries if (one := self.core.find_packed(e)) is not None]
        bookie = self.world.bookies[send.bookie]

        def answer(told: Any) -> None:
            if isinstance(told, LedgerFenced):
                self.do(self.core.stop(told))
            elif isinstance(told, BlockingIOError):
                self.do(self.core.on_unanswered(send.place, send.change, PlaceState.FULL))
            elif told == "stored":
                self.do(self.core.on_acknowledged(send.place, send.change, send.entries))
            else:
                self.do(self.core.on_unanswered(send.place, send.change, PlaceState.AWAY))

        def act() -> str:
            bookie.add(self.term, packed)
            return "stored"

        self.world.send(act, answer)

    def _change(self, change: Change) -> None:
        spare = [name for name in self.world.bookies if name not in self.core.bookies()]
        self.world.rng.shuffle(spare)
        instead = dict(zip(change.places, spare, strict=False))
        if not instead or self.is_recovery:
            self.world.messages.append(lambda: self._changed_here(change, instead))
            return
        places = {place: (change.places[place], new) for place, new in instead.items()}

        def act() -> LedgerRecord:
            return self.world.store(
                lambda record: with_ensemble(record, self.term, change.first, places)
            )

        def answer(told: Any) -> None:
            if isinstance(told, LedgerFenced | LedgerClosed):
                self.do(self.core.stop(told))
            elif told is None:  # asking again finds this change or makes it
                self.world.send(act, answer)
            else:
                self.do(self.core.on_changed(instead))

        self.world.send(act, answer)

    def _changed_here(self, change: Change, instead: dict[int, str]) -> None:
        if instead and self.core.failed is None:
            bookies = list(self.core.bookies())
            for place, name in instead.items():
                bookies[place] = name
            if self.fragments[-1].first == change.first:
                self.fragments.pop()
            self.fragments.append(Fragment(change.first, tuple(bookies)))
        self.do(self.core.on_changed(instead))

    def tend(self) -> None:
        """Let unavailable bookies return or be replaced."""
        for place in self.core.away():
            if self.world.rng.random() < 0.5:
                self.do(self.core.on_returned(place))
        self.do(self.core.try_change())

    def close(self) -> None:
        """Close the ledger after the last confirmed entry."""
        if self.core.failed is not None:
            return
        last, length = self.core.confirmed, self.core.confirmed_length
        self.do(self.core.close())
        self.world.send(
            lambda: self.world.store(lambda record: close(record, self.term, last, length)),
            lambda told: None,
        )


class ModelRecovery:
    """The driver of a `RecoveryCore`, which makes one attempt after another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.attempt = 0
        self.begin()

    def begin(self) -> None:
        self.attempt += 1
        self.core: RecoveryCore | None = None
        self.writer: ModelWriter | None = None
        self.end: int | None = None
        if self.world.record.state is LedgerState.CLOSED:
            return
        self.record = self.world.store(recovering)
        self.core = RecoveryCore(self.record)
        self.do(self.core.begin())

    @property
    def is_done(self) -> bool:
        return self.world.record.state is LedgerState.CLOSED

    def do(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Fence(place, name):
                    self._fence(place, name)
                case Read(place, name, first):
                    self._read(place, name, first)
                case Keep():
                    self._keep(step)
                case End(last):
                    self.end = last
                case Abort():
                    self.core = None
        self.finish()

    def _keep(self, step: Keep) -> None:
        writer = self._writer()
        if writer.core.failed is None:
            writer.do(writer.core.append_packed(step.packed, step.length))

    def _writer(self) -> ModelWriter:
        if self.writer is None:
            assert self.core is not None
            start = self.core.start
            length = sum(len(payload_of(entry)) for entry in range(start + 1))
            core = AppendCore(self.record, OWED_BYTES_MAX, start, length)
            self.writer = ModelWriter(self.world, core, self.record.term, is_recovery=True)
        return self.writer

    def _ask(
        self, place: int, act: Callable[[], Any], take: Callable[[RecoveryCore, Any], list[Step]]
    ) -> None:
        """Ask a bookie. The answer is ignored if another attempt has begun."""
        attempt = self.attempt

        def answer(told: Any) -> None:
            if attempt != self.attempt or self.core is None:
                return
            if isinstance(told, LedgerFenced):
                self.core = None
            elif told is None:
                self.do(self.core.on_unanswered(place))
            else:
                self.do(take(self.core, told))

        self.world.send(act, answer)

    def _fence(self, place: int, name: str) -> None:
        act = partial(self.world.bookies[name].fence, self.record.term)
        self._ask(place, act, lambda core, told: core.on_fenced(place, told))

    def _read(self, place: int, name: str, first: int) -> None:
        bookie, count = self.world.bookies[name], self.world.rng.randint(1, 4)
        act = partial(bookie.read, first, count, self.record.term)
        self._ask(place, act, lambda core, told: core.found(place, first, told))

    def finish(self) -> None:
        """Close the record once all kept entries are on their ack quorums."""
        if self.end is None or self.core is None or self.is_done:
            return
        writer = self._writer()
        if writer.core.failed is not None:
            self.core = None
        elif writer.core.confirmed == self.end:
            self.core = None
            end, length = self.end, writer.core.confirmed_length
            fragments = tuple(writer.fragments)
            quietly(
                lambda: self.world.store(
                    lambda r: close(r, self.record.term, end, length, fragments)
                )
            )

    def tend(self) -> None:
        if self.is_done:
            return
        if self.core is None:
            self.begin()
        elif self.writer is not None:
            self.writer.tend()
        self.finish()


def size_of(entry: int) -> int:
    return HEAD_BYTES + len(payload_of(entry))


def play(seed: int, quorum: Quorum, bookies: int, losses: float = 0.15) -> World:
    """Run a writer and up to two recoveries at once, then continue without losses until the end."""
    world = World(seed, quorum, bookies, losses)
    rng = world.rng
    writer = ModelWriter(world, AppendCore(world.record, OWED_BYTES_MAX), 1)
    recoveries: list[ModelRecovery] = []
    for _ in range(rng.randint(5, 120)):
        dice = rng.random()
        if dice < 0.2:
            writer.append()
        elif dice < 0.25:
            writer.tend()
        elif dice < 0.28 and len(recoveries) < 2:
            recoveries.append(ModelRecovery(world))
        elif dice < 0.32 and recoveries:
            rng.choice(recoveries).tend()
        elif dice < 0.33:
            rng.choice(list(world.bookies.values())).is_full = rng.random() < 0.5
        elif dice < 0.335:
            writer.close()
        else:
            world.step()
    world.losses = 0.0
    for bookie in world.bookies.values():
        bookie.is_full = False
    last = recoveries[-1] if recoveries else ModelRecovery(world)
    for _ in range(3_000):
        if not world.step():
            if last.is_done:
                break
            last.tend()
    world.check_end()
    writer.append()
    return world
