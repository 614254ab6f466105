"""Silos, local clusters, clients and their options, as a user writes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_type

from millstream.balancers import DeploymentBalancer, best_fit
from millstream.providers.generator import (
    Generated,
    GeneratedEvent,
    GeneratorOptions,
    GeneratorQueues,
)
from millstream.providers.memory import MemoryOptions, MemoryQueues, memory_streams
from millstream.providers.postgres import (
    PostgresMembershipTable,
    PostgresOptions,
    PostgresReminderTable,
    PostgresStateStore,
    SchemaState,
    migrate_schema,
    read_schema,
)
from millstream.providers.sqlite import (
    SqliteMembershipTable,
    SqliteReminderTable,
    SqliteStateStore,
    WriterOptions,
)
from millstream.runtime import (
    CertifiedName,
    Client,
    ClusterError,
    ConfigError,
    Contract,
    Corrupt,
    DefinitionError,
    Env,
    Grain,
    LocalCluster,
    MemberInfo,
    MembershipOptions,
    MembershipTable,
    MemoryMembershipTable,
    MemoryReminderTable,
    MemoryStateStore,
    Metrics,
    MetricsOptions,
    MillstreamError,
    NotAllowed,
    NotInCluster,
    NotRemote,
    Openable,
    PlacementOptions,
    Rebalancer,
    Rebalancing,
    RebalancingStatus,
    ReminderCounts,
    ReminderPosition,
    ReminderRow,
    Reminders,
    ReminderTable,
    Role,
    Runtime,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    StateStore,
    Status,
    StopReason,
    StorageError,
    TableView,
    TcpTransport,
    Tls,
    connect,
    operator_secret,
    serve,
)
from millstream.runtime.extending import Histogram, Metric, MetricRegistry, Sample, SiloPart
from millstream.runtime.run import JsonFormatter
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeadLetter,
    DeadLetters,
    DeliveryOptions,
    FlowOptions,
    FunctionMapper,
    HashRingMapper,
    HolderReport,
    LaggingStream,
    LetterReport,
    OwnershipOptions,
    PersistentStreams,
    QueueReport,
    QueueStats,
    SiloStats,
    Stream,
    StreamId,
    StreamNamespace,
    StreamOptions,
    StreamReport,
    SubscriptionFaulted,
    SubscriptionReport,
    Why,
    cluster_stats,
    dead_letters,
    lagging,
    pause_queue,
    pause_stream,
    resize,
    resume_queue,
    resume_stream,
    why,
)


class Counter(Grain):
    async def add(self, by: int) -> int:
        return by


class CounterApi(Contract):
    async def add(self, by: int) -> int:
        raise NotImplementedError


WORDS = StreamNamespace("words", str)
GRAINS: list[type[Counter]] = [Counter]


WORDS_TOTAL = Metric(name="words_total", type="counter", help="Words.", labels=("language",))
WORD_S = Metric(name="word_seconds", type="histogram", help="Time.", unit="seconds")


def log_json(handler: logging.Handler) -> None:
    handler.setFormatter(JsonFormatter())


def silo_with_metrics() -> Silo:
    silo = Silo(grains=[Counter], parts={"metrics": Metrics()})
    silo.add_metrics(Metrics("127.0.0.1:9100", options=MetricsOptions(sample_every_calls=8)))
    return silo


def add_words(silo: Silo) -> None:
    metrics, times = silo.services.metrics, Histogram((0.1, 1.0))
    times.observe(0.5, weight=2)
    assert_type(metrics, MetricRegistry)
    metrics.add([WORDS_TOTAL], lambda: [Sample(WORDS_TOTAL, ("en",), 3)])
    metrics.add([WORD_S], lambda: [Sample(WORD_S, (), times)])
    assert_type(metrics.metrics, tuple[Metric, ...])
    assert_type(times.count, int)


def by_tenant(stream: StreamId, queues: int) -> int:
    return len(stream.key.split("/")[0]) % queues


def streams_by_tenant() -> PersistentStreams:
    mapper = FunctionMapper(queues=4, by=by_tenant, name="by_tenant", prefix="words")
    assert_type(mapper.with_queues(8, 2), FunctionMapper)
    return PersistentStreams(MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer())


def streams_in_memory() -> PersistentStreams:
    queues = MemoryQueues(MemoryOptions(capacity_events=1_000, enqueue_wait_s=0.5))
    return PersistentStreams(
        queues,
        mapper=HashRingMapper(queues=4, prefix="words"),
        balancer=DeploymentBalancer(silos=["a", "b"], rebalance_delay_s=1, weights={"a": 2}),
        options=StreamOptions(
            cache=CacheLimits(events_max=1_000, policy="buckets"),
            flow=FlowOptions(read_events_max=100),
            delivery=DeliveryOptions(retries=2, backoff=Backoff(0.1, 2, 5)),
            ownership=OwnershipOptions(poll_s=0.5),
            store="streams",
        ),
    )


def generated_streams() -> PersistentStreams:
    made = Generated(WORDS, lambda key, number: f"{key} {number}")
    assert_type(made, Generated[str])
    numbers = StreamNamespace("numbers", GeneratedEvent)
    options = GeneratorOptions(streams=["a", "b"], events_per_s=100, events_per_stream=None)
    queues = GeneratorQueues(made, numbers, "more", options=options)
    return PersistentStreams(queues, balancer=DeploymentBalancer())


# --- a silo --------------------------------------------------------------------------------------


async def one_silo(folder: Path) -> None:
    silo = Silo(
        grains=[Counter],
        address="127.0.0.1:7700",
        cluster="flights",
        membership=SqliteMembershipTable(folder),
        stores={
            "default": SqliteStateStore(folder, options=WriterOptions(batch_max=100)),
            "streams": MemoryStateStore(),
            "more": "sqlite:more",
        },
        reminders=SqliteReminderTable(folder),
        streams={"default": streams_in_memory(), "made": generated_streams()},
        name="silo-a",
        labels={"zone": "a"},
        can_own_queues=False,
        options=RuntimeOptions(call_timeout_s=5, waiting_calls_max=100),
        membership_options=MembershipOptions(probe_every_s=0.5, votes_for_death=1),
        placement_options=PlacementOptions(cpu_weight=50, local_margin=0.1),
        rebalancing=Rebalancing(every_s=30, moves_max=100),
        env=Env(seed=1),
        tls=certificates(),
    )
    async with silo as running:
        assert_type(running, Silo)
        assert_type(running.address, str)
        assert_type(running.rebalancer, Rebalancer)
        assert_type(await running.rebalancer.suspend(), None)
        assert_type(running.rebalancer.status(), RebalancingStatus)
        assert_type(running.rebalancer.status().activations, Mapping[str, int])
        assert_type(running.reminder_counts(), ReminderCounts)
        assert_type(running.reminder_counts().without_handler, int)
        assert_type(await running.grain(Counter, "a").add(1), int)
        assert_type(running.stream(WORDS, "a"), Stream[str])
        await running.wait_stopped()


async def silo_without_with() -> None:
    silo = Silo(grains=GRAINS, membership="sqlite:members")
    await silo.start()
    await silo.stop()


# --- a local cluster -----------------------------------------------------------------------------


async def local_cluster() -> None:
    async with LocalCluster(
        silos=3,
        grains=[Counter],
        streams={"default": memory_streams, "made": lambda: generated_streams()},
        stores={"default": MemoryStateStore(), "streams": MemoryStateStore()},
        reminders=MemoryReminderTable(),
    ) as cluster:
        assert_type(cluster, LocalCluster)
        assert_type(cluster.client, Client)
        assert_type(cluster.silos, list[Silo])
        assert_type(await cluster.start_silo(), Silo)
        assert_type(await cluster.grain(CounterApi, "a").add(1), int)
        assert_type(cluster.stream(WORDS, "a"), Stream[str])


# --- a client ------------------------------------------------------------------------------------


def certificates() -> Tls:
    assert_type(Tls("a.crt", "a.key", authority="ca.crt").certificate, str)
    assert_type(Tls.in_directory(Path("/etc/shop")), Tls)
    assert_type(connect("a:1", tls=Tls.in_directory("/etc/shop")), Client)
    name = CertifiedName("shop", Role.SILO, "a")
    assert_type(name.role, Role)
    transport = TcpTransport(connect_timeout_s=1, tls=Tls.in_directory("/etc/shop"))
    assert_type(transport.certified, CertifiedName | None)
    return Tls.in_directory("/etc/shop")


async def client_program() -> None:
    options = RuntimeOptions(call_timeout_s=5)
    assert_type(operator_secret(Path("data/cluster")), str)
    async with connect("127.0.0.1:7700", "127.0.0.1:7701", cluster="x", options=options) as client:
        assert_type(client, Client)
        assert_type(connect(membership="sqlite:data"), Client)
        assert_type(connect("127.0.0.1:7700", membership=MemoryMembershipTable()), Client)
        assert_type(Client([], membership="sqlite:data"), Client)
        assert_type(await client.grain(CounterApi, "a").add(1), int)
        await client.stream(WORDS, "a").publish("one")
        found = await why(client, client.stream(WORDS, "eu"))
        assert_type(found, Why)
        assert_type(found.reports, tuple[StreamReport, StreamReport])
        report: QueueReport | None = found.reports[1].agent
        holder: HolderReport | None = None if report is None else report.holder
        known = None if holder is None else holder.subscription
        assert_type(known, SubscriptionReport | None)
        assert_type(found.reports[1].letters, Sequence[LetterReport])
        assert_type(await lagging(client, "words", limit=5), Sequence[LaggingStream])
        assert_type(await cluster_stats(client), list[SiloStats])
        await resize(client, queues=16)
        await resize(client, "default", queues=16)
        await pause_queue(client, "queue-3")
        await pause_stream(client, WORDS, "a")
        await resume_stream(client, WORDS, "a")
        await resume_queue(client, "queue-3", provider="default")
        letters = dead_letters(client, "default")
        assert_type(letters, DeadLetters)
        for letter in await letters.list("s", stream=StreamId("words", "a"), after="x", limit=5):
            await letters.redrive(letter.id)
            assert_type(await letters.delete(letter.id), bool)
            assert_type(await letters.get(letter.id), DeadLetter)


async def anywhere(runtime: Runtime) -> int:
    return await runtime.grain(Counter, "a").add(1)


async def a_program_serves_until_it_is_told_to_stop(silo: Silo) -> int:
    def active(of: Silo) -> None:
        assert_type(of, Silo)

    assert_type(await serve(silo, on_active=active, asked=asyncio.Event()), int)
    return await serve(silo)


async def tell_about_a_cluster(silo: Silo, client: Client) -> tuple[MemberInfo, ...]:
    assert_type(MembershipOptions(probe_every_s=1), MembershipOptions)
    assert_type((await client.members())[0].versions, tuple[tuple[str, int], ...])
    assert_type(await client.members(), tuple[MemberInfo, ...])
    assert_type(await silo.wait_stopped(), StopReason)
    return silo.members()


async def every_host_is_a_runtime(silo: Silo, cluster: LocalCluster, client: Client) -> list[int]:
    return [await anywhere(host) for host in (silo, cluster, client)]


class Inner(Grain):
    async def ask(self) -> int:
        return await anywhere(self)


opened: Openable[Stream[str]] = WORDS
provider: SiloPart = memory_streams()
table: MembershipTable = MemoryMembershipTable()
store: StateStore = MemoryStateStore()
reminder_tables: list[ReminderTable] = [MemoryReminderTable(), SqliteReminderTable("data")]

URL = "postgresql://shop@db.example/shop?schema=shop"
shared_table: MembershipTable = PostgresMembershipTable(URL)
shared_store: StateStore = PostgresStateStore(URL, PostgresOptions(connections_max=8))
reminder_tables.append(PostgresReminderTable(URL, PostgresOptions(password="x", timeout_s=2)))


async def migrate() -> None:
    assert_type(await read_schema(URL), SchemaState)
    before, after = await migrate_schema(URL, PostgresOptions(user="owner"))
    assert_type((before.version, after.cluster), tuple[int, str])


async def read_reminders(table: ReminderTable, own: Reminders) -> list[str]:
    rows = await table.due([(0, 1023)], ReminderPosition(5, "Type/key", "name"), 100, 10)
    assert_type(rows, Sequence[ReminderRow])
    assert_type(await table.upsert(rows[0], None), str)
    return [one.name for one in await own.list()]


# --- looking at it -------------------------------------------------------------------------------


async def look(streams: PersistentStreams, members: MembershipTable) -> list[str]:
    await streams.measure()
    assert_type(streams.stats(), list[QueueStats])
    assert_type(streams.stats()[0].lag_s, float)
    assert_type(streams.dead_letters, DeadLetters)
    await streams.resize(queues=16)
    letters = await streams.dead_letters.list(limit=10)
    assert_type([one.id async for one in streams.dead_letters.all("s")], list[str])
    assert_type(letters, Sequence[DeadLetter])
    assert_type(letters[0].failure.body, bytes)
    view = await members.read()
    assert_type(view, TableView)
    dealt = best_fit(["queue-0", "queue-1"], view.with_status(Status.ACTIVE))
    assert_type(dealt, dict[str, tuple[str, ...]])
    return [letter.failure.error for letter in letters]


def lag_of(silos: Sequence[SiloStats]) -> dict[str, float]:
    return {silo.name: max(queue.lag_s for queue in silo.queues) for silo in silos}


def advice(error: MillstreamError) -> str:
    match error:
        case NotRemote() | DefinitionError():
            builtin: AttributeError | TypeError = error
            return f"mend the code: {builtin}"
        case ConfigError():
            value: ValueError = error
            return f"mend the options: {value}"
        case SiloUnavailable() | NotInCluster() | NotAllowed() | Corrupt() | StorageError():
            return "later"
        case SubscriptionFaulted():
            return "look at it"
    assert_type(error, MillstreamError)
    return "a silo is gone" if isinstance(error, ClusterError) else ""


assert_type(RuntimeOptions().call_timeout_s, float)
assert_type(RuntimeOptions().waiting_calls_max, int)
assert_type(MembershipOptions().votes_for_death, int)
assert_type(PlacementOptions().lag_max_s, float)
assert_type(Rebalancing().moves_max, int)
assert_type(StreamOptions().delivery.backoff, Backoff)
assert_type(StreamOptions().cache.bytes_max, int)
assert_type(MemoryOptions().enqueue_wait_s, float)
assert_type(GeneratorOptions().events_per_s, float | None)
assert_type(WriterOptions().lock_wait_s, float)
