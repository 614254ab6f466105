"""Mistakes with silos, clients and options. A line that ends with the mark E must be refused."""

from __future__ import annotations

from millstream.balancers import DeploymentBalancer, best_fit
from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.postgres import (
    PostgresMembershipTable,
    PostgresOptions,
    PostgresStateStore,
    read_schema,
)
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore, WriterOptions
from millstream.runtime import (
    Client,
    Contract,
    Env,
    Grain,
    LocalCluster,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    Metrics,
    MetricsOptions,
    PlacementOptions,
    Rebalancing,
    Runtime,
    RuntimeOptions,
    Silo,
    Tls,
    connect,
)
from millstream.runtime.extending import Histogram, Metric, MetricRegistry, Sample
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryOptions,
    FlowOptions,
    FunctionMapper,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
)


class Counter(Grain):
    async def add(self, by: int) -> int:
        return by


class CounterApi(Contract):
    async def add(self, by: int) -> int:
        raise NotImplementedError


class Plain: ...


NUMBERS = StreamNamespace("numbers", int)


def streams() -> PersistentStreams:
    return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())


# --- silos ---------------------------------------------------------------------------------------

Silo()  # E
Silo([Counter])  # E
Silo(grains=Counter)  # E
Silo(grains=[Counter()])  # E
Silo(grains=[CounterApi])  # E
Silo(grains=[Plain])  # E
Silo(grains=["Counter"])  # E
Silo(grains=[Counter], address=7700)  # E
Silo(grains=[Counter], tls="/etc/shop")  # E
Tls("a.crt", "a.key")  # E
Tls(certificate=1, key="a.key", authority="ca.crt")  # E
connect("a:1", tls=True)  # E
Silo(grains=[Counter], adress="127.0.0.1:0")  # E
Silo(grains=[Counter], streams=streams())  # E
Silo(grains=[Counter], streams={"default": streams})  # E
Silo(grains=[Counter], streams={"default": MemoryQueues()})  # E
Silo(grains=[Counter], streams={"default": PersistentStreams})  # E
Silo(grains=[Counter], stores=MemoryStateStore())  # E
Silo(grains=[Counter], stores={"default": MemoryStateStore})  # E
Silo(grains=[Counter], stores={"default": MemoryMembershipTable()})  # E
Silo(grains=[Counter], membership=MemoryStateStore())  # E
Silo(grains=[Counter], membership=MemoryMembershipTable)  # E
Silo(grains=[Counter], options=MembershipOptions())  # E
Silo(grains=[Counter], membership_options=RuntimeOptions())  # E
Silo(grains=[Counter], placement_options=RuntimeOptions())  # E
Silo(grains=[Counter], placement_options={"cpu_weight": 50})  # E
Silo(grains=[Counter], options={"call_timeout_s": 5})  # E
Silo(grains=[Counter], env=1)  # E
Silo(grains=[Counter], can_own_queues=None)  # E
Silo(grains=[Counter], labels={"zone": 1})  # E
Silo(grains=[Counter], labels="zone=a")  # E


async def use_a_silo() -> None:
    with Silo(grains=[Counter]) as other:  # E
        print(other)
    async with Silo(grains=[Counter]) as silo:
        silo.start()  # E
        silo.wait_stopped()  # E
        print(silo.grains)  # E
        silo.address = "127.0.0.1:0"  # E
        silo.gateway()  # E
        await silo.grain(Counter, "a").add("1")  # E
        async with silo.grain(Counter, "a"):  # E
            print(silo)


# --- local clusters ------------------------------------------------------------------------------

LocalCluster(3, grains=[Counter])  # E
LocalCluster(silos=3)  # E
LocalCluster(silos="3", grains=[Counter])  # E
LocalCluster(silo=3, grains=[Counter])  # E
LocalCluster(grains=[Counter()])  # E
LocalCluster(grains=[CounterApi])  # E
LocalCluster(grains=[Counter], streams={"default": streams()})  # E
LocalCluster(grains=[Counter], streams={"default": MemoryQueues})  # E
LocalCluster(grains=[Counter], stores={"default": "sqlite:here"})  # E


PostgresOptions(connections_max=1.5)  # E
PostgresOptions(url="postgresql://db/shop")  # E
PostgresStateStore("postgresql://db/shop", schema="shop")  # E
PostgresStateStore(b"postgresql://db/shop")  # E
Silo(grains=[Counter], membership=PostgresStateStore("postgresql://db/shop"))  # E
Silo(grains=[Counter], stores={"default": PostgresMembershipTable("postgresql://db/shop")})  # E
print(read_schema("postgresql://db/shop").version)  # E


async def use_a_cluster() -> None:
    with LocalCluster(grains=[Counter]) as other:  # E
        print(other)
    async with LocalCluster(grains=[Counter]) as cluster:
        cluster.start_silo()  # E
        cluster.silos["a"]  # E
        cluster.client = None  # E
        await cluster.clients[0].grain(Counter, "a").add(1)  # E
        await cluster.add(1)  # E


# --- clients -------------------------------------------------------------------------------------


async def use_a_client() -> None:
    connect(7700)  # E
    connect(["127.0.0.1:7700"])  # E
    connect("127.0.0.1:7700", clsuter="x")  # E
    connect(membership=["sqlite:data"])  # E
    connect("127.0.0.1:7700", membership=MemoryMembershipTable)  # E
    connect("127.0.0.1:7700", options=MembershipOptions())  # E
    with connect("127.0.0.1:7700") as other:  # E
        print(other)
    connected: Client = await connect("127.0.0.1:7700")  # E
    print(connected)
    async with connect("127.0.0.1:7700") as client:
        client.observe(Plain())  # E
        client.aclose()  # E
        text: str = client.grain(CounterApi, "a").add(1)  # E
        print(text)


async def anywhere(runtime: Runtime) -> None: ...


async def wrong_runtimes(silo: Silo) -> None:
    await anywhere(Silo)  # E
    await anywhere(silo.grain)  # E
    await anywhere(Env())  # E


# --- options -------------------------------------------------------------------------------------

RuntimeOptions(30.0)  # E
RuntimeOptions(call_timeout=30.0)  # E
RuntimeOptions(call_timeout_s="30 s")  # E
RuntimeOptions(waiting_calls_max=1.5)  # E
RuntimeOptions().call_timeout_s = 5  # E
MembershipOptions(votes=2)  # E
MembershipOptions(votes_for_death="2")  # E
Rebalancing(15.0)  # E
Rebalancing(every=15.0)  # E
Rebalancing(moves_max=1.5)  # E
Silo(grains=[Counter], rebalancing=True)  # E
PlacementOptions(cpu=40)  # E
PlacementOptions(lag_max_s="1 s")  # E
PlacementOptions().cpu_weight = 50  # E
StreamOptions(CacheLimits())  # E
StreamOptions(cache=FlowOptions())  # E
StreamOptions(delivery={"retries": 5})  # E
StreamOptions(ownership=OwnershipOptions)  # E
StreamOptions().delivery.retries = 5  # E
DeliveryOptions(backoff=0.5)  # E
Backoff("0.1 s")  # E
CacheLimits(bytes_max="64 MiB")  # E
MemoryOptions(1_000)  # E
MemoryOptions(capacity=1_000)  # E
WriterOptions(batch_s="50 ms")  # E


# --- metrics -------------------------------------------------------------------------------------

Metrics(9100)  # E
Metrics("127.0.0.1:9100", MetricsOptions())  # E
Metrics(options={"series_max": 10})  # E
MetricsOptions(probe_timeout_s="1 s")  # E
MetricsOptions().series_max = 10  # E
Metric("shop_orders_total", "counter", "Orders.")  # E
Metric(name="shop_orders_total", type="summary", help="Orders.")  # E
Metric(name="shop_wait_hours", type="gauge", help="Wait.", unit="hours")  # E
Metric(name="shop_orders_total", type="counter", help="Orders.", labels="shop")  # E
Sample("shop_orders_total", (), 1)  # E
MetricRegistry().add("shop_orders_total", lambda: [])  # E
MetricRegistry().add([], lambda: [1])  # E
Histogram().observe("1 s")  # E


# --- providers and balancers ---------------------------------------------------------------------

MemoryQueues(capacity_events=1_000)  # E
MemoryQueues({"capacity_events": 1_000})  # E
SqliteStateStore()  # E
SqliteStateStore(5)  # E
SqliteMembershipTable("here", WriterOptions())  # E
GeneratorQueues(5)  # E
GeneratorQueues(NUMBERS, options=MemoryOptions())  # E
GeneratorOptions(streams=1.5)  # E
GeneratorOptions(events_per_s="100")  # E
Generated(NUMBERS, lambda key: 1)  # E
Generated(NUMBERS, lambda key, number: key)  # E
Generated("numbers", lambda key, number: 1)  # E
GENERATED: Generated[str] = Generated(NUMBERS, lambda key, number: number)  # E
DeploymentBalancer(["a", "b"])  # E
DeploymentBalancer(rebalance_delay_s="5 s")  # E
DeploymentBalancer(weights={"a": "2"})  # E
HashRingMapper(8)  # E
HashRingMapper(queues="8")  # E
HashRingMapper()  # E
FunctionMapper(queues=8, by=lambda stream, queues: 0)  # E
FunctionMapper(queues=8, by=lambda stream: 0, name="f")  # E
FunctionMapper(queues=8, by=lambda stream, queues: stream.key, name="f")  # E
best_fit(["queue-0"], {"a": 2}, ["b"])  # E
