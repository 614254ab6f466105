"""`served_calls_max`: the call above the limit is refused, and nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.conditions import until
from tests.runtime.pinned import pin

from millstream.runtime import (
    PREFER_LOCAL,
    Client,
    Grain,
    LocalCluster,
    Overloaded,
    RuntimeOptions,
    Silo,
    grain,
    one_way,
)
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.framing import FrameReader, frame
from millstream.runtime.wire.handshake import NONCE_BYTES, Handshake
from millstream.runtime.wire.message import (
    WIRE_VERSION,
    Call,
    Failure,
    Hello,
    Reply,
    decode_messages,
    encode_messages,
)

LIMIT = 3
OPTIONS = RuntimeOptions(served_calls_max=LIMIT)
STARTED: list[str] = []
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    global GATE
    GATE = asyncio.Event()
    STARTED.clear()
    yield


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def stay(self) -> str:
        STARTED.append(self.key)
        await GATE.wait()
        return self.key

    async def where(self) -> str:
        return self.context.silo

    @one_way
    async def note(self) -> None:
        STARTED.append(self.key)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=2, grains=[Desk], options=OPTIONS) as started:
        for number in range(9):  # activates each grain in the first silo
            await started.silos[0].grain(Desk, f"{number}").where()
        yield started


@pytest.mark.parametrize("caller", ["silo", "client", "client of another silo"])
async def test_the_call_above_the_limit_is_refused_and_the_others_end(
    cluster: LocalCluster, caller: str
) -> None:
    one, two = cluster.silos
    async with Client([two.gateway], options=RuntimeOptions()) as client:
        pin(client, one.gateway if caller == "client" else two.gateway)
        runtime: Any = two if caller == "silo" else client
        held = [asyncio.create_task(runtime.grain(Desk, f"{n}").stay()) for n in range(LIMIT)]
        await until(lambda: len(STARTED) == LIMIT)
        for number in (0, 7):  # a busy grain and an idle grain
            with pytest.raises(Overloaded, match=f"served_calls_max is {LIMIT}"):
                await runtime.grain(Desk, f"{number}").stay()
        GATE.set()
        assert await asyncio.gather(*held) == [f"{number}" for number in range(LIMIT)]
        assert await runtime.grain(Desk, "7").where() == one.address
        assert len(STARTED) == LIMIT


# --- one connection alone -------------------------------------------------------------------------


class FakeLink:
    """A link that keeps the written messages."""

    peer = "somewhere:1"
    waiting_bytes = 0
    certified = None

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.is_closed = False
        self._frames = FrameReader(1_000_000)

    def start(self, receiver: object, /) -> None:
        return None

    def write(self, data: bytes, /) -> None:
        for payload in self._frames.feed(data):
            self.messages += decode_messages(payload)

    def reading(self, is_on: bool, /) -> None:
        return None

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def answers(self) -> dict[int, Any]:
        return {m.id: m for m in self.messages if isinstance(m, Reply | Failure)}


def call(call_id: int, kind: str, key: str, method: str, *args: Any) -> Call:
    body = msgspec.Raw(msgspec.msgpack.encode(args))
    return Call(call_id, kind, key, method, body, 5.0, "", [], 0, None)


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Desk], options=OPTIONS) as started:
        yield started


def connected(silo: Silo, *, is_silo: bool = True) -> tuple[Peer, FakeLink]:
    link, peer = FakeLink(), Peer(silo.assembly.engine.end, "", lambda peer: None)
    peer.attach(link)
    name = "x:1@1" if is_silo else "client-x"
    table_id = silo.assembly.identity.table_id
    hello = Hello(
        WIRE_VERSION, "dev", name, is_silo, 1_000_000, nonce=bytes(NONCE_BYTES), table_id=table_id
    )
    peer.on_received(frame(encode_messages([hello])))
    if is_silo:  # as a silo that knows the secret
        stranger = Handshake(hello, silo.assembly.engine.end.secrets, is_opener=True)
        peer.on_received(frame(encode_messages(stranger.take(link.messages[:1]))))
    return peer, link


async def test_a_flood_in_one_frame_is_answered_call_by_call(silo: Silo) -> None:
    peer, link = connected(silo)
    flood = [call(number, "Desk", f"{number}", "stay") for number in range(1, 8)]
    peer.on_received(frame(encode_messages([*flood, call(0, "Desk", "n", "note")])))
    await until(lambda: len(STARTED) == LIMIT + 1 and len(link.answers()) == 4)
    assert not peer.is_closed and not link.is_closed
    refused = link.answers()
    assert sorted(refused) == [4, 5, 6, 7] and "n" in STARTED
    assert all(b"served_calls_max" in bytes(failure.body) for failure in refused.values())
    GATE.set()
    await until(lambda: len(link.answers()) == 7)
    peer.on_received(frame(encode_messages([call(8, "Desk", "1", "where")])))
    await until(lambda: 8 in link.answers())
    assert isinstance(link.answers()[8], Reply)


@pytest.mark.parametrize("kind", ["grain", "relayed", "target"])
async def test_a_refused_call_leaves_nothing_behind(silo: Silo, kind: str) -> None:
    peer, link = connected(silo, is_silo=kind != "relayed")
    held = [call(number, "Desk", f"{number}", "stay") for number in range(1, 1 + LIMIT)]
    peer.on_received(frame(encode_messages(held)))
    await until(lambda: len(STARTED) == LIMIT)
    watched = len(list(silo.assembly.turns.deadlines.iter_watched()))
    names = ("$gateway", "", "gateways") if kind == "target" else ("Desk", "new", "where")
    peer.on_received(frame(encode_messages([call(9, *names), call(9, *names)])))
    await until(lambda: 9 in link.answers())
    assert isinstance(link.answers()[9], Failure)
    assert len(list(silo.assembly.turns.deadlines.iter_watched())) == watched
    assert "new" not in silo.assembly.catalog.of("Desk")
    GATE.set()
    await until(lambda: len(link.answers()) == LIMIT + 1)
    assert not peer.is_serving and not peer.is_closed
