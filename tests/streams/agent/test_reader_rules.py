"""Single rules of the reader that its model test does not cover, or cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from tests.streams.agent.caches import release

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
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.reading import relief
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.reading.steps import (
    Ack,
    Action,
    Bound,
    Discard,
    Forget,
    GapFound,
    Offer,
    OpenReceiver,
    Read,
    ReaderState,
    Release,
    Relieve,
    Return,
    Say,
)

A, B = StreamId("n", "a"), StreamId("n", "b")
LOG = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS, Capability.WAKEUP})
SINGLE = frozenset({Capability.ITEM_ACK, Capability.OWN_POSITION, Capability.WAKEUP})
OPTIONS = StreamOptions(
    cache=CacheLimits(events_max=4),
    flow=FlowOptions(ack_every_events=100, ack_every_s=0.2),
    read_retry_s=1.0,
    read_retry_ceiling_s=4.0,
)
WHERE = "p: R.read"


def message(
    seq: int, items: int = 1, *, stream: StreamId = A, enqueued_s: float = 0.0
) -> QueueMessage:
    return QueueMessage(stream, Token(1, seq), [b"x"] * items, {}, enqueued_s)


class Desk:
    """A reader that starts at time 100; offered messages are pinned until they are done."""

    def __init__(
        self,
        capabilities: frozenset[Capability] = LOG,
        after: Token | None = None,
        *,
        may_repeat: bool = False,
        asks_bounds: bool = False,
        wall_s: float = 0.0,
        is_used: bool = False,
        events_max: int = 4,
        options: StreamOptions = OPTIONS,
    ) -> None:
        limits = CacheLimits(events_max=events_max, stream_events_max=2)
        is_single = Capability.ITEM_ACK in capabilities
        self.cache = QueueCache(limits, after, notes="all" if is_single else "none")
        self.book = LaggingCursors(self.cache, is_used=is_used)
        self.now_s = 100.0
        self.core = ReaderCore(
            self.cache,
            self.book,
            options,
            capabilities,
            where="p: q",
            after=after,
            may_repeat=may_repeat,
            asks_bounds=asks_bounds,
            now_s=self.now_s,
            wall_s=wall_s,
        )
        self.offered: list[QueueMessage] = []

    def step(self, call: Callable[..., Sequence[Action]], *args: object) -> list[Action]:
        actions = list(call(*args, self.now_s))
        self.core.check()
        for action in actions:
            if isinstance(action, Offer):
                self.offered += [slot.message for slot in action.slots]
        return actions

    def open(self) -> list[Action]:
        """Make the next receiver, and open it."""
        self.step(self.core.tick)
        return self.step(self.core.on_opened, self.core._serial)

    def got(self, *messages: QueueMessage, serial: int = 1) -> list[Action]:
        return self.step(self.core.on_read, serial, list(messages), WHERE)

    def wait(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.step(self.core.tick)

    def seqs(self) -> list[int]:
        return [one.token.seq for one in self.offered]


def opened(capabilities: frozenset[Capability] = LOG) -> Desk:
    desk = Desk(capabilities)
    desk.open()
    return desk


def kinds(actions: Sequence[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


# --- starting -------------------------------------------------------------------------------------


def test_a_reader_that_has_read_nothing_knows_nothing() -> None:
    core = Desk(after=Token(1, 7)).core
    assert core.state is ReaderState.STARTING and not core.is_open and not core.is_failing
    assert (core.position, core.first_read, core.acked_upto) == (Token(1, 7), None, None)
    assert (core.read_count, core.found_nothing_s) == (0, -math.inf)
    assert not core.has_repeats and core.wake_s() == -math.inf


def test_a_reader_that_is_paused_from_the_beginning_makes_no_receiver() -> None:
    desk = Desk()
    assert desk.step(desk.core.hold, True) == [] and desk.wait(999.0) == []
    assert desk.core.wake_s() == math.inf and desk.core.state is ReaderState.PAUSED
    assert desk.step(desk.core.hold, False) == [OpenReceiver(1, None)]


def test_a_receiver_that_does_not_start_in_time_is_replaced() -> None:
    desk = Desk()
    desk.step(desk.core.tick)
    assert desk.core.wake_s() == 100.0 + OPTIONS.start_limit_s
    assert kinds(desk.wait(OPTIONS.start_limit_s)) == [Say, Discard]
    assert desk.core.wake_s() == math.inf, "nothing is to be done until it is closed"
    desk.step(desk.core.on_closed, 1)
    assert desk.core.wake_s() == desk.now_s + 1.0 and desk.wait(0.999) == []
    assert desk.wait(0.001) == [OpenReceiver(2, None)]


def test_it_says_in_words_what_reading_waits_for() -> None:
    desk = Desk()

    def waits_for() -> str:
        return desk.core.waits_for(desk.now_s)

    assert waits_for() == "the state of the receiver is none"
    desk.step(desk.core.tick)
    assert waits_for() == "the state of the receiver is opening"
    desk.step(desk.core.on_opened, 1)
    desk.now_s += 1.5
    assert waits_for() == "a read has run for 1.5 s"
    desk.got()
    left_s = desk.core.wake_s() - desk.now_s
    assert left_s > 0 and waits_for() == f"the next read is due in {left_s:.1f} s"
    desk.now_s = desk.core.wake_s()
    assert waits_for() == "", "it is due, and nobody has ticked yet"
    desk.step(desk.core.tick)
    desk.got(*map(message, range(1, 5)))
    assert waits_for() == "the cache is full"
    desk.step(desk.core.hold, True)
    assert waits_for() == "the queue is being handed over"
    desk.step(desk.core.hold, False)
    for index in range(4):
        release(desk.cache, index)
    assert waits_for() == "", "there is room, and nobody has asked yet"
    desk.step(desk.core.tick)
    assert waits_for() == "a read has run for 0.0 s"


def test_what_was_read_and_does_not_fit_is_no_room_either() -> None:
    desk = opened()
    desk.got(*map(message, range(1, 7)))
    assert desk.core.waits_for(desk.now_s) == "the cache is full"
    for index in range(4):
        release(desk.cache, index)
    assert desk.core.waits_for(desk.now_s) == "the cache is full", "it is not put in yet"


# --- answers of a receiver that is not in use -----------------------------------------------------


def test_of_another_receiver_nothing_is_heard() -> None:
    desk = opened()
    core = desk.core
    assert desk.step(core.on_closed, 2) == [] and desk.step(core.on_opened, 2) == []
    assert desk.step(core.on_failed, 2, "read", "down") == []
    assert desk.step(core.on_gone, 2, Token(1, 9)) == []
    assert desk.got(message(9), serial=2) == [] and desk.core.position is None
    assert kinds(desk.got(message(1))) == [Offer, Read]
    release(desk.cache, 0)
    desk.wait(0.2)
    desk.step(desk.core.on_settled, 2, None, WHERE)
    assert desk.core.acked_upto is None and desk.core.state is ReaderState.READING
    desk.step(desk.core.on_settled, 1, None, WHERE)
    assert desk.core.acked_upto == Token(1, 1)


def test_a_receiver_that_was_let_go_of_is_not_heard_while_it_is_closed_or_after() -> None:
    desk = opened()
    desk.got(message(1))
    desk.step(desk.core.on_failed, 1, "read", "down")
    core = desk.core
    assert desk.step(core.on_opened, 1) == [] and desk.step(core.on_gone, 1, Token(1, 9)) == []
    assert desk.step(core.on_failed, 1, "read", "down") == []
    assert desk.step(core.on_settled, 1, None, WHERE) == []
    assert desk.got(message(2)) == [] and desk.core.position == Token(1, 1)
    desk.step(desk.core.on_closed, 1)
    assert desk.step(desk.core.on_closed, 1) == [] and desk.got(message(2)) == []
    assert desk.wait(1.0) == [OpenReceiver(2, Token(1, 1))]
    assert desk.step(desk.core.on_closed, 2) == [] and not desk.core.is_open
    assert desk.got(message(2), serial=2) == [] and desk.seqs() == [1]


def test_a_receiver_that_says_it_has_started_twice_is_read_once() -> None:
    desk = opened()
    assert (
        desk.step(desk.core.on_opened, 1) == []
        and desk.step(desk.core.on_gone, 1, Token(1, 9)) == []
    )


# --- failing --------------------------------------------------------------------------------------


def test_a_reader_fails_until_it_has_read_and_begins_anew_with_its_waits() -> None:
    desk = opened()
    waits = []
    for serial in (1, 2):
        desk.step(desk.core.on_failed, serial, "read", "down")
        assert desk.core.is_failing and not desk.core.is_open
        desk.step(desk.core.on_closed, serial)
        waits.append(desk.core.wake_s() - desk.now_s)
        desk.wait(waits[-1])
        desk.step(desk.core.on_opened, serial + 1)
        assert desk.core.is_failing and desk.core.is_open
    desk.got(serial=3)
    assert not desk.core.is_failing
    desk.step(desk.core.on_failed, 3, "read", "down")
    desk.step(desk.core.on_closed, 3)
    assert [*waits, desk.core.wake_s() - desk.now_s] == [1.0, 2.0, 1.0]


def test_what_waits_for_room_goes_on_behind_a_failure_where_tokens_tell() -> None:
    desk = opened()
    desk.got(*map(message, range(1, 7)))
    assert Forget not in kinds(desk.step(desk.core.on_failed, 1, "start", "down"))
    for index in range(4):
        release(desk.cache, index)
    desk.step(desk.core.on_closed, 1)
    desk.wait(1.0)
    assert desk.seqs() == [1, 2, 3, 4], "without a receiver nothing could be acknowledged"
    assert kinds(desk.step(desk.core.on_opened, 2))[0] is Offer and desk.seqs() == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_where_tokens_do_not_tell_all_is_forgotten_and_given_again() -> None:
    desk = Desk(SINGLE - {Capability.ITEM_ACK}, Token(1, 0), may_repeat=True)
    desk.open()
    desk.got(*map(message, range(1, 7)))
    assert desk.core.has_repeats
    desk.core.may_repeat = False
    assert kinds(desk.step(desk.core.on_failed, 1, "read", "down")) == [Say, Discard, Forget]
    assert not desk.core.has_repeats, "what waited is not here any more"
    for index in range(4):
        release(desk.cache, index)
    desk.step(desk.core.on_closed, 1)
    assert desk.wait(1.0) == [OpenReceiver(2, None)], "its own position is the provider's"
    assert kinds(desk.step(desk.core.on_opened, 2)) == [Read] and desk.seqs() == [1, 2, 3, 4]


def test_what_was_returned_while_there_is_no_receiver_went_back_with_it() -> None:
    desk = opened(SINGLE)
    desk.got(message(1))
    desk.step(desk.core.on_failed, 1, "read", "down")
    assert desk.step(desk.core.on_returned, [Token(1, 1)], 0.0, False) == []
    assert desk.core.settling.last() == (None, ())


# --- gaps -----------------------------------------------------------------------------------------


def test_each_gap_is_told_once_and_one_without_an_end_each_time() -> None:
    desk = Desk(after=Token(1, 1))
    firsts = [Token(1, 9), Token(1, 9), Token(1, 20), None, None]
    found = []
    for serial, first in enumerate(firsts, 1):
        desk.wait(9.0)
        found += [
            one for one in desk.step(desk.core.on_gone, serial, first) if isinstance(one, GapFound)
        ]
        desk.step(desk.core.on_failed, serial, "read", "down")
        desk.step(desk.core.on_closed, serial)
    assert [one.first for one in found] == [Token(1, 9), Token(1, 20), None, None]
    assert all(one.after == Token(1, 1) for one in found)


# --- reading --------------------------------------------------------------------------------------


def test_it_tells_what_it_read_first_and_last_and_how_much() -> None:
    desk = opened()
    desk.got()
    desk.wait(1.0)
    desk.got(message(3, items=2), message(4))
    desk.got(message(5))
    assert (desk.core.first_read, desk.core.position) == (Token(1, 3), Token(1, 5))
    assert desk.core.read_count == 4


def test_that_nothing_was_found_is_known_since_the_read_began() -> None:
    desk = opened()
    desk.now_s += 4.0
    desk.got()
    assert desk.core.found_nothing_s == 100.0
    desk.now_s += 1.0
    desk.got(message(1))
    assert desk.core.found_nothing_s == -math.inf
    desk.now_s += 5.0
    desk.step(desk.core.tick)
    desk.now_s += 5.0
    desk.got()
    assert desk.core.found_nothing_s == 105.0


def test_what_is_known_is_something_too() -> None:
    desk = opened()
    desk.core.position = Token(1, 1)
    desk.got(message(1))
    assert desk.core.found_nothing_s == -math.inf and desk.core.read_count == 0


@pytest.mark.parametrize(("waited_s", "is_read_at_once"), [(2.5, True), (2.4, False)])
def test_a_read_that_found_nothing_and_has_waited_half_of_its_time_is_made_again_at_once(
    waited_s: float, is_read_at_once: bool
) -> None:
    desk = opened()
    desk.now_s += waited_s
    assert kinds(desk.got()) == ([Read] if is_read_at_once else [])


def test_a_provider_that_is_polled_is_asked_anew_soon_after_it_has_given_something() -> None:
    desk = opened(LOG - {Capability.WAKEUP})
    for _ in range(3):
        desk.got()
        desk.wait(1.0)
    assert kinds(desk.got(message(1))) == [Offer, Read]
    desk.got()
    assert round(desk.core.wake_s() - desk.now_s, 3) == 0.01
    assert desk.wait(0.009) == [] and kinds(desk.wait(0.001)) == [Read]


def test_a_provider_that_wakes_and_has_waited_is_trusted_again() -> None:
    desk = opened()
    desk.got()
    assert round(desk.core.wake_s() - desk.now_s, 3) == 0.01
    desk.wait(0.01)
    desk.now_s += 5.0
    assert kinds(desk.got()) == [Read]
    desk.got()
    assert round(desk.core.wake_s() - desk.now_s, 3) == 0.01


def test_a_full_cache_is_not_read_for_and_nothing_wakes_it_before_something_is_done() -> None:
    desk = opened(LOG - {Capability.WAKEUP})
    assert kinds(desk.got(*map(message, range(1, 5)))) == [Offer]
    assert desk.core.state.value == "full"
    desk.wait(0.2)  # pinned messages may be done by now
    assert desk.core.wake_s() == math.inf
    release(desk.cache, 0)
    assert kinds(desk.step(desk.core.tick)) == [Read, Ack]
    assert desk.core.state.value == "reading"


def test_a_read_is_left_behind_after_its_wait_and_its_limit() -> None:
    desk = opened(LOG - {Capability.WAKEUP})
    assert desk.core.wake_s() == 100.0 + OPTIONS.read_limit_s
    said, _ = desk.wait(OPTIONS.read_limit_s)
    assert isinstance(said, Say) and "read gave no answer for 10 s" in said.text
    assert "the receiver is replaced in 1 s" in said.text


def test_while_paused_nothing_is_read_however_often_it_is_looked_at() -> None:
    desk = opened()
    desk.step(desk.core.hold, True)
    desk.got(message(1))
    assert desk.wait(50.0) == [] and desk.core.wake_s() == math.inf
    assert desk.offered == []
    assert kinds(desk.step(desk.core.hold, False)) == [Offer, Read] and desk.seqs() == [1]


def test_a_fence_ends_all_and_what_waits_is_dropped() -> None:
    desk = opened()
    desk.got(*map(message, range(1, 7)))
    desk.step(desk.core.overtaken, "epoch 2")
    assert desk.core.state is ReaderState.FENCED and not desk.core._waiting
    core = desk.core
    assert desk.step(core.tick) == []
    assert desk.step(core.hold, False) == [] and desk.step(core.hold, True) == []
    assert desk.step(core.on_closed, 1) == [] and desk.step(core.overtaken, "epoch 3") == []
    assert desk.step(core.on_returned, [Token(1, 1)], 0.0, False) == []


def test_a_message_that_has_no_room_is_not_overtaken_by_one_that_has() -> None:
    desk = opened()
    desk.got(message(1, items=2), message(2, items=3), message(3))
    assert desk.seqs() == [1]
    release(desk.cache, 0)
    desk.step(desk.core.tick)
    assert desk.seqs() == [1, 2, 3]


# --- leases ---------------------------------------------------------------------------------------


def test_a_message_that_waits_and_is_lost_is_never_offered() -> None:
    desk = Desk(SINGLE | {Capability.LEASED})
    desk.open()
    every = [QueueMessage(A, Token(1, n), [b"x"], lease_s=10.0) for n in range(1, 7)]
    desk.got(*every)
    desk.wait(5.0)
    desk.step(desk.core.on_settled, 2, [Token(1, 6)], WHERE)  # of another receiver
    desk.step(desk.core.on_settled, 1, [Token(1, 5)], WHERE)
    for index in range(4):
        release(desk.cache, index)
    desk.wait(1.0)
    assert desk.seqs() == [1, 2, 3, 4, 6]


# --- messages that a former owner may have delivered ----------------------------------------------


def test_what_is_older_than_a_minute_after_the_hand_over_may_come_again() -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, wall_s=1_000.0, events_max=9)
    desk.open()
    desk.got(message(1, enqueued_s=1.0), message(2, enqueued_s=1_059.9))
    assert desk.core.may_repeat and desk.cache.repeats_upto == 1
    desk.got(message(3, enqueued_s=1_059.0), message(4, enqueued_s=1_060.0))
    assert not desk.core.may_repeat and desk.cache.repeats_upto == 3
    desk.got(message(5, enqueued_s=1.0))
    assert not desk.core.has_repeats and desk.cache.repeats_upto == 3


def test_a_read_that_finds_nothing_ends_what_may_come_again() -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, wall_s=1_000.0)
    desk.open()
    desk.got(message(1))
    assert desk.core.has_repeats
    desk.wait(9.0)
    desk.got()
    assert not desk.core.has_repeats and desk.cache.repeats_upto == 0


def test_one_message_that_waits_for_room_may_come_again_too() -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, wall_s=1_000.0)
    desk.open()
    desk.got(*map(message, range(1, 5)), message(5, enqueued_s=2_000.0))
    assert not desk.core.may_repeat and desk.core.has_repeats and desk.cache.repeats_upto == 3
    release(desk.cache, 0)
    desk.step(desk.core.tick)
    assert not desk.core.has_repeats and desk.cache.repeats_upto == 4


def test_only_what_was_stored_before_the_receiver_started_may_come_again() -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, asks_bounds=True, wall_s=1_000.0, events_max=9)
    assert Bound() in desk.open()
    desk.step(desk.core.on_bounds, Token(1, 3))
    desk.got(message(1))
    assert desk.core.may_repeat and desk.cache.repeats_upto == 0
    desk.got(message(2), message(4))
    assert not desk.core.has_repeats and desk.cache.repeats_upto == 1
    desk.step(desk.core.on_bounds, Token(1, 9))  # a second answer changes nothing
    assert desk.cache.repeats_to == Token(1, 3) and not desk.core.has_repeats


@pytest.mark.parametrize(
    ("last", "may_repeat"),
    [(Token(1, 3), True), (Token(1, 2), False), (Token(1, 1), False), (None, False)],
)
def test_an_answer_that_comes_late_counts_from_then_on(
    last: Token | None, may_repeat: bool
) -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, asks_bounds=True, wall_s=1_000.0)
    desk.open()
    desk.got(message(1), message(2))
    desk.step(desk.core.on_bounds, last)
    assert desk.core.may_repeat is may_repeat and desk.cache.repeats_upto == 1
    desk.got(message(3), message(4, enqueued_s=1.0))
    assert not desk.core.has_repeats and desk.cache.repeats_upto == (2 if may_repeat else 1)


@pytest.mark.parametrize("last", [None, Token(1, 0)])
def test_nothing_comes_again_from_a_queue_that_was_empty(last: Token | None) -> None:
    desk = Desk(
        after=None if last is None else last, may_repeat=True, asks_bounds=True, wall_s=1_000.0
    )
    desk.open()
    desk.step(desk.core.on_bounds, last)
    assert not desk.core.has_repeats
    desk.got(message(1))
    assert not desk.core.has_repeats and desk.cache.repeats_upto == -1


def test_a_queue_that_is_not_read_to_the_end_of_its_backlog_says_so_when_nothing_is_found() -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, asks_bounds=True, wall_s=1_000.0)
    desk.open()
    desk.step(desk.core.on_bounds, Token(1, 9))
    desk.got()
    assert not desk.core.may_repeat


@pytest.mark.parametrize(("may_repeat", "asks"), [(False, True), (True, False)])
def test_bounds_are_asked_only_where_they_can_tell_something(may_repeat: bool, asks: bool) -> None:
    desk = Desk(after=Token(1, 0), may_repeat=may_repeat, asks_bounds=asks)
    assert Bound() not in desk.open()


def test_the_next_receiver_asks_for_bounds_unless_they_are_known() -> None:
    desk = Desk(after=Token(1, 0), may_repeat=True, asks_bounds=True, wall_s=1_000.0)
    assert Bound() in desk.open()
    desk.step(desk.core.on_failed, 1, "read", "no")
    desk.step(desk.core.on_closed, 1)
    desk.now_s += 20.0
    assert Bound() in desk.open()
    desk.step(desk.core.on_bounds, Token(1, 9))
    desk.step(desk.core.on_failed, 2, "read", "no")
    desk.step(desk.core.on_closed, 2)
    desk.now_s += 20.0
    assert Bound() not in desk.open()


def test_what_a_pause_gives_back_is_not_here_and_cannot_come_again_from_here() -> None:
    desk = Desk(SINGLE, may_repeat=True, wall_s=1_000.0)
    desk.open()
    desk.got(*map(message, range(1, 6)), message(6, enqueued_s=2_000.0))
    assert not desk.core.may_repeat and desk.core.has_repeats
    assert desk.step(desk.core.hold, True) == [
        Return(),
        Release([Token(1, 5), Token(1, 6)], 0.0, False),
    ]
    assert not desk.core.has_repeats
    desk.step(desk.core.hold, False)
    assert desk.seqs() == [1, 2, 3, 4]


# --- resting --------------------------------------------------------------------------------------


def test_a_reader_rests_while_a_read_is_out_and_nothing_else_is_to_be_done() -> None:
    desk = opened()
    assert desk.core.rests(100.0)
    desk.got(message(1))
    assert desk.core.rests(100.1) and not desk.core.rests(100.2), "it looks what is done"
    release(desk.cache, 0)
    assert kinds(desk.wait(0.2)) == [Ack]
    assert not desk.core.rests(100.2 + OPTIONS.call_limit_s), "its acknowledgement is late"
    desk.step(desk.core.on_settled, 1, None, WHERE)
    assert desk.core.rests(100.3)


def test_a_reader_whose_read_or_call_is_late_does_not_rest() -> None:
    seldom = FlowOptions(ack_every_events=100, ack_every_s=60.0)
    late_s = 100.0 + OPTIONS.read_wait_s + OPTIONS.read_limit_s
    desk = Desk(SINGLE, options=StreamOptions(flow=seldom))
    desk.open()
    assert desk.core.rests(late_s - 0.1) and not desk.core.rests(late_s)
    desk.step(desk.core.on_returned, [Token(1, 1)], 0.0, False)
    late_s = 100.0 + OPTIONS.call_limit_s
    assert desk.core.rests(late_s - 0.1) and not desk.core.rests(late_s)


def test_a_reader_does_not_rest_when_so_much_may_be_done_that_it_is_acknowledged() -> None:
    desk = Desk(options=StreamOptions(flow=FlowOptions(ack_every_events=2, ack_every_s=60.0)))
    desk.open()
    desk.got(message(1))
    assert desk.core.rests(100.0)
    desk.got(message(2))
    assert not desk.core.rests(100.0)


def test_a_reader_without_a_read_or_with_messages_that_wait_does_not_rest() -> None:
    desk = Desk()
    assert not desk.core.rests(100.0)
    desk.open()
    desk.got(*map(message, range(1, 5)))
    assert not desk.core.rests(100.0), "the cache is full"
    desk = opened()
    desk.step(desk.core.hold, True)
    desk.step(desk.core.hold, False)
    desk.core._waiting.append(message(9))
    assert not desk.core.rests(100.0)


# --- streams that block the queue -----------------------------------------------------------------


def relieved(actions: Sequence[Action]) -> list[StreamId]:
    return [one.stream for one in actions if isinstance(one, Relieve)]


def test_who_holds_up_the_queue_is_asked_to_fall_behind_where_it_can_be_read_again() -> None:
    for is_used in (True, False):
        desk = Desk(is_used=is_used)
        desk.open()
        assert relieved(desk.got(*map(message, range(1, 5)))) == [], "it is here alone"
        due_s = desk.now_s + relief.RELIEVE_AFTER_S
        desk.wait(0.2)
        assert desk.core.wake_s() == (due_s if is_used else math.inf)
        assert relieved(desk.wait(due_s - desk.now_s)) == ([A] if is_used else [])


def test_who_came_and_has_more_than_its_share_is_asked_unless_it_is_here_alone() -> None:
    desk = Desk(is_used=True, events_max=8)
    desk.open()
    desk.got(message(1), message(2, stream=B))
    assert relieved(desk.got(message(3), message(4))) == [A]
    desk = Desk(is_used=True, events_max=8)
    desk.open()
    assert relieved(desk.got(*map(message, range(1, 5)))) == []


def test_a_pause_relieves_nobody() -> None:
    desk = Desk(is_used=True)
    desk.open()
    desk.got(*map(message, range(1, 5)))
    desk.step(desk.core.hold, True)
    assert desk.core.wake_s() in (100.2, math.inf)
    for _ in range(3):
        assert relieved(desk.wait(2.0)) == []


def test_who_is_far_behind_is_asked_though_reading_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relief, "SPAN_MAX", 2)
    desk = Desk(is_used=True, events_max=99)
    desk.open()
    desk.got(message(1, stream=B))
    desk.got(message(2), message(3))
    assert desk.core.wake_s() == 100.2
    desk.wait(0.5)
    assert relieved(desk.wait(1.0)) == [B]


# --- stops because of a full cache ----------------------------------------------------------------


def stops(desk: Desk) -> tuple[int, float]:
    return desk.core.stop_count, desk.core.count_stopped_s(desk.now_s)


def test_each_stop_for_a_full_cache_is_counted_with_its_time() -> None:
    desk = opened()
    assert stops(desk) == (0, 0.0)
    desk.wait(5.0)
    desk.got(*[message(seq) for seq in range(1, 5)])
    assert desk.core.state is ReaderState.FULL and stops(desk) == (1, 0.0)
    desk.wait(1.5)
    desk.step(desk.core.tick)
    assert stops(desk) == (1, 1.5)
    for index in range(4):
        release(desk.cache, index)
    desk.step(desk.core.tick)
    desk.now_s += 2.0
    assert stops(desk) == (1, 1.5), "it is read"
    desk.got(*[message(seq) for seq in range(5, 10)])
    assert stops(desk) == (2, 1.5)
    release(desk.cache, 4)
    desk.now_s += 1.0
    desk.step(desk.core.tick)
    assert stops(desk) == (2, 2.5), "what waited has taken the room"
    desk.now_s += 1.0
    assert stops(desk) == (2, 3.5)


@pytest.mark.parametrize(
    ("method", "args"),
    [("hold", (True,)), ("on_failed", (1, "read", "no")), ("overtaken", ("gone",))],
)
def test_who_is_not_to_read_is_not_stopped_by_its_cache(
    method: str, args: tuple[object, ...]
) -> None:
    desk = opened()
    desk.got(*[message(seq) for seq in range(1, 5)])
    desk.now_s += 2.0
    desk.step(getattr(desk.core, method), *args)
    assert stops(desk) == (1, 2.0)
    desk.now_s += 3.0
    assert stops(desk) == (1, 2.0)
    if method == "hold":
        desk.wait(1.0)
        assert stops(desk) == (1, 2.0)
        desk.step(desk.core.hold, False)
        desk.now_s += 0.5
        assert stops(desk) == (2, 2.5), "it is full still"


def test_what_waits_for_more_room_than_there_is_stops_reading_too() -> None:
    desk = Desk(events_max=40)
    desk.open()
    actions = desk.got(message(1), message(2, 40))
    assert not [action for action in actions if isinstance(action, Read)]
    assert desk.cache.room()[0] == 39 and stops(desk) == (1, 0.0)
    release(desk.cache, 0)
    desk.step(desk.core.tick)
    assert desk.seqs() == [1, 2] and stops(desk) == (1, 0.0)
