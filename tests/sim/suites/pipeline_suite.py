"""Suite `pipeline`: three stages of grains; each publishes to the next together with its state.

Silos crash, stop and lose each other, handlers fail, and stores and queues do not answer. The suite
judges these promises:

- Each stored input has exactly one effect in each stage, in the order of its stream.
- A plain method may write the same state between deliveries, and publish with it. Its events are
  neither lost nor doubled.
- Two subscriptions on one state keep the positions of each other.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any

import msgspec
from tests.sim.suites.run.plan import make_plan
from tests.sim.suites.run.programs import Programs, again_and_again
from tests.sim.suites.run.record import Run, current_run
from tests.sim.suites.run.stops import Stops
from tests.sim.suites.streams.log_queues import LogService
from tests.sim.suites.streams.suite import (
    DURATION_S,
    OPTIONS,
    QUEUES,
    RECOVERY_S,
    RUNTIME,
    VOTES_S,
)

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, MillstreamError, grain, state
from millstream.runtime.testing import (
    Host,
    Random,
    SimCluster,
    Simulation,
    current_host,
    make_random,
)
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    subscribe,
)

__all__ = ["pipeline"]

KEYS = tuple(f"key-{number}" for number in range(4))
FAIL_SHARE = 0.03
RAW = StreamNamespace("raw", str, subscriptions="implicit")
EXTRA = StreamNamespace("extra", str, subscriptions="implicit")
PARSED = StreamNamespace("parsed", str, subscriptions="implicit")
ROUTED = StreamNamespace("routed", str, subscriptions="implicit")


@dataclass
class Seen:
    """The state of a stage."""

    items: list[str] = field(default_factory=list)
    touched: int = 0


@dataclass
class Other:
    """A state that no subscription commits."""

    tries: int = 0


def key_of(item: str) -> str:
    """Return the key of the next grain of an item, which depends on the item only."""
    return KEYS[zlib.crc32(item.encode()) % len(KEYS)]


async def work(event: Event[str]) -> None:
    """Take a little time; now and then fail, without a trace in state or outbox."""
    run = pipeline_run()
    await asyncio.sleep(run.simulation.rng.uniform(0.0, 0.01))
    if event.attempt < 3 and not run.is_over and run.simulation.rng.random() < FAIL_SHARE:
        run.figures["failures"] += 1
        raise ValueError(event.item)


@grain(name="parser")
class Parser(Grain):
    """The first stage: two subscriptions on one state, and plain methods that write it."""

    seen = state(Seen)
    other = state(Other)

    @subscribe(RAW, commit_with=seen)
    async def on_raw(self, event: Event[str]) -> None:
        """Take an event, and publish it to the next stage."""
        await self._take(event)

    @subscribe(EXTRA, commit_with=seen)
    async def on_extra(self, event: Event[str]) -> None:
        """Do the same for the other stream."""
        await self._take(event)

    async def _take(self, event: Event[str]) -> None:
        self.other.value.tries += 1
        self.seen.value.items.append(event.item)
        self.stream(PARSED, key_of(event.item)).publish_with(self.seen, event.item)
        await work(event)

    async def touch(self) -> None:
        """Change the state between deliveries."""
        self.seen.value.touched += 1
        await self.seen.write()

    async def say(self, item: str) -> None:
        """Publish together with a write outside of a delivery."""
        self.stream(PARSED, key_of(item)).publish_with(self.seen, item)
        await self.seen.write()

    async def found(self) -> Seen:
        """Return the stored state."""
        return self.seen.value


@grain(name="router")
class Router(Grain):
    """The second stage."""

    seen = state(Seen)

    @subscribe(PARSED, commit_with=seen, batch=True)
    async def on_parsed(self, events: list[Event[str]]) -> None:
        """Take a batch, and publish each event to the next stage."""
        for event in events:
            self.seen.value.items.append(event.item)
            self.stream(ROUTED, key_of(event.item[::-1])).publish_with(self.seen, event.item)
            await work(event)

    async def found(self) -> Seen:
        """Return the stored state."""
        return self.seen.value


@grain(name="counter")
class Total(Grain):
    """The third stage."""

    seen = state(Seen)

    @subscribe(ROUTED, commit_with=seen)
    async def on_routed(self, event: Event[str]) -> None:
        """Take an event."""
        self.seen.value.items.append(event.item)
        await work(event)

    async def found(self) -> Seen:
        """Return the stored state."""
        return self.seen.value


STAGES: dict[str, type[Parser] | type[Router] | type[Total]] = {
    "parser": Parser,
    "router": Router,
    "counter": Total,
}
NAMES = tuple(STAGES)
Found = dict[tuple[str, str], Seen]  # by stage and key


class Feeder:
    """A program that publishes inputs and calls the first stage until the run is over."""

    def __init__(self, run: PipelineRun, host: Host, name: str) -> None:
        self._run = run
        self._rng: Random = make_random(run.simulation.seed, "feeder", name, host.incarnation)
        self._name = f"{name}#{host.incarnation}"
        self._sent = 0

    async def work(self, handle: Callable[[], Any]) -> None:
        """Feed until the run is over; `handle` gives a silo or client, or None."""
        await again_and_again(self._run, self._rng, 0.3, handle, self._do)

    async def _do(self, runtime: Any) -> None:
        key = self._rng.choice(KEYS)
        what = self._rng.choices(("raw", "extra", "touch", "say"), (6, 3, 1, 1))[0]
        try:
            if what == "touch":
                await self._touch(runtime, key)
            elif what == "say":
                await self._say(runtime, key)
            else:
                await self._publish(runtime, RAW if what == "raw" else EXTRA, key)
        except MillstreamError as error:
            self._run.figures[type(error).__name__] += 1

    async def _publish(self, runtime: Any, namespace: StreamNamespace[str], key: str) -> None:
        items = [self._next_item() for _ in range(self._rng.choice((1, 1, 3)))]
        self._run.figures["published"] += len(items)
        await runtime.stream(namespace, key).publish_many(items)
        self._run.accepted.update(items)

    async def _touch(self, runtime: Any, key: str) -> None:
        self._run.touches[key] += 1
        await runtime.grain(Parser, key).touch()
        self._run.touched[key] += 1

    async def _say(self, runtime: Any, key: str) -> None:
        item = self._next_item()
        self._run.said.add(item)
        await runtime.grain(Parser, key).say(item)
        self._run.accepted.add(item)

    def _next_item(self) -> str:
        self._sent += 1
        return f"{self._name}:{self._sent}"


class PipelineRun(Run):
    """The notes of this suite."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.accepted: set[str] = set()
        self.said: set[str] = set()  # items of plain methods that may be published
        self.touches: Counter[str] = Counter()  # attempted calls
        self.touched: Counter[str] = Counter()  # answered calls
        self.logs = LogService(
            simulation,
            is_fenced=simulation.rng.random() < 0.5,
            can_rewind=make_random(simulation.seed, "can rewind").random() < 0.5,
            fault_share=make_random(simulation.seed, "fault share").choice((0.0, 0.005)),
            drops_repeats=True,
        )

    def provider(self) -> PersistentStreams:
        """Return the stream provider of the silo on this host."""
        host = current_host()
        assert host is not None, "a silo is made on its host"
        return PersistentStreams(
            self.logs.queues_for(host),
            mapper=HashRingMapper(queues=QUEUES),
            balancer=DeploymentBalancer(rebalance_delay_s=0.5),
            options=OPTIONS,
        )

    def list_stored(self, namespace: str, key: str) -> list[str]:
        """Return the items of a stream in the queue service, in order."""
        return [
            msgspec.msgpack.decode(item)
            for log in self.logs.all()
            for message in log.messages
            if tuple(message.stream) == (namespace, key)
            for item in message.items
        ]

    def inputs(self) -> dict[str, list[str]]:
        """Return the stored inputs of the first stage, by stream."""
        return {str(one): self.list_stored(*one) for one in product(("raw", "extra"), KEYS)}

    def missing(self, ends: Found) -> set[str]:
        """Return inputs that have not reached the last stage."""
        stored = {item for items in self.inputs().values() for item in items}
        return stored - {item for seen in ends.values() for item in seen.items}

    def check(self, found: Found) -> Iterator[str]:
        """Yield the violations."""
        inputs = self.inputs()
        stored = Counter(item for items in inputs.values() for item in items)
        for stage in NAMES:
            kept = Counter(
                i for (name, _), seen in found.items() if name == stage for i in seen.items
            )
            yield from self._check_stage(stage, kept, stored)
        yield from self._check_order(found, inputs)
        yield from self._check_touches(found)

    def _check_stage(self, stage: str, kept: Counter[str], stored: Counter[str]) -> Iterator[str]:
        """Check that each stored input has one effect in each stage; items of plain methods have
        theirs from the second stage on."""
        for item, count in kept.items():
            is_said = item in self.said and stage != "parser"
            if count != (1 if is_said else stored[item]):
                yield f"{stage}: {item} has {count} effects, and is stored {stored[item]} times"
        said = {item for item in self.accepted & self.said if stage != "parser"}
        for item in sorted((stored.keys() | said) - kept.keys()):
            yield f"{stage}: {item} is stored, and has no effect"
        if stage == "parser":
            for item in sorted(self.accepted - self.said - stored.keys()):
                yield f"{item} was accepted, and is not stored"

    def _check_order(self, found: Found, inputs: Mapping[str, list[str]]) -> Iterator[str]:
        """Check the order of events that come from one stream and go through the same grains."""
        for (stage, key), seen in found.items():
            place = {item: at for at, item in enumerate(seen.items)}
            for stream, items in inputs.items():
                here = [item for item in items if item in place]
                for _, way in groupby(sorted(here, key=key_of), key_of):
                    places = [place[item] for item in way]
                    if places != sorted(places):
                        yield f"{stage}/{key}: events of {stream} are out of order"

    def _check_touches(self, found: Found) -> Iterator[str]:
        for key in KEYS:
            touched = found["parser", key].touched
            if not self.touched[key] <= touched <= self.touches[key]:
                yield (
                    f"{key} was touched {touched} times: {self.touched[key]} calls were answered, "
                    f"{self.touches[key]} made"
                )


def pipeline_run() -> PipelineRun:
    """Return the run that is being simulated."""
    run = current_run()
    assert isinstance(run, PipelineRun)
    return run


async def pipeline(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
    run = PipelineRun(simulation)
    simulation.host("client")
    steady = ("client", "table", "store", "log")
    plan = make_plan(simulation, steady, duration_s=DURATION_S)
    cluster = SimCluster(
        simulation,
        silos=plan.silos,
        grains=[*STAGES.values()],
        streams={"default": run.provider},
        options=RUNTIME,
    )
    await cluster.start()

    def feeder(host: Host, name: str) -> Feeder:
        return Feeder(run, host, name)

    programs = Programs(simulation, cluster, feeder, ("client",))
    programs.start()
    stops = Stops(run, cluster)
    leaving = simulation.loop.create_task(stops.play())
    await simulation.nemesis(plan.script, programs.boot)
    run.is_over = programs.is_over = stops.is_over = True
    await leaving
    found = await drain(run, cluster)
    run.figures["crashes"] += plan.crashes
    run.figures["effects"] += sum(len(seen.items) for seen in found.values())
    run.judge(list(run.check(found)))
    await cluster.close()
    run.logs.service.close()
    return run.figures


async def drain(run: PipelineRun, cluster: SimCluster) -> Found:
    """Wait until all inputs have reached the last stage, at most RECOVERY_S; return the states.

    Until then only the last stage is asked: a call would activate a grain, and so its outbox.
    """
    loop = run.simulation.loop
    await cluster.until_settled(VOTES_S, RECOVERY_S)
    deadline = loop.time() + RECOVERY_S
    missing = run.missing(await read(run, cluster, NAMES[-1]))
    while missing and loop.time() < deadline:
        await asyncio.sleep(1.0)
        missing = run.missing(await read(run, cluster, NAMES[-1]))
    for item in sorted(missing):
        run.on_violated(f"{item} did not come to the end in {RECOVERY_S:g} s")
    run.figures["drained after ms"] = round(1000 * (loop.time() - deadline + RECOVERY_S))
    await read(run, cluster, *NAMES)
    # items of plain methods arrive, too, and duplicates would show
    await asyncio.sleep(RECOVERY_S / 4)
    return await read(run, cluster, *NAMES)


async def read(run: PipelineRun, cluster: SimCluster, *names: str) -> Found:
    """Return the stored states of stages, asked through one silo."""
    silo = cluster.silo(cluster.names[0])
    assert silo is not None

    async def ask() -> Found:
        return {
            (name, key): await silo.grain(STAGES[name], key).found()
            for name in names
            for key in KEYS
        }

    return await run.simulation.call(run.simulation.host(cluster.names[0]), ask())
