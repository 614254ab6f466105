"""The effect of joining and leaving silos on streams: interruptions and repeated events.

One silo hosts all grains and stays. Others join and leave, and only read queues, so that the
benchmark measures the hand-over of queues and not the moves of grains. All silos are in one process
and communicate over sockets. Streams are published at a steady rate. An event's delay is the time
from `publish` until its handler begins. A stream's pause in a step is its longest delay in that
step, minus the longest delay of the median stream while nothing moved. Figures:

- `moves`: queues that changed owner. `streams_moved`, `streams_stayed`: over all steps, streams
  whose queue did, or did not, change owner in that step.
- `interrupted`: moved streams with a pause above 20 ms.
- `moved_pause_p50_ms`, `_max_ms`; `stayed_pause_...`; `quiet_pause_...` before the first step.
- `loop_late_max_ms`: the longest delay of the loop itself while silos joined and left. The loop
  starts and stops them, so every delay includes this.
- `twice`: events that were handled more than once. `events`: all. `lost`: not handled.

`brief_` has handlers of 2 ms and a hand-over time of 3 s. `long_` has handlers of 400 ms and a
hand-over time of 100 ms, so that owners do not wait for running handlers.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, MemoryMembershipTable, MemoryStateStore, Silo, grain
from millstream.streams import (
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.testing import owners, wait_owned

__all__ = ["brief_handlers", "long_handlers"]

QUEUES = 16
STREAMS = 64
STEP_S = 2.5
QUIET_S = 2.5
REBALANCE_S = 0.3
NOTICED_S = 0.02
TICK_S = 0.002
PULSES = StreamNamespace("pulses", int, subscriptions="implicit")
STEPS = ("+a", "+b+c", "-a", "+d", "-b-c", "-d")


@dataclass
class Log:
    """The observations of one run."""

    handling_s: float
    sent: dict[tuple[str, int], float] = field(default_factory=dict)
    handled: Counter[tuple[str, int]] = field(default_factory=Counter)
    delays: list[tuple[float, str, float]] = field(default_factory=list)  # sent at, stream, delay
    late: list[tuple[float, float]] = field(default_factory=list)  # when, how late the loop was

    async def watch_loop(self) -> None:
        """Record how late timers fire."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late.append((due_s, loop.time() - due_s))

    def worst(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return the longest delay of each stream among the events sent in a period."""
        found: dict[str, float] = defaultdict(float)
        for sent_s, key, delay_s in self.delays:
            if start_s <= sent_s < end_s:
                found[key] = max(found[key], delay_s)
        return found


LOGS: list[Log] = []


@grain(name="Pulse")
class Pulse(Grain):
    """Handles each event slowly."""

    @subscribe(PULSES)
    async def on_pulse(self, event: Event[int]) -> None:
        log, at = LOGS[-1], (self.key, event.item)
        now_s = asyncio.get_running_loop().time()
        if not log.handled[at]:
            log.delays.append((log.sent[at], self.key, now_s - log.sent[at]))
        log.handled[at] += 1
        await asyncio.sleep(log.handling_s)


class Cluster:
    """Silos that share a table and a store."""

    def __init__(self, max_handoff_s: float) -> None:
        self._table, self._store = MemoryMembershipTable(), MemoryStateStore()
        self._ownership = OwnershipOptions(max_handoff_s=max_handoff_s)
        self._exits: dict[str, AsyncExitStack] = {}
        self.mapper = HashRingMapper(queues=QUEUES)
        self._silos: dict[str, Silo] = {}

    async def join(self, name: str) -> None:
        streams = PersistentStreams(
            MemoryQueues(),
            mapper=self.mapper,
            balancer=DeploymentBalancer(rebalance_delay_s=REBALANCE_S),
            options=StreamOptions(ownership=self._ownership),
        )
        silo = Silo(
            grains=[Pulse] if name == "base" else [],
            name=name,
            membership=self._table,
            stores={"default": self._store},
            streams={"default": streams},
        )
        exits = self._exits[name] = AsyncExitStack()
        self._silos[name] = await exits.enter_async_context(silo)

    async def leave(self, name: str) -> None:
        del self._silos[name]
        await self._exits.pop(name).aclose()

    async def change(self, step: str) -> None:
        """Let silos join and leave at the same time: `+a+b-c`."""
        moves = step.replace("+", " +").replace("-", " -").split()
        await asyncio.gather(
            *(self.join(one[1:]) if one[0] == "+" else self.leave(one[1:]) for one in moves)
        )

    def silos(self) -> list[Silo]:
        """Return the running silos."""
        return list(self._silos.values())

    @property
    def base(self) -> Silo:
        """The silo that stays."""
        return self._silos["base"]


async def _publish(cluster: Cluster, log: Log, every_s: float) -> None:
    """Publish an event to each stream every `every_s`, evenly spread over that time."""
    loop, base = asyncio.get_running_loop(), cluster.base
    handles = [base.stream(PULSES, f"s{number}") for number in range(STREAMS)]
    begun_s, count = loop.time(), 0
    pending: set[asyncio.Task[object]] = set()
    try:
        while True:
            number, nth = count % STREAMS, count // STREAMS
            await asyncio.sleep(max(0.0, begun_s + count * every_s / STREAMS - loop.time()))
            log.sent[f"s{number}", nth] = loop.time()
            task = loop.create_task(handles[number].publish(nth))
            pending.add(task)
            task.add_done_callback(pending.discard)
            count += 1
    finally:
        await asyncio.gather(*pending)


async def _play(handling_s: float, max_handoff_s: float, every_s: float) -> dict[str, float]:
    log, cluster, loop = Log(handling_s), Cluster(max_handoff_s), asyncio.get_running_loop()
    LOGS.append(log)
    await cluster.join("base")
    await wait_owned(cluster)
    publishing = loop.create_task(_publish(cluster, log, every_s))
    watching = loop.create_task(log.watch_loop())
    await asyncio.sleep(1.0)
    windows: list[tuple[float, float, set[str]]] = []
    for step in ("", *STEPS):
        before, start_s = owners(cluster), loop.time()
        await cluster.change(step)
        await asyncio.sleep(STEP_S if step else QUIET_S)
        after = await wait_owned(cluster)
        windows.append((start_s, loop.time(), {q for q in after if before.get(q) != after[q]}))
    publishing.cancel()
    watching.cancel()
    await asyncio.gather(publishing, watching, return_exceptions=True)
    async with asyncio.timeout(30):
        while len(log.handled) < len(log.sent):  # noqa: ASYNC110  no event reports it
            await asyncio.sleep(0.05)
    await cluster.leave("base")
    return _figures(log, cluster.mapper, windows)


def _figures(
    log: Log, mapper: HashRingMapper, windows: list[tuple[float, float, set[str]]]
) -> dict[str, float]:
    queue_of = {f"s{n}": mapper.queue_for(StreamId("pulses", f"s{n}")) for n in range(STREAMS)}
    quiet_s = log.worst(*windows[0][:2])
    usual_s = statistics.median(quiet_s.values())
    moved: list[float] = []
    stayed: list[float] = []
    for start_s, end_s, queues in windows[1:]:
        for key, worst_s in log.worst(start_s, end_s).items():
            (moved if queue_of[key] in queues else stayed).append(max(0.0, worst_s - usual_s))
    return {
        "events": len(log.sent),
        "lost": len(log.sent) - len(log.handled),
        "twice": sum(count > 1 for count in log.handled.values()),
        "moves": sum(len(queues) for _, _, queues in windows[1:]),
        "streams_moved": len(moved),
        "interrupted": sum(pause_s > NOTICED_S for pause_s in moved),
        "streams_stayed": len(stayed),
        "loop_late_max_ms": 1e3 * max(late for at, late in log.late if at > windows[1][0]),
        **_pauses("moved", moved),
        **_pauses("stayed", stayed),
        **_pauses("quiet", [max(0.0, worst_s - usual_s) for worst_s in quiet_s.values()]),
    }


def _pauses(what: str, pauses_s: list[float]) -> dict[str, float]:
    return {
        f"{what}_pause_p50_ms": 1e3 * statistics.median(pauses_s),
        f"{what}_pause_max_ms": 1e3 * max(pauses_s),
    }


async def brief_handlers(work: Path) -> dict[str, float]:
    """Handlers are much faster than the hand-over time."""
    figures = await _play(handling_s=0.002, max_handoff_s=3.0, every_s=0.1)
    return {f"brief_{key}": value for key, value in figures.items()}


async def long_handlers(work: Path) -> dict[str, float]:
    """Handlers are slower than the hand-over time."""
    figures = await _play(handling_s=0.4, max_handoff_s=0.1, every_s=1.0)
    return {f"long_{key}": value for key, value in figures.items()}
