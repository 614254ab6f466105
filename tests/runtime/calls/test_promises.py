"""Promises of calls that no other test covers: limits, remaining time, and nothing left over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from tests.conditions import spin, until

from millstream.runtime import (
    Address,
    CallTimeout,
    Client,
    Grain,
    Link,
    Listener,
    Overloaded,
    Rejected,
    RuntimeOptions,
    Silo,
    TcpTransport,
    always_interleave,
    one_way,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.runtime.wire.framing import FrameReader, frame
from millstream.runtime.wire.message import (
    Call,
    GatewayView,
    Hello,
    Message,
    Redirect,
    Reply,
    decode_messages,
    encode_messages,
)

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    yield


class Desk(Grain):
    """Answers, fails or stays, as the test asks."""

    async def on_activate(self) -> None:
        if self.key.startswith("slow"):
            await GATES["start"].wait()

    async def answer(self) -> str:
        return self.key

    async def fail(self) -> None:
        raise ValueError("planned")

    @one_way
    async def note(self) -> None:
        LOG.append("noted")

    async def stay(self, name: str = "stay") -> str:
        LOG.append(name)
        await GATES[name].wait()
        return self.key

    @always_interleave
    async def peek(self) -> str:
        return "peeked"


# --- the calls that a gateway gets ---------------------------------------------------------------


class Gateway:
    """Greets as a gateway, and redirects every call to another silo."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        listener: Listener = await TcpTransport().listen(Address("127.0.0.1", 0), self._accept)
        try:
            yield str(listener.address)
        finally:
            listener.close()

    def _accept(self, link: Link) -> None:
        link.start(GatewayLink(self, link))

    def take(self, link: Link, message: Message) -> None:
        if isinstance(message, Hello):
            hello = msgspec.structs.replace(message, sender="gateway:1@1", is_silo=True)
            link.write(frame(encode_messages([hello])))
        elif isinstance(message, Call) and message.kind.startswith("$"):  # asks for gateways
            nobody = Reply(message.id, msgspec.Raw(msgspec.msgpack.encode(GatewayView(1, []))))
            link.write(frame(encode_messages([nobody])))
        elif isinstance(message, Call):
            self.calls.append(message)
            link.write(frame(encode_messages([Redirect(message.id, "")])))


class GatewayLink:
    """The receiver of one connection."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        self._gateway = gateway
        self._link = link
        self._frames = FrameReader(1_000_000)

    def on_received(self, data: bytes, /) -> None:
        for payload in self._frames.feed(data):
            for message in decode_messages(payload):
                self._gateway.take(self._link, message)

    def writable(self, is_writable: bool, /) -> None: ...
    def on_closed(self, reason: str, /) -> None: ...


async def test_a_call_that_is_sent_on_too_often_raises() -> None:
    gateway = Gateway()
    options = RuntimeOptions(redirects_max=3, retry_first_s=0.001)
    async with gateway.listening() as address, Client([address], options=options) as client:
        with pytest.raises(Rejected, match=r"3 times \(redirects_max\)"):
            await client.grain(Desk, "a").answer()
    assert len(gateway.calls) == 3


async def test_a_call_carries_the_time_that_is_left() -> None:
    gateway = Gateway()
    options = RuntimeOptions(redirects_max=3, retry_first_s=0.02)
    async with gateway.listening() as address, Client([address], options=options) as client:
        with pytest.raises(Rejected):
            await with_options(client.grain(Desk, "a"), timeout=5).answer()
    left_s = [call.ttl_s for call in gateway.calls]
    # a loop's clock may have a precision of milliseconds
    assert 0 < left_s[2] <= left_s[0] - 0.019 < left_s[0] <= 5


# --- limits and leftovers ------------------------------------------------------------------------


class Tap(TcpTransport):
    """Gives tests the receivers of its links, so that they can feed them data."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: list[Any] = []

    async def connect(self, address: Address, /) -> Link:
        link: Any = await super().connect(address)
        start = link.start

        class Started:
            def __getattr__(self, name: str) -> Any:
                return getattr(link, name)

            def start(_, receiver: Any, /) -> None:
                self.receivers.append(receiver)
                start(receiver)

        started: Any = Started()
        return started  # type: ignore[no-any-return]


@asynccontextmanager
async def silo_and_client(
    limits: RuntimeOptions, tap: Tap | None = None
) -> AsyncIterator[tuple[Silo, Client]]:
    async with (
        Silo(grains=[Desk], options=RuntimeOptions(served_calls_max=100)) as silo,
        Client([silo.gateway], options=limits, transport=tap) as client,
    ):
        yield silo, client


async def test_calls_outstanding_to_one_peer_have_a_limit() -> None:
    async with silo_and_client(RuntimeOptions(peer_calls_max=2)) as (_, client):
        held = [asyncio.create_task(client.grain(Desk, str(n)).stay()) for n in range(2)]
        await until(lambda: len(LOG) == 2)
        with pytest.raises(Overloaded, match="peer_calls_max is 2"):
            await client.grain(Desk, "c").answer()
        GATES["stay"].set()
        assert await asyncio.gather(*held) == ["0", "1"]


@pytest.mark.parametrize("ends", ["answered", "failed", "cancelled", "timed out", "one-way"])
async def test_a_call_that_is_over_leaves_both_tables(ends: str) -> None:
    one_each = RuntimeOptions(peer_calls_max=2)
    served = RuntimeOptions(served_calls_max=2)
    async with (
        Silo(grains=[Desk], options=served) as silo,
        Client([silo.gateway], options=one_each) as client,
    ):
        for number in range(6):
            await end_a_call(client.grain(Desk, f"{ends}{number}"), ends)
        assert await client.grain(Desk, "last").answer() == "last"


async def end_a_call(desk: Desk, ends: str) -> None:
    if ends == "answered":
        await desk.answer()
    elif ends == "one-way":
        await desk.note()
    elif ends == "failed":
        with pytest.raises(ValueError, match="planned"):
            await desk.fail()
    elif ends == "timed out":
        with pytest.raises(CallTimeout):
            await with_options(desk, timeout=0.01).stay()
    else:
        begun = len(LOG)
        call = asyncio.create_task(desk.stay())
        await until(lambda: len(LOG) > begun)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await desk.peek()  # follows on the same connection, so the end of the call has arrived


async def test_callers_that_wait_for_a_connection_have_a_limit() -> None:
    tap = Tap()
    async with silo_and_client(RuntimeOptions(waiting_calls_max=3), tap) as (_, client):
        desk = client.grain(Desk, "a")
        await desk.answer()
        tap.receivers[0].writable(False)
        waiting = [asyncio.create_task(desk.answer()) for _ in range(3)]
        await spin()
        with pytest.raises(Overloaded, match="waiting_calls_max is 3"):
            await client.grain(Desk, "b").answer()
        tap.receivers[0].writable(True)
        assert await asyncio.gather(*waiting) == ["a"] * 3


@pytest.mark.parametrize("first", ["stay", "peek"])
async def test_an_interleaving_call_on_a_starting_grain_waits_for_no_exclusive_one(
    first: str,
) -> None:
    async with Silo(grains=[Desk]) as silo:
        desk = silo.grain(Desk, "slow")
        calls = [desk.stay, desk.peek] if first == "stay" else [desk.peek, desk.stay]
        tasks = {call.__name__: asyncio.create_task(call()) for call in calls}
        await spin()
        assert not LOG
        GATES["start"].set()
        assert await tasks["peek"] == "peeked"
        await until(lambda: LOG == ["stay"])
        assert not tasks["stay"].done()
        GATES["stay"].set()
        assert await tasks["stay"] == "slow"


@pytest.mark.parametrize("key", ["slow", "quick"])
async def test_a_start_leaves_nothing_that_is_watched(key: str) -> None:
    async with Silo(grains=[Desk], options=RuntimeOptions(sweep_s=0.001)) as silo:
        GATES["start"].set()
        assert await silo.grain(Desk, key).answer() == key
        deadlines = silo.assembly.turns.deadlines
        await until(lambda: not deadlines.is_armed)  # deadlines are swept while anything is watched


# --- deadlines over silos, in virtual time --------------------------------------------------------


class Boss(Grain):
    """Calls from a child task."""

    async def ask(self) -> None:
        # a cancelled `wait` does not cancel its tasks
        await asyncio.wait([asyncio.create_task(self._ask_later())])

    async def _ask_later(self) -> None:
        started_s = asyncio.get_running_loop().time()
        try:
            await self.grain(Clerk, "c").work()
        except CallTimeout:
            LOG.append(f"child after {asyncio.get_running_loop().time() - started_s:.1f}")


class Clerk(Grain):
    """Works forever."""

    async def work(self) -> str:
        started_s = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(1000)
        finally:
            LOG.append(f"clerk after {asyncio.get_running_loop().time() - started_s:.1f}")
        return ""


def test_a_remote_call_of_a_child_task_ends_with_the_deadline_of_the_turn() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(
            simulation,
            silos=2,
            grains=[Boss, Clerk],
            lacking={"silo-0": [Clerk], "silo-1": [Boss]},
            options=RuntimeOptions(call_timeout_s=60),
        )
        await cluster.start()
        silo = cluster.silo("silo-0")
        assert silo is not None
        with suppress(CallTimeout):  # its own deadline may pass before it gets the child's result
            boss = with_options(silo.grain(Boss, "b"), timeout=2)
            await simulation.call(simulation.host("silo-0"), boss.ask())
        await asyncio.sleep(1)
        await cluster.close()

    run(main, 1)
    assert sorted(LOG) == ["child after 2.0", "clerk after 2.0"]
