"""Suite `priority`: programs on each silo and in a client use priority queues under faults.

The programs enqueue, work, cancel polls and act as operators. Beside the faults of the cluster,
commits fail or are late, the store restarts, and its clock is set forward and back. A rival takes
queues over, like a silo that was cut off. One queue has several shards, and their number changes.

The suite judges by the outbox and by the notes of the programs:

- Versions have no gap, and follow permitted transitions.
- A dequeue leases the most urgent available message of its shard.
- An exclusivity value has one lease at a time, and its unfinished messages are in one shard.
- No lease ends before its time. Each token is given once, to the worker that the event names.
- Acknowledged changes are stored. Nobody sees an older version than somebody saw before.
- Calls end within their patience.
- After the repair all messages are finished, and a waiting poll gets a new message within a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from tests.sim.suites.run.plan import KINDS, make_plan
from tests.sim.suites.run.programs import Programs

from millstream.providers.priority import (
    MemoryStore,
    PriorityQueue,
    PriorityQueues,
    QueueSettings,
    State,
    Template,
    priority_queue,
)
from millstream.providers.priority.core.changes import ChangeEvent
from millstream.providers.priority.core.commands import Complete, Dequeue
from millstream.providers.priority.core.shards import split_name
from millstream.providers.priority.store.contract import OwnedQueue
from millstream.runtime import Client, MillstreamError, RuntimeOptions, Silo
from millstream.runtime.testing import (
    HostCrashed,
    Random,
    SimCluster,
    Simulation,
    check_one_activation,
    check_views,
    make_random,
)

from .judge import (
    judge_given,
    judge_lost,
    judge_order,
    judge_seen,
    judge_values,
    lying,
    replay,
)
from .notes import Given, PriorityRun
from .programs import CALL_S, QUEUES, Worker
from .store import make_store, restart_store, step_clock

__all__ = ["Rival", "priority"]

DURATION_S = 30.0
RECOVERY_S = 60.0
SOON_S = 1.0
PAGE = 1_000
RUNTIME = RuntimeOptions(call_timeout_s=CALL_S, idle_after_s=4.0, collect_every_s=1.0)
SETTINGS = QueueSettings(lease_ms=4_000, attempts=5)
EXCLUSIVE = replace(SETTINGS, exclusivity_key="value")
TEMPLATES = [
    Template("", SETTINGS),
    Template("exclusive", EXCLUSIVE),
    Template("spread", replace(EXCLUSIVE, shards=3)),
]
VERBS = {**KINDS, "pauses": ("pause", "partition", "latency")}
NAME = "rival"


async def priority(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
    run = PriorityRun(simulation)
    simulation.host("client")
    plan = make_plan(simulation, ("client", "table", "store"), duration_s=DURATION_S, verbs=VERBS)
    fails = simulation.rng.choice((0.0, 0.0, 0.002, 0.02))
    store, clock, commits = make_store(simulation, fails)
    cluster = SimCluster(
        simulation,
        silos=plan.silos,
        grains=[],
        parts={"priority": lambda: PriorityQueues(store, templates=TEMPLATES)},
        options=RUNTIME,
    )
    await cluster.start()
    names = ("client-0", "client-1")
    programs = Programs(simulation, cluster, lambda host, name: Worker(run, host, name), names)
    programs.start()
    is_stepped = simulation.rng.random() < 0.3
    steps = asyncio.create_task(step_clock(simulation, clock, commits)) if is_stepped else None
    restarting = asyncio.create_task(restart_store(simulation, commits))
    resizing = asyncio.create_task(resize(run, cluster))
    has_rival = simulation.rng.random() < 0.4
    rival = asyncio.create_task(Rival(run, store).work()) if has_rival else None
    run.note_pauses(plan.script)
    await simulation.nemesis(plan.script, programs.boot)
    run.is_over = programs.is_over = commits.is_over = True
    await cluster.until_settled(CALL_S, RECOVERY_S)
    run.figures["clock steps"] += await steps if steps is not None else 0
    run.figures["restarts of the store"] += await restarting
    run.figures["changes of shards"] += await resizing
    if rival is not None:
        await rival
    await finish(run, cluster)
    run.figures["crashes"] += plan.crashes
    run.figures["failed commits"] += commits.failed
    await judge(run, store)
    await cluster.close()
    return run.figures


async def resize(run: PriorityRun, cluster: SimCluster) -> int:
    """Change the number of shards now and then, through a running silo; return how often."""
    rng, changes = make_random(run.simulation.seed, "shards"), 0
    await asyncio.sleep(rng.uniform(1.0, DURATION_S / 2))
    while not run.is_over:
        silo = next((silo for name in cluster.names if (silo := cluster.silo(name))), None)
        if silo is not None:
            host = run.simulation.host(silo.address.partition(":")[0])
            try:
                await run.simulation.call(host, change_shards(silo, rng.choice((1, 2, 4, 5))))
            except (MillstreamError, HostCrashed) as error:
                run.figures[f"shards: {type(error).__name__}"] += 1
            else:
                changes += 1
                await asyncio.sleep(rng.uniform(0.0, DURATION_S / 2))
        await asyncio.sleep(1.0)
    return changes


async def change_shards(silo: Silo, shards: int) -> None:
    """Set the number of shards of the queue."""
    queue = priority_queue(silo, "spread", patience_s=CALL_S)
    row = await queue.settings()
    await queue.configure(replace(row.settings, shards=shards), version=row.version)


async def finish(run: PriorityRun, cluster: SimCluster) -> None:
    """Finish the remaining messages, and check that the queues answer quickly again."""
    host = run.simulation.host("client")

    async def work() -> None:
        async with cluster.client(host) as client:
            async with asyncio.timeout(RECOVERY_S):
                for name in QUEUES:
                    await drain(priority_queue(client, name))
            await probe(run, client)

    start_s = run.now_s
    await run.simulation.call(host, work())
    run.figures["drained ms"] = int((run.now_s - start_s) * 1000)


async def drain(queue: PriorityQueue) -> None:
    """Complete messages until all are finished."""
    while True:
        for lease in await queue.dequeue(worker="drain", count=50, wait_s=1.0):
            await lease.complete()
        depth = await queue.depth()
        if not sum(depth[state] for state in (State.INVISIBLE, State.PENDING, State.RUNNING)):
            return


async def probe(run: PriorityRun, client: Client) -> None:
    """Check that a waiting poll gets a new message."""
    queue = priority_queue(client, "probe")
    polling = asyncio.create_task(queue.dequeue(worker="probe", wait_s=20.0))
    await asyncio.sleep(1.0)
    start_s = run.now_s
    await queue.enqueue(b"", id="probe", metadata={"value": "a"})
    leases = await polling
    took_s = run.now_s - start_s
    if took_s > SOON_S:
        run.on_violated(f"a poll that waited got {len(leases)} of 1 message after {took_s:.3f} s")
    for lease in leases or await queue.dequeue(worker="probe"):
        await lease.complete()


async def events_of(store: MemoryStore) -> list[ChangeEvent]:
    """Return the whole outbox."""
    await store.open()  # one more user, in case all others have closed the store
    events: list[ChangeEvent] = []
    after = 0
    while page := await store.events(0, after, PAGE):
        events += [one.event for one in page]
        after = page[-1].position
    return events


async def judge(run: PriorityRun, store: MemoryStore) -> None:
    """Run all checks. Raises Violated."""
    events = await events_of(store)
    run.figures["events"] += len(events)
    found: list[str] = []
    names = {event.queue for event in events}
    for queue in (*QUEUES, "probe"):
        shards = [
            replay(name, queue in ("exclusive", "spread"), events)
            for name in sorted(names)
            if split_name(name)[0] == queue
        ]
        found += [wrong for shard in shards for wrong in shard.wrong]
        found += judge_lost(run, queue, shards)
        run.figures["messages"] += sum(len(shard.messages) for shard in shards)
    found += judge_values("spread", events)
    run.figures["shards with messages"] += sum("spread" in name for name in names)
    leased = sum(event.step == "dequeued" for event in events)
    run.figures["leases"] += leased
    run.figures["given back"] += sum(event.reason == "no caller took it" for event in events)
    run.figures["lying"] += len(lying(run.given, events))
    run.figures["expired"] += sum(event.step == "expired" for event in events)
    run.judge(
        found,
        check_one_activation(run.simulation.history),
        check_views(run.simulation.history),
        list(judge_given(run.given, events)),
        list(judge_seen(run.seen, events)),
        list(judge_order(run.seen)),
    )


class Rival:
    """Another owner, like a silo that was cut off and does not know it. Until the run is over, it
    takes a queue from the store, works at it, and may hear that it lost the queue."""

    def __init__(self, run: PriorityRun, store: MemoryStore) -> None:
        self._run = run
        self._store = store
        self._rng: Random = make_random(run.simulation.seed, NAME)

    async def work(self) -> None:
        """Take over a queue, again and again."""
        while not self._run.is_over:
            await asyncio.sleep(self._rng.uniform(0.5, 5.0))
            try:
                owned = await self._store.acquire(self._rng.choice(QUEUES), None)
                self._run.figures["taken by a rival"] += 1
                for _ in range(self._rng.randint(1, 10)):
                    await self._one_round(owned)
            except MillstreamError as error:
                self._run.figures[f"rival: {type(error).__name__}"] += 1

    async def _one_round(self, owned: OwnedQueue) -> None:
        run, name = self._run, owned.name
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        start_s = run.now_s
        for lease in (await owned.do(Dequeue(NAME, lease_ms=2_000))).leases:
            run.saw(name, lease.id, lease.token.version, start_s, "dequeued")
            run.given.append(Given(name, lease.id, lease.token, NAME, lease.attempt))
            start_s = run.now_s
            done = await owned.do(Complete(lease.id, lease.token))
            run.saw(name, lease.id, done.version, start_s)
