"""Suite `streams`: events from silos and a client, through a durable queue service, to grains.

Silos may host different grains. In half of the runs an event that cannot be handled first pauses
its listener, until the listener subscribes again. The suite judges these promises:

- No acknowledged event is lost.
- Tokens of a stream rise for each subscription, except for events marked as redelivered.
- With `commit_with` each stored event has its effect exactly once, in order.
- An epoch of a queue has one owner.
- An event that cannot be handled becomes a dead letter.
- After the repair all events arrive in time.
- A standstill names its reason, and there is none long after the repair.
- A grain that acknowledges by hand misses no event, and gets no event again after acknowledging it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from tests.sim.suites.run.plan import Plan, make_plan
from tests.sim.suites.run.programs import Program, Programs
from tests.sim.suites.run.record import StandingStill, current_run
from tests.sim.suites.run.stops import Stops

from millstream.balancers import DeploymentBalancer
from millstream.runtime import (
    Grain,
    MemoryMembershipTable,
    MemoryStateStore,
    RuntimeOptions,
)
from millstream.runtime.testing import (
    DeadLettered,
    Host,
    Random,
    SimCluster,
    Simulation,
    Subscribed,
    check_all,
    current_host,
    make_random,
)
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryFailure,
    DeliveryOptions,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueAdapterFactory,
    QueueBalancer,
    QueueId,
    SiloSet,
    StreamOptions,
)

from .handlers import Careful, Handling, Listener, Reader
from .log_queues import LogService
from .traffic import KEYS, Publisher

__all__ = ["FickleBalancer", "StreamsRun", "difference", "play", "streams"]

QUEUES = 4
DURATION_S = 40.0
RECOVERY_S = 60.0
VOTES_S = 5.0
SMALL_CACHE = CacheLimits(events_max=40, stream_events_max=6)
RUNTIME = RuntimeOptions(call_timeout_s=5.0, idle_after_s=4.0, collect_every_s=1.0)
LISTENERS = ("ada", "bob")
OPTIONS = StreamOptions(
    delivery=DeliveryOptions(
        retries=2,
        backoff=Backoff(0.05, 2, 0.5),
        handler_timeout_s=25.0,
        max_unacked=20,
        ack_timeout_s=8.0,
    ),
    ownership=OwnershipOptions(poll_s=0.5),
    start_limit_s=4.0,
    read_limit_s=2.0,
    call_limit_s=2.0,
    standstill_s=8.0,
)
CALM_S = 6.0  # the longest time between two changes of the wish
REGRET_S = 0.6  # the longest time for which a queue is not wanted


class NotedLetters:
    """Notes events that are given up; each becomes a dead letter, perhaps after a pause."""

    async def give_up(self, failure: DeliveryFailure) -> Literal["dead_letter", "pause"]:
        """Decide on a failure: a poisoned event is expected here, any other is a violation."""
        run, item = streams_run(), msgspec.msgpack.decode(failure.body)
        who = failure.subscription.split("/")
        subscription = who[5] if who[0] == "explicit" else failure.grain_type
        if run.should_pause(subscription, item):
            return "pause"
        run.history.record(DeadLettered(str(failure.stream), subscription, item))
        if not item.startswith("poison"):
            run.on_violated(f"{item} was given up for {subscription}: {failure.error[:200]}")
        return "dead_letter"


class StreamsRun(Handling):
    """The notes of a run with streams, over any queues."""

    steady: tuple[str, ...] = ("client", "table", "store")
    stop_every_s = (5.0, 30.0)
    skew_s = 0.5

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.is_fickle = make_random(simulation.seed, "is fickle").random() < 0.5
        rng = make_random(simulation.seed, "cache")
        self.options = replace(OPTIONS, cache=rng.choice((CacheLimits(), SMALL_CACHE, SMALL_CACHE)))
        self._is_pausing = make_random(simulation.seed, "pauses").random() < 0.5
        self._paused: set[tuple[str, str]] = set()

    def queues_for(self, host: Host) -> QueueAdapterFactory:
        """Return the queue provider of a silo on a host."""
        raise NotImplementedError

    def publisher(self, host: Host, name: str) -> Program:
        """Return a program that publishes, beside a silo or in a client."""
        return Publisher(self, host, name)

    def plan(self) -> Plan:
        """Return the plan of faults."""
        return make_plan(self.simulation, self.steady, duration_s=DURATION_S)

    def make_shared(self) -> tuple[dict[str, MemoryStateStore], MemoryMembershipTable | None]:
        """Return the stores and the table of the silos; None: a table that does not fail."""
        return {"default": MemoryStateStore()}, None

    def verbs(self, programs: Programs) -> dict[str, Callable[..., object]]:
        """Return the verbs of the script that only this suite has."""
        return {}

    def boot(self, name: str, programs: Programs) -> None:
        """Start a crashed host again."""
        programs.boot(name)

    def more_troubles(self, programs: Programs) -> list[Coroutine[Any, Any, None]]:
        """Return the faults beside the script; each ends when the run is over."""
        return []

    async def calm_down(self, programs: Programs) -> None:
        """Prepare the judgement at the end of the run."""

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Check that the stored orders had their effects. `found`: effects by key."""
        raise NotImplementedError

    def check_all(self, found: dict[str, list[str]]) -> list[str]:
        """Run all checks at the end of the run."""
        return [
            *check_all(self.history, live_within_s=RECOVERY_S),
            *self.check_orders(found),
            *self.check_by_hand(found),
        ]

    def check_by_hand(self, found: dict[str, list[str]]) -> list[str]:
        """Check that the events without acknowledgement by hand came again until they had one."""
        every = [item for items in found.values() for item in items]
        missing = [item for item in every if item not in self.acknowledged]
        return [f"{item} was never acknowledged by hand" for item in missing]

    def close(self) -> None:
        """Clean up after the cluster has stopped."""

    def provider(self) -> PersistentStreams:
        """Return the stream provider of the silo on this host."""
        host = current_host()
        assert host is not None, "a silo is made on its host"
        return PersistentStreams(
            self.queues_for(host),
            mapper=HashRingMapper(queues=QUEUES),
            balancer=self.balancer(host),
            options=self.options,
            on_give_up=NotedLetters(),
        )

    def balancer(self, host: Host) -> QueueBalancer:
        """Return a balancer; in half of the runs it changes its wish now and then."""
        balancer = DeploymentBalancer(rebalance_delay_s=0.5)
        if not self.is_fickle:
            return balancer
        rng = make_random(self.simulation.seed, "fickle", host.name, host.incarnation)
        return FickleBalancer(balancer, rng)

    def should_pause(self, subscription: str, item: str) -> bool:
        """Should a listener pause at this event until it subscribes again? Once for each event."""
        if self.is_over or not self._is_pausing or (subscription, item) in self._paused:
            return False
        self._paused.add((subscription, item))
        self.figures["paused"] += 1
        return True


class LogRun(StreamsRun):
    """The notes of this suite."""

    steady = (*StreamsRun.steady, "log")

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        fault_share = make_random(simulation.seed, "fault share").choice((0.0, 0.002, 0.02))
        self.logs = LogService(
            simulation,
            is_fenced=simulation.rng.random() < 0.5,
            can_rewind=make_random(simulation.seed, "can rewind").random() < 0.7,
            fault_share=fault_share,
        )

    def queues_for(self, host: Host) -> QueueAdapterFactory:
        """Return the log service as one host reaches it."""
        return self.logs.queues_for(host)

    def list_stored(self, stream: str) -> list[str]:
        """Return the items of a stream in the queue service, in order."""
        return [
            msgspec.msgpack.decode(item)
            for log in self.logs.all()
            for message in log.messages
            if str(message.stream) == stream
            for item in message.items
        ]

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Check that each stored order had its effect once, in order, and each accepted order is
        stored."""
        violations = []
        for key in KEYS:
            stored = self.list_stored(f"orders/{key}")
            if found[key] != stored:
                violations.append(f"orders/{key}: {difference(stored, found[key])}")
            lost = set(self.accepted[f"orders/{key}"]) - set(stored)
            if lost:
                violations.append(f"orders/{key}: accepted and not stored: {sorted(lost)[:5]}")
        return violations

    def close(self) -> None:
        """Note late requests, and close the service."""
        self.figures["late requests"] += self.logs.service.late_count
        self.logs.service.close()


def streams_run() -> StreamsRun:
    """Return the run that is being simulated."""
    run = current_run()
    assert isinstance(run, StreamsRun)
    return run


def difference(stored: list[str], found: list[str]) -> str:
    """Describe the first difference of two lists, and the duplicates."""
    at = next(
        (i for i, pair in enumerate(zip(stored, found, strict=False)) if pair[0] != pair[1]),
        min(len(stored), len(found)),
    )
    twice = [item for item, count in Counter(found).items() if count > 1]
    return (
        f"{len(stored)} stored, {len(found)} took effect; from {at} on {stored[at : at + 3]} "
        f"became {found[at : at + 3]}; twice: {twice[:5]}"
    )


def lacking_in(seed: int) -> dict[str, list[type[Grain]]]:
    """In half of the runs, let two silos host fewer grain types; they read queues nevertheless."""
    first, second = make_random(seed, "lacking").choice(
        [((), ()), ((), ()), ((Reader,), ()), ((Reader,), (Listener,))]
    )
    return {"silo-0": list(first), "silo-1": list(second)}


async def streams(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
    return await play(LogRun(simulation))


async def play(run: StreamsRun) -> Counter[str]:
    """Publish, deliver and cause faults, then judge; return the figures. Raises Violated."""
    with StandingStill(run, RECOVERY_S / 3) as standing_still:
        return await play_watched(run, standing_still)


async def play_watched(run: StreamsRun, standing_still: StandingStill) -> Counter[str]:
    """Do the same, while standstills are judged."""
    simulation = run.simulation
    simulation.host("client")
    plan = run.plan()
    cluster = run.cluster = cluster_of(run, plan)
    await cluster.start()
    await listen(run, cluster)
    programs = Programs(simulation, cluster, run.publisher, ("client",))
    programs.start()
    resuming = simulation.loop.create_task(listen_again(run, cluster))
    await trouble(run, plan, programs)
    standing_still.calm()
    found = await drain(run, cluster)
    resuming.cancel()
    run.figures["crashes"] += plan.crashes
    run.judge(run.check_all(found))
    run.figures["late requests"] += cluster.late_requests
    await cluster.close()
    run.close()
    return run.figures


def cluster_of(run: StreamsRun, plan: Plan) -> SimCluster:
    """Make the silos of a run."""
    stores, table = run.make_shared()
    return SimCluster(
        run.simulation,
        silos=plan.silos,
        grains=[Reader, Listener, Careful],
        streams={"default": run.provider},
        stores=stores,
        membership=table,
        options=RUNTIME,
        skew_s=run.skew_s,
        lacking=lacking_in(run.simulation.seed),
    )


async def trouble(run: StreamsRun, plan: Plan, programs: Programs) -> None:
    """Cause all faults, until the last one ends."""
    assert run.cluster is not None
    loop, cluster = run.simulation.loop, run.cluster
    stops = Stops(run, cluster, run.stop_every_s)
    others = [loop.create_task(one) for one in (stops.play(), *run.more_troubles(programs))]
    verbs = run.verbs(programs)
    await run.simulation.nemesis(plan.script, lambda name: run.boot(name, programs), verbs)
    run.is_over = programs.is_over = stops.is_over = True
    await asyncio.gather(*others)
    await run.calm_down(programs)


async def listen(run: StreamsRun, cluster: SimCluster) -> None:
    """Subscribe the listeners, and note the subscriptions in the history."""
    silo = cluster.silo(cluster.names[0])
    assert silo is not None

    async def subscribe_all() -> None:
        for name in LISTENERS:
            for key in KEYS:
                await silo.grain(Listener, name).listen(key)
                run.history.record(Subscribed(f"talk/{key}", name))

    for key in KEYS:
        for name in ("reader", "careful"):
            run.history.record(Subscribed(f"orders/{key}", name))
    await run.simulation.call(run.simulation.host(cluster.names[0]), subscribe_all())


async def listen_again(run: StreamsRun, cluster: SimCluster) -> None:
    """Let the listeners subscribe again now and then, which resumes a paused one."""
    loop, rng = run.simulation.loop, make_random(run.simulation.seed, "listening again")

    async def subscribe(name: str, key: str) -> None:
        silo = cluster.silo(cluster.names[0])
        if silo is not None:
            await silo.grain(Listener, name).listen(key)

    while True:
        await asyncio.sleep(rng.uniform(1.0, 8.0))
        host = run.simulation.host(cluster.names[0])
        for name in LISTENERS:
            for key in KEYS:
                call = loop.create_task(run.simulation.call(host, subscribe(name, key)))
                await asyncio.wait([call], timeout=RUNTIME.call_timeout_s)
                call.cancel()  # a longer call is cancelled, because nobody would see its error
                run.figures["not resumed"] += (
                    call.cancelled() or not call.done() or (call.exception() is not None)
                )


async def drain(run: StreamsRun, cluster: SimCluster) -> dict[str, list[str]]:
    """Wait until each stored event was handled, at most RECOVERY_S; return the orders."""
    loop = run.simulation.loop
    await cluster.until_settled(VOTES_S, RECOVERY_S)
    deadline = loop.time() + RECOVERY_S
    found = await read_orders(run, cluster)
    while run.check_orders(found) and loop.time() < deadline:
        await asyncio.sleep(1.0)
        found = await read_orders(run, cluster)
    run.figures["drained after ms"] = round(1000 * (loop.time() - deadline + RECOVERY_S))
    await asyncio.sleep(RECOVERY_S / 2)  # for the listeners
    return await read_orders(run, cluster)


async def read_orders(run: StreamsRun, cluster: SimCluster) -> dict[str, list[str]]:
    """Return the stored items of each reader, asked through one silo."""
    silo = cluster.silo(cluster.names[0])
    assert silo is not None

    async def read() -> dict[str, list[str]]:
        return {key: await silo.grain(Reader, key).items() for key in KEYS}

    return await run.simulation.call(run.simulation.host(cluster.names[0]), read())


class FickleBalancer:
    """A balancer that withdraws a wish and renews it during a drain. In the end it wants the same
    queues as `inner`."""

    def __init__(self, inner: QueueBalancer, rng: Random) -> None:
        self._inner = inner
        self._rng = rng
        self._wish: frozenset[QueueId] = frozenset()
        self._task: asyncio.Task[None] | None = None

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
    ) -> None:
        """Start the inner balancer, and the changes of the wish."""

        def wish(queues: Iterable[QueueId]) -> None:
            self._wish = frozenset(queues)
            wanted(self._wish)

        self._task = silos.tasks.start(self._doubt(wanted))
        await self._inner.start(queues, silos, wish)

    async def _doubt(self, wanted: Callable[[Iterable[QueueId]], None]) -> None:
        run = current_run()
        while not run.is_over:
            await asyncio.sleep(self._rng.uniform(0.0, CALM_S))
            if not self._wish or run.is_over:
                continue
            run.figures["changes of mind"] += 1
            wanted(self._wish - {self._rng.choice(sorted(self._wish))})
            await asyncio.sleep(self._rng.uniform(0.0, REGRET_S))
            wanted(self._wish)

    async def aclose(self) -> None:
        """Stop both."""
        if self._task is not None:
            self._task.cancel()
        await self._inner.aclose()
