"""Suite `streams`: events from silos and a client, through a durable queue service, to grains.

Judged: nothing acknowledged is lost; tokens of a stream rise per subscription, except where an
event says that it may be known; with `commit_with` every stored event has its effect exactly once,
in order; an epoch of a queue has one owner; an event that cannot be handled becomes a dead letter;
after the repair everything arrives in time; what stands still says why, and nothing does long after
the repair. Silos may host different grains. In half of the runs
an event that cannot be handled pauses its listener first, until that subscribes again. Who
acknowledges by hand is given nothing again that it has acknowledged, and loses nothing.
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
CALM_S = 6.0  # the longest time between two changes of mind
REGRET_S = 0.6  # the longest time for which a queue is not wanted


class NotedLetters:
    """Notes what is given up; it becomes a dead letter, perhaps after a pause."""

    async def give_up(self, failure: DeliveryFailure) -> Literal["dead_letter", "pause"]:
        """A poisoned event is expected here, any other is not."""
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
    """The notes of a run with streams, whatever queues carry them."""

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
        """The queue provider of a silo on a host."""
        raise NotImplementedError

    def publisher(self, host: Host, name: str) -> Program:
        """A program that publishes, beside a silo or in a client."""
        return Publisher(self, host, name)

    def plan(self) -> Plan:
        """What goes wrong."""
        return make_plan(self.simulation, self.steady, duration_s=DURATION_S)

    def make_shared(self) -> tuple[dict[str, MemoryStateStore], MemoryMembershipTable | None]:
        """The stores and the table of the silos; None: one that does not fail."""
        return {"default": MemoryStateStore()}, None

    def verbs(self, programs: Programs) -> dict[str, Callable[..., object]]:
        """Verbs of the script that only this suite has."""
        return {}

    def boot(self, name: str, programs: Programs) -> None:
        """A host that crashed comes back."""
        programs.boot(name)

    def more_troubles(self, programs: Programs) -> list[Coroutine[Any, Any, None]]:
        """What goes wrong beside the script; each ends when the run is over."""
        return []

    async def calm_down(self, programs: Programs) -> None:
        """The run is over: what is judged from here on begins."""

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Did the orders that are stored have their effects? `found`: effects by key."""
        raise NotImplementedError

    def check_all(self, found: dict[str, list[str]]) -> list[str]:
        """Everything that is judged when the run is over."""
        return [
            *check_all(self.history, live_within_s=RECOVERY_S),
            *self.check_orders(found),
            *self.check_by_hand(found),
        ]

    def check_by_hand(self, found: dict[str, list[str]]) -> list[str]:
        """What was not acknowledged by hand came again, until it was."""
        every = [item for items in found.values() for item in items]
        missing = [item for item in every if item not in self.acknowledged]
        return [f"{item} was never acknowledged by hand" for item in missing]

    def close(self) -> None:
        """The cluster has stopped."""

    def provider(self) -> PersistentStreams:
        """The stream provider of the silo on this host."""
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
        """In half of the runs it changes its mind now and then."""
        balancer = DeploymentBalancer(rebalance_delay_s=0.5)
        if not self.is_fickle:
            return balancer
        rng = make_random(self.simulation.seed, "fickle", host.name, host.incarnation)
        return FickleBalancer(balancer, rng)

    def should_pause(self, subscription: str, item: str) -> bool:
        """Should a listener stop at this event, until it subscribes again? Once for each."""
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
        """The log service, as one host reaches it."""
        return self.logs.queues_for(host)

    def list_stored(self, stream: str) -> list[str]:
        """What the queue service has of a stream, in order."""
        return [
            msgspec.msgpack.decode(item)
            for log in self.logs.all()
            for message in log.messages
            if str(message.stream) == stream
            for item in message.items
        ]

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Every stored order had its effect once, in order; every accepted one is stored."""
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
        """Note what came late, and end the service."""
        self.figures["late requests"] += self.logs.service.late_count
        self.logs.service.close()


def streams_run() -> StreamsRun:
    """The run that is being simulated."""
    run = current_run()
    assert isinstance(run, StreamsRun)
    return run


def difference(stored: list[str], found: list[str]) -> str:
    """Where two lists begin to differ, and what is there twice."""
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
    """In half of the runs two silos host less than the others, yet read queues like them."""
    first, second = make_random(seed, "lacking").choice(
        [((), ()), ((), ()), ((Reader,), ()), ((Reader,), (Listener,))]
    )
    return {"silo-0": list(first), "silo-1": list(second)}


async def streams(simulation: Simulation) -> Counter[str]:
    """Run one seed; returns its figures. Raises Violated."""
    return await play(LogRun(simulation))


async def play(run: StreamsRun) -> Counter[str]:
    """Publish, deliver and trouble, then judge; returns the figures. Raises Violated."""
    with StandingStill(run, RECOVERY_S / 3) as standing_still:
        return await play_watched(run, standing_still)


async def play_watched(run: StreamsRun, standing_still: StandingStill) -> Counter[str]:
    """The same, while what stands still is judged."""
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
    """The silos of a run."""
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
    """Everything that goes wrong, until nothing does any more."""
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
    """Subscribe the listeners, and note who is owed what."""
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
    """Now and then the listeners subscribe again; one that was paused goes on."""
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
                call.cancel()  # one that takes longer: nobody would take its error
                run.figures["not resumed"] += (
                    call.cancelled() or not call.done() or (call.exception() is not None)
                )


async def drain(run: StreamsRun, cluster: SimCluster) -> dict[str, list[str]]:
    """Wait until every stored event was handled, at most RECOVERY_S; returns the orders."""
    loop = run.simulation.loop
    await cluster.until_settled(VOTES_S, RECOVERY_S)
    deadline = loop.time() + RECOVERY_S
    found = await read_orders(run, cluster)
    while run.check_orders(found) and loop.time() < deadline:
        await asyncio.sleep(1.0)
        found = await read_orders(run, cluster)
    run.figures["drained after ms"] = round(1000 * (loop.time() - deadline + RECOVERY_S))
    await asyncio.sleep(RECOVERY_S / 2)  # listeners too
    return await read_orders(run, cluster)


async def read_orders(run: StreamsRun, cluster: SimCluster) -> dict[str, list[str]]:
    """What every reader has stored, asked on one silo."""
    silo = cluster.silo(cluster.names[0])
    assert silo is not None

    async def read() -> dict[str, list[str]]:
        return {key: await silo.grain(Reader, key).items() for key in KEYS}

    return await run.simulation.call(run.simulation.host(cluster.names[0]), read())


class FickleBalancer:
    """Takes a wish back, and has it again in the middle of a drain; in the end it wants what
    `inner` wants."""

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
        """Start the inner one, and doubt."""

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
        """End both."""
        if self._task is not None:
            self._task.cancel()
        await self._inner.aclose()
