"""Releases of single messages: at a pause those that are not under way, and failed ones if the
queue counts attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from tests.conditions import spin, until
from tests.contract.adapters import tags
from tests.contract.adapters.tags import LeasedQueues, LeasingBroker
from tests.streams.agent import stepping
from tests.streams.agent.caches import cache_with, cursor_at, release, release_all
from tests.streams.agent.cursors import append
from tests.streams.agent.stepping import RAISED, A

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster, RuntimeOptions
from millstream.streams import (
    Backoff,
    CacheLimits,
    Capability,
    DeliveryOptions,
    Event,
    FlowOptions,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueMessage,
    StreamNamespace,
    StreamOptions,
    Token,
    dead_letters,
    subscribe,
)
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    CallReply,
    DeliveryState,
    GiveUp,
    HandBack,
    WaitUntil,
)
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.reading.settlement import RELEASES_MAX
from millstream.streams.agent.reading.steps import (
    Ack,
    Action,
    Discard,
    Offer,
    Read,
    Release,
    Return,
    Say,
)

SINGLE = frozenset(
    {Capability.LEASED, Capability.ITEM_ACK, Capability.OWN_POSITION, Capability.WAKEUP}
)


WHERE = "p: R.release"


def message(seq: int, attempt: int = 1) -> QueueMessage:
    return QueueMessage(A, Token(1, seq), [b"x"], attempt=attempt, lease_s=100.0)


# -- the reader


class Desk:
    def __init__(self, capabilities: frozenset[Capability] = SINGLE) -> None:
        options = StreamOptions(cache=CacheLimits(events_max=2), read_retry_s=1.0)
        self.cache = QueueCache(options.cache, notes="all", gives_back=True)
        book = LaggingCursors(self.cache, is_used=False)
        self.core = ReaderCore(self.cache, book, options, capabilities, where="p: q", after=None)
        self.now_s = 0.0
        self.step(self.core.tick)
        self.step(self.core.on_opened, 1)

    def step(self, call: Callable[..., Sequence[Action]], *args: object) -> list[Action]:
        actions = list(call(*args, self.now_s))
        self.core.check()
        return actions

    def got(self, *messages: QueueMessage) -> list[Action]:
        return self.step(self.core.on_read, 1, messages, "p: R.read")


def kinds(actions: Sequence[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


def test_a_pause_gives_back_what_waits_and_asks_for_the_rest() -> None:
    desk = Desk()
    desk.got(message(1), message(2), message(3), message(4))  # two of them do not fit
    back = Release([Token(1, 3), Token(1, 4)], 0.0, False)
    assert desk.step(desk.core.hold, True) == [Return(), back]
    assert desk.step(desk.core.on_returned, [Token(1, 2)], 0.0, False) == []  # one call at a time
    assert desk.step(desk.core.on_settled, 1, None, WHERE) == [Release([Token(1, 2)], 0.0, False)]
    assert desk.step(desk.core.on_settled, 1, None, WHERE) == []
    assert kinds(desk.step(desk.core.hold, False)) == []  # the cache is full


def test_what_a_read_brings_during_a_pause_goes_back() -> None:
    desk = Desk()
    assert desk.step(desk.core.hold, True) == [Return()]
    assert desk.got(message(1)) == [Release([Token(1, 1)], 0.0, False)]
    desk.step(desk.core.on_settled, 1, None, WHERE)
    assert kinds(desk.step(desk.core.hold, False)) == [Read]
    assert kinds(desk.got(message(1))) == [Offer, Read]


def test_a_log_keeps_what_waits_during_a_pause() -> None:
    desk = Desk(frozenset({Capability.ORDERED, Capability.ITEM_ACK, Capability.OWN_POSITION}))
    desk.got(message(1), message(2), message(3))
    assert desk.step(desk.core.hold, True) == []


def test_a_release_that_fails_is_tried_again() -> None:
    desk = Desk()
    desk.got(message(1))
    assert kinds(desk.step(desk.core.on_returned, [Token(1, 1)], 5.0, True)) == [Release]
    assert kinds(desk.step(desk.core.on_failed, 1, "release", "down")) == [Say]
    assert desk.core.wake_s() <= 1.0
    desk.now_s = 1.0
    assert Release([Token(1, 1)], 5.0, True) in desk.step(desk.core.tick)


def test_a_release_without_an_answer_replaces_the_receiver_which_gives_back_all() -> None:
    desk = Desk()
    desk.got(message(1))
    desk.step(desk.core.on_returned, [Token(1, 1)], 0.0, False)
    desk.now_s = desk.core.wake_s() + 1e-6
    while Discard not in kinds(actions := desk.step(desk.core.tick)):
        desk.now_s = desk.core.wake_s() + 1e-6
        assert desk.now_s < 11.0
    assert "release gave no answer" in next(a.text for a in actions if isinstance(a, Say))
    assert desk.core.settling.last()[1] == ()


def test_a_provider_that_takes_nothing_back_costs_its_receiver_not_the_memory() -> None:
    desk = Desk()
    desk.got(message(1))
    for number in range(RELEASES_MAX // 100):
        tokens = [Token(2, number * 100 + at) for at in range(100)]
        assert Discard not in kinds(desk.step(desk.core.on_returned, tokens, 0.0, False))
    assert Discard in kinds(desk.step(desk.core.on_returned, [Token(1, 1)], 0.0, False))


def test_what_is_given_back_is_neither_extended_nor_acknowledged() -> None:
    desk = Desk()
    desk.got(message(1), message(2))
    desk.cache.disown([Token(1, 1)])
    release(desk.cache, 0)
    release(desk.cache, 1)
    desk.step(desk.core.on_returned, [Token(1, 1)], 0.0, True)
    desk.now_s = 1.0
    assert desk.step(desk.core.on_settled, 1, None, WHERE) == [Ack(None, [Token(1, 2)])]
    assert desk.step(desk.core.on_settled, 1, None, WHERE) == []


def test_the_end_settles_what_was_not_settled() -> None:
    desk = Desk()
    desk.got(message(1), message(2))
    release(desk.cache, 1)
    desk.cache.disown([Token(1, 1)])
    release(desk.cache, 0)
    desk.step(desk.core.on_returned, [Token(1, 1)], 3.0, True)
    ack, releases = desk.core.settling.last()
    assert ack == Ack(None, [Token(1, 2)])
    assert releases == (Release([Token(1, 1)], 3.0, True),)


# -- attempts that the queue counts


def delivery_of(
    *messages: QueueMessage, retries: int = 2, goes_back: bool = False
) -> tuple[QueueCache, Delivery]:
    cache = QueueCache(CacheLimits(), notes="all", gives_back=goes_back)
    for one in messages:
        append(cache, one).goes_back = goes_back
    options = DeliveryOptions(retries=retries, backoff=Backoff(4.0, 2, 100.0))
    delivery = Delivery(cursor_at(cache, 0), options)
    release_all(cache)
    return cache, delivery


def send(delivery: Delivery, attempt: int, count: int = 1) -> None:
    sent = stepping.send(delivery)
    assert (sent.attempt, len(sent.items)) == (attempt, count)


def test_an_event_that_was_tried_elsewhere_has_the_attempts_that_are_left() -> None:
    _, delivery = delivery_of(message(1, attempt=2), message(2))
    send(delivery, 2)  # alone in its call
    (wait,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.0))
    assert isinstance(wait, WaitUntil) and delivery.attempts == 2
    delivery.state = DeliveryState.READY  # the wait has ended
    send(delivery, 3)
    (action,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.0))
    assert isinstance(action, GiveUp) and action.attempts == 3


def test_giving_up_follows_only_a_failure_that_was_seen() -> None:
    _, delivery = delivery_of(message(1, attempt=9), message(2))
    send(delivery, 9)
    assert delivery.on_reply(CallReply(1, None, 0.0, 0.0)) == ()
    _, other = delivery_of(message(1, attempt=9))
    send(other, 9)
    (action,) = other.on_reply(CallReply(0, RAISED, 0.0, 0.0))
    assert isinstance(action, GiveUp) and action.attempts == 9


def test_a_batch_ends_before_an_event_that_was_tried() -> None:
    _, delivery = delivery_of(message(1), message(2), message(3, attempt=2), message(4))
    send(delivery, 1, count=2)
    delivery.on_reply(CallReply(2, None, 0.0, 0.0))
    send(delivery, 2, count=1)


def test_what_failed_goes_back_with_its_wait_and_what_is_behind_it_goes_on() -> None:
    cache, delivery = delivery_of(message(1), message(2), goes_back=True)
    send(delivery, 1, count=2)
    (back,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.5))
    assert isinstance(back, HandBack)
    assert (back.token, back.attempts) == (Token(1, 1), 1) and 2.0 <= back.delay_s <= 4.0
    delivery.check()
    assert delivery.state is DeliveryState.READY and delivery.attempts == 0
    cache.disown([back.token])
    send(delivery, 1)
    delivery.on_reply(CallReply(1, None, 0.0, 0.0))
    assert cache.take_done() == [Token(1, 2)]


def test_the_last_attempt_does_not_go_back() -> None:
    _, delivery = delivery_of(message(1, attempt=3), goes_back=True)
    send(delivery, 3)
    (action,) = delivery.on_reply(CallReply(0, RAISED, 0.0, 0.5))
    assert isinstance(action, GiveUp) and action.attempts == 3


def test_what_is_cut_off_is_neither_held_nor_done() -> None:
    cache = cache_with(*map(message, range(1, 5)), notes="all")
    cursor = cursor_at(cache, 0)
    release_all(cache)
    assert cache.cut(A, 1, lambda: None) == [Token(1, 3), Token(1, 4)]
    cache.check()
    assert cache.events == 2 and cursor.index_at(1) == 1
    cursor.advance(2)
    assert cursor.is_drained
    cache.check()
    assert cache.take_done() == [Token(1, 1), Token(1, 2)] and cache.cut(A, -1, lambda: None) == []


# -- in a cluster

WORK = StreamNamespace("work", str, subscriptions="implicit")
TOLD = StreamNamespace("told", str, subscriptions="implicit")
SEEN: Counter[str] = Counter()
TRIES: list[tuple[str, int]] = []
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    global GATE
    GATE = asyncio.Event()  # belongs to the loop of one test
    GATE.set()
    SEEN.clear()
    TRIES.clear()
    monkeypatch.setattr(tags, "LEASE_S", 60.0)


class Worker(Grain):
    @subscribe(WORK)
    async def on_work(self, event: Event[str]) -> None:
        TRIES.append((event.item, event.attempt))
        await GATE.wait()
        if event.item == "bad":
            raise ValueError("no")
        SEEN[event.item] += 1


class Loud(Grain):
    @subscribe(TOLD)
    async def on_told(self, event: Event[str]) -> None:
        TRIES.append((event.item, event.attempt))
        if event.attempt < 3:
            raise ValueError("not yet")
        SEEN[event.item] += 1


class Quiet(Grain):
    @subscribe(TOLD)
    async def on_told(self, event: Event[str]) -> None:
        SEEN["quiet"] += 1


def cluster_of(broker: LeasingBroker, retries: int = 2) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            LeasedQueues(broker),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=StreamOptions(
                read_wait_s=0.01,
                calls_out_max=8,
                flow=FlowOptions(ack_every_s=0.0),
                delivery=DeliveryOptions(retries=retries, backoff=Backoff(0.01, 1, 0.01)),
                ownership=OwnershipOptions(max_handoff_s=0.01),
            ),
        )

    return LocalCluster(
        grains=[Worker, Loud, Quiet],
        streams={"default": provider},
        options=RuntimeOptions(drain_s=0.01),
    )


def agent_of(cluster: LocalCluster) -> PullingAgent:
    (agent,) = cluster.silos[0].services.part("default").manager.agents()
    assert isinstance(agent, PullingAgent)
    return agent


async def test_attempts_are_counted_across_silos() -> None:
    broker = LeasingBroker()
    letters = broker.queue("queue-0").letters
    async with cluster_of(broker) as cluster:
        await cluster.stream(WORK, "k").publish("bad")
        await until(lambda: bool(letters) and letters[0].failed == 1)
    tries_before = len(TRIES)
    async with cluster_of(broker) as cluster:
        await until(lambda: not letters)
        (letter,) = [letter async for letter in dead_letters(cluster).all()]
    assert [attempt for _, attempt in TRIES[:3]] == [1, 2, 3] == sorted({a for _, a in TRIES})
    assert 1 <= tries_before <= 2 and len(TRIES) == 3
    assert letter.failure.attempts == 3


async def test_a_few_rebalances_do_not_kill_what_never_ran() -> None:
    broker = LeasingBroker()
    letters = broker.queue("queue-0").letters
    for _ in range(4):
        GATE.clear()
        TRIES.clear()
        async with cluster_of(broker, retries=0) as cluster:
            if not letters:
                for text in ("a", "b", "c", "d"):
                    await cluster.stream(WORK, text).publish(text)
            await until(lambda: len(TRIES) == 4)
        assert [letter.failed for letter in letters] == [0, 0, 0, 0]
    GATE.set()
    async with cluster_of(broker, retries=0):
        await until(lambda: not letters)
    assert set(SEEN) == {"a", "b", "c", "d"}
    assert {attempt for _, attempt in TRIES} == {1}


async def test_a_pause_gives_back_what_is_not_under_way_and_nothing_else() -> None:
    broker = LeasingBroker()
    letters = broker.queue("queue-0").letters
    async with cluster_of(broker) as cluster:
        GATE.clear()
        await cluster.stream(WORK, "k").publish("first")
        await until(lambda: bool(TRIES))
        for text in ("a", "b"):
            await cluster.stream(WORK, "k").publish(text)  # after the event that is out
        agent = agent_of(cluster)
        await until(lambda: agent.cache.events == 3)
        agent.pause()
        await until(lambda: [one.holder is not None for one in letters] == [True] * 3)
        now = asyncio.get_running_loop().time
        await until(lambda: [one.ready_s <= now() for one in letters] == [False, True, True])
        assert agent.cache.events == 1 and agent.in_flight == 1
        await spin(20)
        assert agent.cache.events == 1
        agent.resume()
        GATE.set()
        await until(lambda: not letters)
    assert SEEN == {"first": 1, "a": 1, "b": 1}
    assert {attempt for _, attempt in TRIES} == {1}


async def test_what_failed_for_one_subscription_is_not_given_to_the_others_again() -> None:
    broker = LeasingBroker()
    letters = broker.queue("queue-0").letters
    async with cluster_of(broker) as cluster:
        await cluster.stream(TOLD, "k").publish("news")
        await until(lambda: not letters)
    assert SEEN == {"news": 1, "quiet": 1}
    assert TRIES == [("news", 1), ("news", 2), ("news", 3)]
