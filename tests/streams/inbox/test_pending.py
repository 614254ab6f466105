"""The waiting events of an inbox: the pure core."""

from __future__ import annotations

import msgspec

from millstream.streams import Token
from millstream.streams.api.inbox import Acks
from millstream.streams.consumer.batch import WireBatch
from millstream.streams.contracts.item import Item
from millstream.streams.inbox.pending import ACKED_MAX, Pending


def batch(*numbers: int, epoch: int = 1, queue: str = "q") -> WireBatch:
    items = [Item(Token(1, number), b"x") for number in numbers]
    return WireBatch("outside/a", "", "ns", "k", queue, epoch, 1, False, items)


def acks(*numbers: int, last: int | None = None, queue: str = "q") -> Acks:
    tokens = [Token(1, number) for number in numbers]
    return Acks(queue, tokens, None if last is None else Token(1, last))


def taken(pending: Pending, session: int = 1, events_max: int = 100) -> list[int]:
    return [item.token.seq for item in pending.take(session, events_max, 1.0).items]


def test_what_is_acknowledged_is_not_given_again_also_in_another_delivery() -> None:
    pending = Pending()
    assert pending.offer(batch(1, 2, 3, 4)) and taken(pending, events_max=2) == [1, 2]
    assert pending.acknowledge(acks(1, 2)) and pending.count_done() == 2
    assert not pending.acknowledge(acks(1, 2))
    assert pending.offer(batch(1, 2, 3, 4, 5, epoch=2))
    assert taken(pending) == [3, 4, 5] and pending.count_done() == 2


def test_a_session_that_comes_to_a_fresh_inbox_is_not_given_what_it_has_done() -> None:
    pending = Pending()
    pending.learn(acks(last=3))
    assert pending.offer(batch(1, 2, 3, 4)) and taken(pending) == [4]
    late = Pending()
    assert late.offer(batch(1, 2, 3, 4))
    late.learn(acks(last=3))
    assert taken(late) == [4] and late.count_done() == 3


def test_a_delivery_of_an_older_epoch_is_refused() -> None:
    pending = Pending()
    assert pending.offer(batch(1, epoch=2)) and not pending.offer(batch(1, 2, epoch=1))
    assert taken(pending) == [1] and pending.offer(batch(9, epoch=1, queue="other"))


def test_after_a_move_back_nothing_that_was_in_hand_counts() -> None:
    pending = Pending()
    pending.offer(batch(5, 6, 7))
    assert taken(pending) == [5, 6, 7]
    assert pending.offer(msgspec.structs.replace(batch(1, 2, 5, 6), rewinds=True))
    assert not pending.acknowledge(acks(5, 6))
    pending.learn(acks(last=7))
    assert taken(pending) == [1, 2, 5, 6]
    assert pending.acknowledge(acks(1)) and taken(pending) == [2, 5, 6]


def test_tokens_of_another_queue_say_nothing() -> None:
    pending = Pending()
    pending.acknowledge(acks(9, queue="other"))
    assert pending.offer(batch(1, 2)) and taken(pending) == [1, 2]


def test_where_tokens_do_not_rise_each_is_done_by_itself_and_few_are_remembered() -> None:
    pending = Pending()
    pending.offer(msgspec.structs.replace(batch(7), has_positions=False))
    assert pending.acknowledge(acks(7))
    assert pending.offer(msgspec.structs.replace(batch(3), has_positions=False))
    assert taken(pending) == [3]
    assert pending.offer(msgspec.structs.replace(batch(7), has_positions=False))
    assert not pending.has_any and pending.count_done() == 1
    pending.acknowledge(acks(*range(10, 12 + ACKED_MAX)))
    assert len(pending._acked) == ACKED_MAX


def test_a_gap_is_given_with_the_event_that_follows_until_that_is_acknowledged() -> None:
    pending, gap = Pending(), (Token(1, 2), Token(1, 5))
    assert pending.offer(msgspec.structs.replace(batch(5, 6), gap=gap))
    assert pending.take(1, 1, 1.0).gap == gap and pending.take(2, 10, 1.0).gap == gap
    pending.acknowledge(acks(5))
    assert pending.take(2, 10, 1.0).gap is None
    assert pending.offer(batch(6, 7)) and pending.take(2, 10, 1.0).gap is None
