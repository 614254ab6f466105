"""Gateways tell their clients which silos come and go."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import spin, until
from tests.runtime.pinned import hush
from tests.runtime.wire.pair import FakeLink, Office, end_of, raw

from millstream.runtime import (
    Client,
    Grain,
    LocalCluster,
    MemberRow,
    RuntimeOptions,
    Silo,
    Status,
    TableView,
    connect,
)
from millstream.runtime.client.gateway_list import GatewayList
from millstream.runtime.client.list_updates import GATEWAYS_EVERY_S
from millstream.runtime.cluster.gateways import ASKED_S, gateways_seen_by
from millstream.runtime.silo.gateway_news import TOLD_EVERY_S, GatewayNews, PacedNews
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.runtime.wire.address import endpoint_of
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.handshake import Identity, hello_of
from millstream.runtime.wire.message import GatewayView, Goodbye, Ping

SOON_S = 0.5
"""Much less than the time after which a client asks by itself."""
EVICTED_S = 8.0


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


Step = Callable[[Simulation, SimCluster, Client], Awaitable[None]]


def with_client(step: Step, silos: int = 3, seed: int = 4, **options: Any) -> None:
    """Run a step with a client that knows all silos and never asks by itself."""

    async def driver(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=silos, grains=[Desk], **options)
        await cluster.start()
        host = simulation.host("client")

        async def program() -> None:
            async with cluster.client(host) as client:
                assert len(client.gateways.known) == silos
                await step(simulation, cluster, client)

        await simulation.call(host, program())
        await cluster.close()

    run(driver, seed=seed)


def addresses(cluster: SimCluster) -> list[str]:
    return sorted(silo.address for silo in cluster.silos())


async def until_told(client: Client, gateways: Callable[[], list[str]]) -> None:
    """Wait until the client knows exactly these gateways without having asked."""

    async def asked() -> None:
        raise AssertionError("the client asked")

    client.updates.refresh = asked  # type: ignore[method-assign]
    while client.gateways.known != gateways():
        await asyncio.sleep(0.01)


# --- whole clusters -------------------------------------------------------------------------------


def test_a_client_hears_at_once_of_a_silo_that_joins() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        cluster.add_silo()
        await cluster.until_active()
        async with asyncio.timeout(SOON_S):
            await until_told(client, lambda: addresses(cluster))
        assert len(client.gateways.known) == 4

    with_client(step)


async def test_a_local_cluster_sends_calls_through_its_newest_silo_at_once() -> None:
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        begun = asyncio.get_running_loop().time()
        new = await cluster.start_silo()
        await until(lambda: new.address in cluster.client.gateways.known)
        for key in range(20):
            await cluster.grain(Desk, f"{key}").where()
        assert new.address in {peer.name for peer in cluster.client.engine.peers.list_known()}
        assert asyncio.get_running_loop().time() - begun < GATEWAYS_EVERY_S / 2


def test_a_client_hears_at_once_of_a_silo_that_stops_though_it_is_not_connected_to_it() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        connected = {peer.name for peer in client.engine.peers.list_known()}
        leaving = next(silo for silo in cluster.silos() if silo.address not in connected)
        name = endpoint_of(leaving.address).partition(":")[0]
        removing = asyncio.ensure_future(cluster.remove_silo(name))
        left = [address for address in addresses(cluster) if address != leaving.address]
        async with asyncio.timeout(SOON_S):
            await until_told(client, lambda: left)
        await removing

    with_client(step)


def test_a_client_hears_of_a_silo_that_was_evicted_though_it_is_not_connected_to_it() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        connected = {peer.name for peer in client.engine.peers.list_known()}
        dead = next(silo for silo in cluster.silos() if silo.address not in connected)
        others = [address for address in addresses(cluster) if address != dead.address]
        simulation.crash(endpoint_of(dead.address).partition(":")[0], is_silent=True)
        async with asyncio.timeout(EVICTED_S):
            await until_told(client, lambda: others)

    with_client(step)


def test_a_client_of_a_silo_that_tells_nothing_finds_out_by_asking() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        hush(*cluster.silos())
        cluster.add_silo()
        await cluster.until_active()
        await asyncio.sleep(SOON_S)
        assert len(client.gateways.known) == 3
        await asyncio.sleep(GATEWAYS_EVERY_S + 1)
        assert client.gateways.known == addresses(cluster)

    with_client(step)


def test_a_gateway_that_does_not_answer_is_passed_over_after_a_moment() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        first = client.gateways.order()[0]
        await client.engine.peers.get(first).writer.ready()
        simulation.crash(endpoint_of(first).partition(":")[0], is_silent=True)
        begun = asyncio.get_running_loop().time()
        await client.updates.refresh()
        assert asyncio.get_running_loop().time() - begun < ASKED_S + SOON_S

    with_client(step)


def test_silos_that_join_together_are_told_together() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        times: list[float] = []
        tell = client.gateways.on_gateways

        def told(peer: Peer, view: GatewayView, /) -> None:
            times.append(asyncio.get_running_loop().time())
            tell(peer, view)

        client.gateways.on_gateways = told  # type: ignore[method-assign]
        gateway, *_ = client.engine.peers.list_known()
        news = next(
            silo.assembly.visitors._news for silo in cluster.silos() if silo.address == gateway.name
        )
        view = TableView(10**15, ())
        rows: list[MemberRow] = [MemberRow(gateway.name, Status.ACTIVE)]
        for number in range(50):  # two hundred changes in a second
            for status in (Status.JOINING, Status.ACTIVE):
                row = MemberRow(f"new-{number}:1@1", status)
                rows = [*(one for one in rows if one.silo != row.silo), row]
                view = TableView(view.version + 1, tuple(rows))
                news.follow(view)
                await asyncio.sleep(0.01)
        await asyncio.sleep(2 * TOLD_EVERY_S)
        assert len(client.gateways.known) == 51
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert 8 <= len(times) <= 12 and min(gaps) > TOLD_EVERY_S / 2  # links have latency

    with_client(step)


def test_a_silo_that_joins_tells_its_clients_nothing_and_then_what_there_is() -> None:
    async def step(simulation: Simulation, cluster: SimCluster, client: Client) -> None:
        told: list[list[str]] = []
        tell = client.gateways.on_gateways

        def noted(peer: Peer, view: GatewayView, /) -> None:
            if peer.name.startswith("silo-3:"):
                told.append(view.gateways)
            tell(peer, view)

        client.gateways.on_gateways = noted  # type: ignore[method-assign]
        simulation.crash("silo-0", is_silent=True)
        cluster.names = cluster.names[1:]
        cluster.add_silo()
        await asyncio.sleep(1.0)  # the silo waits for the eviction of silo-0
        peer = client.engine.peers.get("silo-3:7000")
        await peer.writer.ready()
        assert not told
        await cluster.until_active()
        await asyncio.sleep(SOON_S)
        assert told and told[-1] == addresses(cluster)

    with_client(step)


async def test_a_client_that_closes_while_silos_come_and_go_notices_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        client = connect(cluster.silos[0].gateway)
        async with client:
            starting = asyncio.ensure_future(cluster.start_silo())
            await until(lambda: len(cluster.silos[0].members()) == 2)
        await starting
        assert not cluster.silos[0].assembly.visitors.clients.keys() & {client.address}
    assert not [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("teller", ["client", "silo"])
async def test_a_silo_takes_no_list_from_anybody(teller: str) -> None:
    async with LocalCluster(silos=2, grains=[Desk]) as cluster:
        one, two = cluster.silos
        async with connect(one.gateway) as client:
            engine = client.engine if teller == "client" else two.assembly.engine
            peer = engine.peers.get(one.gateway if teller == "client" else one.address)
            await peer.writer.ready()
            view = one.assembly.membership.view
            peer.writer.send_latest(GatewayView(view.version + 1, ["evil:1@1"]), 50)
            await until(lambda: peer.is_closed)
            assert one.assembly.membership.view.version == view.version
            assert await cluster.grain(Desk, "a").where()
            assert await client.grain(Desk, "a").where()  # over another connection


async def test_a_client_that_takes_small_frames_only_is_sent_no_list_that_is_larger() -> None:
    async with Silo(grains=[Desk]) as silo:
        async with connect(silo.gateway, options=RuntimeOptions(frame_bytes_max=400)) as client:
            (peer,) = silo.assembly.visitors.clients.values()
            view, news = silo.assembly.membership.view, silo.assembly.visitors._news
            rows = [MemberRow(f"new-{number}:1@1", Status.ACTIVE) for number in range(50)]
            news.follow(TableView(view.version + 1, (*view.rows, *rows)))
            await until(lambda: news._news.due_s() == math.inf)
            assert await client.grain(Desk, "a").where() == silo.address
            assert not peer.is_closed and client.gateways.known == [silo.address]


async def test_a_list_of_another_membership_table_changes_nothing() -> None:
    async with Silo(grains=[Desk]) as silo, Silo(grains=[Desk]) as other:  # two tables
        async with connect(silo.gateway) as client:
            stranger = client.engine.peers.get(other.gateway)
            await stranger.writer.ready()
            version = other.assembly.membership.view.version + 10**6
            client.gateways.on_gateways(stranger, GatewayView(version, [other.address]))
            assert client.gateways.known == [silo.address]
            await client.updates.refresh()
            assert client.gateways.known == [silo.address]


async def test_an_answer_that_is_older_than_what_was_told_changes_nothing() -> None:
    async with Silo(grains=[Desk]) as silo, connect(silo.gateway) as client:
        peer = client.engine.peers.get(silo.address)
        version = silo.assembly.membership.view.version
        client.gateways.on_gateways(peer, GatewayView(version + 1, [silo.address, "127.0.0.1:1@1"]))
        await client.updates.refresh()  # the silo has not read that version yet
        assert len(client.gateways.known) == 2


async def test_a_client_goes_on_with_silos_of_another_table_when_all_of_its_own_left() -> None:
    first = Silo(grains=[Desk])
    await first.start()
    async with Silo(grains=[Desk]) as second, connect(first.gateway, second.gateway) as client:
        assert client.gateways.known == [first.address]
        await first.stop()  # its table is gone, too, as when a backup is restored
        await until(lambda: client.gateways.known == [second.address])
        assert await client.grain(Desk, "a").where() == second.address


# --- one connection -------------------------------------------------------------------------------


def client_end(office: Office) -> LocalEnd:
    """Return the end of a client process."""
    end = end_of(office)
    end.identity = Identity("dev", "client-1", False)
    return end


async def opened(end: LocalEnd, link: FakeLink) -> Peer:
    """Return a client's connection to a silo after the greeting."""
    peer = Peer(end, "gateway:1", lambda peer: None)
    peer.attach(link)
    peer.on_received(raw(greeting_of_silo(end)))
    assert peer.writer.is_ready
    return peer


async def visited(link: FakeLink, **options: Any) -> Peer:
    """Return a silo's connection to a client after the greeting."""
    end = end_of(Office(), **options)
    peer = Peer(end, "", lambda peer: None)
    peer.attach(link)
    peer.on_received(raw(hello_of(Identity("dev", "client-1", False), end.options, end.env)))
    assert peer.writer.is_ready
    return peer


def greeting_of_silo(end: LocalEnd) -> Any:
    return hello_of(Identity("dev", "gateway:1@1", True, "table"), end.options, end.env)


async def test_a_list_that_comes_before_the_greeting_ends_the_connection() -> None:
    office, link = Office(), FakeLink()
    peer = Peer(client_end(office), "gateway:1", lambda peer: None)
    peer.attach(link)
    peer.on_received(raw(GatewayView(1, ["a:1@1"])))
    assert peer.is_closed and link.ended == "aborted" and not office.views


async def test_a_list_that_comes_with_the_greeting_is_taken_after_it() -> None:
    office, link = Office(), FakeLink()
    end = client_end(office)
    peer = Peer(end, "gateway:1", lambda peer: None)
    peer.attach(link)
    peer.on_received(raw(greeting_of_silo(end)) + raw(GatewayView(1, ["a:1@1"])))
    assert not peer.is_closed and office.views == [GatewayView(1, ["a:1@1"])]
    assert peer.table_id == "table" and office.greeted_by == [peer]


@pytest.mark.parametrize("wrong", [[9, "1", []], [9, 1, [7]], [9, 1], [9, 1, "a:1@1"]])
async def test_what_is_no_list_ends_the_connection(wrong: list[Any]) -> None:
    office, link = Office(), FakeLink()
    peer = await opened(client_end(office), link)
    peer.on_received(raw(wrong))
    assert peer.is_closed and not office.views


async def test_an_end_that_does_not_read_costs_one_list_the_newest() -> None:
    link = FakeLink()
    peer = await visited(link)
    link.full_at = 0
    peer.writer.send_latest(GatewayView(0, []), 10)
    peer.writer.flush()  # the link takes this list, and is full
    for version in range(1, 1000):
        peer.writer.send_latest(GatewayView(version, [f"a:{version}@1"]), 20)
        peer.writer.flush()
    assert peer.writer._latest == GatewayView(999, ["a:999@1"])
    assert peer.writer.unwritten_bytes == 0
    assert not peer.is_serving  # the list does not keep a silo from stopping
    assert [view.version for view in link.of(GatewayView)] == [0]
    link.drain()
    assert [view.version for view in link.of(GatewayView)] == [0, 999]


async def test_a_list_waits_until_all_other_messages_are_written() -> None:
    link = FakeLink()
    peer = await visited(link, batch_messages_max=2)
    link.full_at = 0
    peer.writer.send(Ping(False))
    peer.writer.flush()
    peer.writer.send_latest(GatewayView(1, []), 10)
    for _ in range(5):
        peer.writer.send(Goodbye("x"))
    peer.writer.flush()
    assert not link.of(GatewayView)
    link.drain()
    assert [type(one) for one in link.messages[-6:]] == [*[Goodbye] * 5, GatewayView]


async def test_a_connection_that_is_closed_keeps_no_list() -> None:
    link = FakeLink()
    peer = await visited(link)
    link.full_at = 0
    peer.writer.send(Ping(False))
    peer.writer.flush()
    peer.writer.send_latest(GatewayView(1, []), 10)
    peer.close("done")
    assert peer.writer._latest is None
    peer.writer.send_latest(GatewayView(2, []), 10)
    assert peer.writer._latest is None


# --- the list alone -------------------------------------------------------------------------------


def test_a_list_that_is_older_than_the_latest_changes_nothing() -> None:
    names = GatewayList(["a:1"])
    names.learn(GatewayView(5, ["a:1@1", "b:1@1"]), "t")
    names.learn(GatewayView(4, ["a:1@1"]), "t")
    assert names.known == ["a:1@1", "b:1@1"]
    names.learn(GatewayView(5, ["b:1@1"]), "t")  # the list of all silos in version 5
    assert names.known == ["b:1@1"]
    names.learn(GatewayView(6, ["a:1@1"]), "t")
    assert names.known == ["a:1@1"]


def test_a_list_of_another_table_changes_nothing_whatever_its_version() -> None:
    names = GatewayList(["a:1"])
    names.learn(GatewayView(5, ["a:1@1"]), "t")
    names.learn(GatewayView(9, ["c:1@1"]), "copy")
    assert names.known == ["a:1@1"] and "c:1" not in names.order("x")
    names.learn(GatewayView(6, ["b:1@1"]), "t")
    assert names.known == ["b:1@1"]


def test_after_a_new_start_the_versions_count_from_there() -> None:
    names = GatewayList(["a:1"])
    names.learn(GatewayView(9, ["a:1@1"]), "t")
    names.start_over(GatewayView(3, ["a:1@2"]), "restored")
    assert names.known == ["a:1@2"]
    names.learn(GatewayView(10, ["a:1@1"]), "t")
    names.learn(GatewayView(2, ["b:1@1"]), "restored")
    assert names.known == ["a:1@2"]
    names.learn(GatewayView(4, ["b:1@1"]), "restored")
    assert names.known == ["b:1@1"]


def test_an_empty_list_is_no_version_either() -> None:
    names = GatewayList(["a:1"])
    names.learn(GatewayView(9, []), "t")
    names.learn(GatewayView(8, ["a:1@1"]), "t")
    assert names.known == ["a:1@1"]


@given(st.permutations(range(6)))
def test_lists_that_come_in_any_order_end_with_the_newest(order: list[int]) -> None:
    names = GatewayList(["z:1"])
    for version in order:
        names.learn(GatewayView(version, [f"a:{version}@1"]), "t")
        names.check()
    assert names.known == ["a:5@1"]


# --- the times of sending ------------------------------------------------------------------------


def test_a_change_is_told_at_once_and_the_next_one_after_a_pause() -> None:
    news = PacedNews()
    assert news.due_s() == math.inf
    news.take(GatewayView(1, ["a:1@1"]))
    assert news.due_s() == -math.inf
    news.tell(100.0)
    assert news.due_s() == math.inf
    news.take(GatewayView(2, ["a:1@1", "b:1@1"]))
    assert news.due_s() == 100.0 + TOLD_EVERY_S
    news.take(GatewayView(3, ["b:1@1"]))
    assert news.due_s() == 100.0 + TOLD_EVERY_S and news.newest == GatewayView(3, ["b:1@1"])


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_silo_that_has_stopped_tells_nobody(is_closed: bool) -> None:
    link = FakeLink()
    peer = await visited(link)
    news = GatewayNews(peer._end, {"client-1": peer})
    news.follow(TableView(1, (MemberRow("here:1@1", Status.ACTIVE),)))
    if is_closed:
        news.close()
    await spin()
    told = [] if is_closed else [GatewayView(1, ["here:1@1"])]
    assert link.of(GatewayView) == told
    if not is_closed:
        news.follow(TableView(2, (MemberRow("here:1@1", Status.ACTIVE),)))
        assert news._timer is None  # no list is due


def test_a_version_with_the_same_gateways_is_no_news() -> None:
    news = PacedNews()
    news.take(GatewayView(1, ["a:1@1"]))
    news.tell(100.0)
    news.take(GatewayView(2, ["a:1@1"]))
    assert news.due_s() == math.inf and news.newest == GatewayView(2, ["a:1@1"])


def test_what_is_due_stays_due_when_a_version_with_the_same_gateways_comes() -> None:
    news = PacedNews()
    news.take(GatewayView(1, ["a:1@1"]))
    news.take(GatewayView(2, ["a:1@1"]))
    assert news.due_s() == -math.inf


@pytest.mark.parametrize("own", [None, Status.JOINING])
def test_a_silo_that_is_no_member_yet_sees_no_gateways(own: Status | None) -> None:
    rows = [MemberRow("b:1@1", Status.ACTIVE)]
    if own is not None:
        rows.append(MemberRow("a:1@1", own))
    assert gateways_seen_by("a:1@1", TableView(5, tuple(rows))) is None


def test_gateways_are_the_active_silos_that_take_clients_sorted() -> None:
    rows = (
        MemberRow("d:1@1", Status.ACTIVE),
        MemberRow("b:1@1", Status.ACTIVE),
        MemberRow("e:1@1", Status.ACTIVE, is_gateway=False),
        MemberRow("f:1@1", Status.JOINING),
        MemberRow("a:1@1", Status.STOPPING),
        MemberRow("c:1@1", Status.DEAD),
    )
    assert gateways_seen_by("a:1@1", TableView(5, rows)) == GatewayView(5, ["b:1@1", "d:1@1"])
