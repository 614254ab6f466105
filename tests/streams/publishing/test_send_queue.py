"""Messages that wait to be enqueued: order, prefixes, producers, deadlines; with a model of a
queue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import (
    PublishUnknown,
    QueueFull,
    QueueUnavailable,
    StaleMapper,
    StreamError,
)
from millstream.streams import OutMessage, ProducerMark, SendLimits, StreamId, Token
from millstream.streams.publishing.send_queue import (
    Publish,
    SendQueue,
    is_final,
    is_passing,
    refusal_of,
)

STREAM = StreamId("n", "k")


def publish_of(*texts: str, producer: str = "", first: int = 0, wait_s: float = 5.0) -> Publish:
    marks = [ProducerMark(producer, first + at) if producer else None for at in range(len(texts))]
    messages = [
        OutMessage(STREAM, [text.encode()], {}, mark)
        for text, mark in zip(texts, marks, strict=True)
    ]
    return Publish(messages, 0.0, wait_s)


def texts(messages: Sequence[OutMessage]) -> str:
    return "".join(message.items[0].decode() for message in messages)


def queue_of(*publishes: Publish, limits: SendLimits | None = None) -> SendQueue:
    queue = SendQueue("q", limits or SendLimits())
    for publish in publishes:
        queue.add(publish)
    return queue


def test_publishes_are_put_together_in_order_up_to_the_limits() -> None:
    queue = queue_of(publish_of("a", "b"), publish_of("c"), limits=SendLimits(batch_messages_max=2))
    assert texts(queue.batch()) == "ab"
    (ended,) = queue.on_answer([Token(1, 1), None], None, 0.0)
    assert (ended.tokens, ended.error) == ([Token(1, 1), None], None)
    assert texts(queue.batch()) == "c"


def test_a_queue_in_which_nothing_waits_has_no_list() -> None:
    assert queue_of().batch() == []


def test_publishes_of_one_event_each_go_in_one_list() -> None:
    queue = queue_of(publish_of("a"), publish_of("b"))
    assert texts(queue.batch()) == "ab"


def test_each_publish_gets_the_tokens_of_its_own_messages() -> None:
    publishes = [publish_of("a", "b", "c"), publish_of("d", "e"), publish_of("f", "g")]
    queue = queue_of(*publishes)
    assert texts(queue.batch()) == "abcdefg"
    queue.check()
    found = [Token(1, number) for number in range(7)]
    assert queue.on_answer(found, None, 0.0) == publishes
    assert [one.tokens for one in publishes] == [found[:3], found[3:5], found[5:]]


def test_one_event_alone_is_out_once() -> None:
    queue = queue_of(publish_of("a"))
    assert texts(queue.batch()) == "a"
    queue.check()


def test_a_list_may_be_just_as_large_as_the_limit_of_bytes() -> None:
    queue = queue_of(publish_of("a", "b", "c"), limits=SendLimits(batch_bytes_max=2))
    assert texts(queue.batch()) == "ab"


def test_what_waits_may_be_just_as_large_as_the_limit_of_bytes() -> None:
    queue = queue_of(publish_of("a"), publish_of("bc"), limits=SendLimits(waiting_bytes_max=3))
    with pytest.raises(QueueFull, match="3 bytes wait"):
        queue.add(publish_of("d"))


def test_a_list_is_cut_by_bytes_and_one_message_may_be_larger() -> None:
    queue = queue_of(publish_of("aaaa", "b", "c"), limits=SendLimits(batch_bytes_max=2))
    assert texts(queue.batch()) == "aaaa"
    assert queue.on_answer([None], None, 0.0) == []
    assert texts(queue.batch()) == "bc"


def test_what_was_refused_for_a_while_is_offered_again_behind_the_stored_prefix() -> None:
    first, second = publish_of("a", "b"), publish_of("c")
    queue = queue_of(first, second)
    assert texts(queue.batch()) == "abc"
    assert queue.on_answer([Token(1, 1)], QueueFull("full"), 4.9) == []
    assert texts(queue.batch()) == "bc"
    assert queue.on_answer([], QueueFull("full"), 5.1) == [second]  # the first made progress at 4.9
    assert texts(queue.batch()) == "b"
    assert queue.on_answer([], QueueFull("full"), 9.9) == [first]
    assert isinstance(first.error, QueueFull) and first.error.accepted_events == 1
    assert isinstance(second.error, QueueFull) and second.error.accepted_events == 0
    assert queue.is_idle


def test_a_publish_without_patience_is_offered_once() -> None:
    publish = publish_of("a", wait_s=0.0)
    queue = queue_of(publish)
    assert texts(queue.batch()) == "a"
    assert queue.on_answer([], QueueUnavailable("away"), 0.0) == [publish]


def test_a_refusal_for_good_ends_its_own_publish_and_offers_the_others_again() -> None:
    first, second, third = publish_of("a"), publish_of("b", "x"), publish_of("c")
    queue = queue_of(first, second, third)
    queue.batch()
    assert queue.on_answer([None], StreamError("too odd"), 0.0) == [first, second]
    assert (first.error, str(second.error)) == (None, "too odd")
    assert texts(queue.batch()) == "c"


def test_an_unknown_outcome_ends_all_that_was_out_and_nothing_that_was_not() -> None:
    first, second, third = publish_of("a"), publish_of("b", "c"), publish_of("d")
    queue = queue_of(first, second, third, limits=SendLimits(batch_messages_max=2))
    assert texts(queue.batch()) == "ab"
    assert queue.on_answer([None], PublishUnknown("?"), 0.0) == [first, second]
    assert first.error is None and isinstance(second.error, PublishUnknown)
    assert texts(queue.batch()) == "d"


def test_nothing_of_a_producer_is_sent_behind_its_failed_sequence() -> None:
    failed = publish_of("a", producer="p", first=5, wait_s=0.0)
    behind, other = publish_of("b", producer="p", first=6), publish_of("c", producer="r", first=6)
    before = publish_of("z", producer="r")
    queue = queue_of(before, failed, behind, other)
    queue.batch()
    assert queue.on_answer([None], QueueFull("full"), 0.0) == [before, failed, behind]
    assert isinstance(behind.error, QueueUnavailable) and "producer 'p'" in str(behind.error)
    assert texts(queue.batch()) == "c"


def test_what_its_caller_left_is_not_sent_but_what_is_out_ends_as_it_will() -> None:
    out, waiting = publish_of("a", "b", "c"), publish_of("d")
    queue = queue_of(out, waiting, publish_of("e"), limits=SendLimits(batch_messages_max=2))
    assert texts(queue.batch()) == "ab"
    queue.drop(out)
    queue.drop(waiting)
    queue.check()
    assert queue.on_answer([None, Token(1, 2)], None, 0.0) == [out]
    assert out.tokens == [None, Token(1, 2)]
    assert texts(queue.batch()) == "e"


def test_a_publish_that_was_left_is_offered_again_only_as_far_as_it_was_out() -> None:
    out = publish_of("a", "b", "c")
    queue = queue_of(out, limits=SendLimits(batch_messages_max=2))
    queue.batch()
    queue.drop(out)
    assert queue.on_answer([], QueueFull("full"), 0.0) == []
    assert texts(queue.batch()) == "ab"


def test_too_much_that_waits_is_refused_but_one_publish_always_may() -> None:
    queue = queue_of(publish_of("aaaa"), limits=SendLimits(waiting_bytes_max=3))
    with pytest.raises(QueueFull, match="waiting_bytes_max is 3"):
        queue.add(publish_of("b"))
    queue.batch()
    queue.on_answer([None], None, 0.0)
    queue.add(publish_of("b"))


def test_at_the_end_what_is_out_is_unknown_and_what_waits_was_not_sent() -> None:
    out, waiting = publish_of("a"), publish_of("b")
    queue = queue_of(out, waiting, limits=SendLimits(batch_messages_max=1))
    queue.batch()
    assert queue.close("the silo stops") == [out, waiting]
    assert isinstance(out.error, PublishUnknown) and isinstance(waiting.error, QueueUnavailable)
    queue.check()


CAUSES = (QueueFull("full"), QueueUnavailable("away"), PublishUnknown("?"), StreamError("no"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4), st.sampled_from(["", "p", "r"])),
        st.tuples(st.just("drop"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("answer"), st.integers(0, 8), st.sampled_from([*range(4), None])),
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(STEPS)
def test_whatever_happens_a_queue_that_keeps_the_contract_has_each_producer_in_order(
    steps: list[tuple[str, int, object]],
) -> None:
    """The service stores the messages that `answered` names, even if it raises PublishUnknown."""
    queue = SendQueue("q", SendLimits(batch_messages_max=3))
    added: list[Publish] = []
    stored: list[OutMessage] = []
    told: set[int] = set()
    serial, now_s = 0, 0.0
    for step, number, more in steps:
        now_s += 0.7
        if step == "add":
            names = [f"{serial + at}," for at in range(number)]
            added.append(publish_of(*names, producer=str(more), first=serial))
            serial += number
            queue.add(added[-1])
        elif step == "drop" and added:
            queue.drop(added[number % len(added)])
        elif step == "answer" and (batch := queue.batch()):
            is_all = number >= len(batch) or more is None
            count = len(batch) if is_all else number
            cause = None if is_all else CAUSES[int(str(more))]
            kept = len(batch) if isinstance(cause, PublishUnknown) else count
            stored += batch[:kept]
            ended = queue.on_answer([None] * count, cause, now_s)
            assert all(one.is_over and id(one) not in told for one in ended)
            told |= {id(one) for one in ended}
        queue.check()
    order = [int(message.items[0].decode().rstrip(",")) for message in stored]
    assert order == sorted(set(order)), "a message was stored twice, or out of order"
    for publish in added:
        mine = [message for message in stored if message in publish.messages]
        assert mine == list(publish.messages)[: len(mine)], "not a prefix"
        if publish.error is None and publish.is_over:
            assert len(mine) >= len(publish.tokens)


# --- alone, and taken back ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts_of_it", "limits", "is_alone"),
    [
        (["a", "b"], SendLimits(batch_messages_max=2), True),
        (["a", "b", "c"], SendLimits(batch_messages_max=2), False),
        (["aa", "b"], SendLimits(batch_bytes_max=3), True),
        (["aa", "bb"], SendLimits(batch_bytes_max=3), False),
        (["aaaa"], SendLimits(batch_bytes_max=3, batch_messages_max=1), True),
    ],
)
def test_a_publish_goes_alone_if_it_is_one_list(
    texts_of_it: list[str], limits: SendLimits, is_alone: bool
) -> None:
    queue = SendQueue("q", limits)
    assert queue.takes_alone(publish_of(*texts_of_it)) is is_alone
    queue.add(publish_of("before"))
    assert not queue.takes_alone(publish_of(*texts_of_it))


def test_what_is_taken_back_waits_nowhere_and_what_is_over_is_not_of_it() -> None:
    first, gone, last = publish_of("a", "b"), publish_of("c"), publish_of("d")
    queue = queue_of(first, gone, last, limits=SendLimits(waiting_bytes_max=4))
    assert first.home is queue
    queue.drop(gone)
    assert queue.take_back() == [first, last]
    assert queue.is_idle and first.home is None is last.home
    queue.add(publish_of("abcd"))
    with pytest.raises(QueueFull, match="4 bytes wait"):
        queue.add(publish_of("e"))
    queue.check()


def test_a_publish_whose_streams_went_apart_has_the_outcomes_of_its_parts() -> None:
    publish = publish_of("a", "b", "c", "d")
    publish.tokens = [Token(1, 1)]
    parts = publish.split(lambda message: "x" if message.items[0] in (b"b", b"d") else "y", 7.0)
    assert {queue: texts(part.messages) for queue, part in parts.items()} == {"x": "bd", "y": "c"}
    parts["x"].tokens = [Token(2, 1), Token(2, 2)]
    parts["y"].end(QueueFull("full"))
    one, two, three, four = publish.outcomes()
    assert (one, two, four) == (Token(1, 1), Token(2, 1), Token(2, 2))
    assert isinstance(three, QueueFull)


# --- reasons of refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "passes", "is_for_good"),
    [
        (QueueFull("full"), True, False),
        (QueueUnavailable("away"), True, False),
        (StaleMapper("old"), True, False),
        (PublishUnknown("?"), False, False),
        (StreamError("no"), False, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_passes_or_is_for_good_or_says_neither(
    cause: StreamError, passes: bool, is_for_good: bool
) -> None:
    assert (is_passing(cause), is_final(cause)) == (passes, is_for_good)


def test_an_error_that_is_not_of_a_queue_refuses_no_message_for_good() -> None:
    assert not is_final(OSError("disk"))


class Checking:
    """Queues that refuse messages with this error; None: they accept all."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def check(self, message: OutMessage, /) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("too large"), StreamError("no such stream")])
def test_the_message_that_is_too_large_is_refused_for_good_with_the_reason(
    error: Exception,
) -> None:
    refusal = refusal_of(Checking(error), OutMessage(STREAM, [b"a"]))
    assert is_final(refusal) and str(refusal) == str(error)


def test_a_message_beside_one_that_is_too_large_may_be_accepted_later() -> None:
    assert is_passing(refusal_of(Checking(None), OutMessage(STREAM, [b"a"])))
