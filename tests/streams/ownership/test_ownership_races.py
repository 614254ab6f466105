"""Queue ownership among silos that race, crash, write late and see stale views."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.examples import examples

from millstream.runtime import Conflict, Etag, MemoryStateStore
from millstream.streams import OwnershipOptions, Token
from millstream.streams.ownership.decision import (
    Acquire,
    Decision,
    FirstSeen,
    Free,
    Left,
    Local,
    Owned,
    OwnershipLost,
    Pause,
    Pausing,
    Renew,
    Situation,
    Unowned,
    decide,
)
from millstream.streams.ownership.record import (
    QueueProgress,
    QueueRecord,
    StoredRecord,
    with_progress,
)
from millstream.streams.ownership.store import OwnershipStore

T = TypeVar("T")
QUEUE = "q-0"
ASKS = st.integers(0, 2)


def run(step: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends (the memory store)."""
    try:
        step.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("the memory store suspended")


class Write(msgspec.Struct):
    """A write on its way to the store."""

    record: QueueRecord
    expect: Etag | None
    decision: Decision | None
    started_s: float


class Silo:
    """The state that the driver of one silo has for the queue."""

    def __init__(self, name: str, clock_ahead_s: float) -> None:
        self.name = name
        self.clock_ahead_s = clock_ahead_s
        self.view: frozenset[str] = frozenset({name})
        self.is_wanted = True
        self.local: Local = Unowned()
        self.seen = FirstSeen()
        self.read: tuple[StoredRecord | None, float] | None = None
        self.write: Write | None = None
        self.progress: QueueProgress | None = None
        self.in_flight = 0

    @property
    def epoch(self) -> int | None:
        return None if isinstance(self.local, Unowned) else self.local.epoch

    def situation(self, now_s: float) -> Situation:
        assert self.read is not None
        stored, seen_s = self.read
        return Situation(
            None if stored is None else stored.record, seen_s, now_s, self.name, self.view,
            self.is_wanted, self.local, self.progress, self.in_flight,
        )  # fmt: skip


class OwnershipMachine(RuleBasedStateMachine):
    """Interleaves reads, decisions, writes, crashes and clocks of three silos."""

    def __init__(self) -> None:
        super().__init__()
        self.store = OwnershipStore(MemoryStateStore(), "p")
        self.now_s = 0.0
        self.generation = 0
        self.silos: list[Silo] = []
        self.late: list[Write] = []
        self.owner_of: dict[int, str] = {}

    @initialize(has_lease=st.booleans())
    def begin(self, has_lease: bool) -> None:
        self.options = OwnershipOptions(lease_s=6.0 if has_lease else 0.0)
        for place in range(3):
            self.silos.append(self.new_silo(place))

    def new_silo(self, place: int) -> Silo:
        self.generation += 1
        return Silo(f"s{place}:1@{self.generation}", clock_ahead_s=place * 1_000.0)

    def clock_s(self, silo: Silo) -> float:
        return self.now_s + silo.clock_ahead_s

    def stored(self) -> QueueRecord | None:
        stored = run(self.store.read(QUEUE))
        return None if stored is None else stored.record

    def land(self, write: Write) -> Etag:
        """Perform a write of any silo, and check that the record obeys the rules."""
        before = self.stored()
        etag = run(self.store.write(QUEUE, write.record, write.expect))
        new = write.record
        if new.owner:
            assert self.owner_of.setdefault(new.epoch, new.owner) == new.owner
        if before is None:
            assert new.epoch == 1
            return etag
        is_new_owner = new.owner not in ("", before.owner)
        assert new.epoch - before.epoch in ((1,) if is_new_owner else (0, 1))
        if before.upto is not None:
            assert new.upto is not None and new.upto >= before.upto
        return etag

    def some(self, ask: int, silos: list[Silo]) -> Silo:
        return silos[ask % len(silos)]

    def writers(self) -> list[Silo]:
        return [silo for silo in self.silos if silo.write is not None]

    def owners(self) -> list[Silo]:
        return [silo for silo in self.silos if silo.epoch is not None]

    @rule(ask=ASKS)
    def read(self, ask: int) -> None:
        silo = self.silos[ask]
        stored = run(self.store.read(QUEUE))
        etag = None if stored is None else stored.etag
        silo.read = stored, silo.seen.saw(QUEUE, etag, self.clock_s(silo))

    @rule(ask=ASKS)
    def decide(self, ask: int) -> None:
        """Act on the last read, however old it is."""
        silo = self.silos[ask]
        if silo.read is None or silo.write is not None:
            return
        stored, now_s = silo.read[0], self.clock_s(silo)
        decision = decide(silo.situation(now_s), self.options)
        if silo.epoch is not None and stored is not None and stored.record.epoch > silo.epoch:
            assert decision == OwnershipLost(), "an overtaken owner stops"
        match decision:
            case Acquire() | Renew() | Pause() | Free():
                self.start_write(silo, decision.record, decision)
            case OwnershipLost():
                silo.local = Unowned()
        if isinstance(decision, Pause) and isinstance(silo.local, Owned):
            silo.local = Pausing(silo.local.epoch, now_s + self.options.max_handoff_s)
        if isinstance(decision, Free) and silo.epoch is not None:
            silo.local = Left(silo.epoch, decision.record)

    @rule(ask=ASKS)
    def act(self, ask: int) -> None:
        self.read(ask)
        self.decide(ask)

    def start_write(self, silo: Silo, new: QueueRecord, decision: Decision | None) -> None:
        assert silo.read is not None
        stored = silo.read[0]
        expect = None if stored is None else stored.etag
        silo.write = Write(new, expect, decision, self.clock_s(silo))
        silo.read = None

    @precondition(lambda self: self.owners())
    @rule(ask=ASKS, seq=st.integers(0, 50))
    def save_progress(self, ask: int, seq: int) -> None:
        """Let the agent advance (or a faulty one go back), and the manager store it."""
        silo = self.some(ask, self.owners())
        if silo.read is None or silo.write is not None:
            return
        stored = silo.read[0]
        if stored is None or (stored.record.owner, stored.record.epoch) != (silo.name, silo.epoch):
            return
        if isinstance(silo.local, Left):
            return
        silo.progress = QueueProgress(Token(0, seq))
        self.start_write(silo, with_progress(stored.record, silo.progress), None)

    @precondition(lambda self: self.writers())
    @rule(ask=ASKS)
    def finish_write(self, ask: int) -> None:
        silo = self.some(ask, self.writers())
        write, silo.write = silo.write, None
        assert write is not None
        try:
            etag = self.land(write)
        except Conflict:
            self.learn_after_conflict(silo)
            return
        silo.read = StoredRecord(write.record, etag), silo.seen.saw(QUEUE, etag, write.started_s)
        match write.decision:
            case Acquire(new):
                silo.local, silo.progress = Owned(new.epoch), write.decision.progress
            case Renew(new):
                silo.local = Owned(new.epoch)
            case Free():
                silo.local = Unowned()

    def learn_after_conflict(self, silo: Silo) -> None:
        """Check that an overtaken owner learns it by one write."""
        stored = run(self.store.read(QUEUE))
        assert stored is not None
        silo.read = stored, silo.seen.saw(QUEUE, stored.etag, self.clock_s(silo))
        if silo.epoch is not None and stored.record.epoch > silo.epoch:
            assert decide(silo.situation(self.clock_s(silo)), self.options) == OwnershipLost()
            silo.local = Unowned()

    @precondition(lambda self: self.writers())
    @rule(ask=ASKS, fate=st.sampled_from(["answer lost", "late", "never"]))
    def lose(self, ask: int, fate: str) -> None:
        """Lose the answer to a silo's write, which may be stored or not."""
        silo = self.some(ask, self.writers())
        write, silo.write = silo.write, None
        assert write is not None
        if fate == "answer lost":
            self.land_quietly(write)
        elif fate == "late":
            self.late.append(write)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def land_late(self, data: st.DataObject) -> None:
        self.land_quietly(self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    def land_quietly(self, write: Write) -> None:
        try:
            self.land(write)
        except Conflict:
            pass

    @rule(ask=ASKS)
    def crash(self, ask: int) -> None:
        if (write := self.silos[ask].write) is not None:
            self.late.append(write)
        self.silos[ask] = self.new_silo(ask)

    @rule(ask=ASKS, is_alone=st.booleans())
    def look_around(self, ask: int, is_alone: bool) -> None:
        """Give a silo a new view; a silo that is cut off may see only itself."""
        seen = self.silos[ask : ask + 1] if is_alone else self.silos
        self.silos[ask].view = frozenset(silo.name for silo in seen)

    @rule(ask=ASKS)
    def take_while_cut_off(self, ask: int) -> None:
        """Let a silo see no other silo, so that it takes the queue over."""
        self.silos[ask].is_wanted = True
        self.look_around(ask, is_alone=True)
        self.act(ask)
        while self.silos[ask].write is not None:
            self.finish_write(ask)

    @rule(ask=ASKS, is_wanted=st.booleans(), in_flight=st.integers(0, 1))
    def change(self, ask: int, is_wanted: bool, in_flight: int) -> None:
        self.silos[ask].is_wanted = is_wanted
        self.silos[ask].in_flight = in_flight

    @rule(passed_s=st.sampled_from([0.1, 1.0, 3.0, 5.0, 10.0]))
    def pass_time(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def everybody_takes_a_turn(self) -> None:
        """Let each silo act, which is the usual case and helps progress."""
        for ask in range(3):
            self.look_around(ask, is_alone=False)
            self.act(ask)
            while self.silos[ask].write is not None:
                self.finish_write(ask)

    @invariant()
    def one_silo_at_most_is_in_an_epoch(self) -> None:
        epochs = [silo.epoch for silo in self.silos if silo.epoch is not None]
        assert len(epochs) == len(set(epochs))

    @invariant()
    def nobody_is_ahead_of_the_record(self) -> None:
        stored = self.stored()
        for silo in self.silos:
            if silo.epoch is not None:
                assert stored is not None and silo.epoch <= stored.epoch
                assert self.owner_of[silo.epoch] == silo.name

    def teardown(self) -> None:
        """After the last fault, the only silo that wants the queue gets it."""
        if not self.silos:
            return
        for silo in self.silos:
            silo.is_wanted, silo.write, silo.in_flight = silo is self.silos[0], None, 0
        for _ in range(10):
            self.now_s += 10.0 if self.options.lease_s == 0 else 1.0
            self.everybody_takes_a_turn()
        stored = self.stored()
        assert stored is not None and stored.owner == self.silos[0].name
        assert self.silos[0].local == Owned(stored.epoch)
        assert all(silo.local == Unowned() for silo in self.silos[1:])


OwnershipMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50)
test_ownership_holds_under_races_crashes_and_late_writes = OwnershipMachine.TestCase
