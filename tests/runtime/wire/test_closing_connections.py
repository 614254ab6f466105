"""Connections that close as they open. Unsent messages go another way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.runtime.pinned import pin

from millstream.runtime import PREFER_LOCAL, Grain, LocalCluster, Silo, SiloUnavailable, grain
from millstream.runtime.calls.engine import CallEngine
from millstream.runtime.calls.locator import Destination
from millstream.runtime.calls.search import Search
from millstream.runtime.cluster.directory.directory import DirectoryTarget
from millstream.runtime.cluster.member import MemberTarget
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.connection_writer import AnswerReceiver
from millstream.runtime.wire.message import Call


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=2, grains=[Desk]) as started:
        yield started


def close_as_they_open(engine: CallEngine, times: int) -> list[str]:
    """Close outgoing connections after their waiting calls were woken, before the calls run."""
    closed: list[str] = []
    welcome = engine.end.welcome
    greeted = welcome.on_greeted

    def greet(peer: Peer) -> None:
        greeted(peer)
        if len(closed) < times and peer in engine.peers.list_known():
            closed.append(peer.name)
            asyncio.get_running_loop().call_soon(peer.close, "as it opened")

    welcome.on_greeted = greet  # type: ignore[method-assign]
    return closed


def drop_connections(engine: CallEngine) -> None:
    for peer in engine.peers.list_known():
        peer.close("dropped")


@pytest.mark.parametrize("times", [1, 2])
async def test_a_client_sends_its_call_through_another_connection(
    cluster: LocalCluster, times: int
) -> None:
    client = cluster.client.engine
    await cluster.grain(Desk, "a").where()
    drop_connections(client)
    closed = close_as_they_open(client, times)
    calls = [cluster.grain(Desk, f"{number}").where() for number in range(6)]
    async with asyncio.timeout(8):
        assert len(await asyncio.gather(*calls)) == 6
    assert len(closed) == times


@pytest.mark.parametrize("times", [1, 2])
async def test_a_silo_sends_its_call_through_another_connection(
    cluster: LocalCluster, times: int
) -> None:
    one, two = cluster.silos
    assert await two.grain(Desk, "a").where() == two.address
    assert await one.grain(Desk, "a").where() == two.address
    drop_connections(one.assembly.engine)
    closed = close_as_they_open(one.assembly.engine, times)
    async with asyncio.timeout(8):
        calls = [one.grain(Desk, "a").where() for _ in range(3)]
        assert await asyncio.gather(*calls) == [two.address] * 3
    assert len(closed) == times


@pytest.mark.parametrize("may_have_run", [True, False])
async def test_a_call_that_was_not_written_when_its_connection_broke_is_made_again(
    cluster: LocalCluster, may_have_run: bool
) -> None:
    one, two = cluster.silos
    assert await two.grain(Desk, "a").where() == two.address
    assert await one.grain(Desk, "a").where() == two.address
    (peer,) = (peer for peer in one.assembly.peers.list_known() if peer.name == two.address)
    send, broken = peer.writer.send_call, SiloUnavailable("it broke", may_have_run=may_have_run)

    def send_call(call: Call, receiver: AnswerReceiver, body_bytes: int | None = None) -> int:
        peer.writer.send_call = send  # type: ignore[method-assign]
        receiver.on_broken(broken)
        return -1

    peer.writer.send_call = send_call  # type: ignore[method-assign]
    if may_have_run:
        with pytest.raises(SiloUnavailable, match="it broke"):
            await one.grain(Desk, "a").where()
    assert await one.grain(Desk, "a").where() == two.address


async def test_a_silo_that_stops_is_asked_on_a_new_connection(cluster: LocalCluster) -> None:
    """The silo says goodbye right after the greeting, but the questions are still answered."""
    one, two = cluster.silos
    drop_connections(one.assembly.engine)
    two.assembly.visitors.say_goodbye()
    asked = [
        one.assembly.targets.call(two.address, "$member", MemberTarget.probe_for, two.address)
        for _ in range(3)
    ]
    assert await asyncio.gather(*asked) == [True] * 3


def close_as_they_are_found(silo: Silo) -> list[str]:
    """Close the next connection that a search finds before the waiting calls continue."""
    closed: list[str] = []
    searches = silo.assembly.router._searches
    tell = searches._tell

    def tell_and_close(waiter: asyncio.Future[Destination], search: Search) -> None:
        tell(waiter, search)
        if isinstance(search.found, Peer) and not closed:
            closed.append(search.found.name)
            search.found.close("as it was found")

    searches._tell = tell_and_close  # type: ignore[method-assign]
    return closed


@pytest.mark.parametrize("hook", ["opened", "found"])
async def test_a_gateway_lets_the_client_send_a_call_again_that_it_could_not_relay(
    cluster: LocalCluster, hook: str
) -> None:
    one, two = cluster.silos
    assert await two.grain(Desk, "a").where() == two.address
    assert await one.grain(Desk, "a").where() == two.address
    pin(cluster.client, one.address)
    drop_connections(one.assembly.engine)
    closed = (
        close_as_they_open(one.assembly.engine, 1)
        if hook == "opened"
        else close_as_they_are_found(one)
    )
    async with asyncio.timeout(8):
        assert await cluster.grain(Desk, "a").where() == two.address
    assert len(closed) == 1


async def test_a_question_to_a_gateway_goes_to_another_one(cluster: LocalCluster) -> None:
    client = cluster.client.engine
    drop_connections(client)
    closed = close_as_they_open(client, 1)
    async with asyncio.timeout(8):
        await cluster.client.updates.refresh()
    assert len(closed) == 1 and len(cluster.client.gateways.known) == 2


async def test_a_question_to_one_silo_says_what_became_of_the_connection(
    cluster: LocalCluster,
) -> None:
    one, two = cluster.silos
    drop_connections(one.assembly.engine)
    close_as_they_open(one.assembly.engine, 1)
    method: Any = DirectoryTarget.lookup
    with pytest.raises(SiloUnavailable, match=f"{two.address}: .*closed"):
        await one.assembly.targets.call(
            two.address, DirectoryTarget.target_name, method, "Desk", "a", 1
        )
