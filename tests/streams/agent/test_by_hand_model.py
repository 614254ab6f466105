"""Acknowledging by hand against a model: no event is skipped, and no acknowledged one is
redelivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.streams.agent.cursors import SUBSCRIPTION
from tests.streams.agent.stepping import RAISED, A

from millstream.runtime.extending import Backoff
from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.positions import before
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    AckBy,
    Action,
    CallReply,
    Deliver,
    DeliveryState,
    Fetch,
    GiveUp,
    Unreachable,
    WaitUntil,
)
from millstream.streams.contracts.item import Item

B = StreamId("n", "b")
KEY = (A, SUBSCRIPTION)
UNACKED_MAX = 4
OPTIONS = DeliveryOptions(
    retries=1,
    backoff=Backoff(first_s=1, factor=2, ceiling_s=8),
    max_unacked=UNACKED_MAX,
    ack_timeout_s=60.0,
)
Due = Callable[[float], Sequence[Action]]
LIMITS = CacheLimits(events_max=40, stream_events_max=6)


class Consumer:
    """A grain: the events that this activation has handled, and those that it has acknowledged."""

    def __init__(self) -> None:
        self.handled: set[Token] = set()
        self.acked: Token | None = None
        self.is_fresh = True

    def ack(self, world: World, upto: Token) -> None:
        if self.acked is None or upto > self.acked:
            self.acked = upto
        world.acked |= {token for token in self.handled if token <= upto}


class World:
    """One stream of a log, its subscription, and an agent that another one may replace."""

    def __init__(self) -> None:
        self.log: list[QueueMessage] = []
        self.now_s = 0.0
        self.consumer = Consumer()
        self.acked: set[Token] = set()
        self.dead: set[Token] = set()
        self.broken: set[Token] = set()
        self.due: list[tuple[float, Due]] = []
        self.out: Sequence[Item] = ()
        self.asked: Token | None = None
        self.on_its_way: set[Token] = set()  # sent again before they were acknowledged
        self.is_slow = False  # if set, reading again ends only when the script says so
        self.is_rewound = False  # the consumer does not know yet that its subscription was moved
        self.is_stale = False  # the call that is out began before the move
        self.sent: Token | None = None  # the last item that any agent has sent
        self.first = 0  # messages of the log before this one are deleted
        self.gone: set[Token] = set()  # items of reported gaps
        self.begin(None)

    # -- the agent

    def begin(self, hold: Token | None) -> None:
        """Start an agent at the mark that the record has for the former agent."""
        self.cache = QueueCache(LIMITS)
        self.laggards = LaggingCursors(self.cache, is_used=True)
        self.due, self.out, self.asked, self.is_fetching = [], (), None, False
        self.is_stale = False
        self.on_its_way.clear()
        self.is_paused = False
        if hold is None:
            cursor, after = Cursor(self.laggards, KEY), None
        else:
            cursor, after = self.laggards.begin(KEY, hold), before(hold)
            cursor.is_new = False
            cursor.dropped = self.log[-1].token
            cursor.sent = self.sent
        self.delivery = Delivery(cursor, OPTIONS, after=after, is_manual=True)
        self.read = len(self.log) if hold is not None else 0
        self.settle()

    def follow(self, actions: Sequence[Action]) -> None:
        """Carry out the actions of a call of the core."""
        for action in actions:
            self.act(action)
        self.delivery.check()
        assert self.delivery.cursor.ahead + len(self.out) <= UNACKED_MAX

    def act(self, action: Action) -> None:
        match action:
            case Deliver():
                cursor = self.delivery.cursor
                self.asked = cursor.token if cursor.ahead else None
                self.out = action.items
                last = self.out[-1].token
                self.sent = last if self.sent is None else max(self.sent, last)
                self.delivery.on_sent(len(action.items), self.now_s)
            case WaitUntil():
                self.due.append((action.when_s, self.delivery.tick))
            case AckBy():
                self.due.append((action.when_s, self.delivery.ack_due))
            case GiveUp():
                self.asked = action.item.token
                assert self.asked not in self.acked, f"{self.asked} is acknowledged and given up"
            case Fetch():
                self.is_fetching = True

    def settle(self) -> None:
        """Do the agent's own work: read, read again, send."""
        while self.read < len(self.log):
            slot = self.cache.append(self.log[self.read])
            if slot is None:
                break
            self.read += 1
            if slot.message.stream == A:
                self.arrive(slot)
            self.cache.release(slot)
        for _ in range(100):
            if self.is_fetching and not self.is_slow:
                self.fetch()
            elif self.delivery.state is DeliveryState.READY:
                self.follow(self.delivery.wake())
            else:
                break
        else:
            raise AssertionError("it sends in a hot loop")
        self.laggards.check()
        self.cache.check()

    def arrive(self, slot: Slot) -> None:
        """Act like the driver: a delivery that is ready or out finds the message by itself."""
        delivery = self.delivery
        if delivery.state is DeliveryState.READY or delivery.is_out:
            return
        was_idle = delivery.state is DeliveryState.IDLE
        self.follow(delivery.on_arrival(slot, is_held=self.is_paused))
        if was_idle and delivery.state is DeliveryState.FAULTED:
            self.start_lagging()

    def fetch(self) -> None:
        self.is_fetching = False
        behind = self.laggards.get(KEY)
        if behind is not None:
            if behind.is_new:
                kept = [one.token for one in self.log[self.first :]]
                first, last = (kept[0], kept[-1]) if kept else (None, None)
                behind.begin_within(first, last, self.cache.newest)
            if behind.is_lagging and not behind.has_all:
                self.read_anew(behind)
        self.follow(self.delivery.on_fetched())

    def read_anew(self, behind: Cursor) -> None:
        """Deliver a page or a gap to a lagging cursor."""
        behind.keeps = True
        if self.first and behind.following <= self.log[self.first - 1].token:
            end = Token(9, 0) if self.first == len(self.log) else self.log[self.first].token
            lost = behind.lose(end)
            if lost is not None:
                self.gone |= {one for one in self.every() if lost <= one < behind.following}
            return
        page = [one for one in self.log if behind.following <= one.token][:3]
        upto = Token(page[-1].token.era, page[-1].token.seq + 1) if page else Token(1, 0)
        behind.take([one for one in page if one.stream == A], upto)

    # -- events of the model

    def forget(self, count: int) -> None:
        """Let the provider drop its oldest messages that were read."""
        self.first = min(self.read, self.first + count)

    def publish(self, count: int, stream: StreamId) -> None:
        self.log.append(QueueMessage(stream, Token(0, len(self.log) + 1), [b"x"] * count))

    def answer(self, outcome: str, share: int) -> None:
        """End the call that is out."""
        self.answer_of(self.out, outcome, share)
        self.on_its_way.clear()

    def answer_of(self, items: Sequence[Item], outcome: str, share: int) -> None:
        if not items:
            return
        self.out = ()
        consumer = self.consumer
        if self.is_stale:  # the agent ignores its reply
            self.is_stale = False
            self.follow(self.delivery.on_reply(CallReply(len(items), None, self.now_s, 0.5)))
            return
        if outcome == "fails":  # the grain cannot be activated
            self.follow(self.delivery.on_reply(CallReply(0, RAISED, self.now_s, 0.5)))
            return
        if outcome == "lost":
            self.follow(self.delivery.unreachable(Unreachable("lost", self.now_s, 0.5)))
            return
        if consumer.is_fresh and self.asked is not None and items[0].token > self.asked:
            self.follow(self.delivery.on_reply(CallReply(0, None, self.now_s, 0.5, is_anew=True)))
            return
        if self.is_rewound:
            consumer.acked = None
        consumer.is_fresh = False
        done, failure = 0, None
        for item in items:
            if item.token in self.broken:
                failure = RAISED
                break
            if consumer.acked is None or item.token > consumer.acked:
                self.handle(item.token)
            done += 1
        if done and outcome == "acks":
            consumer.ack(self, items[min(share, done - 1)].token)
        if outcome == "reply lost":
            self.follow(self.delivery.unreachable(Unreachable("reply lost", self.now_s, 0.5)))
        else:
            self.is_rewound = self.is_rewound and not done
            reply = CallReply(done, failure, self.now_s, 0.5, acked=consumer.acked)
            self.follow(self.delivery.on_reply(reply))

    def handle(self, token: Token) -> None:
        is_new = token not in self.acked or token in self.on_its_way
        assert is_new, f"{token} was acknowledged, and comes again"
        consumer = self.consumer
        before = {one for one in self.every() if one < token}
        missing = before - consumer.handled - self.acked - self.dead - self.gone
        assert not missing, f"{token} came, and {sorted(missing)} did not"
        consumer.handled.add(token)

    def every(self) -> list[Token]:
        """Return all items of the stream."""
        return [
            one.token._replace(index=at)
            for one in self.log
            if one.stream == A
            for at in range(len(one.items))
        ]

    def move(self, share: int) -> None:
        """Call `resume(start=...)`: events before the start are done, and all others are
        redelivered."""
        if not (every := self.every()):
            return
        start = every[share % len(every)]
        self.acked = {one for one in every if one < start}
        self.dead &= self.acked
        self.consumer.handled &= self.acked
        self.is_rewound, self.is_paused = True, False
        self.is_stale = bool(self.out)
        self.on_its_way.clear()
        cursor = self.laggards.begin(KEY, start)
        self.follow(self.delivery.resume(before(start), cursor))

    def ack_later(self, share: int) -> None:
        """Acknowledge outside of a call."""
        handled = sorted(self.consumer.handled)
        if handled and not self.is_rewound:  # otherwise nobody hears of it
            token = handled[share % len(handled)]
            self.consumer.ack(self, token)
            self.on_its_way = {item.token for item in self.out} & self.acked
            if self.consumer.acked is not None:
                self.follow(self.delivery.on_acked(self.consumer.acked))

    def decide(self, outcome: Literal["dead_letter", "pause"]) -> None:
        """Let the failure handler answer."""
        delivery = self.delivery
        if delivery.state is DeliveryState.GIVING_UP:
            assert self.asked is not None
            if outcome == "pause":
                self.is_paused = True
            else:
                self.dead.add(self.asked)
            self.follow(delivery.on_given_up(outcome))
            if outcome == "pause":
                self.start_lagging()

    def pass_time(self) -> None:
        due, self.due = self.due, []
        self.now_s = max([self.now_s, *(when_s for when_s, _ in due)])
        for _, call in due:
            self.follow(call(self.now_s))

    def hand_over(self) -> None:
        """End the open call without an answer; the record has the agent's mark."""
        hold = None
        if self.delivery.state is not DeliveryState.IDLE:
            if self.laggards.get(KEY) is None:
                self.start_lagging()
            behind = self.laggards.get(KEY)
            assert behind is not None
            hold = behind.position
        elif self.read < len(self.log):
            hold = self.log[self.read].token
        if hold is None or not self.log:
            return
        self.begin(hold)

    def start_lagging(self) -> None:
        self.delivery.start_lagging(may_repeat=False)

    def pause(self) -> None:
        self.is_paused = not self.is_paused
        if self.is_paused:
            self.delivery.pause()
            self.delivery.check()
        else:
            self.follow(self.delivery.retry())
        if self.delivery.state is DeliveryState.FAULTED:
            self.start_lagging()

    def end(self) -> None:
        """Continue until all events are handled and acknowledged."""
        self.is_slow = False
        if self.is_paused:
            self.pause()
        for _ in range(2_000):
            self.settle()
            if self.delivery.state is DeliveryState.IDLE and self.read == len(self.log):
                break
            self.answer("acks", 99)
            self.decide("dead_letter")
            if self.delivery.state is DeliveryState.UNACKED:
                self.ack_later(-1)
            waits = (DeliveryState.UNACKED, DeliveryState.BACKOFF)
            if self.delivery.state in waits:
                self.pass_time()
        else:
            raise AssertionError(f"it does not end: {self.delivery.state}")
        assert set(self.every()) <= self.acked | self.dead | self.gone
        assert not len(self.laggards) and self.cache.find_acked() == (
            self.cache.newest if self.log else None
        )


things = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("other"), st.just(1)),
    st.tuples(st.sampled_from(["acks", "ok", "fails", "lost", "reply lost"]), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(
            [
                *("ack", "time", "decide", "new", "over", "behind", "pause", "move", "slow"),
                *("fetch", "forget", "relieve"),
            ]
        ),
        st.integers(0, 9),
    ),
)


def script(text: str) -> list[tuple[str, int]]:
    """Parse a list of events: words with a number each."""
    return [(word, int(number)) for word, number in (part.split() for part in text.split(", "))]


@example(script("publish 1, ok 0, time 0, ack 0, new 0"), set())
@example(script("publish 1, ok 0, pause 0, ack 0, new 0"), set())
@example(script("publish 2, ok 0, pause 0, ack 0, new 0, pause 0"), set())
@example(script("publish 1, ok 0, over 0, ack 0, new 0"), set())
@example(script("publish 1, ok 0, pause 0, ack 0, over 0, new 0"), set())
@example(script("publish 1, ok 0, slow 0, pause 0, pause 0, ack 0, new 0, fetch 0"), set())
@example(script("publish 3, ok 0, publish 1, move 0, behind 0, over 0"), set())
@example(script("publish 1, ok 0, time 0, ack 0, fails 0, new 0"), set())
@example(script("publish 1, ok 0, time 0, fails 0, time 0, fails 0, ack 0, decide 9, new 0"), set())
@example(script("publish 1, ok 0, time 0, fails 0, time 0, ack 0, fails 0"), set())
@example(script("publish 1, acks 0, move 0, slow 0, ok 0, pause 0, ack 0, new 0"), set())
@example(
    script(
        "publish 1, ok 0, behind 0, publish 1, ok 0, publish 1, ok 0, relieve 0, forget 3,"
        " publish 1, publish 1, ack 1, behind 0, publish 1, ok 0"
    ),
    set(),
)
@settings(max_examples=examples(300))
@given(st.lists(things, max_size=60), st.sets(st.integers(1, 12), max_size=2))
def test_what_is_acknowledged_never_comes_again_and_nothing_is_skipped(
    steps: list[tuple[str, int]], broken: set[int]
) -> None:
    world = World()
    world.broken = {Token(0, seq, 0) for seq in broken}
    for what, number in steps:
        match what:
            case "publish":
                world.publish(number, A)
            case "other":
                world.publish(1, B)
            case "acks" | "ok" | "fails" | "lost" | "reply lost":
                world.answer(what, number)
            case "ack":
                world.ack_later(number)
            case "time":
                world.pass_time()
            case "decide":
                world.decide("pause" if number == 9 else "dead_letter")
            case "new":
                world.consumer = Consumer()
            case "over":
                world.hand_over()
            case "behind":
                world.start_lagging()
            case "pause":
                world.pause()
            case "move":
                world.move(number)
            case "relieve":
                world.laggards.let_go(A)
            case "forget":
                world.forget(number)
            case "slow":
                world.is_slow = not world.is_slow
            case "fetch":
                if world.is_fetching:
                    world.fetch()
        world.settle()
    world.end()
