"""The reader compared with a model: a provider with all kinds of faults, and events in any order.

After each step the invariants hold, the appended messages are the beginning of the log, once each
and in order, and all acknowledged messages are done. After the last fault all messages are appended
and acknowledged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from millstream.streams import (
    CacheLimits,
    Capability,
    FlowOptions,
    QueueMessage,
    StreamId,
    StreamOptions,
    Token,
)
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.reading.steps import (
    Ack,
    Action,
    Discard,
    Offer,
    OpenReceiver,
    Read,
    Say,
)

WHERE = "p: R.read"
Told = tuple[Callable[..., Sequence[Action]], tuple[object, ...]]
STREAMS = [StreamId("n", key) for key in "abc"]
LOG = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS})
OPTIONS = StreamOptions(
    cache=CacheLimits(events_max=6),
    flow=FlowOptions(read_events_max=5, ack_every_events=3, ack_every_s=0.2),
)


class Provider:
    """A log, and its receivers; each has at most one call of a kind out."""

    def __init__(self) -> None:
        self.log: list[QueueMessage] = []
        self.acked = 0
        self.serial = 0
        self.at: dict[int, int] = {}  # by serial: the next message to read
        self.starting: int | None = None
        self.reading: tuple[int, int] | None = None  # serial, events
        self.acking: tuple[int, Token] | None = None
        self.closing: int | None = None
        self.old: list[Told] = []  # late answers of replaced receivers


class Machine(RuleBasedStateMachine):
    capabilities = LOG | {Capability.WAKEUP}

    def __init__(self) -> None:
        super().__init__()
        self.provider = Provider()
        self.cache = QueueCache(OPTIONS.cache)
        self.core = ReaderCore(
            self.cache,
            LaggingCursors(self.cache, is_used=False),
            OPTIONS,
            self.capabilities,
            where="p: q",
            after=None,
            now_s=0.0,
        )
        self.now_s = 0.0
        self.is_paused = False
        self.appended: list[Token] = []
        self.held: list[Slot] = []
        self.done: set[Token] = set()
        self.step(self.core.tick)

    def step(self, call: Callable[..., Sequence[Action]], *args: object) -> None:
        for action in call(*args, self.now_s):
            self.act(action)

    def act(self, action: Action) -> None:
        provider = self.provider
        match action:
            case OpenReceiver():
                assert provider.starting is None and provider.closing is None
                assert provider.reading is None
                provider.serial = provider.starting = action.serial
                provider.at[action.serial] = (
                    provider.acked if action.after is None else action.after.seq
                )
            case Read():
                assert provider.reading is None and not self.is_paused
                provider.reading = (provider.serial, action.events)
            case Ack():
                assert provider.acking is None and action.upto is not None
                assert all(one.token in self.done for one in provider.log[: action.upto.seq])
                provider.acking = (provider.serial, action.upto)
            case Discard():
                self.let_go()
            case Offer():
                self.appended += [slot.message.token for slot in action.slots]
                self.held += action.slots
                assert not self.is_paused
            case Say():
                pass
            case _:
                raise AssertionError(action)

    def let_go(self) -> None:
        provider = self.provider
        provider.closing = provider.serial
        if provider.reading is not None:
            provider.old.append((self.core.on_read, (provider.serial, self.found(), WHERE)))
        if provider.acking is not None:
            provider.old.append((self.core.on_settled, (provider.serial, None, WHERE)))
        provider.old.append((self.core.on_failed, (provider.serial, "read", "late")))
        provider.old.append((self.core.on_opened, (provider.serial,)))
        provider.starting = provider.reading = provider.acking = None

    def found(self) -> list[QueueMessage]:
        assert self.provider.reading is not None
        serial, events = self.provider.reading
        at = self.provider.at[serial]
        found = self.provider.log[at : at + events]
        self.provider.at[serial] = at + len(found)
        return found

    @rule(count=st.integers(1, 9), key=st.sampled_from(STREAMS))
    def store(self, count: int, key: StreamId) -> None:
        for _ in range(count):
            seq = len(self.provider.log) + 1
            self.provider.log.append(QueueMessage(key, Token(1, seq), [b"x"]))

    @precondition(lambda self: self.provider.starting is not None)
    @rule()
    def start_ends(self) -> None:
        serial, self.provider.starting = self.provider.starting, None
        assert serial is not None
        self.step(self.core.on_opened, serial)

    @precondition(lambda self: self.provider.reading is not None)
    @rule(repeats=st.integers(0, 3))
    def read_ends(self, repeats: int) -> None:
        """End a read, perhaps with messages that it returned before."""
        assert self.provider.reading is not None
        serial = self.provider.reading[0]
        self.provider.at[serial] = max(0, self.provider.at[serial] - repeats)
        found, self.provider.reading = self.found(), None
        self.step(self.core.on_read, serial, found, "p: R.read")

    @precondition(lambda self: self.provider.acking is not None)
    @rule()
    def ack_ends(self) -> None:
        assert self.provider.acking is not None
        (serial, upto), self.provider.acking = self.provider.acking, None
        self.provider.acked = max(self.provider.acked, upto.seq)
        self.step(self.core.on_settled, serial, None, WHERE)

    @rule(method=st.sampled_from(["start", "read", "ack"]))
    def fail(self, method: str) -> None:
        provider = self.provider
        if method == "start" and provider.starting is not None:
            provider.starting = None
        elif method == "read" and provider.reading is not None:
            provider.reading = None
        elif method == "ack" and provider.acking is not None:
            provider.acking = None
        else:
            return
        self.step(self.core.on_failed, provider.serial, method, "down")

    @precondition(lambda self: self.provider.reading is not None)
    @rule(answer=st.sampled_from([None, [None], 3, "text"]))
    def answer_wrongly(self, answer: object) -> None:
        assert self.provider.reading is not None
        serial, self.provider.reading = self.provider.reading[0], None
        self.step(self.core.on_read, serial, answer, "p: R.read")

    @precondition(lambda self: self.provider.closing is not None)
    @rule()
    def close_ends(self) -> None:
        serial, self.provider.closing = self.provider.closing, None
        assert serial is not None
        self.step(self.core.on_closed, serial)

    @precondition(lambda self: self.provider.old)
    @rule(data=st.data())
    def an_old_receiver_speaks(self, data: st.DataObject) -> None:
        """Deliver an answer of a replaced receiver: late, twice, or in the wrong order."""
        call, args = data.draw(st.sampled_from(self.provider.old))
        self.step(call, *args)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.199, 1.0, 12.0, 130.0]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.step(self.core.tick)

    @rule(early_s=st.sampled_from([0.0, 0.001]))
    def timer(self, early_s: float) -> None:
        """Fire the timer, perhaps a little early."""
        when_s = self.core.wake_s()
        if when_s < math.inf:
            self.now_s = max(self.now_s, when_s - early_s)
            self.step(self.core.tick)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), looks=st.booleans())
    def finish(self, data: st.DataObject, looks: bool) -> None:
        self.finish_one(data.draw(st.integers(0, len(self.held) - 1)), looks)

    def finish_one(self, at: int, looks: bool) -> None:
        """Act like the agent: a reader that rests is not told, because it would do nothing."""
        slot = self.held.pop(at)
        self.done.add(slot.message.token)
        self.cache.release(slot)
        if not self.core.rests(self.now_s):
            self.step(self.core.tick)
        elif looks:
            assert not self.core.tick(self.now_s)

    @rule()
    def pause(self) -> None:
        self.is_paused = True
        self.step(self.core.hold, True)

    @rule()
    def go_on(self) -> None:
        self.is_paused = False
        self.step(self.core.hold, False)

    @invariant()
    def holds(self) -> None:
        self.core.check()
        self.cache.check()
        wanted = [one.token for one in self.provider.log[: len(self.appended)]]
        assert self.appended == wanted, "once each, in order"

    def teardown(self) -> None:
        """Stop the faults; all messages arrive."""
        self.go_on()
        for _ in range(1000):
            if len(self.done) == len(self.provider.log) == self.provider.acked:
                return
            self.one_step_on()
        raise AssertionError(f"{len(self.done)} of {len(self.provider.log)} are done")

    def one_step_on(self) -> None:
        provider = self.provider
        if provider.closing is not None:
            self.close_ends()
        elif provider.starting is not None:
            self.start_ends()
        elif provider.acking is not None:
            self.ack_ends()
        elif self.held:
            self.finish_one(0, looks=False)
        elif provider.reading is not None and len(self.appended) < len(provider.log):
            self.read_ends(0)
        else:
            self.timer(0.0)
        self.holds()


class PolledMachine(Machine):
    capabilities = LOG


TestReader = Machine.TestCase
TestPolledReader = PolledMachine.TestCase
TestReader.settings = TestPolledReader.settings = settings(
    max_examples=examples(60), stateful_step_count=60
)
