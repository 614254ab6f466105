"""An event that crashes the silo of its handler becomes a dead letter; all others are handled."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextvars import Context

import pytest
from tests.sim.suites.run.record import Run, current_run
from tests.sim.suites.streams.log_queues import LogService

from millstream.balancers import DeploymentBalancer
from millstream.runtime import (
    PREFER_LOCAL,
    Client,
    Grain,
    MillstreamError,
    RuntimeOptions,
    grain,
)
from millstream.runtime.testing import (
    SimCluster,
    Simulation,
    SimulationFailed,
    current_host,
    run,
)
from millstream.streams import (
    Backoff,
    DeadLetter,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    subscribe,
)
from millstream.streams.agent.delivery.deaths import Deaths
from millstream.streams.agent.delivery.delivery import UNTRIED, Delivery
from millstream.streams.agent.delivery.steps import Died
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.agent.progress.wary import DEATHS_MIN, Wary
from millstream.streams.ownership import decision
from millstream.streams.ownership.record import QueueRecord

WORK = StreamNamespace("work", str, subscriptions="implicit")
KEYS = tuple("abcd")
POISON = "poison"
RETRIES = 3
SETTLED_S = 120.0
FOUND_S = 30.0  # with a planted fault; the usual time is less than ten


@grain(name="idle")
class Idle(Grain):
    """The grain type of a silo without workers."""


@grain(name="worker", placement=PREFER_LOCAL)
class Worker(Grain):
    @subscribe(WORK)
    async def on_work(self, event: Event[str]) -> None:
        poisoned = current_run()
        assert isinstance(poisoned, Poisoned)
        await poisoned.work(event.item)


class Poisoned(Run):
    """One run: handled events, and the number of crashes by the poison.

    Args:
        beats_s: the time that the poison works before it crashes the silo.
    """

    def __init__(self, simulation: Simulation, logs: LogService, beats_s: float) -> None:
        super().__init__(simulation)
        self.logs = logs
        self.cluster: SimCluster
        self.beats_s = beats_s
        self.handled: Counter[str] = Counter()
        self.kills = 0
        self.is_deadly = True

    async def work(self, item: str) -> None:
        await asyncio.sleep(0.02)
        if item == POISON and self.is_deadly:
            await asyncio.sleep(self.beats_s)
            host = current_host()
            assert host is not None
            loop = self.simulation.loop
            loop.call_soon(self._kill, host.name, context=Context())
            await asyncio.sleep(60)
        self.handled[item] += 1

    def _kill(self, name: str) -> None:
        self.kills += 1
        self.simulation.crash(name)
        self.simulation.loop.call_later(1.0, self.cluster.boot, name, context=Context())

    def provider(self, owners: tuple[str, ...]) -> PersistentStreams:
        host = current_host()
        assert host is not None
        balancer = DeploymentBalancer(silos=owners, rebalance_delay_s=0.1)
        return PersistentStreams(
            self.logs.queues_for(host),
            mapper=HashRingMapper(queues=1),
            balancer=balancer,
            options=StreamOptions(
                delivery=DeliveryOptions(retries=RETRIES, backoff=Backoff(0.1, 2, 2.0)),
                ownership=OwnershipOptions(poll_s=0.2),
            ),
        )


def items_of(key: str) -> list[str]:
    """Return the items of a stream; those of one stream contain the poison."""
    items = [f"{key}-{number}" for number in range(12)]
    return [*items[:5], POISON, *items[5:]] if key == "b" else items


async def publish(client: Client) -> None:
    """Publish all items, even while silos crash."""
    for key in KEYS:
        for item in items_of(key):
            while True:
                try:
                    await client.stream(WORK, key).publish(item)
                    break
                except MillstreamError:
                    await asyncio.sleep(0.1)


async def letters_of(client: Client) -> list[DeadLetter]:
    try:
        return [letter async for letter in dead_letters(client).all()]
    except MillstreamError:
        return []


async def settle(one: Poisoned, client: Client) -> list[DeadLetter]:
    """Wait until each event is handled, or a dead letter."""
    innocent = {item for key in KEYS for item in items_of(key)} - {POISON}
    async with asyncio.timeout(SETTLED_S):
        while True:
            letters = await letters_of(client)
            if letters and innocent <= set(one.handled) | {item_in(letter) for letter in letters}:
                return letters
            await asyncio.sleep(0.5)


def item_in(letter: DeadLetter) -> str:
    return WORK.codec.decode(letter.failure.body)


async def play(
    simulation: Simulation, *, is_apart: bool, is_fenced: bool, can_rewind: bool, beats_s: float
) -> tuple[Poisoned, list[DeadLetter], int]:
    logs = LogService(simulation, is_fenced=is_fenced, can_rewind=can_rewind)
    one = Poisoned(simulation, logs, beats_s)
    owners = ("silo-0",) if is_apart else ()
    cluster = one.cluster = SimCluster(
        simulation,
        silos=3,
        grains=[Worker, Idle],
        streams={"default": lambda: one.provider(owners or tuple(f"silo-{n}" for n in range(3)))},
        options=RuntimeOptions(call_timeout_s=5.0),
        lacking={"silo-0": [Worker]} if is_apart else None,
    )
    host = simulation.host("client")
    await cluster.start()

    async def program() -> tuple[list[DeadLetter], int]:
        async with cluster.client(host, is_operator=True) as client:
            await publish(client)
            letters = await settle(one, client)
            kills = one.kills
            await asyncio.sleep(30)  # there must be no further crash
            return letters, one.kills - kills

    letters, later = await simulation.call(host, program())
    await cluster.close()
    one.logs.service.close()
    return one, letters, later


def played(seed: int, **how: object) -> tuple[Poisoned, list[DeadLetter], int]:
    return run(
        lambda simulation: play(simulation, **how),  # type: ignore[arg-type]
        seed,
        max_virtual_s=3600.0,
        replay=f"played({seed}, **{how})",
    ).result


@pytest.mark.one_in(15)
@pytest.mark.parametrize("beats_s", [0.0, 4.0], ids=["at once", "after a while"])
@pytest.mark.parametrize(
    ("is_fenced", "can_rewind"),
    [(False, False), (True, False), (False, True)],
    ids=["position in the record", "own position", "can be read again"],
)
@pytest.mark.parametrize("is_apart", [True, False], ids=["the agent lives", "the agent dies"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_kills_silos_is_given_up_and_nothing_else(
    seed: int, is_apart: bool, is_fenced: bool, can_rewind: bool, beats_s: float
) -> None:
    how = {"is_fenced": is_fenced, "can_rewind": can_rewind, "beats_s": beats_s}
    one, letters, later = played(seed, is_apart=is_apart, **how)
    assert [item_in(letter) for letter in letters] == [POISON]
    (letter,) = letters
    assert "the handler's silo crashed" in letter.failure.error
    assert letter.failure.attempts == RETRIES + 1
    assert set(one.handled) == {item for key in KEYS for item in items_of(key)} - {POISON}
    in_company = 1 if is_apart else DEATHS_MIN  # before deliveries become careful
    assert one.kills <= RETRIES + 1 + in_company and later == 0


def nobody(self: Deaths) -> Iterator[tuple[Subscriber, Delivery, Died]]:
    return iter(())


def unchanged(record: QueueRecord) -> QueueRecord:
    return record


def of_anybody(self: Wary, key: object, token: object) -> int:
    return max(self._known.values(), default=0)


def only_failures(self: Delivery) -> None:
    """Let the next event inherit the crashes of the previous one."""
    if not self.tries.deaths:
        self.tries = UNTRIED


@pytest.mark.spare
@pytest.mark.parametrize(
    ("is_apart", "place", "name", "planted"),
    [
        (True, Deaths, "iter_judged", nobody),
        (False, decision, "after_death", unchanged),
        (True, Delivery, "_forget", only_failures),
        (False, Wary, "deaths_of", of_anybody),
    ],
    ids=["no death is counted", "no owner is counted", "the next is blamed", "all are blamed"],
)
def test_a_planted_fault_is_seen(
    is_apart: bool, place: object, name: str, planted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, planted)
    monkeypatch.setattr(sys.modules[__name__], "SETTLED_S", FOUND_S)
    how = {"is_fenced": False, "can_rewind": False, "beats_s": 0.0}
    try:
        one, letters, _ = played(1, is_apart=is_apart, **how)
    except (SimulationFailed, TimeoutError):
        return  # the poison crashes silos without end
    assert [item_in(letter) for letter in letters] != [POISON] or one.handled[POISON]
