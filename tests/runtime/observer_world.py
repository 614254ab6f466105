"""A simulated cluster with a client whose objects grains call, for the tests of observers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from millstream.runtime import (
    PREFER_LOCAL,
    Client,
    Grain,
    MillstreamError,
    Observer,
    RuntimeOptions,
    Silo,
    always_interleave,
    grain,
    one_way,
    state,
    timeout,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run

T = TypeVar("T")

LOG: list[tuple[float, str]] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


def clear_world() -> None:
    """Forget what earlier tests noted."""
    LOG.clear()
    GATES.clear()


def note(what: str) -> None:
    LOG.append((round(asyncio.get_running_loop().time(), 3), what))


def noted() -> list[str]:
    return [what for _, what in LOG]


class Viewer(Observer):
    """An object of a client, by name."""

    def __init__(self, name: str = "viewer") -> None:
        self.name = name

    async def goal(self, scorer: str) -> str:
        note(f"{self.name}: {scorer}")
        return f"{self.name} saw {scorer}"

    async def fail(self, text: str) -> None:
        raise ValueError(text)

    async def stay(self, gate: str) -> str:
        note(f"{self.name}: +{gate}")
        try:
            await GATES[gate].wait()
        except asyncio.CancelledError:
            note(f"{self.name}: cancelled {gate}")
            raise
        note(f"{self.name}: -{gate}")
        return gate

    @timeout(2.0)
    async def stay_briefly(self, gate: str) -> str:
        return await self.stay(gate)

    @always_interleave
    async def ping(self) -> str:
        return "pong"

    @one_way
    async def tell(self, scorer: str) -> None:
        note(f"{self.name}: told {scorer}")


@grain(placement=PREFER_LOCAL)
class Match(Grain):
    """Calls viewers."""

    kept = state(list[Viewer])

    def __init__(self) -> None:
        self.viewers: list[Viewer] = []

    async def watch(self, viewer: Viewer) -> None:
        if viewer not in self.viewers:
            self.viewers.append(viewer)

    async def unwatch(self, viewer: Viewer) -> None:
        self.viewers.remove(viewer)

    async def score(self, scorer: str) -> list[str]:
        """Call every viewer, and return the results or the names of the errors."""
        found: list[str] = []
        for viewer in self.viewers:
            try:
                found.append(await viewer.goal(scorer))
            except MillstreamError as error:
                found.append(type(error).__name__)
        return found

    async def call(self, method: str, *, text: str, timeout_s: float = 30.0) -> str:
        """Call a method of the first viewer."""
        viewer: Any = with_options(self.viewers[0], timeout=timeout_s)
        return str(await getattr(viewer, method)(text))

    async def call_many(self, method: str, texts: list[str]) -> list[str]:
        """Call a method of the first viewer, all at once."""
        viewer: Any = self.viewers[0]
        calls = (getattr(viewer, method)(text) for text in texts)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [type(one).__name__ if isinstance(one, Exception) else str(one) for one in answers]

    async def ping(self) -> str:
        return await self.viewers[0].ping()

    async def tell(self, scorer: str) -> None:
        for viewer in self.viewers:
            await viewer.tell(scorer)

    async def store(self, viewer: Viewer) -> None:
        self.kept.value = [viewer]
        await self.kept.write()
        self.context.deactivate_when_idle()

    async def score_stored(self, scorer: str) -> list[str]:
        return [await viewer.goal(scorer) for viewer in self.kept.value]

    async def pass_on(self, key: str) -> None:
        for viewer in self.viewers:
            await self.grain(Match, key).watch(viewer)


class World:
    """A cluster, and programs on the hosts of silos and clients."""

    def __init__(self, sim: Simulation, cluster: SimCluster) -> None:
        self.sim = sim
        self.cluster = cluster

    def silo(self, number: int = 0) -> Silo:
        found = self.cluster.silo(f"silo-{number}")
        assert found is not None
        return found

    def now(self) -> float:
        return self.sim.loop.time()

    async def on_silo(self, work: Callable[[Silo], Coroutine[Any, Any, T]], number: int = 0) -> T:
        """Run a coroutine on the host of a silo."""
        silo = self.silo(number)
        return await self.sim.call(self.sim.host(f"silo-{number}"), work(silo))

    async def score(self, scorer: str, number: int = 0, key: str = "final") -> list[str]:
        """Let the grain on a silo call its viewers."""
        return await self.on_silo(lambda silo: silo.grain(Match, key).score(scorer), number)

    def start(
        self, program: Callable[[Client], Coroutine[Any, Any, Any]], host: str = "client"
    ) -> asyncio.Task[Any]:
        """Start a program with a client on a host of its own."""

        async def main() -> None:
            async with self.cluster.client(self.sim.host(host)) as client:
                await program(client)

        return self.sim.spawn(self.sim.host(host), main(), name=f"program of {host}")

    @asynccontextmanager
    async def watching(
        self, name: str = "viewer", key: str = "final", number: int = 0, host: str = "client"
    ) -> AsyncIterator[asyncio.Task[Any]]:
        """Let a client observe the grain on a silo until the block ends."""
        ready, done = asyncio.Event(), asyncio.Event()

        async def program(client: Client) -> None:
            async with client.observe(Viewer(name)) as viewer:
                await self.watch(viewer, key, number)
                ready.set()
                await done.wait()

        task = self.start(program, host)
        await ready.wait()
        yield task
        done.set()
        if self.sim.is_up(host):
            await task

    async def watch(self, viewer: Viewer, key: str = "final", number: int = 0) -> None:
        """Add a viewer to the grain on a silo, whichever program it belongs to."""
        text = str(viewer)

        async def add(silo: Silo) -> None:
            kind, _, observer = text.partition("/")
            references = silo.assembly.references
            found = references.grain_of(kind, Viewer, observer)
            await silo.grain(Match, key).watch(found)

        await self.on_silo(add, number)


def in_world(
    main: Callable[[World], Awaitable[None]],
    *,
    silos: int = 1,
    seed: int = 1,
    options: RuntimeOptions | None = None,
    grains: tuple[type[Grain], ...] = (Match,),
) -> None:
    """Run a test in a simulated cluster, in virtual time."""

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=silos, grains=grains, options=options) as cluster:
            await main(World(sim, cluster))

    run(driver, seed=seed)
