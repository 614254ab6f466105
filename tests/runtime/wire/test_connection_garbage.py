"""Foreign bytes close their connection with a reason in the log. Other connections continue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conditions import until
from tests.examples import examples

from millstream.runtime import Grain, LocalCluster, RuntimeOptions, Silo
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.framing import HEADER_BYTES, FrameError, FrameReader, frame
from millstream.runtime.wire.message import (
    WIRE_VERSION,
    Call,
    Cancel,
    Failure,
    Goodbye,
    Hello,
    Message,
    Redirect,
    Reply,
    decode_messages,
    encode_messages,
)

FRAME_MAX = 20_000
NIL = msgspec.Raw(b"\xc0")


# --- the frame reader ----------------------------------------------------------------------------

payloads = st.lists(st.binary(max_size=200), max_size=12)


@given(payloads, st.data())
def test_frames_are_the_same_however_the_bytes_are_cut(
    sent: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(map(frame, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30).map(sorted))
    reader, got = FrameReader(1000), []
    for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[low:high])
    assert got == sent


@given(payloads)
def test_frames_are_the_same_byte_by_byte(sent: list[bytes]) -> None:
    stream = b"".join(map(frame, sent))
    reader = FrameReader(1000)
    assert [p for at in range(len(stream)) for p in reader.feed(stream[at : at + 1])] == sent


@given(payloads, st.integers(0, 50), st.integers(1, 2**32 - 52))
def test_a_frame_above_the_limit_is_refused_as_soon_as_its_length_is_known(
    sent: list[bytes], limit: int, excess: int
) -> None:
    limit = max([limit, *map(len, sent)])
    reader = FrameReader(limit)
    assert reader.feed(b"".join(map(frame, sent))) == sent
    size = min(limit + excess, 2**32 - 1)
    with pytest.raises(FrameError, match=f"{size} bytes exceeds frame_bytes_max {limit}"):
        reader.feed(size.to_bytes(HEADER_BYTES, "little"))


def test_a_frame_at_the_limit_passes() -> None:
    reader = FrameReader(100)
    assert reader.feed(frame(bytes(100)) + frame(b"")) == [bytes(100), b""]


@given(st.lists(st.binary(max_size=64), max_size=60))
def test_a_reader_buffers_no_more_than_one_frame_and_one_read(chunks: list[bytes]) -> None:
    limit = 100
    reader = FrameReader(limit)
    try:
        for chunk in chunks:
            reader.feed(chunk)
            assert reader.held_bytes <= limit + HEADER_BYTES + 64
    except FrameError:
        return


def test_a_long_frame_costs_no_more_than_its_size_in_copies() -> None:
    reader, size = FrameReader(10_000_000), 4_000_000
    stream, got = frame(bytes(size)), []
    for at in range(0, len(stream), 1000):
        got += reader.feed(stream[at : at + 1000])
    assert [len(p) for p in got] == [size]


# --- messages ------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(st.binary(max_size=80))
def test_decoding_garbage_gives_messages_or_a_decode_error(data: bytes) -> None:
    try:
        messages = decode_messages(data)
    except msgspec.DecodeError:
        return
    assert all(type(message) in get_args(Message) for message in messages)


def test_every_message_survives_the_wire() -> None:
    call = Call(1, "K", "k", "m", NIL, 1.5, "A/a", ["x#1"], 2, {"h": "v"})
    sent: list[Any] = [
        Hello(1, "dev", "a@1", True, 5),
        call,
        Reply(1, NIL),
        Failure(2, NIL),
        Cancel(3),
        Redirect(4, "s"),
        Goodbye("bye"),
    ]
    got = decode_messages(encode_messages(sent))
    assert [type(m) for m in got] == [type(m) for m in sent]
    assert encode_messages(got) == encode_messages(sent)


# --- a peer alone --------------------------------------------------------------------------------


class FakeLink:
    """A link that records its calls."""

    peer = "somewhere:1"
    waiting_bytes = 0
    certified = None

    def __init__(self) -> None:
        self.written = b""
        self.is_aborted = False

    def start(self, receiver: object, /) -> None:
        return None

    def write(self, data: bytes, /) -> None:
        assert not self.is_aborted
        self.written += data

    def reading(self, is_on: bool, /) -> None:
        return None

    def close(self) -> None:
        self.is_aborted = True

    def abort(self) -> None:
        self.is_aborted = True


class Echo(Grain):
    async def echo(self, text: str) -> str:
        return text

    async def stay(self) -> str:
        await asyncio.Event().wait()
        return "no"


def hello(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "version": WIRE_VERSION,
        "cluster": "dev",
        "sender": "client-x",
        "is_silo": False,
        "frame_bytes_max": FRAME_MAX,
    }
    return frame(encode_messages([Hello(**{**fields, **changes})]))


def call(call_id: int, **changes: Any) -> Call:
    fields: dict[str, Any] = {
        "kind": "Echo",
        "key": "a",
        "method": "echo",
        "body": msgspec.Raw(msgspec.msgpack.encode(["hi"])),
        "ttl_s": 5.0,
        "caller": "",
        "chain": [],
        "hops": 0,
        "headers": None,
    }
    return Call(id=call_id, **{**fields, **changes})


def messages(*sent: Any) -> bytes:
    return frame(encode_messages(list(sent)))


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Echo], options=RuntimeOptions(frame_bytes_max=FRAME_MAX)) as started:
        yield started


def fake_peer(silo: Silo) -> tuple[Peer, FakeLink]:
    link, peer = FakeLink(), Peer(silo.assembly.engine.end, "", lambda peer: None)
    peer.attach(link)
    return peer, link


def test_what_arrives_after_garbage_is_not_read(
    silo: Silo, caplog: pytest.LogCaptureFixture
) -> None:
    peer, link = fake_peer(silo)
    peer.on_received(b"\xff" * 10)
    assert link.is_aborted and peer.is_closed and not peer.writer.is_ready
    peer.on_received(hello())
    assert not peer.writer.is_ready and peer.name != "client-x"


def test_messages_behind_a_bad_frame_in_one_read_are_not_taken(silo: Silo) -> None:
    peer, link = fake_peer(silo)
    peer.on_received(hello() + frame(b"\xc1") + messages(call(1)))
    assert peer.is_closed and link.is_aborted
    assert silo.assembly.catalog.of("Echo") == {}


def test_an_answer_nobody_waits_for_is_ignored(silo: Silo) -> None:
    peer, _ = fake_peer(silo)
    peer.on_received(hello())
    peer.on_received(messages(Reply(77, NIL), Failure(78, NIL), Redirect(79, ""), Cancel(80)))
    assert not peer.is_closed


# --- a real silo over a socket -------------------------------------------------------------------


class Stranger:
    """A raw connection to a silo."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(10_000_000)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> list[Any]:
        """Return the messages of the next frames, or an empty list once the silo closed the
        connection.
        """
        while True:
            try:
                async with asyncio.timeout(3):
                    data = await self._reader.read(65536)
            except ConnectionError:
                return []
            if not data:
                return []
            found = [m for p in self._frames.feed(data) for m in decode_messages(p)]
            if found:
                return found

    async def is_closed(self) -> bool:
        while await self.receive():
            pass
        return True

    async def aclose(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass


@pytest.fixture
async def strangers(silo: Silo) -> AsyncIterator[Callable[[], Any]]:
    made: list[Stranger] = []

    async def connect() -> Stranger:
        host, _, port = silo.gateway.partition(":")
        made.append(Stranger(*await asyncio.open_connection(host, int(port))))
        return made[-1]

    yield connect
    for stranger in made:
        await stranger.aclose()


async def greeted(connect: Callable[[], Any]) -> Stranger:
    stranger: Stranger = await connect()
    stranger.send(hello())
    (answer,) = await stranger.receive()
    assert isinstance(answer, Hello)
    return stranger


async def works(stranger: Stranger, call_id: int) -> bool:
    stranger.send(messages(call(call_id)))
    (answer,) = await stranger.receive()
    return isinstance(answer, Reply) and msgspec.msgpack.decode(answer.body) == "hi"


NESTED = b"\x91" * 15_000 + b"\xc0"

GARBAGE: dict[str, tuple[bytes, str]] = {
    "no frame at all": (b"GET / HTTP/1.1\r\n\r\n", "exceeds frame_bytes_max"),
    "length above the limit": ((FRAME_MAX + 1).to_bytes(4, "little"), "exceeds frame_bytes_max"),
    "all ones": (b"\xff" * 100, "exceeds frame_bytes_max"),
    "not msgpack": (frame(b"\xc1\xc1"), ""),
    "empty frame": (frame(b""), ""),
    "not a list": (frame(b"\x01"), ""),
    "unknown tag": (frame(msgspec.msgpack.encode([[99, 1]])), ""),
    "missing fields": (frame(msgspec.msgpack.encode([[1, 1]])), ""),
    "fields of other types": (frame(msgspec.msgpack.encode([[3, "x", None]])), ""),
    "trailing bytes": (frame(encode_messages([Cancel(1)]) + b"\x00"), ""),
    "nested too deeply": (frame(NESTED), ""),
    "nested too deeply in a message": (frame(b"\x91\x93\x02\x01" + NESTED), ""),
    "text that is not utf-8": (frame(b"\x91\x93\x05\x01\xa1\xff"), ""),
    "a second hello": (hello(), "unexpected message Hello"),
    "an id twice": (messages(call(5, method="stay", body=msgspec.Raw(b"\x90"))) * 2, "in use"),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_closes_that_connection_with_a_reason_and_no_other(
    silo: Silo, strangers: Callable[[], Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, reason = GARBAGE[what]
    good, bad = await greeted(strangers), await greeted(strangers)
    assert await works(good, 1) and await works(bad, 1)
    with caplog.at_level(logging.INFO, "millstream"):
        bad.send(data)
        assert await bad.is_closed()
    logged = [r for r in caplog.records if r.name == "millstream.connection"]
    assert logged and "closed" in logged[-1].getMessage() and reason in logged[-1].getMessage()
    assert not [r for r in caplog.records if r.name == "asyncio"]
    assert await works(good, 2)
    assert await silo.grain(Echo, "b").echo("still") == "still"


HELLOS: dict[str, tuple[bytes, str]] = {
    "another version": (hello(version=WIRE_VERSION + 1), f"version {WIRE_VERSION + 1}"),
    "another cluster": (hello(cluster="prod"), "'prod'"),
    "a call first": (messages(call(1)), "Hello"),
    "two messages": (
        frame(encode_messages([Hello(WIRE_VERSION, "dev", "c", False, 9), Cancel(1)])),
        "Hello",
    ),
    "nothing": (frame(encode_messages([])), "Hello"),
}


@pytest.mark.parametrize("what", HELLOS)
async def test_a_wrong_greeting_closes_the_connection_with_a_reason(
    silo: Silo, strangers: Callable[[], Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, reason = HELLOS[what]
    with caplog.at_level(logging.INFO, "millstream"):
        bad = await strangers()
        bad.send(data)
        assert await bad.is_closed()
    assert any("closed" in r.getMessage() and reason in r.getMessage() for r in caplog.records)
    assert await works(await greeted(strangers), 1)


async def test_a_truncated_frame_and_a_closed_socket_leave_nothing_behind(
    silo: Silo, strangers: Callable[[], Any]
) -> None:
    before = len(silo.assembly.visitors.inbound)
    bad = await greeted(strangers)
    assert len(silo.assembly.visitors.inbound) == before + 1
    bad.send(messages(call(1))[:-3])
    await bad.aclose()
    await until(lambda: len(silo.assembly.visitors.inbound) == before)
    assert silo.assembly.visitors.clients == {}


async def test_calls_of_a_connection_that_closes_are_cancelled(
    silo: Silo, strangers: Callable[[], Any]
) -> None:
    bad = await greeted(strangers)
    bad.send(messages(call(1, method="stay", body=msgspec.Raw(b"\x90"))))
    activations = silo.assembly.catalog.of("Echo")
    await until(lambda: "a" in activations and activations["a"].running is not None)
    await bad.aclose()
    await until(lambda: activations["a"].running is None)
    assert await silo.grain(Echo, "a").echo("free") == "free"


BAD_CALLS: dict[str, dict[str, Any]] = {
    "body of another type": {"body": msgspec.Raw(msgspec.msgpack.encode([5]))},
    "body with too few arguments": {"body": msgspec.Raw(b"\x90")},
    "body with too many arguments": {"body": msgspec.Raw(msgspec.msgpack.encode(["a", "b"]))},
    "body that is no list": {"body": msgspec.Raw(msgspec.msgpack.encode("hi"))},
    "unknown method": {"method": "nothing"},
    "private method": {"method": "_millstream"},
    "life cycle method": {"method": "on_activate"},
    "unknown kind": {"kind": "Nothing"},
    "unknown target": {"kind": "$nothing"},
    "unknown target method": {"kind": "$gateway", "method": "nothing"},
    "private target method": {"kind": "$member", "method": "_member"},
    "extension that is not there": {"method": "x.y"},
    "empty names": {"kind": "", "key": "", "method": ""},
}


@pytest.mark.parametrize("what", BAD_CALLS)
async def test_a_call_that_cannot_run_is_answered_and_the_connection_goes_on(
    silo: Silo, strangers: Callable[[], Any], what: str
) -> None:
    stranger = await greeted(strangers)
    stranger.send(messages(call(1, **BAD_CALLS[what])))
    (answer,) = await stranger.receive()
    assert isinstance(answer, Failure) and answer.id == 1
    assert await works(stranger, 2)


@pytest.mark.parametrize("ttl_s", [float("nan"), float("inf"), -1.0, 1e-9, 0.0])
async def test_an_odd_time_to_live_harms_nobody(
    silo: Silo, strangers: Callable[[], Any], ttl_s: float
) -> None:
    stranger = await greeted(strangers)
    stranger.send(messages(call(1, ttl_s=ttl_s)))
    stranger.send(messages(call(2)))
    seen: list[int] = []
    while 2 not in seen:
        seen += [message.id for message in await stranger.receive()]
    assert await silo.grain(Echo, "a").echo("ok") == "ok"


async def test_a_stranger_that_never_greets_holds_nobody_up(
    silo: Silo, strangers: Callable[[], Any]
) -> None:
    quiet = await strangers()
    for n in range(3):
        assert await works(await greeted(strangers), n + 1)
    await quiet.aclose()


async def test_a_client_that_gets_garbage_from_a_gateway_fails_its_calls_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from millstream.runtime import SiloUnavailable, connect

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(5):
            with pytest.raises(SiloUnavailable, match="frame_bytes_max"):
                async with connect(f"127.0.0.1:{port}"):
                    pass
    finally:
        server.close()
        await server.wait_closed()


async def test_garbage_between_silos_breaks_calls_and_the_next_connection_works() -> None:
    async with LocalCluster(silos=2, grains=[Echo]) as cluster:
        one, two = cluster.silos
        before = two.assembly.peers.list_known()
        for peer in list(one.assembly.visitors.inbound):
            peer.on_received(b"\xff" * 8)
        # a call may still use the broken connection until the other side notices
        await until(lambda: all(peer.is_closed for peer in before))
        for i in range(20):
            assert await two.grain(Echo, f"{i}").echo("x") == "x"
            assert await one.grain(Echo, f"{i}").echo("x") == "x"
