"""Leases: extended after half of their time while a message is pinned; lost ones are not
extended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.streams.agent.caches import release

from millstream.streams import CacheLimits, Capability, QueueMessage, StreamId, StreamOptions, Token
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.reading.leases import Leases
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.reading.steps import (
    Ack,
    Action,
    Discard,
    Extend,
    Offer,
    Say,
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
        book = LaggingCursors(self.cache, is_used=False)
        self.core = ReaderCore(self.cache, book, OPTIONS, LEASED, where="p: q", after=None)
        self.now_s = 0.0
        self.step(self.core.tick)
        self.step(self.core.on_opened, 1)

    def step(self, call: Callable[..., Sequence[Action]], *args: object) -> list[Action]:
        actions = list(call(*args, self.now_s))
        self.core.check()
        return actions

    def got(self, *messages: QueueMessage) -> None:
        (offer,) = (
            a
            for a in self.step(self.core.on_read, 1, messages, "p: R.read")
            if isinstance(a, Offer)
        )
        assert offer.slots[0].index == 0

    def at(self, now_s: float) -> list[Action]:
        self.now_s = now_s
        return self.step(self.core.tick)


def only(actions: Sequence[Action], kind: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def test_what_is_held_is_extended_at_half_of_its_lease_and_again() -> None:
    desk = Desk()
    desk.got(message(1), message(2), message(3))  # the third waits for room
    assert only(desk.at(4.9), Extend) == [] and desk.core.wake_s() == 5.0
    every = [Token(1, 1), Token(1, 2), Token(1, 3)]
    assert only(desk.at(5.0), Extend) == [Extend(every, 10.0)]
    assert only(desk.at(5.1), Extend) == []  # a call is out
    desk.step(desk.core.on_settled, 1, [], "p: R.extend")
    assert only(desk.at(10.0), Extend) == []
    assert only(desk.at(10.1), Extend) == [Extend(every, 10.0)]


def test_what_is_done_is_not_extended() -> None:
    desk = Desk()
    desk.got(message(1), message(2))
    release(desk.cache, 0)
    assert only(desk.at(1.0), Ack) == [Ack(None, [Token(1, 1)])]
    assert only(desk.at(5.0), Extend) == []  # an acknowledgement is out
    assert only(desk.step(desk.core.on_settled, 1, None, "p: R.ack"), Extend) == [
        Extend([Token(1, 2)], 10.0)
    ]


def test_a_lost_one_that_waits_is_dropped_and_one_that_runs_is_not_acknowledged() -> None:
    desk = Desk()
    desk.got(message(1), message(2), message(3))
    desk.at(5.0)
    desk.step(desk.core.on_settled, 1, [Token(1, 1), Token(1, 3)], "p: R.extend")
    release(desk.cache, 0)
    release(desk.cache, 1)
    actions = desk.at(6.0)
    assert only(actions, Ack) == [Ack(None, [Token(1, 2)])]
    assert only(actions, Offer) == []


def test_an_extension_that_fails_is_tried_again_and_one_that_is_wrong_replaces_the_receiver() -> (
    None
):
    desk = Desk()
    desk.got(message(1))
    desk.at(5.0)
    assert len(only(desk.step(desk.core.on_failed, 1, "extend", "down"), Say)) == 1
    assert only(desk.at(5.9), Extend) == []
    assert len(only(desk.at(6.0), Extend)) == 1
    assert len(only(desk.step(desk.core.on_settled, 1, None, "p: R.extend"), Discard)) == 1


def test_an_extension_without_an_answer_replaces_the_receiver() -> None:
    desk = Desk()
    desk.got(message(1))
    desk.at(5.0)
    assert desk.core.wake_s() <= 5.0 + OPTIONS.call_limit_s
    assert len(only(desk.at(5.0 + OPTIONS.call_limit_s), Discard)) == 1


def test_messages_without_a_lease_are_not_extended() -> None:
    leases = Leases()
    leases.on_read([message(1, 0.0)], 0.0)
    assert leases.next_s == math.inf and not leases.ask(99.0)


def test_progress_wakes_nobody_for_a_lease_that_is_not_due() -> None:
    desk = Desk()
    desk.got(message(1))
    assert only(desk.step(desk.core.tick), Extend) == []


def leased(*times: tuple[int, float, float]) -> Leases:
    """Make leases of these messages: (number, lease, time of the read)."""
    leases = Leases()
    for seq, lease_s, now_s in times:
        leases.on_read([message(seq, lease_s)], now_s)
    return leases


def asked(leases: Leases, now_s: float) -> list[tuple[list[int], float]]:
    call = leases.ask(now_s)
    return [] if call is None else [([one.seq for one in call.tokens], call.lease_s)]


def test_with_those_that_are_due_go_those_that_are_soon() -> None:
    leases = leased((1, 8.0, 0.0), (2, 8.0, 1.0), (3, 8.0, 1.1))
    assert leases.next_s == 4.0 and asked(leases, 3.9) == []
    assert asked(leases, 4.0) == [([1, 2], 8.0)], "an eighth of a lease is soon"
    assert leases.on_extended([], "p: R.extend", 4.5) == []
    assert leases.next_s == 5.1, "the third is due"


def test_all_are_extended_by_the_longest_lease_that_was_given() -> None:
    assert asked(leased((1, 0.5, 0.0)), 0.25) == [([1], 0.5)]
    assert asked(leased((1, 2.0, 0.0), (2, 4.0, 0.0), (3, 3.0, 0.0)), 1.0) == [([1, 3], 4.0)]


def test_what_was_lost_is_not_extended_again() -> None:
    leases = leased((1, 8.0, 0.0), (2, 8.0, 0.0))
    leases.ask(4.0)
    assert leases.on_extended([Token(1, 1)], "p: R.extend", 4.0) == [Token(1, 1)]
    assert asked(leases, 8.0) == [([2], 8.0)]


def test_what_was_done_while_the_call_was_out_is_not_extended_again() -> None:
    for ends in ("extended", "failed"):
        leases = leased((1, 8.0, 0.0))
        leases.ask(4.0)
        leases.on_done([Token(1, 1), Token(1, 9)])
        if ends == "extended":
            leases.on_extended([], "p: R.extend", 5.0)
        else:
            leases.on_failed(1.0, 5.0)
        assert leases.next_s == math.inf


def test_a_receiver_that_is_closed_has_no_leases() -> None:
    leases = leased((1, 8.0, 0.0))
    leases.ask(4.0)
    leases.clear()
    assert leases.next_s == math.inf and asked(leases, 99.0) == []
    leases.on_read([message(2, 8.0)], 100.0)
    assert asked(leases, 104.0) == [([2], 8.0)]


def test_what_is_done_costs_no_look_at_what_else_is_leased() -> None:
    """The cost is one early wake-up; then the exact time of the next one is known."""
    leases = leased(*((number, 10.0, float(number)) for number in range(3)))
    leases.on_done([Token(1, 0)])
    assert leases.next_s == 5.0, "not looked for"
    assert asked(leases, 5.0) == [] and leases.next_s == 6.0
    assert asked(leases, 5.9) == [] and asked(leases, 6.0) == [([1, 2], 10.0)]
    leases.on_done([Token(1, 1), Token(1, 2)])
    assert leases.next_s == math.inf
    leases.on_read([message(9, 2.0)], 20.0)
    assert leases.next_s == 6.0 and asked(leases, 20.9) == [] and leases.next_s == 21.0
    leases.clear()
    leases.on_read([message(10, 2.0)], 30.0)
    assert leases.next_s == 31.0


class CountedDict(dict[Token, float]):
    """Counts iterations over all values."""

    looks = 0

    def values(self) -> Any:
        CountedDict.looks += 1
        return super().values()


def test_a_reader_that_is_behind_looks_at_its_leases_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountedDict, "looks", 0)
    leases = Leases()
    leases._due_s = CountedDict()
    for number in range(5_000):  # 500 messages wait at a time, each for five seconds
        now_s = number / 100
        leases.on_read([message(number, 30.0)], now_s)
        leases.on_done([Token(1, number - 500)])
        assert now_s < leases.next_s or not leases.ask(now_s)
    assert CountedDict.looks < 10


def test_after_a_call_that_failed_the_next_is_known_to_the_point() -> None:
    """Otherwise the reader would be woken at once, without work."""
    leases = leased((1, 10.0, 0.0), (2, 10.0, 4.0))
    assert asked(leases, 5.0) == [([1], 10.0)]
    leases.on_failed(3.0, 5.0)
    assert leases.next_s == 8.0
    leases.on_extended([], "p: R.extend", 6.0)
    assert leases.next_s == 9.0
