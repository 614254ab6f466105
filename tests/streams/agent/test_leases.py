"""Leases: extended at half of their time, as long as a message is held; lost ones are let be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.streams import CacheLimits, Capability, QueueMessage, StreamId, StreamOptions, Token
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.lagging.book import BehindBook
from millstream.streams.agent.reading.leases import Leases
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.reading.steps import (
    Ack,
    Acked,
    Action,
    Discard,
    Event,
    Extend,
    Extended,
    Failed,
    Got,
    Offer,
    Opened,
    Progressed,
    Say,
    Tick,
)

A = StreamId("n", "a")
LEASED = frozenset(
    {Capability.LEASED, Capability.ITEM_ACK, Capability.OWN_POSITION, Capability.WAKEUP}
)
OPTIONS = StreamOptions(cache=CacheLimits(events_max=2), read_retry_s=1.0)


def message(seq: int, lease_s: float = 10.0) -> QueueMessage:
    return QueueMessage(A, Token(1, seq), [b"x"], lease_s=lease_s)


class Desk:
    def __init__(self) -> None:
        self.cache = QueueCache(OPTIONS.cache, notes="all")
        book = BehindBook(self.cache, is_used=False)
        self.core = ReaderCore(self.cache, book, OPTIONS, LEASED, where="p: q", after=None)
        self.now_s = 0.0
        self.step(Tick())
        self.step(Opened(1))

    def step(self, event: Event) -> list[Action]:
        actions = list(self.core.step(event, self.now_s))
        self.core.check()
        return actions

    def got(self, *messages: QueueMessage) -> None:
        (offer,) = (a for a in self.step(Got(1, messages, "p: R.read")) if isinstance(a, Offer))
        assert offer.first == 0

    def at(self, now_s: float) -> list[Action]:
        self.now_s = now_s
        return self.step(Tick())


def only(actions: Sequence[Action], kind: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def test_what_is_held_is_extended_at_half_of_its_lease_and_again() -> None:
    desk = Desk()
    desk.got(message(1), message(2), message(3))  # the third waits for room
    assert only(desk.at(4.9), Extend) == [] and desk.core.wake_s() == 5.0
    every = [Token(1, 1), Token(1, 2), Token(1, 3)]
    assert only(desk.at(5.0), Extend) == [Extend(every, 10.0)]
    assert only(desk.at(5.1), Extend) == []  # one is out
    desk.step(Extended(1, [], "p: R.extend"))
    assert only(desk.at(10.0), Extend) == []
    assert only(desk.at(10.1), Extend) == [Extend(every, 10.0)]


def test_what_is_done_is_not_extended() -> None:
    desk = Desk()
    desk.got(message(1), message(2))
    desk.cache.unpin(0)
    assert only(desk.at(1.0), Ack) == [Ack(None, [Token(1, 1)])]
    assert only(desk.at(5.0), Extend) == []  # an acknowledgement is out
    assert only(desk.step(Acked(1)), Extend) == [Extend([Token(1, 2)], 10.0)]


def test_a_lost_one_that_waits_is_dropped_and_one_that_runs_is_not_acknowledged() -> None:
    desk = Desk()
    desk.got(message(1), message(2), message(3))
    desk.at(5.0)
    desk.step(Extended(1, [Token(1, 1), Token(1, 3)], "p: R.extend"))
    desk.cache.unpin(0)
    desk.cache.unpin(1)
    actions = desk.at(6.0)
    assert only(actions, Ack) == [Ack(None, [Token(1, 2)])]
    assert only(actions, Offer) == []


def test_an_extension_that_fails_is_tried_again_and_one_that_is_wrong_replaces_the_receiver() -> (
    None
):
    desk = Desk()
    desk.got(message(1))
    desk.at(5.0)
    assert len(only(desk.step(Failed(1, "extend", "down")), Say)) == 1
    assert only(desk.at(5.9), Extend) == []
    assert len(only(desk.at(6.0), Extend)) == 1
    assert len(only(desk.step(Extended(1, None, "p: R.extend")), Discard)) == 1


def test_an_extension_without_an_answer_replaces_the_receiver() -> None:
    desk = Desk()
    desk.got(message(1))
    desk.at(5.0)
    assert desk.core.wake_s() <= 5.0 + OPTIONS.call_limit_s
    assert len(only(desk.at(5.0 + OPTIONS.call_limit_s), Discard)) == 1


def test_messages_without_a_lease_are_not_extended() -> None:
    leases = Leases()
    leases.taken([message(1, 0.0)], 0.0)
    assert leases.next_s == math.inf and not leases.ask(99.0, 10.0)


def test_progress_wakes_nobody_for_a_lease_that_is_not_due() -> None:
    desk = Desk()
    desk.got(message(1))
    assert only(desk.step(Progressed()), Extend) == []
