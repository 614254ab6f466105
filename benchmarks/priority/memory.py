"""A priority queue in memory, and its limit: a heap of tuples.

This module owns the subjects `queues` and `full` (ten million messages), `heaps` and `full_heap`,
and `side_by_side`, which runs both in turn. The queue is only the core, without rows and events.
`stores` measures the additional cost of a store.
"""

from __future__ import annotations

import gc
import statistics
import time
from heapq import heappop, heappush
from pathlib import Path

from benchmarks.measure import memory_bytes
from benchmarks.priority.load import (
    PAYLOAD,
    PENDING,
    Costs,
    Figures,
    laps_of,
    priorities,
    scaled,
)
from millstream.providers.priority import QueueSettings
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.results import LeaseGrant

__all__ = ["full", "full_heap", "heaps", "queues", "side_by_side"]

TAKEN = 20_000
BATCH = 100
TURN, TURNS = 500, 100
FULL = {"10k": 10_000, "10M": 10_000_000}
VALUES = 1_000
FILTERED, REGIONS = 100_000, 100
POLLS = 20_000


def created(settings: QueueSettings | None = None) -> PriorityCore:
    """Return an empty queue that keeps nothing for a store."""
    given = settings or QueueSettings()
    return PriorityCore.create(0, "bench", given, keeps_rows=False, keeps_events=False)


def sized(label: str, count: int, *, with_batches: bool = True) -> Figures:
    """Measure a simple queue: enqueue, dequeue one at a time and by the hundred, complete."""
    costs, taken = Costs(label), min(TAKEN, count // 3)
    core, wanted = created(), priorities(count)
    gc.collect()
    gc.freeze()  # as a silo with large queues does; see the page of the core
    before = memory_bytes()
    with costs.each("enqueue", count):
        for number, priority in enumerate(wanted):
            core.enqueue(0, MessageFields(f"m{number}", PAYLOAD, priority))
    costs.note("message_bytes", (memory_bytes() - before) / count)
    costs.note("rss_mb", memory_bytes() / 1e6)
    gc.freeze()
    with costs.each("dequeue", taken):
        leases = [core.dequeue(1, "w").leases[0] for _ in range(taken)]
    with costs.each("complete", taken):
        for lease in leases:
            core.complete(2, lease.id, lease.token)
    if with_batches:
        batches = taken // BATCH or 1
        with costs.each("batch_dequeue", batches * BATCH):
            for _ in range(batches):
                core.dequeue(1, "w", BATCH)
    note_each(costs, core, taken // 4)
    return costs.figures


def note_each(costs: Costs, core: PriorityCore, count: int) -> None:
    """Measure single calls: enqueue, dequeue and complete."""
    urgencies, leases = iter(priorities(count)), list[LeaseGrant]()

    def enqueue() -> None:
        priority = next(urgencies)
        core.enqueue(1, MessageFields(f"more{priority}", PAYLOAD, priority))

    def complete() -> None:
        lease = leases.pop()
        core.complete(2, lease.id, lease.token)

    costs.note_laps("enqueue", laps_of(count, enqueue))
    costs.note_laps("dequeue", laps_of(count, lambda: leases.extend(core.dequeue(1, "w").leases)))
    costs.note_laps("complete", laps_of(count, complete))


async def queues(work: Path, size: float) -> Figures:
    """A thousand to a million messages; filters; a queue whose values are nearly all leased."""
    figures: Figures = {}
    for label, count in PENDING.items():
        figures |= sized(label, scaled(count, size, 1_000))
    return figures | filtered(size) | exclusive(size) | empty(size)


def filtered(size: float) -> Figures:
    """A dequeue that wants one of a hundred regions: by a shape, and by looking at all messages."""
    costs, count = Costs("filtered"), scaled(FILTERED, size, 2_000)
    for name, shapes in (("by_shape", (("region",),)), ("by_looking", ())):
        core = created(QueueSettings(shapes=shapes))
        for number, priority in enumerate(priorities(count)):
            region = {"region": f"r{number % REGIONS}"}
            core.enqueue(0, MessageFields(f"m{number}", PAYLOAD, priority, region))
        calls = scaled(2_000, size) if shapes else 20
        with costs.each(name, calls):
            for number in range(calls):
                core.dequeue(1, "w", 1, {"region": f"r{number % REGIONS}"})
    return costs.figures


def exclusive(size: float) -> Figures:
    """Polls of a queue of which 99 % of a thousand values are leased.

    Some polls find a message of a free value, and others find none.
    """
    costs, each = Costs("exclusive"), scaled(100, size, 10)
    core = created(QueueSettings("value"))
    for number, priority in enumerate(priorities(VALUES * each)):
        value = {"value": f"v{number % VALUES}"}
        core.enqueue(0, MessageFields(f"m{number}", PAYLOAD, priority, value))
    core.dequeue(1, "w", VALUES * 99 // 100)
    laps = scaled(5_000, size)
    with costs.each("held_dequeue", laps):
        for _ in range(laps):
            (lease,) = core.dequeue(1, "w").leases
            core.complete(1, lease.id, lease.token)
            core.enqueue(1, MessageFields(f"again{lease.token.epoch}", PAYLOAD, 0, lease.metadata))
    core.dequeue(1, "w", VALUES)
    with costs.each("held_poll", laps):
        for _ in range(laps):
            core.dequeue(1, "w")
    return costs.figures


def empty(size: float) -> Figures:
    """Polls of a queue without messages."""
    costs, core, polls = Costs("empty"), created(), scaled(POLLS, size)
    with costs.each("poll", polls):
        for _ in range(polls):
            core.dequeue(1, "w")
    return costs.figures


async def full(work: Path, size: float) -> Figures:
    """Ten million messages, and ten thousand for comparison."""
    figures: Figures = {}
    for label, count in FULL.items():
        figures |= sized(label, scaled(count, size, 1_000), with_batches=False)
    return figures


async def side_by_side(work: Path, size: float) -> Figures:
    """A dequeue and a heap's pop of a million, in turns of a few milliseconds.

    A core that is slow for a second is slow for both.
    """
    costs, count = Costs("beside_1M"), scaled(1_000_000, size, 1_000)
    core, heap, wanted = created(), list[tuple[int, int, str]](), priorities(count)
    for number, priority in enumerate(wanted):
        core.enqueue(0, MessageFields(f"m{number}", PAYLOAD, priority))
        heappush(heap, (priority, number, f"m{number}"))
    gc.collect()
    gc.freeze()
    turn = scaled(TURN, size, 5)
    turns = [(dequeues_s(core, turn), pops_s(heap, turn)) for _ in range(TURNS)]
    shares = statistics.quantiles((pops / dequeues for dequeues, pops in turns), n=4)
    costs.note("dequeue_us", statistics.median(one for one, _ in turns) / turn * 1e6)
    costs.note("pop_us", statistics.median(one for _, one in turns) / turn * 1e6)
    for name, share in zip(("low", "median", "high"), shares, strict=True):
        costs.note(f"of_pop_{name}", share)
    return costs.figures


def dequeues_s(core: PriorityCore, count: int) -> float:
    """Return the CPU seconds of `count` dequeues."""
    begin_s = time.process_time()
    for _ in range(count):
        core.dequeue(1, "w")
    return time.process_time() - begin_s


def pops_s(heap: list[tuple[int, int, str]], count: int) -> float:
    """Return the CPU seconds of `count` pops."""
    begin_s = time.process_time()
    for _ in range(count):
        heappop(heap)
    return time.process_time() - begin_s


# -- the limit


def heap_sized(label: str, count: int) -> Figures:
    """Measure tuples of priority, number and id, without payload, state, or lookup by id."""
    costs, taken = Costs(label), min(TAKEN, count // 3)
    heap: list[tuple[int, int, str]] = []
    wanted = priorities(count)
    with costs.each("enqueue", count):
        for number, priority in enumerate(wanted):
            heappush(heap, (priority, number, f"m{number}"))
    with costs.each("dequeue", taken):
        for _ in range(taken):
            heappop(heap)
    costs.note_laps("dequeue", laps_of(taken // 2, lambda: heappop(heap)))
    costs.note("batch_dequeue_us", costs.figures[f"{label}_dequeue_us"])
    return costs.figures


async def heaps(work: Path, size: float) -> Figures:
    """The limit: a heap."""
    figures: Figures = {}
    for label, count in PENDING.items():
        figures |= heap_sized(label, scaled(count, size, 1_000))
    return figures


async def full_heap(work: Path, size: float) -> Figures:
    """The limit with ten million messages."""
    figures: Figures = {}
    for label, count in FULL.items():
        figures |= heap_sized(label, scaled(count, size, 1_000))
    return figures
