"""The place where a row's test runs: a simulated cluster over one adapter, in virtual time.

A test is `async def test_...(place: Place)`, decorated with `conforms(row, ...)`. It runs on a host
of its own, beside a client. Silos are on other hosts, and the test decides when they crash.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest
from tests.streams.conformance.actors import GRAINS, ears, forget_everything
from tests.streams.conformance.adapters import (
    EXACT,
    Adapter,
    Feed,
    Ground,
    Need,
    adapters_with,
)
from tests.streams.conformance.watched import forget_the_watch

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Client, Grain, MemoryStateStore, RuntimeOptions, Silo
from millstream.runtime.extending import SiloPart
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    FailureHandler,
    PersistentStreams,
    QueueAdapterFactory,
    QueueBalancer,
    QueueStats,
    Stream,
    StreamNamespace,
    StreamOptions,
)
from millstream.streams.testing import wait_owned

T = TypeVar("T")
G = TypeVar("G", bound=Grain)
P = ParamSpec("P")
MAX_VIRTUAL_S = 48 * 3600.0
LOOK_S = 0.01


@dataclass(frozen=True)
class Setting:
    """The cluster that a test needs."""

    silos: int = 1
    up: int | None = None
    """The number of silos that run from the beginning; None: all."""
    queues: int = 2
    feed: Feed = field(default_factory=Feed)
    grains: Sequence[type[Grain]] = ()
    options: StreamOptions | None = None
    runtime: RuntimeOptions | None = None
    on_give_up: Callable[[], FailureHandler] | None = None
    balancer: Callable[[], QueueBalancer] = DeploymentBalancer
    store: Callable[[], MemoryStateStore] = MemoryStateStore
    wrap: Callable[[QueueAdapterFactory], QueueAdapterFactory] | None = None
    """Wraps the adapter in each silo."""
    providers: Sequence[str] = ("default",)
    others: Mapping[str, Callable[[], SiloPart]] = field(default_factory=dict)
    """Providers without the adapter, by name."""
    failing: Mapping[int, int] = field(default_factory=dict)
    """The number of failures of an item's handlers, set before the first silo starts."""


class Place:
    """The cluster and the tools of a test."""

    def __init__(
        self, simulation: Simulation, adapter: Adapter, setting: Setting, directory: Path
    ) -> None:
        self.simulation = simulation
        self.adapter = adapter
        self.setting = setting
        self.store = setting.store()
        self.grounds = {
            name: Ground.fresh(directory / name, setting.feed, setting.queues)
            for name in setting.providers
        }
        self.cluster = SimCluster(
            simulation,
            silos=setting.silos,
            grains=[*GRAINS, *setting.grains],
            streams={
                **{name: functools.partial(self._provider, name) for name in setting.providers},
                **setting.others,
            },
            stores={"default": self.store},
            options=setting.runtime,
        )
        self.client: Client

    def _provider(self, name: str) -> PersistentStreams:
        setting, factory = self.setting, self.adapter.make(self.grounds[name])
        return PersistentStreams(
            setting.wrap(factory) if setting.wrap else factory,
            mapper=self.adapter.mapper(setting.queues),
            balancer=setting.balancer(),
            options=setting.options,
            on_give_up=setting.on_give_up() if setting.on_give_up else None,
        )

    async def run(self, test: Callable[[Place], Awaitable[None]]) -> None:
        """Start the silos, then run the test on its host."""
        names = self.cluster.names
        self.simulation.share_disk(*names)
        for name in names[: self.setting.up]:
            self.cluster.boot(name)
        await self.until(lambda: len(self.cluster.silos()) == len(names[: self.setting.up]))
        await self.simulation.call(self.simulation.host("tester"), self._beside_a_client(test))
        await self.cluster.close()

    async def _beside_a_client(self, test: Callable[[Place], Awaitable[None]]) -> None:
        async with self.new_client() as self.client:
            await test(self)

    # -- events

    def new_client(self) -> Client:
        return self.cluster.client(self.simulation.host("tester"), is_operator=True)

    def grain(self, cls: type[G], key: str) -> G:
        return self.client.grain(cls, key)

    def stream(self, namespace: StreamNamespace[T], key: str) -> Stream[T]:
        return self.client.stream(namespace, key)

    async def publish(self, namespace: StreamNamespace[T], key: str, *items: T) -> None:
        """Publish each item as a message of its own, from the client."""
        for item in items:
            await self.stream(namespace, key).publish(item)

    async def fed(self, namespace: StreamNamespace[int]) -> None:
        """Publish the setting's feed; a generator makes the feed itself."""
        items = self.setting.feed.items
        if "generator" != self.adapter.name:
            for begin in range(0, len(items), 5):
                for key in self.setting.feed.keys:
                    await self.stream(namespace, key).publish_many(items[begin : begin + 5])

    async def join(self, number: int) -> None:
        """Start a silo that was down; return when all silos see it."""
        before = len(self.cluster.silos())
        self.cluster.boot(f"silo-{number}")
        await self.until(lambda: len(self.cluster.silos()) == before + 1)

    async def leave(self, number: int) -> None:
        """Stop a silo gracefully, for good."""
        await self.cluster.stop_silo(f"silo-{number}")
        self.simulation.crash(f"silo-{number}")

    async def restart(self, number: int = 0) -> None:
        """Stop a silo gracefully and start it again; return when its queues are read."""
        before = len(self.cluster.silos())
        await self.cluster.stop_silo(f"silo-{number}")
        await self.until(lambda: len(self.cluster.silos()) == before)
        await wait_owned(self.cluster)
        await self.calm()  # until the client tries the address again

    def crash(self, number: int) -> None:
        self.simulation.crash(f"silo-{number}")

    async def until(self, condition: Callable[[], bool], within_s: float = 120) -> None:
        """Wait in virtual time. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(LOOK_S)

    async def calm(self, for_s: float = 1.0) -> None:
        """Let virtual time pass, so that unwanted events would show."""
        await asyncio.sleep(for_s)

    async def until_heard(self, who: str, items: Iterable[int], *, in_order: bool = True) -> None:
        """Wait until a consumer has all of these items, and check that it has no other item.

        With an adapter that promises it, the items come once and in order; otherwise at least once.
        """
        wanted = list(items)
        await self.until(lambda: set(ears.items(who)) >= set(wanted))
        await self.calm()
        heard = ears.items(who)
        if self.adapter.lacks(EXACT[1:]):
            heard, in_order = sorted(set(heard)), False
        assert (heard if in_order else sorted(heard)) == (wanted if in_order else sorted(wanted))

    async def until_came(self, who: str, *items: int) -> None:
        """Wait until a consumer has these items; it may have others."""
        await self.until(lambda: set(ears.items(who)) >= set(items))

    # -- observations

    def silo(self, number: int = 0) -> Silo:
        silo = self.cluster.silo(f"silo-{number}")
        assert silo is not None, f"silo-{number} is not up"
        return silo

    def provider(self, number: int = 0, name: str = "default") -> PersistentStreams:
        found: PersistentStreams = self.silo(number).services.part(name)
        return found

    def stats(self) -> list[QueueStats]:
        """Return the figures of each queue that a silo reads."""
        silos = self.cluster.silos()
        return [row for silo in silos for row in silo.services.part("default").stats()]


Test = Callable[Concatenate[Place, P], Coroutine[Any, Any, None]]


def conforms(
    *rows: int,
    needs: Sequence[Need] = (),
    only: str = "",
    whichever: bool = False,
    seeds: Sequence[int] = (1,),
    **setting: Any,
) -> Callable[[Test[P]], Callable[..., None]]:
    """Mark a test of these rows; it runs over each adapter that meets its needs.

    Args:
        rows: their sum chooses the adapter of `make test-fast`.
        only: the name of the adapter, if the row is about one.
        whichever: the adapter makes no difference, so the first suitable one is used.
        seeds: one run for each; all but the first are slow. With even seeds, timers fire early.
        setting: the fields of `Setting`.
    """

    def decorate(test: Test[P]) -> Callable[..., None]:
        def play(
            adapter: Adapter,
            seed: int,
            tmp_path: Path,
            monkeypatch: pytest.MonkeyPatch,
            **arguments: Any,
        ) -> None:
            _without_threads(monkeypatch)
            forget_everything()
            forget_the_watch()
            found = Setting(**setting)
            ears.failing.update(found.failing)

            async def driver(simulation: Simulation) -> None:
                place = Place(simulation, adapter, found, tmp_path)
                await place.run(lambda place: test(place, **arguments))  # type: ignore[call-arg]

            run(driver, seed, max_virtual_s=MAX_VIRTUAL_S)

        functools.update_wrapper(play, test)
        del play.__dict__["__wrapped__"]
        play.__signature__ = _signature(test)  # type: ignore[attr-defined]
        adapters = adapters_with(*needs, row=sum(rows), only=only, whichever=whichever)
        marked: Callable[..., None] = pytest.mark.row(*rows)(play)
        marked = pytest.mark.parametrize("adapter", adapters)(marked)
        ids = [f"seed {seed}" for seed in seeds] if len(seeds) > 1 else [pytest.HIDDEN_PARAM]
        first, *others = seeds
        taken = [first, *(pytest.param(seed, marks=pytest.mark.slow) for seed in others)]
        marked = pytest.mark.parametrize("seed", taken, ids=ids)(marked)
        return marked

    return decorate


def _signature(test: Callable[..., Any]) -> inspect.Signature:
    """Replace the parameter `place` by the parameters that a place is made of."""
    found = inspect.signature(test)
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in _MADE_OF]
    others = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in found.parameters.values()]
    return found.replace(parameters=[*own, *others[1:]])


_MADE_OF = ("adapter", "seed", "tmp_path", "monkeypatch")


def _without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the work of an adapter's threads at once, because virtual time has no threads."""

    async def at_once(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
