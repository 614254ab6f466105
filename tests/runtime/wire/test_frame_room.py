"""The memory for incomplete frames of all visitors of a silo is limited."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import until
from tests.runtime.wire.pair import SECRET, FakeLink, Office, call, end_of, raw

from millstream.runtime import Env, RuntimeOptions
from millstream.runtime.testing import Simulation, run
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.framing import FrameReader, FrameRoom
from millstream.runtime.wire.handshake import Handshake, Identity, hello_of
from millstream.runtime.wire.message import Ping

MB = 1_000_000
READ = bytes(256 * 1024)
"""The most bytes that one read of a socket gives."""


class Visitor:
    """A connection whose other end sends as long as the silo reads."""

    def __init__(self, end: LocalEnd, name: str, *, is_silo: bool = False) -> None:
        self.link, self.sent_bytes = FakeLink(), 0
        self.peer = Peer(end, "", lambda peer: None)
        self.peer.attach(self.link)
        own = hello_of(Identity("dev", name, is_silo), RuntimeOptions(), Env())
        greeting = Handshake(own, SECRET, is_opener=True)
        proofs = greeting.take(self.link.messages[:1])
        self.peer.on_received(raw(own))
        for proof in proofs:
            self.peer.on_received(raw(proof))

    @property
    def is_open(self) -> bool:
        return not self.link.ended

    def begin(self, size: int) -> None:
        self.send(size.to_bytes(4, "little"))

    def send(self, data: bytes) -> bool:
        """Send data. Returns False if the connection is closed or is not read."""
        if not (self.is_open and self.link.is_reading):
            return False
        self.peer.on_received(data)
        self.sent_bytes += len(data)
        return True


def sent(visitors: list[Visitor]) -> int:
    return sum(one.sent_bytes for one in visitors if one.is_open)


async def test_strangers_that_send_most_of_large_frames_hold_a_named_number_of_bytes() -> None:
    """Without this limit, 16 connections with 50 MB of 60 MB each would take 800 MB."""
    end = end_of(Office(), partial_bytes_max=128 * MB)
    visitors = [Visitor(end, f"client-{number}") for number in range(100)]
    for one in visitors:
        one.begin(60 * MB)
    for _ in range(190):  # 50 MB each, in turn
        for one in visitors:
            one.send(READ)
    assert sent(visitors) <= 128 * MB + 32 * 2**20 + 100 * len(READ)
    assert sum(one.sent_bytes >= 49 * MB for one in visitors) == 2, "two of them have room"


async def test_a_frame_that_is_whole_makes_room_for_the_next_in_the_order_of_asking() -> None:
    office = Office()
    end = end_of(office, partial_bytes_max=2 * MB)
    first, second, third = (Visitor(end, f"client-{number}") for number in range(3))
    large, again = (raw(call(id, headers={"h": "x" * (3 * MB // 2)})) for id in (1, 2))
    for one in (first, second, third):
        one.send(large[:1000])
    assert first.link.is_reading and not second.link.is_reading and not third.link.is_reading
    first.send(large[1000:])
    assert len(office.calls) == 1
    assert first.link.is_reading and second.link.is_reading and not third.link.is_reading
    first.send(again[:1000])
    assert not first.link.is_reading, "behind the third"
    second.peer.close("gone")
    assert third.link.is_reading and not first.link.is_reading
    third.send(large[1000:] + raw(call(7)))
    assert first.link.is_reading
    first.send(again[1000:])
    await until(lambda: len(office.calls) == 4)


async def test_small_frames_need_no_room() -> None:
    office = Office()
    end = end_of(office, partial_bytes_max=1 * MB)
    holder, other = Visitor(end, "client-1"), Visitor(end, "client-2")
    holder.begin(60 * MB)
    small = raw(call(1, headers={"h": "x" * 50_000}))
    assert other.send(small[:100]) and other.send(small[100:])
    assert len(office.calls) == 1


async def test_strangers_do_not_keep_the_frames_of_silos_out() -> None:
    office = Office()
    end = end_of(office, partial_bytes_max=1 * MB)
    visitors = [Visitor(end, f"client-{number}") for number in range(5)]
    for one in visitors:
        one.begin(60 * MB)
    assert sum(one.link.is_reading for one in visitors) == 1
    silo = Visitor(end, "there:1@1", is_silo=True)
    large = raw(call(1, headers={"h": "x" * (3 * MB)}))
    assert silo.send(large[:MB]) and silo.send(large[MB:])
    assert len(office.calls) == 1


def test_a_frame_that_others_wait_for_arrives_in_time_or_its_connection_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(simulation: Simulation) -> None:
        end = end_of(Office(), partial_bytes_max=1 * MB, frame_timeout_s=30.0)
        alone = Visitor(end, "client-0")
        alone.begin(60 * MB)
        for _ in range(20):
            await asyncio.sleep(5)
            alone.send(b"x")
        assert alone.is_open, "nobody waits for its room"
        waiting = Visitor(end, "client-1")
        waiting.begin(50 * MB)
        assert not waiting.link.is_reading
        await asyncio.sleep(0.1)
        assert not alone.is_open and waiting.is_open and waiting.link.is_reading
        await asyncio.sleep(20)
        next_one = Visitor(end, "client-2")
        next_one.begin(50 * MB)
        assert not next_one.link.is_reading
        await asyncio.sleep(9)
        waiting.send(READ)  # a little data now and then is not enough
        assert waiting.is_open
        await asyncio.sleep(2)
        assert not waiting.is_open and next_one.link.is_reading

    run(main, 1)
    (line,) = [one for one in caplog.messages if "client-0" in one]
    assert "60000000 bytes" in line and "frame_timeout_s" in line and "partial_bytes_max" in line


def test_a_connection_that_waits_for_room_hears_signs_of_life_and_is_not_called_silent() -> None:
    async def main(simulation: Simulation) -> None:
        end = end_of(Office(), partial_bytes_max=1 * MB, frame_timeout_s=300.0)
        holder, waiting = Visitor(end, "client-0"), Visitor(end, "client-1")
        holder.begin(60 * MB)
        waiting.begin(60 * MB)
        for _ in range(40):
            signs = len(waiting.link.of(Ping))
            await asyncio.sleep(6)  # ping_every_s is 5
            holder.send(b"x")
            assert waiting.is_open and len(waiting.link.of(Ping)) > signs

    run(main, 1)


async def test_what_was_read_of_frames_that_wait_is_bounded_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    end = end_of(Office(), partial_bytes_max=1 * MB)
    holder = Visitor(end, "client-0")
    holder.begin(60 * MB)
    visitors = [Visitor(end, f"client-{number}") for number in range(1, 300)]
    for one in visitors:
        one.send((60 * MB).to_bytes(4, "little") + READ)
    assert sent(visitors) <= 32 * 2**20 + len(READ)
    assert any(one.is_open for one in visitors) and any(not one.is_open for one in visitors)
    assert any("no room" in line for line in caplog.messages)


async def test_frames_that_are_read_and_not_taken_are_bounded_in_bytes() -> None:
    office = Office()
    visitor = Visitor(end_of(office), "client-1")
    refused = raw(*(call(number, kind="no") for number in range(1, 64)))
    visitor.send(refused)  # eight are refused at once, the others in later iterations
    large = raw(call(100, headers={"h": "x" * (3 * MB)}))
    while visitor.send(large) and visitor.sent_bytes < 20 * MB:
        pass
    assert visitor.sent_bytes < 8 * MB


def test_bytes_that_come_one_by_one_cost_what_they_are() -> None:
    """A list of single bytes would take 40 times as much."""
    reader, count = FrameReader(MB), 200_000
    reader.feed(MB.to_bytes(4, "little"))
    tracemalloc.start()
    for _ in range(count):
        reader.feed(b"x")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * count


ACTS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 5), st.integers(1, 12), st.integers(1, 4)),
    st.tuples(st.just("release"), st.integers(0, 5), st.just(0), st.just(0)),
)


@given(st.lists(ACTS, max_size=40))
def test_room_is_never_given_twice_and_is_given_in_order(
    acts: list[tuple[str, int, int, int]],
) -> None:
    room = FrameRoom(10, waiting_bytes_max=6)
    holding: dict[int, int] = {}
    waiting: dict[int, tuple[int, int]] = {}
    for verb, who, size, held in acts:
        if verb == "ask" and who not in {*holding, *waiting}:
            if not waiting and (not holding or sum(holding.values()) + size <= 10):
                wanted, holding[who] = "read", size
            elif sum(one for _, one in waiting.values()) + held <= 6:
                wanted, waiting[who] = "wait", (size, held)
            else:
                wanted = "full"
            assert room.ask(who, size, held, now_s=0.0) == wanted
        elif verb == "release":
            holding.pop(who, None)
            waiting.pop(who, None)
            admitted = []
            for other, (wanted_size, _) in list(waiting.items()):
                if holding and sum(holding.values()) + wanted_size > 10:
                    break
                del waiting[other]
                holding[other] = wanted_size
                admitted.append(other)
            assert room.release(who, now_s=0.0) == admitted
        assert len(holding) <= 1 or sum(holding.values()) <= 10
        assert not waiting or holding, "somebody waits though nobody has room"


def test_frames_are_late_at_their_time_and_only_while_others_wait() -> None:
    room = FrameRoom(10, waiting_bytes_max=6)
    assert room.next_late_s(30.0) is None
    assert room.ask("one", 4, 1, now_s=1.0) == room.ask("two", 6, 1, now_s=2.0) == "read"
    assert room.late(100.0, 30.0) == [] and room.next_late_s(30.0) is None
    assert room.ask("three", 1, 1, now_s=3.0) == "wait"
    assert room.next_late_s(30.0) == 31.0
    assert room.late(30.9, 30.0) == [] and room.late(31.0, 30.0) == ["one"]
    assert room.late(32.0, 30.0) == ["one", "two"]
    assert room.release("one", now_s=32.0) == ["three"]
    assert room.next_late_s(30.0) is None
