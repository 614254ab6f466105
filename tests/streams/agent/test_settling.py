"""Calls that settle messages with a receiver: acknowledgements, leases and releases."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from tests.streams.agent.caches import release

from millstream.runtime.extending import Backoff
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
from millstream.streams.agent.cache.queue_cache import Notes, QueueCache
from millstream.streams.agent.reading.settlement import RELEASES_MAX, Settlement
from millstream.streams.agent.reading.steps import Ack, Extend, Release

A, B = StreamId("n", "a"), StreamId("n", "b")
LOG = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS})
ITEMS = LOG | {Capability.ITEM_ACK}
ROW = frozenset({Capability.ORDERED, Capability.OWN_POSITION})
SINGLE = frozenset({Capability.ITEM_ACK, Capability.OWN_POSITION})
LEASED = SINGLE | {Capability.LEASED}
OPTIONS = StreamOptions(
    flow=FlowOptions(ack_every_events=3, ack_every_s=1.0), read_retry_s=0.5, call_limit_s=7.0
)
WHERE = "p: R.extend"


def token(seq: int) -> Token:
    return Token(1, seq)


class Desk:
    """A queue whose odd messages are of A, the even ones of B; reading began at time 0."""

    def __init__(self, capabilities: frozenset[Capability] = LOG, *, notes: Notes = "none") -> None:
        self.cache = QueueCache(CacheLimits(), notes=notes)
        self.book = LaggingCursors(self.cache, is_used=True)
        self.settling = Settlement(
            self.cache, self.book, OPTIONS, capabilities, Backoff(2.0, 2, 8.0), 0.0
        )

    def comes(self, *seqs: int, lease_s: float = 0.0, now_s: float = 0.0) -> None:
        messages = [
            QueueMessage(A if seq % 2 else B, token(seq), [b"x"], lease_s=lease_s) for seq in seqs
        ]
        if self.settling.leases is not None:
            self.settling.leases.on_read(messages, now_s)
        for one in messages:
            self.cache.append(one)

    def done(self, *seqs: int) -> None:
        for seq in seqs:
            release(self.cache, seq - 1)

    def ask(self, now_s: float) -> Sequence[Ack | Extend | Release]:
        calls = self.settling.ask(now_s)
        self.settling.check()
        return calls

    def acks(self, now_s: float) -> None:
        """Make an acknowledgement, and let it succeed."""
        (call,) = self.ask(now_s)
        assert isinstance(call, Ack)
        self.settling.on_settled(None, WHERE, now_s)


# --- acknowledging --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "notes", "upto", "also"),
    [
        (LOG, "none", token(2), []),
        (ROW, "none", token(2), []),
        (ITEMS, "out_of_turn", token(2), [token(4)]),
        (ROW | {Capability.ITEM_ACK}, "out_of_turn", token(2), [token(4)]),
        (SINGLE, "all", None, [token(1), token(2), token(4)]),
        (SINGLE - {Capability.ITEM_ACK}, "all", None, [token(1), token(2), token(4)]),
    ],
)
def test_what_is_done_is_acknowledged_in_a_row_one_by_one_or_both(
    capabilities: frozenset[Capability], notes: Notes, upto: Token | None, also: list[Token]
) -> None:
    desk = Desk(capabilities, notes=notes)
    desk.comes(1, 2, 3, 4, 5)
    for seq in (1, 2, 4):
        desk.done(seq)
    (ack,) = desk.ask(1.0)
    assert isinstance(ack, Ack) and (ack.upto, list(ack.also)) == (upto, also)


def test_what_lies_in_the_row_is_not_named_by_itself_where_tokens_tell() -> None:
    for capabilities, also in ((ITEMS, []), (ROW | {Capability.ITEM_ACK}, [token(2)])):
        desk = Desk(capabilities, notes="out_of_turn")
        desk.comes(1, 2, 3)
        desk.done(2)
        desk.done(1)
        assert desk.ask(1.0) == (Ack(token(2), also),)


def test_an_acknowledgement_is_made_for_so_many_or_after_a_while() -> None:
    desk = Desk()
    desk.comes(1, 2, 3, 4)
    desk.done(1, 2)
    assert desk.ask(0.9) == () and desk.settling.wake_s(0.9) == 1.0
    desk.done(3)
    assert desk.ask(0.9) == (Ack(token(3)),)


def test_an_acknowledgement_counts_anew_what_is_done_after_the_last() -> None:
    desk = Desk()
    desk.comes(1, 2, 3, 4, 5, 6, 7)
    desk.done(1, 2, 3)
    desk.acks(0.5)
    desk.done(4, 5)
    assert desk.ask(1.4) == () and desk.settling.wake_s(1.4) == 1.5
    desk.done(6)
    desk.acks(1.4)
    assert desk.settling.acked_upto == token(6)


def test_one_call_is_out_at_a_time_and_it_is_late_after_its_limit() -> None:
    desk = Desk()
    desk.comes(1, 2)
    desk.done(1)
    assert desk.ask(1.0) == (Ack(token(1)),)
    desk.done(2)
    assert desk.ask(9.0) == () and desk.settling.wake_s(1.0) == desk.settling.until_s == 8.0
    assert desk.settling.method == "ack"
    desk.settling.on_settled(None, WHERE, 2.0)
    assert desk.settling.until_s == math.inf and desk.settling.acked_upto == token(1)
    assert desk.settling.has_unacked and desk.settling.wake_s(2.0) == 3.0
    desk.acks(3.0)
    assert not desk.settling.has_unacked and desk.settling.acked_upto == token(2)


def test_what_is_done_is_unacknowledged_whether_the_cache_was_looked_at_or_not() -> None:
    desk = Desk()
    desk.comes(1)
    assert not desk.settling.has_unacked
    desk.done(1)
    assert desk.settling.has_unacked


def test_what_the_provider_knows_is_not_said_again() -> None:
    desk = Desk()
    desk.comes(1)
    desk.done(1)
    desk.acks(1.0)
    desk.cache.moved += 1  # a lagging cursor has moved
    assert desk.ask(1.9) == () and desk.settling.has_unacked
    assert desk.ask(2.0) == () and not desk.settling.has_unacked
    desk.cache.moved += 1
    assert desk.settling.wake_s(2.0) == 3.0, "it is not looked at in each turn"


def test_where_nothing_may_be_acknowledged_yet_nothing_is() -> None:
    desk = Desk()
    desk.comes(1)
    desk.book.begin((A, "x"), token(1))  # its position is not known
    desk.done(1)
    assert desk.ask(1.0) == () and desk.settling.acked_upto is None


def test_an_acknowledgement_without_a_row_leaves_what_the_provider_knows() -> None:
    desk = Desk(ITEMS, notes="out_of_turn")
    desk.comes(1, 2, 3, 4)
    desk.done(1)
    desk.acks(1.0)
    desk.book.begin((A, "x"), token(9))
    desk.done(2)
    assert desk.ask(2.0) == (Ack(None, [token(2)]),)
    desk.settling.on_settled(None, WHERE, 2.0)
    assert desk.settling.acked_upto == token(1)


def test_an_acknowledgement_that_fails_is_made_again_less_and_less_often() -> None:
    desk = Desk(SINGLE, notes="all")
    desk.comes(1, 2)
    desk.done(1)
    now_s, waits = 1.0, []
    for _ in range(4):
        assert desk.ask(now_s) == (Ack(None, [token(1)]),)
        said = desk.settling.on_failed(now_s)
        waits.append(desk.settling.wake_s(now_s) - now_s)
        assert said == f"the acknowledgement is retried in {waits[-1]:g} s"
        assert desk.ask(now_s + waits[-1] - 0.001) == ()
        now_s += waits[-1]
    assert waits == [2.0, 4.0, 8.0, 8.0]
    desk.acks(now_s)
    desk.done(2)
    desk.ask(now_s + 1.0)
    assert desk.settling.on_failed(now_s) == "the acknowledgement is retried in 2 s"
    assert desk.settling.acked_upto is None


# --- releasing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "gives_back"),
    [(SINGLE, True), (LEASED, True), (ITEMS, False), (SINGLE - {Capability.ITEM_ACK}, False)],
)
def test_single_messages_are_given_back_where_there_is_no_order_to_keep(
    capabilities: frozenset[Capability], gives_back: bool
) -> None:
    assert Desk(capabilities).settling.gives_back is gives_back


def test_what_goes_back_goes_before_what_is_acknowledged_and_each_by_itself() -> None:
    desk = Desk(SINGLE, notes="all")
    desk.comes(1, 2, 3)
    desk.done(1, 2, 3)
    desk.settling.give_back([], 0.0, has_run=True)
    desk.settling.give_back([token(7)], 3.0, has_run=True)
    desk.settling.give_back([token(8)], 0.0, has_run=False)
    assert desk.settling.wake_s(0.0) == -math.inf, "at once"
    assert desk.ask(0.0) == (Release([token(7)], 3.0, True),)
    assert desk.settling.method == "release" and desk.settling.until_s == 7.0
    desk.settling.on_settled(None, WHERE, 0.0)
    assert desk.ask(0.0) == (Release([token(8)], 0.0, False),)
    desk.settling.on_settled(None, WHERE, 0.0)
    (call,) = desk.ask(0.0)
    assert isinstance(call, Ack) and len(call.also) == 3


def test_what_fails_to_go_back_goes_later_and_holds_up_no_acknowledgement() -> None:
    desk = Desk(SINGLE, notes="all")
    desk.comes(1)
    desk.done(1)
    desk.settling.give_back([token(7)], 0.0, has_run=True)
    desk.ask(2.0)
    assert desk.settling.on_failed(2.0) == "the call is retried soon"
    assert desk.settling.until_s == math.inf
    desk.acks(2.0)
    assert desk.settling.wake_s(2.0) == 2.5 and desk.ask(2.4) == ()
    assert desk.ask(2.5) == (Release([token(7)], 0.0, True),)


def test_a_provider_that_takes_nothing_back_is_stuck_at_so_many_messages() -> None:
    settling = Desk(SINGLE).settling
    settling.give_back([token(seq) for seq in range(RELEASES_MAX - 1)], 0.0, has_run=False)
    settling.give_back([token(2_000)], 0.0, has_run=False)
    assert not settling.is_stuck
    settling.give_back([token(3_000)], 0.0, has_run=False)
    assert settling.is_stuck


# --- leases ---------------------------------------------------------------------------------------


def test_a_lease_is_extended_before_anything_else_is_settled() -> None:
    desk = Desk(LEASED, notes="all")
    desk.comes(1, 2, lease_s=4.0)
    desk.done(1)
    desk.settling.give_back([token(9)], 0.0, has_run=False)
    assert desk.ask(2.0) == (Extend([token(1), token(2)], 4.0),)
    assert desk.settling.method == "extend" and desk.settling.wake_s(2.0) == 9.0
    assert desk.settling.on_settled([], WHERE, 2.0) == set()
    assert desk.settling.until_s == math.inf
    assert desk.ask(2.0) == (Release([token(9)], 0.0, False),)
    desk.settling.on_settled(None, WHERE, 0.0)
    assert desk.ask(2.0) == (Ack(None, [token(1)]),)


def test_what_is_acknowledged_or_given_back_is_not_extended() -> None:
    desk = Desk(LEASED, notes="all")
    desk.comes(1, 2, 3, lease_s=4.0)
    desk.done(1)
    desk.acks(1.0)
    desk.settling.give_back([token(2)], 0.0, has_run=False)
    desk.ask(1.0)
    desk.settling.on_settled(None, WHERE, 0.0)
    assert desk.settling.wake_s(1.0) == 2.0
    assert desk.ask(2.0) == (Extend([token(3)], 4.0),)


def test_a_message_whose_lease_is_lost_is_not_acknowledged() -> None:
    desk = Desk(LEASED, notes="all")
    desk.comes(1, 2, lease_s=4.0)
    desk.ask(2.0)
    assert desk.settling.on_settled([token(1)], WHERE, 2.0) == {token(1)}
    desk.done(1, 2)
    assert desk.ask(3.0) == (Ack(None, [token(2)]),)


def test_an_extension_that_fails_is_tried_again_soon() -> None:
    desk = Desk(LEASED, notes="all")
    desk.comes(1, lease_s=4.0)
    desk.ask(2.0)
    assert desk.settling.on_failed(2.1) == "the call is retried soon"
    assert desk.ask(2.5) == () and desk.settling.wake_s(2.5) == 2.6
    assert desk.ask(2.6) == (Extend([token(1)], 4.0),)


# --- another receiver, and the end ----------------------------------------------------------------


def test_the_next_receiver_acknowledges_what_was_out_and_gives_nothing_back() -> None:
    desk = Desk(LEASED, notes="all")
    desk.comes(1, 2, 3, lease_s=100.0)
    desk.done(1)
    desk.settling.give_back([token(8)], 0.0, has_run=False)
    desk.ask(1.0)
    desk.settling.on_failed(1.0)
    assert desk.ask(1.0) == (Ack(None, [token(1)]),)
    desk.settling.let_go()
    assert desk.settling.until_s == math.inf
    desk.done(2)
    assert desk.ask(1.1) == (Ack(None, [token(1), token(2)]),)
    desk.settling.on_settled(None, WHERE, 1.1)
    assert desk.ask(99.0) == () and desk.settling.wake_s(99.0) == math.inf, "nothing is leased"
    desk.settling.give_back([token(9)], 0.0, has_run=False)
    assert desk.ask(1.2) == (Release([token(9)], 0.0, False),), "it need not wait for the former"


def test_at_the_end_all_that_is_not_settled_is() -> None:
    desk = Desk(SINGLE, notes="all")
    assert desk.settling.last() == (None, ())
    desk.comes(1, 2)
    desk.done(1)
    assert desk.ask(1.0) == (Ack(None, [token(1)]),)
    desk.done(2)
    desk.settling.give_back([token(9)], 2.0, has_run=True)
    ack, back = desk.settling.last()
    assert ack == Ack(None, [token(1), token(2)]) and back == (Release([token(9)], 2.0, True),)
    assert desk.settling.until_s == math.inf


# --- time -----------------------------------------------------------------------------------------


def test_while_something_is_held_it_is_looked_at_once_more() -> None:
    desk = Desk()
    assert desk.settling.wake_s(0.0) == math.inf, "there is nothing to settle"
    desk.comes(1)
    assert desk.settling.wake_s(0.9) == 1.0 and desk.settling.wake_s(1.0) == math.inf
    desk.done(1)
    desk.acks(1.0)
    assert desk.settling.wake_s(1.0) == math.inf
    desk.book.begin((A, "x"), token(1))
    assert desk.settling.wake_s(1.0) == 2.0, "who is behind may get on"
