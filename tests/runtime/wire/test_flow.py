"""The costs of one connection: waiting bytes, answers that nobody reads, floods and silences."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import msgspec
import pytest
from tests.conditions import until
from tests.runtime.wire.pair import Office, Waits, call, outgoing, raw, visitor

from millstream.runtime import Overloaded, SiloUnavailable
from millstream.runtime.extending import Tasks
from millstream.runtime.wire.batch import (
    LETTER_BYTES,
    SPARE_BYTES,
    TEXT_HEAD_BYTES,
    call_bytes,
    cut,
)
from millstream.runtime.wire.connection import REFUSALS_AT_ONCE
from millstream.runtime.wire.message import (
    Call,
    Cancel,
    Failure,
    Goodbye,
    Ping,
    Reply,
    count_of,
    encode_messages,
)
from millstream.runtime.wire.pulse import Pulse, Silence

KB = 1000


def body(size: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(bytes(size)))


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


# --- calls that wait to be written ----------------------------------------------------------------


async def test_calls_for_a_peer_that_does_not_read_are_bounded_by_bytes() -> None:
    peer, link = outgoing(Office(), peer_bytes_max=100 * KB)
    link.full_at = 0
    for _ in range(9):
        peer.writer.send_call(call(body=body(10 * KB)), Waits())
    with pytest.raises(Overloaded, match="peer_bytes_max is 100000") as caught:
        peer.writer.send_call(call(body=body(10 * KB)), Waits())
    assert caught.value.limit_name == "peer_bytes_max"
    await turn()
    assert len(link.of(Call)) < 9  # messages that the link does not take stay, and count
    with pytest.raises(Overloaded):
        peer.writer.send_one_way(call(body=body(90 * KB)))
    link.drain()
    await turn()
    assert len(link.of(Call)) == 9
    peer.writer.send_call(call(body=body(90 * KB)), Waits())


async def test_a_call_that_is_alone_may_be_larger_than_the_limit() -> None:
    peer, link = outgoing(Office(), peer_bytes_max=100)
    peer.writer.send_call(call(body=body(10 * KB)), Waits())
    await turn()
    assert len(link.of(Call)) == 1


async def test_those_that_wait_for_a_full_link_are_bounded_by_bytes_and_give_them_back() -> None:
    peer, _ = outgoing(Office(), peer_bytes_max=100 * KB, waiting_calls_max=3)
    peer.writable(False)
    first = asyncio.create_task(peer.writer.ready(90 * KB))
    await turn()
    with pytest.raises(Overloaded, match="peer_bytes_max"):
        await peer.writer.ready(20 * KB)
    first.cancel()
    await turn()
    waits = [asyncio.create_task(peer.writer.ready(30 * KB)) for _ in range(3)]
    await turn()
    with pytest.raises(Overloaded, match="waiting_calls_max is 3"):
        await peer.writer.ready()
    peer.writable(True)
    await asyncio.gather(*waits)
    peer.writable(False)
    last = asyncio.create_task(peer.writer.ready(100 * KB))  # the maximum that may wait
    await turn()
    peer.writable(True)
    await last


async def test_a_cancelled_call_that_was_not_written_is_freed_and_never_sent() -> None:
    peer, link = outgoing(Office())
    link.full_at = 0
    waits = [Waits() for _ in range(6)]
    calls = [call(body=body(70 * KB)) for _ in waits]
    ids = [peer.writer.send_call(one, wait) for one, wait in zip(calls, waits, strict=True)]
    await turn()
    assert [one.id for one in link.of(Call)] == ids[:1]
    for call_id in ids[1:5]:
        peer.writer.cancel_call(call_id)
    assert [len(memoryview(one.body)) < 10 for one in calls] == [False, *[True] * 4, False]
    assert peer.writer.unwritten_bytes < 80 * KB
    link.drain()
    await turn()
    assert [one.id for one in link.of(Call)] == [ids[0], ids[5]] and not link.of(Cancel)
    assert peer.writer.unwritten_bytes == 0


async def test_small_calls_that_were_cancelled_behind_a_full_link_are_never_sent() -> None:
    peer, link = outgoing(Office())
    link.full_at = 0
    peer.writer.send_call(call(body=body(70 * KB)), Waits())
    ids = [peer.writer.send_call(call(), Waits()) for _ in range(4)]
    await turn()
    peer.writer.cancel_call(ids[1])
    link.drain()
    await turn()
    assert [one.id for one in link.of(Call)][1:] == [ids[0], ids[2], ids[3]]


async def test_when_all_that_a_full_link_left_is_cancelled_nothing_is_sent() -> None:
    peer, link = outgoing(Office())
    link.full_at = 0
    peer.writer.send_call(call(body=body(70 * KB)), Waits())
    ids = [peer.writer.send_call(call(), Waits()) for _ in range(4)]
    await turn()
    for call_id in ids:
        peer.writer.cancel_call(call_id)
    written = peer.writer.written_bytes
    link.drain()
    await turn()
    assert peer.writer.written_bytes == written and len(link.of(Call)) == 1


async def test_a_call_that_no_frame_of_the_other_end_holds_is_refused() -> None:
    peer, _ = outgoing(Office(), frame_bytes_max=10 * KB)
    room = 10 * KB - SPARE_BYTES - call_bytes(call(body=body(300))) + 300
    peer.writer.send_call(call(body=body(room)), Waits())
    with pytest.raises(ValueError, match="exceed frame_bytes_max 10000"):
        peer.writer.send_call(call(body=body(room + 1)), Waits())


async def test_an_end_that_leaves_keeps_its_connection_while_something_waits_for_it() -> None:
    peer, link = outgoing(Office())
    link.full_at = 0
    peer.writer.send_one_way(call(body=body(70 * KB)))
    peer.writer.send_one_way(call())
    await turn()
    peer.on_received(raw(Goodbye("stopping")))
    await turn()
    assert not link.ended and peer.is_leaving
    link.drain()
    await turn()
    assert len(link.of(Call)) == 2
    peer.on_received(raw(Ping(False)))
    await turn()
    assert str(link.ended) == "closed"


async def test_an_end_that_leaves_keeps_its_connection_while_a_call_waits() -> None:
    peer, link = outgoing(Office())
    peer.writable(False)
    waiting = asyncio.create_task(peer.writer.ready())
    await turn()
    peer.on_received(raw(Goodbye("stopping")))
    await turn()
    assert not link.ended
    peer.writable(True)
    await waiting


async def test_an_answer_that_is_there_as_its_call_is_read_leaves_at_once() -> None:
    peer, link = visitor(Office())
    peer.on_received(raw(call(1, kind="nobody")))
    assert [one.id for one in link.of(Failure)] == [1]


async def test_a_cancel_in_the_read_of_its_call_is_taken_before_anything_runs() -> None:
    office = Office()
    peer, _ = visitor(office)
    peer.on_received(raw(call(1)) + raw(Cancel(1)) + raw(call(2)) + raw(call(3)))
    assert [one.id for one in office.calls] == [1] and not peer.served.calls
    await turn()
    assert list(peer.served.calls) == [2, 3]


async def test_a_cancelled_call_that_was_written_is_cancelled_there() -> None:
    peer, link = outgoing(Office())
    call_id = peer.writer.send_call(call(), Waits())
    await turn()
    peer.writer.cancel_call(call_id)
    await turn()
    assert link.of(Cancel) == [Cancel(call_id)]


async def test_an_error_says_whether_the_call_may_have_run() -> None:
    peer, link = outgoing(Office())
    link.full_at = 0
    waits = [Waits(), Waits()]
    for wait in waits:
        peer.writer.send_call(call(body=body(70 * KB)), wait)
    await turn()
    waiting = asyncio.create_task(peer.writer.ready())
    await turn()
    peer.on_closed("gone")
    sent, unsent = (wait.told[0] for wait in waits)
    assert isinstance(sent, SiloUnavailable) and sent.may_have_run
    assert isinstance(unsent, SiloUnavailable) and not unsent.may_have_run
    for send in (
        lambda: peer.writer.send_one_way(call()),
        lambda: peer.writer.send_call(call(), Waits()),
    ):
        with pytest.raises(SiloUnavailable) as caught:
            send()
        assert not caught.value.may_have_run
    with pytest.raises(SiloUnavailable) as later:
        await waiting
    assert not later.value.may_have_run


async def test_an_error_names_a_client_that_has_greeted() -> None:
    peer, _ = visitor(Office())
    peer.close("gone")
    with pytest.raises(SiloUnavailable, match="client-1: the connection is closed"):
        peer.writer.send_one_way(call())


# --- batches --------------------------------------------------------------------------------------


async def test_calls_with_large_keys_are_cut_into_frames_that_the_other_end_takes() -> None:
    peer, link = outgoing(Office(), frame_bytes_max=64 * KB)
    waits = [Waits() for _ in range(64)]
    for wait in waits:
        peer.writer.send_call(call(key="k" * 10 * KB), wait)
    await turn()
    assert len(link.of(Call)) == 64 and max(link.sizes) <= 64 * KB
    assert not any(wait.told for wait in waits)


@pytest.mark.parametrize(
    "large",
    [
        {"key": "k" * 4 * KB},
        {"headers": {"h" * 2 * KB: "v" * 2 * KB}},
        {"chain": ["c" * 100] * 40},
        {"caller": "c" * 4 * KB},
        {"body": body(16 * KB)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_every_part_of_a_call_counts(large: dict[str, Any]) -> None:
    one = call(1, **large)
    assert len(encode_messages([one])) <= call_bytes(one) + SPARE_BYTES
    assert call_bytes(one) > 15 * KB
    assert cut([call_bytes(one) + SPARE_BYTES] * 4, 64, 40 * KB) == [2, 4]


def test_no_characters_take_more_bytes_than_are_reckoned() -> None:
    one = call(1, key="😀" * 1000, headers={"😀": "😀"}, chain=["😀"] * 300)
    assert len(encode_messages([one])) <= call_bytes(one) + SPARE_BYTES


def test_many_headers_take_no_more_bytes_than_are_reckoned() -> None:
    names = [chr(0x1F600 + n // 60) + chr(0x1F600 + n % 60) * 9 for n in range(300)]
    one = call(1, headers={name: name for name in names})
    assert len(encode_messages([one])) <= call_bytes(one) + SPARE_BYTES


def test_batches_keep_order_and_both_limits() -> None:
    assert cut([400] * 150, 64, 1 << 20) == [64, 128, 150]
    assert cut([400] * 5, 64, 800) == cut([400] * 5, 2, 1 << 20) == [2, 4, 5]
    assert cut([100, 900, 100], 64, 500) == cut([400] * 3, 64, 1) == [1, 2, 3]
    assert cut([], 64, 1) == []


async def test_a_batch_that_is_cut_keeps_the_order_of_its_messages() -> None:
    peer, link = outgoing(Office())
    ids = [peer.writer.send_call(call(body=body(100)), Waits()) for _ in range(150)]
    await turn()
    assert [one.id for one in link.of(Call)] == ids and not peer.writer.unwritten_bytes


# --- messages that cannot be written or read ------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [{"key": "\ud800"}, {"headers": {"h": "\ud800"}}, {"chain": ["\ud800"]}], ids=str
)
async def test_a_call_that_cannot_be_encoded_fails_alone(bad: dict[str, Any]) -> None:
    peer, link = outgoing(Office())
    waits = [Waits() for _ in range(3)]
    for wait, changes in zip(waits, ({}, bad, {}), strict=True):
        peer.writer.send_call(call(**changes), wait)
    await turn()
    assert len(link.of(Call)) == 2 and not peer.is_closed
    assert [type(wait.told[0]) for wait in waits if wait.told] == [TypeError]
    assert waits[1].told and "\n" not in str(waits[1].told[0])


@pytest.mark.parametrize("headers", [{"h": b"bytes"}, {b"h": "text"}, {"h": 5}])
async def test_headers_that_are_not_text_are_refused_where_they_are_sent(headers: Any) -> None:
    peer, link = outgoing(Office())
    with pytest.raises(TypeError, match="header"):
        peer.writer.send_call(call(headers=headers), Waits())
    await turn()
    assert link.of(Call) == [] and not peer.is_closed


def unreadable(call_id: int) -> bytes:
    """Return a frame with a call whose key is not UTF-8."""
    good = encode_messages([call(call_id, key="keykey")])[1:]
    return good.replace(b"keykey", b"key\xff\xffy")


@pytest.mark.parametrize("other", ["text", "header"])
async def test_a_call_that_cannot_be_read_fails_alone_and_is_logged(
    other: str, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()
    peer, link = visitor(office)
    bad = unreadable(2)
    if other == "header":
        fields = msgspec.msgpack.decode(encode_messages([call(2, headers={"h": "v"})]))[0]
        fields[-1] = {"h": b"bytes"}
        bad = msgspec.msgpack.encode(fields)
    good = [encode_messages([call(number)])[1:] for number in (1, 3)]
    payload = b"\x93" + good[0] + bad + good[1]
    peer.on_received(len(payload).to_bytes(4, "little") + payload)
    await turn()
    assert [one.id for one in office.calls] == [1, 3]
    assert [one.id for one in link.of(Failure)] == [2] and not link.ended
    (line,) = caplog.messages
    assert line.startswith("a call of client-1 cannot be read: ")


async def test_a_call_that_cannot_be_read_and_whose_id_is_in_use_ends_the_connection() -> None:
    peer, link = visitor(Office())
    peer.on_received(raw(call(2)))
    payload = b"\x91" + unreadable(2)
    peer.on_received(len(payload).to_bytes(4, "little") + payload)
    await turn()
    assert link.of(Failure) == [] and link.ended == "aborted"


async def test_a_one_way_call_that_cannot_be_read_has_no_answer() -> None:
    peer, link = visitor(Office())
    payload = b"\x91" + unreadable(0)
    peer.on_received(len(payload).to_bytes(4, "little") + payload)
    await turn()
    assert link.of(Failure) == [] and not link.ended


# --- floods ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 15, 16, 64, 65, 65_535, 65_536])
def test_the_count_of_a_frame_is_known_before_it_is_read(count: int) -> None:
    assert count_of(encode_messages([Cancel(1)] * count)) == count
    assert count_of(b"") == count_of(b"\xc0") == count_of(b"\x80") == 0


@pytest.mark.parametrize(("count", "is_taken"), [(64, True), (65, False)])
async def test_a_frame_of_too_many_messages_ends_the_connection(count: int, is_taken: bool) -> None:
    office = Office()
    peer, link = visitor(office)
    peer.on_received(raw(*[call(number) for number in range(1, count + 1)]))
    assert (len(office.calls) == count) is is_taken and (not link.ended) is is_taken


async def test_the_other_end_says_how_many_messages_it_takes() -> None:
    peer, link = outgoing(Office(), batch_messages_max=500)
    for _ in range(200):  # the other end takes 64 messages per frame
        peer.writer.send_call(call(), Waits())
    await turn()
    assert sum(link.counts) == 200 + 2 and max(link.counts) == 64


async def test_refusals_are_spread_over_iterations_of_the_loop() -> None:
    office = Office()
    peer, link = visitor(office)
    flood = [raw(*[call(n * 64 + k, kind="none") for k in range(1, 65)]) for n in range(4)]
    peer.on_received(b"".join(flood))
    most, before = len(office.calls), len(office.calls)
    while len(office.calls) < 256:
        await asyncio.sleep(0)
        most, before = max(most, len(office.calls) - before), len(office.calls)
    assert most <= 2 * REFUSALS_AT_ONCE
    assert [one.id for one in office.calls] == list(range(1, 257))
    await turn()
    assert len(link.of(Failure)) == 256


async def test_calls_in_one_read_keep_their_order_and_later_frames_wait() -> None:
    office = Office()
    peer, _ = visitor(office)
    frames = [raw(*[call(n * 10 + k) for k in range(1, 11)]) for n in range(5)]
    peer.on_received(b"".join(frames))
    assert len(office.calls) == 10
    peer.on_received(raw(call(51)))
    while len(office.calls) < 51:
        await asyncio.sleep(0)
    assert [one.id for one in office.calls] == list(range(1, 52))


async def test_a_visitor_that_is_read_far_ahead_is_not_read_any_more() -> None:
    office = Office()
    peer, link = visitor(office)
    peer.on_received(b"".join(raw(call(number)) for number in range(1, 101)))
    assert not link.is_reading
    while len(office.calls) < 100:
        await asyncio.sleep(0)
    await turn()
    assert link.is_reading


# --- answers that nobody reads --------------------------------------------------------------------


def answer_all(peer: Any, office: Office, size: int) -> None:
    for one in office.calls:
        peer.served.answer(one.id, Reply(one.id, body(size)))
    office.calls.clear()


async def test_a_client_that_does_not_take_its_answers_is_not_served_until_it_does() -> None:
    office = Office()
    peer, link = visitor(office, answer_bytes_max=100 * KB)
    link.full_at = 0
    peer.on_received(raw(*[call(number) for number in range(1, 11)]))
    answer_all(peer, office, 20 * KB)
    await turn()
    assert not link.is_reading
    peer.on_received(raw(call(11)))  # calls that were already read wait
    await turn()
    assert office.calls == [] and not link.ended
    link.drain()
    await turn()
    assert [one.id for one in office.calls] == [11] and link.is_reading
    assert len(link.of(Reply)) == 10


async def test_a_client_that_takes_no_answers_at_all_is_closed() -> None:
    office = Office()
    peer, link = visitor(office, unread_bytes_max=300 * KB)
    link.full_at = 0
    peer.on_received(raw(*[call(number) for number in range(1, 33)]))
    answer_all(peer, office, 20 * KB)
    await turn()
    assert link.ended == "aborted" and peer.writer.unwritten_bytes == 0


async def test_an_end_is_served_until_its_answers_are_written() -> None:
    office = Office()
    peer, link = visitor(office)
    link.full_at = 0
    peer.on_received(raw(call(1), call(2)))
    answer_all(peer, office, 70 * KB)
    await turn()
    assert len(link.of(Reply)) == 1 and peer.is_serving
    link.drain()
    assert len(link.of(Reply)) == 2 and not peer.is_serving


async def test_who_only_asks_goes_on_reading_its_answers() -> None:
    peer, link = outgoing(Office(), answer_bytes_max=1)
    link.full_at = 0
    for _ in range(5):
        peer.writer.send_call(call(body=body(50 * KB)), Waits())
    await turn()
    assert link.is_reading


# --- silences -------------------------------------------------------------------------------------


def test_a_silence_is_counted_in_looks() -> None:
    silence = Silence()
    assert silence.look(False, 0, 100) == 1
    assert silence.look(True, 0, 100) == 0
    # the system took the bytes
    assert [silence.look(False, 0, 200 + n) for n in range(3)] == [1, 2, 3]
    assert silence.look(False, 50, 300) == 0  # the link was full, and took some bytes
    assert silence.look(False, 50, 300) == 1
    assert silence.look(False, 40, 300) == 0
    assert silence.look(False, 90, 350) == 1  # more bytes wait, and none was taken


async def test_a_part_of_an_interval_counts_as_one() -> None:
    looks: list[int] = []

    class Peer:
        def check_pulse(self, looks_max: int, /) -> None:
            looks.append(looks_max)

    pulse = Pulse(Tasks(asyncio.get_running_loop(), Context), 0.01, 0.025)
    peer = Peer()
    pulse.add(peer)
    await until(lambda: len(looks) == 2)
    pulse.remove(peer)
    assert looks == [3, 3]


async def test_an_end_that_is_silent_is_asked_and_then_closed() -> None:
    peer, link = visitor(Office(), ping_every_s=5.0, silent_after_s=15.0)
    peer.check_pulse(3)  # it has just greeted
    for _ in range(3):
        peer.check_pulse(3)
        await turn()
        assert link.ended == "" and link.of(Ping)[-1] == Ping(True)
    peer.check_pulse(3)
    assert link.ended == "aborted"


async def test_an_end_that_answers_lives() -> None:
    peer, link = visitor(Office())
    for _ in range(10):
        peer.check_pulse(3)
        peer.check_pulse(3)
        peer.on_received(raw(Ping(False)))
    await turn()
    assert not link.ended and link.of(Ping) == [Ping(True)] * 10


async def test_an_end_that_takes_what_is_written_lives() -> None:
    peer, link = visitor(Office())
    link.waiting_bytes = 50  # at each look the same number, though more was written
    for _ in range(10):
        peer.check_pulse(3)
        peer.writer.send(Ping(False))
        await turn()
    assert not link.ended


async def test_a_question_for_a_sign_is_answered_without_touching_calls() -> None:
    office = Office()
    peer, link = visitor(office)
    peer.on_received(raw(*[Ping(True)] * 64))
    await turn()
    assert link.of(Ping) == [Ping(False)] and office.calls == []


async def test_a_closed_connection_is_not_looked_after() -> None:
    peer, _ = visitor(Office())
    pulse = peer._end.pulse
    assert pulse._timer is not None
    peer.close("over")
    assert pulse._timer is None and not pulse._peers


def test_a_header_counts_with_its_name_and_its_text() -> None:
    bare = call_bytes(call())
    assert call_bytes(call(headers={"": ""})) == bare + 2 * TEXT_HEAD_BYTES
    assert call_bytes(call(headers={"ab": "c"})) == bare + 2 * TEXT_HEAD_BYTES + 3 * LETTER_BYTES
