"""The stages of a silo: failing starts, the order of stopping, and the closed resources."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    PREFER_LOCAL,
    Client,
    ClusterError,
    ConfigError,
    DeactivationReason,
    Env,
    Grain,
    LocalCluster,
    MemberRow,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    Status,
    StorageUnavailable,
    TableView,
    connect,
    grain,
)
from millstream.runtime.extending import SiloPart, SiloServices
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    subscribe,
)

QUICK = MembershipOptions(join_timeout_s=0.3)
LOG: list[str] = []
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    global GATE
    GATE = asyncio.Event()
    LOG.clear()
    yield


QUEUES: dict[str, Queues] = {}


class Queues(SiloPart):
    """A stream provider that records its calls."""

    def __init__(self, name: str = "queues") -> None:
        self.name = name
        self.is_open = False
        self.services: SiloServices

    async def start(self, services: SiloServices, name: str, /) -> None:
        self.services, self.is_open = services, True
        QUEUES[services.address] = self
        LOG.append(f"{self.name} start")

    async def stop(self) -> None:
        row = self.services.row
        status = "gone" if row is None else row.status.value
        desks = self.services.activation_count
        LOG.append(f"{self.name} stop, row {status}, {desks} grains")

    async def aclose(self) -> None:
        self.is_open = False
        LOG.append(f"{self.name} close, {self.services.activation_count} grains")

    def abort(self) -> None:
        LOG.append(f"{self.name} abort")


class BrokenQueues(Queues):
    """A provider that cannot start."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("broken")
        self._error = error

    async def start(self, services: SiloServices, name: str, /) -> None:
        raise self._error


class OpeningQueues(Queues):
    """A provider that opens something before other silos can call its silo."""

    def status(self) -> str:
        row = self.services.row
        return "gone" if row is None else row.status.value

    async def open(self, services: SiloServices, name: str, /) -> None:
        self.services = services
        LOG.append(f"{name} open, row {self.status()}")

    async def start(self, services: SiloServices, name: str, /) -> None:
        LOG.append(f"{name} start, row {self.status()}")


class NotOpening(OpeningQueues):
    """A provider that cannot be opened."""

    async def open(self, services: SiloServices, name: str, /) -> None:
        self.services = services
        raise RuntimeError("no account")


class ClumsyQueues(Queues):
    """A provider that stops with an unexpected error."""

    async def stop(self) -> None:
        raise RuntimeError("clumsy")


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo

    async def publish_at_the_end(self) -> bool:
        LOG.append("turn begins")
        await GATE.wait()
        LOG.append("turn ends")
        return is_open(self)

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append(f"on_deactivate, open {is_open(self)}")


def is_open(desk: Grain) -> bool:
    return QUEUES[desk.context.silo].is_open


def statuses(table: MemoryMembershipTable) -> list[Status]:
    return [row.status for row in table.view().rows]


# --- the order of stopping ------------------------------------------------------------------------


async def test_a_stop_tells_clients_hands_queues_over_ends_grains_and_closes_in_this_order() -> (
    None
):
    table, queues = MemoryMembershipTable(), Queues()
    silo = Silo(grains=[Desk], membership=table, streams={"default": queues})
    async with silo, connect(silo.gateway) as client:
        peer_leaves = client.gateways.leaving

        def told(peer: Any) -> None:
            LOG.append("client told")
            peer_leaves(peer)

        client.gateways.leaving = told  # type: ignore[method-assign]
        await silo.grain(Desk, "a").where()
        turn = asyncio.create_task(silo.grain(Desk, "b").publish_at_the_end())
        await until(lambda: "turn begins" in LOG)
        stopping = asyncio.create_task(silo.stop())
        await until(lambda: Status.STOPPING in statuses(table))
        await until(lambda: "on_deactivate, open True" in LOG)  # the grain "a" is idle
        await until(lambda: "client told" in LOG)
        GATE.set()
        await stopping
        assert await turn
    assert statuses(table) == [Status.DEAD]
    assert [entry for entry in LOG if entry != "client told"] == [
        "queues start",
        "turn begins",
        "queues stop, row active, 2 grains",
        "on_deactivate, open True",
        "turn ends",
        "on_deactivate, open True",
        "queues close, 0 grains",
    ]


async def test_a_client_that_comes_while_queues_are_handed_over_is_sent_on() -> None:
    class SlowQueues(Queues):
        async def stop(self) -> None:
            LOG.append("handing over")
            await GATE.wait()

    table, stores = MemoryMembershipTable(), {"default": MemoryStateStore()}

    def silo(queues: Queues) -> Silo:
        streams = {"default": queues}
        return Silo(grains=[Desk], membership=table, stores=stores, streams=streams)

    async with silo(Queues()) as staying:
        async with silo(SlowQueues()) as leaving:
            stopping = asyncio.create_task(leaving.stop())
            await until(lambda: "handing over" in LOG)
            async with Client([leaving.gateway, staying.gateway]) as client:
                await until(lambda: client.gateways.known == [staying.address])
                for number in range(10):
                    await client.grain(Desk, f"{number}").where()
                # silos call its grains until the queues are handed over
                assert await staying.grain(Desk, "x").where() == staying.address
                assert await leaving.grain(Desk, "y").where() == leaving.address
                assert await staying.grain(Desk, "y").where() == leaving.address
                GATE.set()
                await stopping


async def test_a_provider_that_fails_to_stop_does_not_keep_the_silo_in_the_table() -> None:
    table, fine = MemoryMembershipTable(), Queues()
    streams = {"default": fine, "clumsy": ClumsyQueues("clumsy")}
    async with Silo(grains=[Desk], membership=table, streams=streams):
        pass
    assert statuses(table) == [Status.DEAD]
    assert not fine.is_open and "queues stop, row active, 0 grains" in LOG


ARRIVALS = StreamNamespace("stages", int)
HANDLED: list[int] = []


class Hub(Grain):
    @subscribe(ARRIVALS)
    async def _on_arrival(self, event: Event[int]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        HANDLED.append(event.item)


def hub_silo(store: MemoryStateStore) -> Silo:
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    # No turn yields by itself, so the streams of a queue advance together. A stream ahead of the
    # others would be redelivered (docs/guarantees.md), which would hide losses by a wrong order.
    options = RuntimeOptions(slice_s=1000)
    stores = {"default": store}
    return Silo(grains=[Hub], stores=stores, streams={"default": streams}, options=options)


def one_key_per_queue() -> list[str]:
    """Return the keys of streams in different queues, so that none is ahead of another in its
    queue.
    """
    mapper, found = HashRingMapper(queues=8), dict[str, str]()
    for number in range(200):
        found.setdefault(mapper.queue_for(StreamId("stages", f"{number}")), f"{number}")
    assert len(found) == 8
    return list(found.values())


async def test_what_a_silo_handled_before_it_stopped_under_load_is_not_handled_again() -> None:
    HANDLED.clear()
    store, keys = MemoryStateStore(), one_key_per_queue()
    async with hub_silo(store) as silo:
        for number in range(1_000):
            await silo.stream(ARRIVALS, keys[number % len(keys)]).publish(number)
        await until(lambda: len(HANDLED) >= 100)
    before = len(HANDLED)
    assert before < 1_000
    async with hub_silo(store):
        await until(lambda: len(set(HANDLED)) == 1_000)
    assert len(HANDLED) == 1_000


# --- starts that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConfigError("no such queue"), RuntimeError("a bug")])
@pytest.mark.parametrize("way", ["async with", "start", "LocalCluster"])
async def test_a_silo_whose_provider_cannot_start_leaves_the_table(
    error: Exception, way: str
) -> None:
    table, first = MemoryMembershipTable(), Queues("first")
    streams: dict[str, SiloPart] = {"default": first, "broken": BrokenQueues(error)}
    here: Any = {"membership": table, "stores": {"default": MemoryStateStore()}}
    async with Silo(grains=[Desk], streams={"default": Queues()}, **here) as other:
        with pytest.raises(type(error), match=str(error)):
            if way == "LocalCluster":
                made = {name: lambda found=found: found for name, found in streams.items()}
                async with LocalCluster(grains=[Desk], streams=made, **here):
                    pass
            elif way == "start":
                await Silo(grains=[Desk], streams=streams, **here).start()
            else:
                async with Silo(grains=[Desk], streams=streams, **here):
                    pass
        assert sorted(status.value for status in statuses(table)) == ["active", "dead"]
        await until(lambda: other.assembly.membership.active() == (other.address,))
        assert await other.grain(Desk, "a").where() == other.address
    assert "broken abort" in LOG and "broken stop" not in "".join(LOG)
    assert not first.is_open and "first stop, row active, 0 grains" in LOG


async def test_a_silo_whose_start_failed_leaves_its_port_free() -> None:
    broken = Silo(grains=[], streams={"broken": BrokenQueues(ConfigError("no"))})
    with pytest.raises(ConfigError):
        await broken.start()
    async with Silo(grains=[Desk], address=broken.gateway) as again:
        assert again.gateway == broken.gateway


async def test_a_silo_of_another_cluster_finds_its_mistake_and_leaves_the_table() -> None:
    table = MemoryMembershipTable()
    async with Silo(grains=[Desk], membership=table) as other:
        stranger = Silo(grains=[Desk], cluster="another", membership=table)
        with pytest.raises(ConfigError, match=f"{other.address}.*'dev', not 'another'"):
            await stranger.start()
        assert sorted(status.value for status in statuses(table)) == ["active", "dead"]
        assert not other.assembly.turns.ended


async def test_a_silo_that_cannot_reach_the_others_leaves_the_table() -> None:
    table = MemoryMembershipTable()
    absent = MemberRow("127.0.0.1:1@1", Status.ACTIVE, alive_s=Env().wall_s())
    table.replace_row(absent, table.view().version)
    silo = Silo(grains=[Desk], membership=table, membership_options=QUICK)
    with pytest.raises(
        ClusterError, match=r"within 0.3 s \(join_timeout_s\): 127.0.0.1:1@1 does not answer"
    ):
        await silo.start()
    assert sorted(status.value for status in statuses(table)) == ["active", "dead"]


async def test_streams_are_opened_before_others_can_call_the_silo() -> None:
    async with Silo(grains=[], streams={"one": OpeningQueues(), "two": OpeningQueues()}):
        assert LOG == [
            "one open, row joining",
            "two open, row joining",
            "one start, row active",
            "two start, row active",
        ]


async def test_streams_that_cannot_be_opened_end_the_start_and_those_before_are_closed() -> None:
    table = MemoryMembershipTable()
    one, two = OpeningQueues("one"), NotOpening("two")
    silo = Silo(grains=[], membership=table, streams={"one": one, "two": two})
    with pytest.raises(RuntimeError, match="no account"):
        await silo.start()
    assert LOG == ["one open, row joining", "two abort", "one close, 0 grains"]
    assert statuses(table) == [Status.DEAD]


async def test_a_start_that_is_cancelled_leaves_the_table() -> None:
    class EndlessQueues(Queues):
        async def start(self, services: SiloServices, name: str, /) -> None:
            LOG.append("starting")
            await GATE.wait()

    table = MemoryMembershipTable()
    silo = Silo(grains=[Desk], membership=table, streams={"default": EndlessQueues()})
    starting = asyncio.create_task(silo.start())
    await until(lambda: "starting" in LOG)
    assert statuses(table) == [Status.ACTIVE]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert statuses(table) == [Status.DEAD]
    await asyncio.wait_for(silo.wait_stopped(), 20)


class BrokenTable(MemoryMembershipTable):
    """A table that cannot be read, at first or ever."""

    async def read(self) -> TableView:
        raise StorageUnavailable("no table today")


async def test_a_silo_that_never_was_in_the_table_writes_nothing_when_its_start_fails() -> None:
    table = BrokenTable()
    with pytest.raises(StorageUnavailable, match="no table today"):
        await Silo(grains=[Desk], membership=table).start()
    assert table.view().rows == ()


# --- closed resources -----------------------------------------------------------------------------


def is_closed(silo: Silo) -> list[bool]:
    parts: list[Any] = [silo._table, silo._stores["default"]]
    return [part._closed for part in parts]


def made_from_text(tmp_path: Path, **more: Any) -> Silo:
    text = f"sqlite:{tmp_path}"
    return Silo(grains=[Desk], membership=text, stores={"default": text}, **more)


@pytest.mark.parametrize("way", ["stop", "kill", "evicted", "failed start"])
async def test_a_silo_closes_the_table_and_stores_that_it_made_itself(
    tmp_path: Path, way: str
) -> None:
    broken = {"default": BrokenQueues(ConfigError("no"))} if way == "failed start" else {}
    silo = made_from_text(tmp_path, streams=broken)
    if broken:
        with pytest.raises(ConfigError):
            await silo.start()
    else:
        await silo.start()
        await silo.assembly.store("default").write("k", b"", None, 1)
        assert is_closed(silo) == [False, False]
        match way:
            case "stop":
                await silo.stop()
            case "kill":
                await silo.kill()
            case _:
                silo.assembly.on_evicted()
                await silo.wait_stopped()
    assert is_closed(silo) == [True, True]
    again = made_from_text(tmp_path, address=silo.gateway)
    async with again:
        row = again.assembly.membership.view.row(silo.address)
        assert row is not None and row.status is Status.DEAD


class GivenStore(MemoryStateStore):
    async def aclose(self) -> None:
        LOG.append("store closed")


class GivenTable(MemoryMembershipTable):
    async def aclose(self) -> None:
        LOG.append("table closed")


async def test_what_a_silo_was_given_is_left_to_who_gave_it() -> None:
    store, table = GivenStore(), GivenTable()
    async with LocalCluster(
        silos=2, grains=[Desk], stores={"default": store}, membership=table
    ) as cluster:
        await cluster.silos[0].stop()
        await cluster.silos[1].assembly.store("default").write("k", b"", None, 1)
    async with Silo(grains=[Desk], stores={"default": store}, membership=table):
        pass
    assert LOG == []


async def test_a_stop_and_an_eviction_at_once_end_the_silo_once() -> None:
    queues = Queues()
    silo = Silo(grains=[Desk], streams={"default": queues})
    await silo.start()
    stops = [asyncio.create_task(silo.kill()), asyncio.create_task(silo.kill())]
    silo.assembly.on_evicted()
    await asyncio.gather(*stops, silo.stop())
    assert LOG.count("queues abort") == 1
    with pytest.raises(SiloUnavailable):
        async with connect(silo.gateway):
            pass


async def test_a_silo_is_found_at_the_address_that_it_advertises() -> None:
    table = MemoryMembershipTable()
    async with (
        Silo(grains=[], advertise="localhost:0", membership=table) as one,
        Silo(grains=[], membership=table) as two,
    ):
        assert re.fullmatch(r"localhost:\d+", one.gateway)
        assert one.address in two.assembly.membership.active()
        async with connect(one.gateway):
            pass
