"""Lagging cursors compared with a model: a log, subscriptions, crashes and hand-overs in any order.

- At each delivery a subscription gets the next items of its stream, without a gap or duplicate.
- At each step all acknowledged messages are done, as a reader of the stored record sees it.
- After a crash all messages that the record calls done are done.
- In the end all subscriptions have all events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.audience.handover_list import Former, list_unfinished
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.positions import BEGINNING, before
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.losses import Losses
from millstream.streams.agent.progress.tracker import ProgressTracker
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.ownership.record import (
    Handoff,
    ListedSubscription,
    QueueProgress,
    QueueRecord,
    QueueState,
    hand_over,
    with_progress,
)

STREAMS = [StreamId("n", key) for key in "abc"]
SHARED = STREAMS[:1]
LIMITS = CacheLimits(events_max=12, stream_events_max=3)
NOWHERE = Token(0, 0, 0)
LAST = 2**32 - 1
Bounds = tuple[Token | None, Token | None, Token | None]


@dataclass(eq=False)
class Sub:
    """A subscription: its acknowledged items, and its cursor."""

    stream: StreamId
    name: str
    after: Token = NOWHERE  # the last item that is acknowledged or skipped
    got: set[Token] = field(default_factory=set)
    cursor: Cursor = field(init=False)
    is_faulted: bool = False

    @property
    def key(self) -> tuple[StreamId, str]:
        return self.stream, self.name

    @property
    def is_cached(self) -> bool:
        return not self.cursor.is_drained and not self.cursor.is_lagging


class Everyone:
    """The subscriptions of the machine, as a hand-over lists them."""

    def __init__(self, machine: BehindMachine) -> None:
        self.machine = machine

    def list_unfinished(self) -> tuple[ListedSubscription, ...]:
        entries: dict[StreamId, Any] = {}
        for stream in STREAMS:
            subscribers = {
                sub.name: SimpleNamespace(
                    key=sub.key, delivery=SimpleNamespace(cursor=sub.cursor), sent_upto=None
                )
                for sub in self.machine.subs
                if sub.stream == stream
            }
            entries[stream] = SimpleNamespace(
                first_waiting=None, cold=None, subscribers=subscribers
            )
        former = Former(QueueProgress(), is_used=False)
        return list_unfinished(entries, self.machine.laggards, former)


class BehindMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[QueueMessage] = []
        self.gone: set[Token] = set()  # the provider knows that they are done
        self.own = NOWHERE  # the position that the provider keeps
        self.record = QueueRecord("me", 1, QueueState.OWNED)
        self.written: QueueProgress | None = None  # the unconfirmed write of the record
        self.subs = [Sub(stream, "x") for stream in STREAMS]
        self.subs += [Sub(stream, "y") for stream in SHARED]
        self.page: tuple[Token, list[Sub]] | None = None
        self.asked: tuple[Bounds, list[Cursor]] | None = None
        self.begin_reading(NOWHERE)

    def begin_reading(self, after: Token) -> None:
        start = None if after == NOWHERE else after
        self.cache = QueueCache(LIMITS, start, notes="out_of_turn")
        self.laggards = LaggingCursors(self.cache, is_used=True)
        self.next = sum(message.token <= after for message in self.log)
        self.page = self.written = self.asked = None
        self.lacking: list[Cursor] = []
        for sub in self.subs:
            sub.cursor = Cursor(self.laggards, sub.key)

    # -- the model

    def items(self, stream: StreamId) -> list[Token]:
        return [
            Token(message.token.era, message.token.seq, at)
            for message in self.log
            if message.stream == stream
            for at in range(len(message.items))
        ]

    def due(self, sub: Sub) -> list[Token]:
        """Return the items that the subscription must still get; deleted ones only if not yet
        delivered."""
        items = [token for token in self.items(sub.stream) if token > sub.after]
        return [one for one in items if one not in sub.got or self.is_kept(one)]

    def is_kept(self, token: Token) -> bool:
        return token._replace(index=0) not in self.gone

    def behind_of(self, sub: Sub) -> Cursor | None:
        return self.laggards.get(sub.key)

    def some(self, data: st.DataObject, when: Callable[[Sub], bool]) -> Sub | None:
        found = [sub for sub in self.subs if when(sub)]
        return data.draw(st.sampled_from(found)) if found else None

    # -- reading and delivering

    @rule(stream=st.sampled_from(STREAMS), sizes=st.lists(st.integers(1, 3), max_size=6))
    def store(self, stream: StreamId, sizes: list[int]) -> None:
        for size in sizes:
            token = Token(1, len(self.log) + 1)
            self.log.append(QueueMessage(stream, token, [b"x"] * size))

    @rule(count=st.integers(1, 8))
    def read(self, count: int) -> None:
        for message in self.log[self.next : self.next + count]:
            if self.is_kept(message.token):
                slot = self.cache.append(message)
                if slot is None:
                    return
                self.route(slot)
            self.next += 1

    def route(self, slot: Slot) -> None:
        """Route a cached message to its subscriptions."""
        for sub in self.subs:
            if sub.stream == slot.message.stream and sub.cursor.is_drained:
                sub.cursor.enter(slot, sub.after)
        self.cache.release(slot)

    @rule(data=st.data(), most=st.integers(1, 5))
    def deliver(self, data: st.DataObject, most: int) -> None:
        sub = self.some(data, lambda one: not one.cursor.is_drained and not one.is_faulted)
        if sub is not None:
            self.deliver_to(sub, most)

    def deliver_to(self, sub: Sub, most: int) -> None:
        if sub.cursor.is_away:
            return
        items = sub.cursor.peek(most, 1 << 20)
        tokens = [item.token for item in items]
        assert tokens and tokens == self.due(sub)[: len(tokens)], f"{tokens} of {self.due(sub)}"
        sub.after = tokens[-1]
        sub.got.update(tokens)
        sub.cursor.advance(len(tokens))

    # -- lagging and catching up

    @rule(data=st.data(), out=st.integers(0, 3), has_chain=st.booleans())
    def park(self, data: st.DataObject, out: int, has_chain: bool) -> None:
        sub = self.some(data, lambda one: one.is_cached)
        if sub is not None:
            held = len(sub.cursor.peek(out, 1 << 20)) if out else 0
            sub.cursor.start_lagging(held, has_chain=has_chain, may_repeat=False)
            assert len(sub.cursor.peek(9, 1 << 20)) >= held

    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        sub = self.some(data, lambda one: one.cursor.is_lagging)
        if sub is not None:
            sub.is_faulted = True
            sub.cursor.unload()

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        sub = self.some(data, lambda one: one.is_faulted)
        if sub is not None:
            sub.is_faulted = False

    @rule(stream=st.sampled_from(STREAMS))
    def let_go(self, stream: StreamId) -> None:
        self.laggards.let_go(stream)

    @rule(data=st.data())
    def go_elsewhere(self, data: st.DataObject) -> None:
        sub = data.draw(st.sampled_from(self.subs))
        self.acknowledge()  # acknowledged messages may be deleted before they are read again
        kept = [one for one in self.items(sub.stream) if self.is_kept(one)]
        self.start_at(sub, data.draw(st.sampled_from([BEGINNING, Token(9, 9), *kept])))

    def start_at(self, sub: Sub, start: Token) -> None:
        former, sub.cursor = sub.cursor, self.laggards.begin(sub.key, start)
        former.close()  # only now, because its messages would look done
        sub.is_faulted = False
        if start == BEGINNING:
            kept_from = next((one.token for one in self.log if one.token not in self.gone), None)
            start = kept_from or Token(1, len(self.log) + 1)
        # the queue has not reached this token: start with the next message
        elif start == Token(9, 9):
            start = Token(1, len(self.log) + 1)
            self.look([sub])
        sub.after = before(start)
        sub.got |= {token for token in self.items(sub.stream) if token <= sub.after}

    def look(self, subs: list[Sub]) -> None:
        """Compare new cursors with the bounds of the queue."""
        bounds = self.bounds()
        for sub in subs:
            if (behind := self.behind_of(sub)) is not None and behind.is_new:
                behind.begin_within(*bounds)

    def bounds(self) -> Bounds:
        """Return the first and last kept message, and the position of the queue's reader at that
        time."""
        kept = [one.token for one in self.log if one.token not in self.gone]
        first, last = (kept[0], kept[-1]) if kept else (None, None)
        return first, last, self.cache.newest

    @precondition(lambda self: self.page is None and self.asked is None)
    @rule()
    def ask_for_bounds(self) -> None:
        new = [behind for behind in self.laggards.cursors() if behind.is_new]
        for behind in new:
            behind.keeps = True
        if new:
            self.asked = self.bounds(), new

    @precondition(lambda self: self.asked is not None)
    @rule()
    def bounds_come(self) -> None:
        """Deliver earlier bounds; more messages may have been stored and read since."""
        assert self.asked is not None
        (bounds, new), self.asked = self.asked, None
        for behind in new:
            if behind.is_new:
                behind.begin_within(*bounds)

    @precondition(lambda self: self.page is None and self.asked is None)
    @rule()
    def ask_for_a_page(self) -> None:
        wanted = [sub for sub in self.subs if sub.cursor.is_away and not sub.is_faulted]
        self.look(wanted)
        lacking = [behind for sub in wanted if (behind := self.behind_of(sub)) is not None]
        lacking = [behind for behind in lacking if not behind.has_all]
        for behind in lacking:
            behind.keeps = True
        self.lacking = lacking  # the page is read for these cursors
        position = min((behind.following for behind in lacking), default=NOWHERE)
        if wanted:
            self.page = position, wanted

    @precondition(lambda self: self.page is not None)
    @rule(length=st.integers(1, 9))
    def page_comes(self, length: int) -> None:
        """Deliver a page, which may contain messages that the receiver has not read yet."""
        assert self.page is not None
        (position, wanted), self.page = self.page, None
        looked_at = [one for one in self.log if one.token >= position][:length]
        upto = looked_at[-1].token._replace(seq=looked_at[-1].token.seq + 1) if looked_at else None
        for sub in wanted:
            behind = self.behind_of(sub)
            if behind is None or behind.is_new:
                continue
            if behind in self.lacking and not behind.has_all and upto is not None:
                self.check_kept(sub, behind)
                found = [one for one in looked_at if one.stream == sub.stream]
                behind.take([one for one in found if one.token not in self.gone], upto)
            if not behind.is_lagging:
                owed = [token for token in self.due(sub) if token <= behind.after]
                assert not owed, f"{sub.name} would take {owed} for done"

    def check_kept(self, sub: Sub, behind: Cursor) -> None:
        """Check that no needed message is deleted, and that the cursor looks for no deleted
        message."""
        is_gap = behind.following <= self.own != NOWHERE
        assert not is_gap, f"{sub.name} would find a gap behind {self.own}"
        lacking = {token._replace(index=0) for token in self.due(sub)}
        assert not lacking & self.gone, f"{sub.name}: {sorted(lacking & self.gone)} are gone"

    # -- the record

    @precondition(lambda self: self.written is None)
    @rule()
    def write(self) -> None:
        progress = self.laggards.progress()
        new = with_progress(self.record, progress)
        if (new.upto, new.listed) == (progress.upto, progress.listed):
            self.record, self.written = new, progress

    @precondition(lambda self: self.written is not None)
    @rule()
    def write_is_confirmed(self) -> None:
        assert self.written is not None
        written, self.written = self.written, None
        self.laggards.on_stored(written)

    @rule()
    def acknowledge(self) -> None:
        upto = self.laggards.ackable()
        if upto is not None:
            self.own = max(self.own, upto)
            self.gone |= {one.token for one in self.log if one.token <= upto}
        self.gone |= set(self.cache.take_done())
        for sub in self.subs:
            undone = {token._replace(index=0) for token in self.due(sub) if token not in sub.got}
            assert not undone & self.gone, f"{sub.name} has not done {sorted(undone & self.gone)}"

    @rule()
    def crash(self) -> None:
        self.take_over(self.record.progress, is_clean=False)

    @rule()
    def hand_over(self) -> None:
        standing = ProgressTracker(
            self.laggards,
            Everyone(self),  # type: ignore[arg-type]
            Former(QueueProgress(), is_used=False),
            Wary(QueueProgress(), is_used=False),
            Losses(),
            stored=QueueProgress(),
            has_positions=True,
            is_sole=False,
        )
        progress = standing.handoff(is_known=True)
        assert progress is not None
        freed = msgspec.structs.replace(self.record, handoff=Handoff(True, 0))
        self.record = hand_over(freed, progress, is_acked=True)
        self.take_over(self.record.progress, True)

    def take_over(self, progress: QueueProgress, is_clean: bool) -> None:
        start = max(self.own, progress.upto or NOWHERE)
        entries = {(one.stream, one.subscription): one for one in progress.listed}
        self.begin_reading(start)
        self.laggards.take_over(progress, may_repeat=True)
        for sub in self.subs:
            sub.is_faulted = False
            entry = entries.get(sub.key)
            after = Token(start.era, start.seq, LAST) if entry is None else before(entry.mark)
            if entry is not None:
                behind = self.laggards.get(sub.key)
                assert behind is not None
                sub.cursor = behind
            if is_clean:
                assert after <= max(sub.after, after) and not set(self.due(sub)) & {
                    token for token in self.items(sub.stream) if token <= after
                }
                continue
            if entry is not None and entry.mark == BEGINNING:
                after = min(after, sub.after)
            owed = {token for token in self.items(sub.stream) if token <= after}
            assert owed <= sub.got, f"{sub.name} lost {sorted(owed - sub.got)}"
            sub.after = after

    # -- invariants

    @invariant()
    def holds(self) -> None:
        self.cache.check()
        self.laggards.check()
        progress = self.laggards.progress()
        behind = {(one.stream, one.subscription) for one in progress.listed}
        if progress.upto is not None:
            for sub in self.subs:
                undone = [one for one in self.due(sub) if one._replace(index=0) <= progress.upto]
                assert sub.key in behind or not undone, f"{sub.name}: {undone} not done"

    def teardown(self) -> None:
        """After the last fault all subscriptions get all events, and none lags."""
        for sub in self.subs:
            sub.is_faulted = False
        if self.asked is not None:
            self.bounds_come()
        for _ in range(400):
            self.read(5)
            for sub in self.subs:
                if not sub.cursor.is_drained:
                    self.deliver_to(sub, 5)
            if self.page is None:
                self.ask_for_a_page()
            if self.page is not None:
                self.page_comes(9)
        for sub in self.subs:
            assert not self.due(sub), f"{sub.name} lacks {self.due(sub)}"
        assert not len(self.laggards) and self.cache.chained_events == 0


BehindMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=50)
test_whoever_is_behind_agrees_with_the_model = BehindMachine.TestCase


def test_who_is_within_a_message_at_a_hand_over_gets_what_its_stream_has_behind_it() -> None:
    """A subscription reached the frontier before the next owner had read that far. It did not lag
    when a message came that the former owner had released for it."""
    machine = BehindMachine()
    within, other = machine.subs[1], machine.subs[2]
    machine.store(within.stream, [2])
    machine.store(other.stream, [1])
    machine.store(within.stream, [1])
    machine.read(3)
    machine.deliver_to(within, 1)
    machine.hand_over()
    machine.ask_for_a_page()
    machine.page_comes(1)
    machine.deliver_to(within, 1)
    machine.read(3)
    machine.teardown()
    assert len(within.got) == 3


def test_events_that_come_before_an_empty_queue_has_answered_are_delivered() -> None:
    """The answer is older than these events, which therefore seemed to have been dropped since."""
    for kept in (False, True):
        machine = BehindMachine()
        sub = machine.subs[0]
        if kept:
            machine.store(sub.stream, [1])
            machine.read(1)
            machine.deliver_to(sub, 1)
            machine.acknowledge()
        machine.start_at(sub, BEGINNING)
        machine.ask_for_bounds()
        machine.store(sub.stream, [1, 2])
        machine.read(2)
        machine.bounds_come()
        machine.teardown()
        assert len(sub.got) == 3 + kept
