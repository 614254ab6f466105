"""Single rules of the reader: events in, actions out."""

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
from millstream.streams.agent.reading.reader import ReaderCore
from millstream.streams.agent.reading.steps import (
    Ack,
    Action,
    Discard,
    Fence,
    GapFound,
    Offer,
    OpenReceiver,
    Read,
    Say,
)

A = StreamId("n", "a")
WHERE = "p: R.ack"
LOG = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS, Capability.WAKEUP})
OPTIONS = StreamOptions(
    cache=CacheLimits(events_max=4),
    flow=FlowOptions(ack_every_events=100, ack_every_s=0.2),
    read_retry_s=1.0,
    read_retry_ceiling_s=4.0,
)


def message(seq: int, era: int = 1) -> QueueMessage:
    return QueueMessage(A, Token(era, seq), [b"%d" % seq])


class Desk:
    """A reader whose messages have no subscription: each is done as soon as it is offered."""

    def __init__(
        self, capabilities: frozenset[Capability] = LOG, after: Token | None = None
    ) -> None:
        self.cache = QueueCache(OPTIONS.cache, after)
        self.core = ReaderCore(
            self.cache,
            LaggingCursors(self.cache, is_used=False),
            OPTIONS,
            capabilities,
            where="p: queue-0",
            after=after,
            now_s=100.0,
        )
        self.now_s = 100.0
        self.offered: list[int] = []
        self.is_busy = False  # if set, offered messages are not done at once

    def step(self, call: Callable[..., Sequence[Action]], *args: object) -> list[Action]:
        actions = list(call(*args, self.now_s))
        self.core.check()
        for action in actions:
            if isinstance(action, Offer):
                self.offered += [slot.message.token.seq for slot in action.slots]
                for slot in action.slots:
                    if not self.is_busy:
                        self.cache.release(slot)
        return actions

    def state(self) -> str:
        return self.core.state.value

    def opened(self) -> list[Action]:
        (start,) = self.step(self.core.tick)
        assert isinstance(start, OpenReceiver)
        return self.step(self.core.on_opened, start.serial)

    def got(self, *messages: QueueMessage, serial: int = 1) -> list[Action]:
        return self.step(self.core.on_read, serial, messages, "p: R.read")

    def wait(self, seconds: float) -> list[Action]:
        self.now_s += seconds
        return self.step(self.core.tick)


def kinds(actions: Sequence[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


def test_it_opens_then_reads_then_offers_and_reads_on() -> None:
    desk = Desk(after=Token(1, 7))
    (start,) = desk.step(desk.core.tick)
    assert start == OpenReceiver(1, Token(1, 7)) and desk.state() == "starting"
    (read,) = desk.step(desk.core.on_opened, 1)
    assert read == Read(4, OPTIONS.flow.read_bytes_max, OPTIONS.read_wait_s)
    assert desk.state() == "reading"
    assert kinds(desk.got(message(8), message(9)))[0] is Offer
    assert desk.offered == [8, 9]


def test_an_acknowledgement_timer_that_fires_early_is_asked_for_again() -> None:
    desk = Desk()
    desk.opened()
    desk.got(message(1))
    assert desk.step(desk.core.tick) == []  # too soon after the beginning
    due_s = desk.core.wake_s()
    assert due_s == 100.2
    desk.now_s = due_s - 0.001
    assert desk.step(desk.core.tick) == [] and desk.core.wake_s() == due_s
    desk.now_s = due_s
    assert desk.step(desk.core.tick) == [Ack(Token(1, 1))]
    desk.step(desk.core.on_settled, 1, None, WHERE)
    assert desk.core.acked_upto == Token(1, 1)


def test_what_a_former_owner_has_done_is_acknowledged_although_nothing_new_comes() -> None:
    desk = Desk(after=Token(1, 7))
    desk.opened()
    assert desk.core.wake_s() == 100.2
    assert desk.wait(0.2) == [Ack(Token(1, 7))]
    desk.step(desk.core.on_settled, 1, None, WHERE)
    assert desk.core.acked_upto == Token(1, 7)
    assert all(kind is not Ack for kind in kinds(desk.wait(1.0)))


def test_a_message_that_is_known_is_dropped_where_a_receiver_begins_with_it() -> None:
    desk = Desk(after=Token(1, 2))
    desk.opened()
    desk.got(message(1), message(2), message(3))
    assert desk.offered == [3]


@pytest.mark.parametrize("again", [(2,), (1, 3), (2, 3)])
def test_a_receiver_whose_tokens_fall_is_refused_and_what_it_gives_is_read_again(
    again: tuple[int, ...],
) -> None:
    desk = Desk()
    desk.opened()
    desk.got(message(1), message(2))
    say, discard = desk.got(*map(message, again))
    assert isinstance(say, Say) and isinstance(discard, Discard)
    assert f"returned {Token(1, again[0])} after {Token(1, 2)}: the tokens" in say.text
    assert desk.offered == [1, 2] and desk.core.position == Token(1, 2)


def test_nothing_is_dropped_as_known_where_tokens_are_not_stable() -> None:
    own = frozenset({Capability.OWN_POSITION, Capability.WAKEUP})
    for capabilities in (own, own | {Capability.ORDERED}, own | {Capability.STABLE_TOKENS}):
        desk = Desk(capabilities)
        desk.opened()
        desk.got(message(5))
        desk.got(message(5), message(1))
        assert desk.offered == [5, 5, 1]


def test_a_read_that_failed_is_repeated_by_another_receiver_behind_what_was_read() -> None:
    desk = Desk()
    desk.opened()
    desk.got(message(1), message(2))
    actions = desk.step(desk.core.on_failed, 1, "read", "p: R.read raised ValueError: odd")
    assert kinds(actions) == [Say, Discard]
    assert desk.state() == "starting"
    assert desk.wait(1.0) == []  # it waits until the first one is closed
    assert desk.step(desk.core.on_closed, 1) == [OpenReceiver(2, Token(1, 2))]
    desk.step(desk.core.on_opened, 2)
    desk.got(message(3), serial=1)  # a late answer of the first one
    desk.got(message(2), message(3), serial=2)
    assert desk.offered == [1, 2, 3]


def test_failures_in_a_row_are_retried_less_and_less() -> None:
    desk = Desk()
    waits = []
    desk.step(desk.core.tick)
    for serial in range(1, 6):
        desk.step(desk.core.on_failed, serial, "start", "down")
        desk.step(desk.core.on_closed, serial)
        waits.append(desk.core.wake_s() - desk.now_s)
        assert kinds(desk.wait(waits[-1])) == [OpenReceiver]
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_read_that_never_ends_is_left_behind() -> None:
    desk = Desk()
    desk.opened()
    limit_s = OPTIONS.read_wait_s + OPTIONS.read_limit_s
    assert desk.core.wake_s() == desk.now_s + limit_s
    assert desk.wait(limit_s - 0.001) == []
    said, discard = desk.wait(0.001)
    assert isinstance(said, Say) and "read gave no answer for 15 s" in said.text
    assert isinstance(discard, Discard)


def test_a_start_that_never_ends_is_left_behind() -> None:
    desk = Desk()
    desk.step(desk.core.tick)
    assert desk.wait(OPTIONS.start_limit_s - 0.001) == []
    said, _ = desk.wait(0.001)
    assert isinstance(said, Say) and "start gave no answer for 120 s" in said.text


def test_an_acknowledgement_that_never_ends_is_sent_by_the_next_receiver() -> None:
    desk = Desk()
    desk.opened()
    desk.got(message(1))
    assert kinds(desk.wait(1.0)) == [Ack]
    said, discard = desk.wait(OPTIONS.call_limit_s)
    assert isinstance(said, Say) and "ack gave no answer" in said.text
    assert isinstance(discard, Discard)
    desk.step(desk.core.on_closed, 1)
    desk.wait(1.0)
    assert Ack(Token(1, 1)) in desk.step(desk.core.on_opened, 2)


def test_an_acknowledgement_that_failed_is_sent_again_by_the_same_receiver() -> None:
    desk = Desk()
    desk.opened()
    desk.got(message(1))
    desk.wait(1.0)
    assert kinds(desk.step(desk.core.on_failed, 1, "ack", "p: R.ack raised KeyError: 1")) == [Say]
    assert desk.core.wake_s() == desk.now_s + 1.0
    assert desk.wait(1.0) == [Ack(Token(1, 1))]


def test_a_pause_keeps_what_a_read_brings_and_shows_it_to_nobody() -> None:
    desk = Desk()
    desk.opened()
    assert desk.step(desk.core.hold, True) == [] and desk.state() == "paused"
    assert desk.got(message(1), message(2)) == []
    assert desk.cache.events == 0
    desk.step(desk.core.hold, False)
    desk.got(message(3))
    assert desk.offered == [1, 2, 3]


def test_a_pause_that_is_called_off_does_not_read_twice() -> None:
    desk = Desk()
    desk.opened()
    desk.step(desk.core.hold, True)
    assert desk.step(desk.core.hold, False) == []  # the read is still out


def test_what_has_no_room_waits_and_nothing_more_is_read() -> None:
    desk = Desk()
    desk.is_busy = True
    desk.opened()
    assert kinds(desk.got(*map(message, range(1, 7)))) == [Offer]
    assert desk.offered == [1, 2, 3, 4] and desk.state() == "full"
    release(desk.cache, 0)
    release(desk.cache, 1)
    assert kinds(desk.step(desk.core.tick)) == [Offer]
    assert desk.offered == [1, 2, 3, 4, 5, 6]
    for index in range(2, 6):
        release(desk.cache, index)
    assert Read in kinds(desk.step(desk.core.tick))


def test_what_is_gone_is_a_gap_that_is_told_once() -> None:
    desk = Desk(after=Token(1, 7))
    desk.step(desk.core.tick)
    gap, _ = desk.step(desk.core.on_gone, 1, Token(1, 40))
    assert gap == GapFound(Token(1, 7), Token(1, 40))
    desk.step(desk.core.on_failed, 1, "read", "down")
    desk.step(desk.core.on_closed, 1)
    desk.wait(1.0)
    told = kinds(desk.step(desk.core.on_gone, 2, Token(1, 40)))
    assert Read in told and GapFound not in told


def test_nothing_is_acknowledged_while_the_record_does_not_say_what_is_gone() -> None:
    desk = Desk(after=Token(1, 7))
    desk.step(desk.core.tick)
    desk.step(desk.core.on_gone, 1, Token(1, 40))
    desk.core.settling.waits = True
    desk.got(message(40))
    for _ in range(3):
        wait_s = desk.core.wake_s() - desk.now_s
        assert wait_s > 0, "it would go round and round"
        assert Ack not in kinds(desk.wait(wait_s))
    assert desk.core.settling.last()[0] is None
    desk.core.settling.waits = False
    assert Ack(Token(1, 40)) in desk.step(desk.core.tick)


def test_what_an_adapter_returns_wrongly_replaces_its_receiver() -> None:
    without_token = QueueMessage(A, None, [b"1"])  # type: ignore[arg-type]
    without_headers = QueueMessage(A, Token(1, 1), [b"1"], None)  # type: ignore[arg-type]
    answers = (None, 7, "text", [None], [without_token], [without_headers])
    for answer in (*answers, [message(2), message(1)]):
        desk = Desk()
        desk.opened()
        said, discard = desk.step(desk.core.on_read, 1, answer, "p: R.read")
        assert isinstance(said, Say) and said.text.startswith("p: R.read returned")
        assert isinstance(discard, Discard)


def test_a_provider_that_cannot_wake_the_reader_is_polled_less_and_less() -> None:
    desk = Desk(LOG - {Capability.WAKEUP})
    desk.opened()
    waits = []
    for _ in range(8):
        assert desk.got() == []
        waits.append(round(desk.core.wake_s() - desk.now_s, 3))
        (read,) = desk.wait(waits[-1])
        assert isinstance(read, Read) and read.wait_s == 0.0
    assert waits == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


def test_a_provider_that_says_it_wakes_the_reader_and_does_not_wait_is_polled() -> None:
    """An immediate empty answer, or the same message again, would block the loop forever."""

    def reads(actions: Sequence[Action]) -> list[Read]:
        return [action for action in actions if isinstance(action, Read)]

    desk = Desk(after=Token(1, 1))
    desk.opened()
    for again in ((message(1),), (), ()):
        assert reads(desk.got(*again)) == []
        (read,) = reads(desk.wait(0.5))
    desk.now_s += read.wait_s
    assert len(reads(desk.got())) == 1  # it has waited


def test_a_read_of_known_messages_is_not_the_end_of_what_a_former_owner_delivered() -> None:
    desk = Desk(after=Token(1, 3))
    desk.core.may_repeat = True
    desk.core._young_s = 1e9
    desk.opened()
    desk.got(message(2), message(3))
    desk.got(message(4))
    assert desk.cache.repeats_upto == 0 and desk.core.may_repeat
    desk.got()
    desk.got(message(5))
    assert desk.cache.repeats_upto == 0 and not desk.core.may_repeat


def test_what_waits_for_room_is_still_what_a_former_owner_may_have_delivered() -> None:
    desk = Desk()
    desk.core.may_repeat = True
    desk.core._young_s = 1e9
    desk.is_busy = True
    desk.opened()
    desk.got(*map(message, range(1, 7)))
    desk.core.may_repeat = False  # the backlog is read to its end
    assert desk.offered == [1, 2, 3, 4] and desk.core.has_repeats
    desk.step(desk.core.hold, True)
    for index in range(4):
        release(desk.cache, index)
    desk.step(desk.core.tick)
    assert desk.cache.events == 0 and desk.core.has_repeats
    desk.step(desk.core.hold, False)
    assert desk.offered == [1, 2, 3, 4, 5, 6] and not desk.core.has_repeats


def test_nothing_is_done_behind_a_fence() -> None:
    desk = Desk()
    desk.opened()
    assert desk.step(desk.core.overtaken, "p: R.read: epoch 1 is over") == [
        Fence("p: R.read: epoch 1 is over")
    ]
    assert desk.state() == "fenced" and desk.core.wake_s() == math.inf
    assert desk.got(message(1)) == [] and desk.wait(1000.0) == []
