"""Flights as work that must not run in parallel: `python examples/flights_queue/main.py`.

Each leg is a message of an exclusive priority queue. Its scheduled departure is the deadline, and
the tail number of its plane is the exclusivity value. Fifty grains lease legs, fly them and
complete them. Then the program checks that no plane was ever in two places. README.md explains it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from legs import TAIL, Leg, minutes_of, read_legs
from proof import Attempt, Transition, count_waited, judge, leases_of

from millstream.providers.priority import (
    EmbeddedStore,
    Lease,
    LeaseLost,
    PriorityQueue,
    PriorityQueues,
    QueueSettings,
    State,
    priority_queue,
)
from millstream.runtime import (
    Client,
    Grain,
    LocalCluster,
    MillstreamError,
    connect,
)

QUEUE = "legs"
WORKERS = 50
MINUTE_S = 0.003
"""The time of a minute in the air in this program, in seconds."""
LEASE_MS = 3_000
ATTEMPTS_MAX = 10
WAIT_S = 1.0
MESSAGES_MAX = 1_000
FAULTS_SHOWN = 3
T = TypeVar("T")

ATTEMPTS: list[Attempt] = []
"""The attempts of all workers. Their silos are in this process, and share this list and one clock.
"""


class Worker(Grain):
    async def fly_next(self) -> bool:
        """Fly the most urgent leg whose plane is free; False: no leg is left."""
        queue = priority_queue(self, QUEUE)
        leases = await queue.dequeue(worker=self.key, wait_s=WAIT_S)
        for lease in leases:
            await fly(lease, self.key)
        return bool(leases) or await has_work(queue)


async def fly(lease: Lease, worker: str) -> None:
    """Fly a leg and note the attempt; the block keeps the lease and completes the message."""
    loop, tail = asyncio.get_running_loop(), dict(lease.metadata)[TAIL]
    epoch, departs_ms = lease.token.epoch, lease.priority
    attempt = Attempt(lease.id, tail, departs_ms, worker, epoch, loop.time())
    ATTEMPTS.append(attempt)
    try:
        async with lease:
            try:
                await asyncio.sleep(minutes_of(lease.payload) * MINUTE_S)
            finally:
                attempt.end_s = loop.time()
        attempt.is_completed = True
    except LeaseLost:
        pass  # another worker has or had it


async def has_work(queue: PriorityQueue) -> bool:
    """Is a leg left, or does another worker fly one that it may release?"""
    depth = await queue.depth()
    return any(depth[state] for state in (State.INVISIBLE, State.PENDING, State.RUNNING))


async def again(act: Callable[[], Awaitable[T]]) -> T:
    """Retry until it works: grains of a killed silo move to another one after a moment."""
    while True:
        try:
            return await act()
        except MillstreamError:
            await asyncio.sleep(0.1)


async def work(client: Client, number: int) -> None:
    """Let one worker fly until no leg is left."""
    worker = client.grain(Worker, f"worker-{number:02}")
    while await again(worker.fly_next):
        pass


async def kill_half_way(cluster: LocalCluster, legs: int) -> None:
    """Kill the first silo, with the queue's owner, when half of the legs are completed."""
    while True:
        flown = sum(one.is_completed for one in ATTEMPTS)
        if flown >= legs / 2:
            break
        await asyncio.sleep(0.05)
    await cluster.silos[0].kill()
    print(f"killed silo-0, which owned the queue, after {flown:,} legs", flush=True)


async def fly_all(directory: Path, legs: Sequence[Leg], options: argparse.Namespace) -> float:
    """Fly all legs; returns the duration in seconds."""
    parts = {"priority": lambda: PriorityQueues(EmbeddedStore(directory, events=True))}
    async with LocalCluster(grains=[Worker], parts=parts) as cluster:
        await fill(priority_queue(cluster, QUEUE), legs, not options.simple)  # owned by silo-0
        await cluster.start_silo()
        gateways = [silo.gateway for silo in cluster.silos]
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with connect(*gateways) as client, asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(work(client, number))
            if options.kill:
                tasks.create_task(kill_half_way(cluster, len(legs)))
        return loop.time() - begun_s


async def fill(queue: PriorityQueue, legs: Sequence[Leg], is_exclusive: bool) -> None:
    """Create the queue, and enqueue every leg."""
    key = TAIL if is_exclusive else None
    settings = QueueSettings(exclusivity_key=key, lease_ms=LEASE_MS, attempts=ATTEMPTS_MAX)
    await queue.create(settings)
    for at in range(0, len(legs), MESSAGES_MAX):
        messages = [leg.message() for leg in legs[at : at + MESSAGES_MAX]]
        await queue.enqueue_many(messages, all_or_nothing=True)


async def transitions_of(directory: Path) -> list[Transition]:
    """Return the changes that the queue stored, in its order. No silo runs any more."""
    store = EmbeddedStore(directory, events=True)
    await store.open()
    try:
        return [one async for one in read_outboxes(store)]
    finally:
        await store.aclose()


async def read_outboxes(store: EmbeddedStore) -> AsyncIterator[Transition]:
    """Yield the events of the store; those of a queue are in one outbox, in order."""
    for outbox in range(store.outboxes):
        after = 0
        while page := await store.events(outbox, after, 1_000):
            after = page[-1].position
            for _, event in page:
                tail, state = dict(event.metadata)[TAIL], event.to_state
                name = "" if state is None else state.name.lower()
                yield Transition(event.id, tail, event.priority, event.worker, event.step, name)


def tell(legs: Sequence[Leg], transitions: Sequence[Transition], took_s: float) -> bool:
    """Print the results and the faults; returns whether there are none."""
    leases = leases_of(transitions)
    broken_off = sum(lease.ended != "completed" for lease in leases)
    extensions = sum(one.step == "extended" for one in transitions)
    print(f"{len(leases):,} leases in {took_s:.1f} s, {broken_off:,} of them ended early")
    print(f"{extensions:,} extensions of leases, for long flights")
    print(
        f"{count_waited(transitions):,} legs waited for their plane while later legs were leased\n"
    )
    judged = judge({leg.id for leg in legs}, ATTEMPTS, transitions)
    for what, faults in judged.items():
        print(f"{what:<56}{f'NO: {len(faults):,}' if faults else 'yes'}")
        for fault in faults[:FAULTS_SHOWN]:
            print(f"    {fault}")
    return not any(judged.values())


def parse() -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description="Flights as work that must not run in parallel.")
    parser.add_argument("--days", type=int, default=20, help="first days of 2013 (20)")
    parser.add_argument(
        "--planes",
        type=int,
        default=100,
        help="number of planes, those with the most flights (100)",
    )
    parser.add_argument("--kill", action="store_true", help="kill a silo half-way")
    parser.add_argument(
        "--simple",
        action="store_true",
        help="without exclusivity, which shows the faults that it prevents",
    )
    options = parser.parse_args()
    if options.days < 1 or options.planes < 1:
        parser.error("--days and --planes must be 1 or more")
    return options


def main() -> int:
    """Fly and judge; returns the exit code: 1 if something is wrong."""
    options = parse()
    legs, left_out = read_legs(options.days, options.planes)
    planes = len({leg.tail for leg in legs})
    print(f"{len(legs):,} legs of {planes:,} planes in {options.days} days, for {WORKERS} workers")
    print(f"{left_out:,} flights of these days have no tail number and are left out", flush=True)
    # each worker of a killed silo logs that it could not release its leg
    logging.getLogger("millstream.priority").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        took_s = asyncio.run(fly_all(Path(directory), legs, options))
        transitions = asyncio.run(transitions_of(Path(directory)))
    return 0 if tell(legs, transitions, took_s) else 1


if __name__ == "__main__":
    sys.exit(main())
