"""How a client keeps a gateway while silos come and go."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import until
from tests.runtime.pinned import hush, pin

from millstream.runtime import (
    Address,
    Client,
    ConfigError,
    Grain,
    Link,
    LocalCluster,
    MembershipOptions,
    MemoryMembershipTable,
    MillstreamError,
    NotInCluster,
    Silo,
    SiloUnavailable,
    Status,
    connect,
)
from millstream.runtime.client.eviction_watch import LOOK_EVERY_S, EvictionWatch, SlowCalls
from millstream.runtime.client.gateway_list import ADDRESSES_KEPT_MAX, EVICTED_KEPT_MAX, GatewayList
from millstream.runtime.client.list_updates import GATEWAYS_EVERY_S
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.runtime.wire.address import endpoint_of
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import GatewayView

QUICK = MembershipOptions(probe_every_s=0.1, probe_timeout_s=0.3, missed_probes_max=2)
KEYS = [f"{number}" for number in range(12)]


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


def gateways_of(client: Client) -> set[str]:
    return {endpoint_of(name) for name in client.gateways.known}


def seen(gateways: list[str], version: int = 1) -> GatewayView:
    return GatewayView(version, gateways)


# --- whole clusters -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["stop", "start"])
@pytest.mark.parametrize("silos", [2, 3])
async def test_an_idle_client_outlives_a_restart_of_all_silos_on_other_ports(
    silos: int, first: str
) -> None:
    async with LocalCluster(silos=silos, grains=[Desk]) as cluster:
        begun = asyncio.get_running_loop().time()
        for old in list(cluster.silos):
            if first == "start":
                await cluster.start_silo()
            await old.stop()
            if first == "stop":
                await cluster.start_silo()
        places = {await cluster.grain(Desk, key).where() for key in KEYS}
        assert asyncio.get_running_loop().time() - begun < GATEWAYS_EVERY_S
        assert places <= {silo.address for silo in cluster.silos[silos:]}


async def test_a_restart_of_all_silos_on_other_ports_fails_no_call_of_a_busy_client() -> None:
    async with LocalCluster(silos=3, grains=[Desk]) as cluster:
        served: Counter[str] = Counter()
        running = True

        async def load(worker: int) -> None:
            while running:
                served[await cluster.grain(Desk, f"{worker}").where()] += 1

        async def some_calls(address: str) -> None:
            before = served[address]
            await until(lambda: served[address] > before)

        workers = [asyncio.create_task(load(number)) for number in range(30)]
        for old in list(cluster.silos):
            await some_calls(old.address)
            await old.stop()
            await cluster.start_silo()
        before = sum(served.values())
        await until(lambda: sum(served.values()) > before + 100)
        running = False
        await asyncio.gather(*workers)  # raises the workers' errors


async def test_a_client_whose_gateway_crashed_asks_another_one_at_once() -> None:
    async with LocalCluster(silos=2, grains=[Desk], membership_options=QUICK) as cluster:
        dying, staying = cluster.silos
        async with connect(dying.gateway, staying.gateway) as client:
            assert gateways_of(client) == {dying.gateway, staying.gateway}
            hush(dying, staying)
            new = await cluster.start_silo()
            assert new.gateway not in gateways_of(client)
            await dying.kill()
            await until(lambda: new.gateway in gateways_of(client))


async def test_the_given_addresses_are_the_last_resort() -> None:
    table = MemoryMembershipTable()

    def silo(address: str = "127.0.0.1:0") -> Silo:
        return Silo(grains=[Desk], address=address, membership=table, membership_options=QUICK)

    async with silo() as first, silo() as second:
        async with connect(first.gateway, second.gateway) as client:
            await first.stop()
            await until(lambda: gateways_of(client) == {second.gateway})
            hush(second)
            async with silo(first.gateway) as again:  # no silo tells the client
                await second.kill()
                await until(lambda: again.gateway in gateways_of(client))

                async def works() -> bool:
                    try:  # the directory waits for the eviction
                        return await client.grain(Desk, "a").where() == again.address
                    except SiloUnavailable:
                        return False

                async with asyncio.timeout(8):
                    while not await works():
                        await asyncio.sleep(0)


async def test_a_first_gateway_that_is_away_or_foreign_is_passed_over() -> None:
    async with Silo(grains=[Desk], cluster="other") as foreign, Silo(grains=[Desk]) as silo:
        gone = Silo(grains=[Desk])
        async with gone:
            pass
        async with connect(gone.gateway, foreign.gateway, silo.gateway) as client:
            assert await client.grain(Desk, "a").where() == silo.address
            assert gateways_of(client) == {silo.gateway}


async def test_gateways_that_refuse_are_passed_over_in_one_try() -> None:
    async with Silo(grains=[Desk]) as silo, connect(silo.gateway) as client:
        gone = [f"127.0.0.1:{port}@1" for port in (1, 2, 3)]
        pin(client, *gone, silo.address)
        for key in KEYS:
            assert (await client.gateways.ready(key)).name == silo.address
        pin(client, *gone)
        # the address was given to the client
        assert (await client.gateways.ready("a")).name == silo.address


async def test_one_connection_serves_a_gateway_under_both_its_names() -> None:
    async with Silo(grains=[Desk]) as silo, connect(silo.gateway) as client:
        for key in KEYS:
            await client.grain(Desk, key).where()
        assert len(silo.assembly.visitors.inbound) == 1


async def test_a_silo_that_was_restarted_is_found_by_the_address_that_was_learnt() -> None:
    table = MemoryMembershipTable()

    def silo(address: str = "127.0.0.1:0") -> Silo:
        return Silo(grains=[Desk], address=address, membership=table, membership_options=QUICK)

    async with silo() as given, silo() as learnt:
        async with connect(given.gateway) as client:
            await until(lambda: gateways_of(client) == {given.gateway, learnt.gateway})
            await given.stop()
            await until(lambda: gateways_of(client) == {learnt.gateway})
            await learnt.kill()  # no silo is left that could tell the client
            async with silo(learnt.gateway) as again:
                await until(lambda: client.gateways.known == [again.address])
                assert await client.grain(Desk, "a").where() == again.address


# --- wrong use of a client ---


@pytest.mark.parametrize("gateways", [["127.0.0.1:7700"], 7700, ("127.0.0.1:7700",), b"a:1"])
def test_connect_says_how_it_is_called(gateways: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"a gateway must be a str, host:port.*connect\(\*gateways\)"
    ):
        connect(gateways)
    with pytest.raises(ConfigError, match="pass a list of addresses"):
        Client("127.0.0.1:7700")


async def test_a_host_that_nobody_knows_is_named_with_the_cluster() -> None:
    with pytest.raises(
        SiloUnavailable,
        match="no gateway of cluster 'dev' answers.* cannot resolve host 'no.such.invalid'",
    ):
        async with connect("no.such.invalid:7"):
            pass


def test_a_client_of_another_event_loop_is_told_so() -> None:
    async def opened() -> tuple[Silo, Client, Desk]:
        silo = Silo(grains=[Desk])
        await silo.start()
        client = connect(silo.gateway)
        await client.__aenter__()
        desk = client.grain(Desk, "a")
        await desk.where()
        with pytest.raises(ConfigError, match="is already open"):
            await client.__aenter__()
        return silo, client, desk

    async def used(client: Client, desk: Desk) -> None:
        with pytest.raises(NotInCluster, match="another event loop than the running one"):
            client.grain(Desk, "a")
        # from 3.12 on, a call does not check the loop of the running task
        if sys.version_info < (3, 12):
            with pytest.raises(NotInCluster, match="another event loop"):
                await desk.where()

        with pytest.raises(NotInCluster, match="another event loop"):
            await client.__aenter__()
        with pytest.raises(NotInCluster, match="another event loop"):
            await client.aclose()

    async def stopped(silo: Silo) -> None:
        with pytest.raises(NotInCluster, match="another event loop"):
            await silo.stop()
        with pytest.raises(NotInCluster, match="another event loop"):
            await silo.kill()

    async def closed(silo: Silo, client: Client) -> None:
        await client.aclose()
        await silo.stop()

    with asyncio.Runner() as runner:
        silo, client, desk = runner.run(opened())
        with asyncio.Runner() as other:
            other.run(used(client, desk))
            other.run(stopped(silo))
        runner.run(closed(silo, client))


# --- in virtual time ------------------------------------------------------------------------------


class Connects:
    """A transport that records the times of its connections."""

    def __init__(self, transport: object) -> None:
        self._transport = transport
        self.times: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    async def connect(self, address: Address, /) -> Link:
        self.times.append(asyncio.get_running_loop().time())
        link: Link = await self._transport.connect(address)  # type: ignore[attr-defined]
        return link


def test_a_gateway_that_was_restarted_where_it_was_is_used_again() -> None:
    async def driver(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Desk])
        await cluster.start()
        host = simulation.host("client")

        async def program() -> None:
            async with cluster.client(host) as client:
                assert len(client.gateways.known) == 3
                for name in cluster.names:
                    await cluster.stop_silo(name)
                    await cluster.until_active()
                await asyncio.sleep(GATEWAYS_EVERY_S + 1)
                addresses = {silo.address for silo in cluster.silos()}
                assert set(client.gateways.known) == addresses
                for key in KEYS:
                    await client.grain(Desk, key).where()
                live = {peer.name for peer in client.engine.peers.list_known()}
                assert live == addresses

        await simulation.call(host, program())
        await cluster.close()

    run(driver, seed=3)


def test_a_client_without_any_gateway_asks_now_and_then_and_goes_on_when_there_is_one() -> None:
    async def driver(simulation: Simulation) -> tuple[int, int]:
        cluster = SimCluster(simulation, silos=3, grains=[Desk])
        await cluster.start()
        host = simulation.host("client")
        asked = most = 0

        async def program() -> tuple[int, int]:
            nonlocal asked, most
            transport = Connects(simulation.transport(host))
            client = cluster.client(host)
            client._transport = transport  # type: ignore[assignment]
            async with client:
                ask = client.updates.refresh
                running = 0

                async def counted() -> None:
                    nonlocal asked, most, running
                    asked, running = asked + 1, running + 1
                    most = max(most, running)
                    try:
                        await ask()
                    finally:
                        running -= 1

                client.updates.refresh = counted  # type: ignore[method-assign]
                for name in cluster.names:
                    simulation.crash(name)
                begun = len(transport.times)
                for number in range(6):  # calls that cannot succeed
                    await asyncio.sleep(10)
                    with pytest.raises(MillstreamError):
                        await client.grain(Desk, f"{number}").where()
                connects = len(transport.times) - begun
                for name in cluster.names:
                    cluster.boot(name)
                await cluster.until_settled(calm_s=1.0)
                for key in KEYS:
                    await client.grain(Desk, key).where()
                return connects, most

        result = await simulation.call(host, program())
        await cluster.close()
        return result

    connects, most = run(driver, seed=5).result
    assert most == 1
    assert 10 < connects < 400  # for six addresses in a minute, with six calls


def test_a_gateway_that_leaves_is_asked_for_the_others_on_the_connection_that_is_there() -> None:
    """The client's list is out of date, and none of its other silos answers."""

    async def driver(simulation: Simulation) -> None:
        table = MemoryMembershipTable()

        def silo(name: str) -> Silo:
            host = simulation.host(name)
            return Silo(
                grains=[Desk],
                address=f"{name}:7000",
                insecure=True,
                membership=table,
                env=simulation.env(host),
                transport=simulation.transport(host),
            )

        silos = {name: silo(name) for name in "abcd"}
        for name in "ab":
            await simulation.call(simulation.host(name), silos[name].start())
        host = simulation.host("client")

        async def program() -> None:
            client = Client(
                ["b:7000"], env=simulation.env(host), transport=simulation.transport(host)
            )
            async with client:
                assert gateways_of(client) == {"a:7000", "b:7000"}
                hush(silos["a"], silos["b"])
                await simulation.call(simulation.host("b"), silos["b"].stop())
                assert gateways_of(client) == {"a:7000"}
                for name in "cd":
                    await simulation.call(simulation.host(name), silos[name].start())
                await simulation.call(simulation.host("a"), silos["a"].stop())
                assert gateways_of(client) == {"c:7000", "d:7000"}
                for key in KEYS:
                    await client.grain(Desk, key).where()

        begun = asyncio.get_running_loop().time()
        await simulation.call(host, program())
        assert asyncio.get_running_loop().time() - begun < GATEWAYS_EVERY_S
        for name in "cd":
            await simulation.call(simulation.host(name), silos[name].stop())

    run(driver, seed=2)


class Slow(Grain):
    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def where(self) -> str:
        return self.context.silo


def test_calls_through_a_gateway_that_does_not_know_its_eviction_end_within_a_second() -> None:
    """The gateway is cut off from the other silos and from the table, but not from the client."""

    async def driver(simulation: Simulation) -> float:
        cluster = SimCluster(simulation, silos=3, grains=[Slow])
        await cluster.start()
        host = simulation.host("client")
        loop = asyncio.get_running_loop()
        evicted_at: list[float] = []

        async def program() -> float:
            async with cluster.client(host) as client:
                homes = {key: await client.grain(Slow, key).where() for key in KEYS * 2}
                lost = cluster.silo("silo-1")
                assert lost is not None
                gateways = {
                    key: client.gateways.find(client.engine.references.kind_named("Slow"), key)
                    for key in homes
                }
                through = [
                    key
                    for key, gateway in gateways.items()
                    if isinstance(gateway, Peer)
                    and gateway.name == lost.address
                    and homes[key] != lost.address
                ]
                assert through, "no grain lives elsewhere than its gateway"
                calls = [asyncio.ensure_future(client.grain(Slow, key).wait()) for key in through]
                await asyncio.sleep(0.1)
                other = cluster.silo("silo-0")
                assert other is not None
                other.assembly.membership.watch(
                    lambda view: (
                        evicted_at.append(loop.time())
                        if lost.address in view.with_status(Status.DEAD) and not evicted_at
                        else None
                    )
                )
                for name in ("silo-0", "silo-2", "table", "store"):
                    simulation.network.partition("silo-1", name)
                done, pending = await asyncio.wait(calls, timeout=25.0)
                ended_at = loop.time()
                assert not pending
                assert all(isinstance(call.exception(), SiloUnavailable) for call in done)
                for key in through:  # new calls use other gateways
                    assert await client.grain(Slow, key).where() == homes[key]
                return ended_at - evicted_at[0]

        late_s = await simulation.call(host, program())
        simulation.network.repair()
        await cluster.close()
        return late_s

    for seed in range(1, 6):
        assert run(driver, seed=seed).result <= 1.0


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("back", [0, 1, 2])
def test_a_client_that_lost_all_its_gateways_finds_the_one_that_comes_back(
    back: int, is_silent: bool
) -> None:
    """The client knows the returning silo. While that silo joins, it only lists the crashed
    silos.
    """

    async def driver(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Desk])
        await cluster.start()
        host = simulation.host("client")

        async def program() -> None:
            async with Client(
                [cluster.silos()[0].gateway],
                cluster="sim",
                env=simulation.env(host),
                transport=simulation.transport(host),
            ) as client:
                assert len(client.gateways.known) == 3
                names = cluster.names
                for name in names:
                    simulation.crash(name, is_silent=is_silent)
                cluster.names = (names[back],)
                cluster.boot(names[back])
                for _ in range(100):  # including the time in which the silo joins
                    with suppress(MillstreamError, TimeoutError):
                        async with asyncio.timeout(1.0):
                            await client.grain(Desk, "a").where()
                    await asyncio.sleep(0.3)
                await cluster.until_active()
                (silo,) = cluster.silos()
                async with asyncio.timeout(GATEWAYS_EVERY_S):
                    assert await client.grain(Desk, "a").where() == silo.address
                await asyncio.sleep(GATEWAYS_EVERY_S + 1)
                assert client.gateways.known == [silo.address]

        await simulation.call(host, program())
        await cluster.close()

    run(driver, seed=7, max_virtual_s=600.0)


def test_a_silo_that_joins_says_that_it_is_no_gateway_yet() -> None:
    async def driver(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=2, grains=[Desk])
        await cluster.start()
        simulation.crash("silo-0", is_silent=True)
        simulation.crash("silo-1", is_silent=True)
        cluster.names = ("silo-1",)
        cluster.boot("silo-1")
        await asyncio.sleep(2.0)  # the silo waits for the eviction of silo-0
        host = simulation.host("client")
        client = Client(
            ["silo-1:7000"],
            cluster="sim",
            env=simulation.env(host),
            transport=simulation.transport(host),
        )

        async def program() -> None:
            with pytest.raises(SiloUnavailable, match="silo-1:7000@.* is joining its cluster"):
                await client.__aenter__()
            await cluster.until_active()
            async with client:
                assert client.gateways.known == [cluster.silos()[0].address]

        await simulation.call(host, program())
        await cluster.close()

    run(driver, seed=7)


# --- the list alone -------------------------------------------------------------------------------


def test_given_addresses_come_last_and_in_their_order() -> None:
    names = GatewayList(["a:1", "b:1"])
    assert names.order("x") == ["a:1", "b:1"] and not names.known
    names.learn(seen(["c:1@1", "d:1@1"]), "t")
    assert set(names.order("x")[:2]) == {"c:1@1", "d:1@1"}
    assert names.order("x")[2:] == ["a:1", "b:1", "c:1", "d:1"]


def test_an_evicted_gateway_is_not_learnt_again_from_one_that_does_not_know() -> None:
    names = GatewayList(["a:1"])
    names.learn(seen(["a:1@1", "b:1@1"]), "t")
    names.evict("b:1@1")
    assert names.known == ["a:1@1"]
    for found in (["a:1@1"], ["a:1@1", "b:1@1"]):
        names.learn(seen(found), "t")
        assert names.known == ["a:1@1"]
    names.check()
    for number in range(EVICTED_KEPT_MAX):
        names.evict(f"c:{number}@1")
    assert not names.is_evicted("b:1@1") and names.is_evicted("c:0@1")


class Oddities:
    """Gateways of which one fails with an unexpected error."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.dropped: list[str] = []

    def oldest_calls(self) -> dict[str, int]:
        return {} if self.dropped else {"slow": 1, "odd": 0, "well": 0}

    def gateways_to_ask(self) -> list[str]:
        return ["slow", "odd", "well"]

    async def ask_evicted(self, gateway: str, silos: list[str], /) -> list[str]:
        self.asked.append(gateway)
        if gateway == "odd":
            raise ZeroDivisionError
        return ["slow", "never asked about"]

    def drop_evicted(self, silo: str, /) -> None:
        self.dropped.append(silo)


def test_a_gateway_that_fails_oddly_does_not_end_the_watch() -> None:
    async def driver(simulation: Simulation) -> Oddities:
        gateways = Oddities()
        watching = asyncio.ensure_future(EvictionWatch(gateways).run())
        await asyncio.sleep(3 * LOOK_EVERY_S)
        assert not watching.done()
        watching.cancel()
        return gateways

    gateways = run(driver, seed=1).result
    assert sorted(gateways.asked) == ["odd", "well"] and gateways.dropped == ["slow"]


def test_a_call_that_waits_over_two_looks_is_slow() -> None:
    slow = SlowCalls()
    assert slow.look({"a": 1, "b": 0, "c": 5}) == []
    assert slow.look({"a": 1, "b": 0, "c": 6, "d": 1}) == ["a"]
    assert slow.look({"a": 2, "c": 6}) == ["c"]
    assert slow.look({"d": 1}) == []


def test_names_are_spread_over_the_gateways_and_each_keeps_its_own() -> None:
    names = GatewayList(["a:1"])
    names.learn(seen([f"{letter}:1@1" for letter in "abcd"]), "t")
    firsts = Counter(names.order(f"{number}")[0] for number in range(400))
    assert len(firsts) == 4 and min(firsts.values()) > 50
    assert all(names.order(key) == names.order(key) for key in KEYS)


def test_a_gateway_that_comes_or_goes_changes_the_way_of_its_own_share_only() -> None:
    names, keys = GatewayList(["a:1"]), [f"{number}" for number in range(1000)]
    four = [f"{letter}:1@1" for letter in "abcd"]
    names.learn(seen(four), "t")
    before = {key: names.order(key)[0] for key in keys}
    names.learn(seen([*four, "e:1@1"]), "t")
    with_fifth = {key: names.order(key)[0] for key in keys}
    moved = [key for key in keys if before[key] != with_fifth[key]]
    assert {with_fifth[key] for key in moved} == {"e:1@1"} and 100 < len(moved) < 300
    names.leave("e:1@1")
    assert {key: names.order(key)[0] for key in keys} == before


def test_a_gateway_that_left_is_not_believed_until_it_is_another_one() -> None:
    names = GatewayList(["a:1"])
    names.learn(seen(["a:1@1", "b:1@1"]), "t")
    names.leave("a:1@1")
    assert names.known == ["b:1@1"]
    # the silo that answered does not know of the goodbye
    names.learn(seen(["a:1@1", "b:1@1"]), "t")
    assert names.known == ["b:1@1"]
    names.learn(seen(["a:1@2", "b:1@1"]), "t")
    assert names.known == ["a:1@2", "b:1@1"]


def test_who_said_goodbye_is_forgotten_when_nobody_tells_of_it_any_more() -> None:
    names = GatewayList(["a:1"])
    names.learn(seen(["a:1@1", "b:1@1"]), "t")
    names.leave("a:1@1")
    names.learn(seen(["b:1@1"]), "t")
    names.learn(seen(["a:1@1", "b:1@1"]), "t")
    assert names.known == ["a:1@1", "b:1@1"]


def test_the_only_gateway_is_known_as_long_as_there_is_one() -> None:
    names = GatewayList(["a:1"])
    assert not names.only
    for known, only in (["b:1@1"], "b:1@1"), (["b:1@1", "c:1@1"], ""), (["c:1@1"], "c:1@1"):
        names.learn(seen(known), "t")
        assert names.only == only
    names.leave("c:1@1")
    assert not names.only


def test_others_are_asked_in_turn() -> None:
    class Five(Oddities):
        def gateways_to_ask(self) -> list[str]:
            return ["a", "b", "slow", "c", "d"]

    watch = EvictionWatch(Five())
    asked = [*watch._next(["slow"]), *watch._next(["slow"])]
    assert sorted(asked) == ["a", "b", "c", "d"]


def test_an_address_that_was_told_once_is_a_last_resort_the_latest_first() -> None:
    names = GatewayList(["a:1"])
    names.learn(seen(["b:1@1", "c:1@1"]), "t")
    names.learn(seen(["d:1@1"]), "t")
    names.learn(seen(["c:1@2", "a:1@2"]), "t")
    assert set(names.order("x")[:2]) == {"c:1@2", "a:1@2"}
    assert names.order("x")[2:] == ["a:1", "c:1", "d:1", "b:1"]


def test_addresses_are_kept_of_gateways_that_are_evicted_or_leave() -> None:
    names = GatewayList(["a:1"])
    names.evict("b:1@1")
    names.learn(seen(["b:1@1", "c:1@1"]), "t")
    names.leave("c:1@1")
    assert names.known == [] and names.order("x") == ["a:1", "b:1", "c:1"]


def test_only_so_many_addresses_are_kept_and_the_oldest_goes_first() -> None:
    names = GatewayList(["a:1"])
    for number in range(ADDRESSES_KEPT_MAX + 5):
        names.learn(seen([f"b:{number}@1"]), "t")
    kept = [f"b:{number}" for number in reversed(range(5, ADDRESSES_KEPT_MAX + 5))]
    assert names.order("x")[1:] == ["a:1", *kept]


def test_an_empty_list_is_no_news() -> None:
    names = GatewayList(["a:1"])
    names.learn(seen(["b:1@1"]), "t")
    names.learn(seen([]), "t")
    assert names.known == ["b:1@1"]


NAMES = [f"{host}:1@{generation}" for host in "abc" for generation in (1, 2)]
LISTS = st.lists(st.sampled_from(NAMES), unique=True)
STEPS = st.lists(LISTS | st.sampled_from(NAMES), max_size=12)  # learn a list, or let a silo leave


@given(STEPS)
def test_whatever_is_learnt_the_given_addresses_stay_and_nothing_piles_up(
    steps: list[list[str] | str],
) -> None:
    names = GatewayList(["a:1", "z:1"])
    left: set[str] = set()
    for what in steps:
        if isinstance(what, str):
            names.leave(what)
            left.add(what)
        else:
            names.learn(seen(what), "t")
            left &= set(what) or left
        names.check()
        assert not left & set(names.known)
        assert names.order("x")[len(names.known) :][:2] == ["a:1", "z:1"]
        assert len(names.order("x")) <= len(names.known) + 2 + len("abc") - len("a")
