"""The checks of crashing processes, with silos that crash: ledger, priority queues, memory.

The suite gets adapters of simulated silos, and its hook `kill` crashes their hosts: no `finally`
runs there, connections are reset, and disks lose data that was not synced.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from tests.providers.ledger.replicated import SMALL_BOOKIE

from millstream.providers.ledger import (
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
    LedgerTopicSettings,
    Quorum,
)
from millstream.providers.memory import MemoryQueues
from millstream.providers.priority import (
    DeadlineOptions,
    DeadlineQueues,
    MemoryStore,
    PriorityQueues,
)
from millstream.runtime.extending import SiloPart
from millstream.runtime.testing import HostCrashed, SimCluster, Simulation, run
from millstream.streams import (
    AdapterHost,
    OutMessage,
    PersistentStreams,
    QueueAdapter,
    QueueAdapterFactory,
    QueueMessage,
    QueueReceiver,
    Token,
)
from millstream.streams.contracts.suite.host import BenchMapper
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterCheck,
    AdapterHooks,
    run_adapter_check,
)

T = TypeVar("T")
CHECKS = [
    check
    for check in ADAPTER_CHECKS
    if check.hooks == {"kill"} and check.name != "what_was_accepted_at_once_outlives_its_process"
]
LAST_CALLS = {
    "what_was_accepted_outlives_its_process": ("enqueue", 3),
    "what_was_acknowledged_before_a_death_is_done": ("ack", 1),
}
"""The host crashes in the turn in which this method returns; and the number of crashes."""


class Opened:
    """Notes the adapter that a silo opens."""

    def __init__(self, queues: Any, adapters: dict[str, QueueAdapter]) -> None:
        self.queues = queues
        self.adapters = adapters
        self.capabilities = queues.capabilities
        self.grains = getattr(queues, "grains", ())
        self.agreement = getattr(queues, "agreement", {})
        self.has_bookie = getattr(queues, "has_bookie", False)

    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter:
        adapter: QueueAdapter = await self.queues.open(provider, host)
        self.adapters[host.silo_name] = adapter
        return adapter


class Idle:
    """A balancer that wants no queue, so that only the suite reads them."""

    async def start(self, queues: object, silos: object, wanted: object, /) -> None: ...
    async def aclose(self) -> None: ...


class Mortals:
    """Three simulated silos; the suite opens their adapters one after the other."""

    def __init__(
        self,
        simulation: Simulation,
        queues: Callable[[], QueueAdapterFactory],
        parts: Mapping[str, Callable[[], SiloPart]],
        last_call: tuple[str, int],
    ) -> None:
        self.simulation = simulation
        self.adapters: dict[str, QueueAdapter] = {}
        self.capabilities = queues().capabilities
        self.last_call, self.deaths = last_call
        self.turns = itertools.count()

        def streams() -> PersistentStreams:
            return PersistentStreams(
                Opened(queues(), self.adapters),
                mapper=BenchMapper(),
                balancer=Idle(),
            )

        self.cluster = SimCluster(
            simulation, silos=3, grains=[], streams={"default": streams}, parts=parts
        )

    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter:
        names = [name for name in self.cluster.names if self.cluster.silo(name) is not None]
        return Distant(self, names[next(self.turns) % len(names)])

    async def on(self, name: str, method: str, act: Callable[[], Awaitable[T]]) -> T:
        """Act in a silo's process, and perhaps crash it afterwards."""
        done = list[T]()

        async def acted() -> None:
            done.append(await act())
            if method == self.last_call and self.deaths:
                self.deaths -= 1
                self.simulation.crash(name)

        try:
            await self.simulation.call(self.simulation.host(name), acted())
        except HostCrashed:
            if not done:
                raise
        return done[0]

    async def kill(self, adapter: QueueAdapter) -> None:
        assert isinstance(adapter, Distant)
        if self.simulation.is_up(adapter.name):
            self.simulation.crash(adapter.name)
        self.adapters.pop(adapter.name, None)
        self.cluster.boot(adapter.name)
        await self.cluster.until_active()


class Distant:
    """The adapter of a silo, called in its process."""

    def __init__(self, mortals: Mortals, name: str) -> None:
        self.mortals = mortals
        self.name = name
        self.adapter = mortals.adapters[name]

    async def enqueue(
        self, queue: str, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        def act() -> Awaitable[Sequence[Token | None]]:
            return self.adapter.enqueue(queue, messages, mapper_epoch)

        return await self.mortals.on(self.name, "enqueue", act)

    def receiver(self, queue: str, epoch: int, /) -> DistantReceiver:
        return DistantReceiver(self, queue, epoch)

    async def aclose(self) -> None:
        """Do nothing: the adapter is closed with its silo."""


class DistantReceiver:
    def __init__(self, at: Distant, queue: str, epoch: int) -> None:
        self.at = at
        self.raw: QueueReceiver = at.adapter.receiver(queue, epoch)

    async def call(self, method: str, *words: Any) -> Any:
        return await self.at.mortals.on(
            self.at.name, method, lambda: getattr(self.raw, method)(*words)
        )

    async def start(self, after: Token | None, /) -> None:
        await self.call("start", after)

    async def read(self, events: int, size_bytes: int, wait_s: float, /) -> Sequence[QueueMessage]:
        found: Sequence[QueueMessage] = await self.call("read", events, size_bytes, wait_s)
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        await self.call("ack", upto, also)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        await self.call("release", tokens, delay_s, has_run)

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        lost: Sequence[Token] = await self.call("extend", tokens, lease_s)
        return lost

    async def aclose(self) -> None:
        await self.call("aclose")


class KeptStore(MemoryStore):
    """A store that survives all silos of a simulation."""

    is_durable = True


def ledger(quorum: Quorum | None) -> Callable[[], QueueAdapterFactory]:
    options = LedgerOptions(
        settings=LedgerTopicSettings(quorum=quorum),
        topic=LedgerTopicOptions(entry_bytes_max=1 << 19),
        bookie=SMALL_BOOKIE,
        unowned_after_s=0.0,
    )
    return lambda: LedgerQueues("/ledger/{silo}", options)


def deadline() -> QueueAdapterFactory:
    return DeadlineQueues(options=DeadlineOptions(lease_s=2.0))


PROVIDERS: dict[str, Callable[[], QueueAdapterFactory]] = {
    "ledger": ledger(None),
    "replicated ledger": ledger(Quorum(3, 3, 2)),
    "deadline": deadline,
    "memory": MemoryQueues,
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_a_silo_that_dies_loses_nothing_and_keeps_no_queue(
    check: AdapterCheck, provider: str
) -> None:
    async def main(simulation: Simulation) -> str:
        store = KeptStore(simulation.env(simulation.host("store-of-queues")))
        parts = {"priority": lambda: PriorityQueues(store)} if provider == "deadline" else {}
        last_call = LAST_CALLS.get(check.name, ("", 0))
        mortals = Mortals(simulation, PROVIDERS[provider], parts, last_call)
        await mortals.cluster.start()
        why = await run_adapter_check(check, lambda: mortals, hooks=AdapterHooks(kill=mortals.kill))
        await mortals.cluster.close()
        return why

    why = run(main, 1).result
    is_for_it = provider != "memory" or check.name == "a_process_that_died_keeps_no_queue"
    assert why == ("" if is_for_it else "DURABLE is not declared")
