"""A subscription, stream or queue that has work and does not move reports the reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.adapter import MemoryReader, MemoryReceiver
from millstream.runtime import (
    Client,
    Grain,
    MemoryStateStore,
    QueueUnavailable,
    Row,
    StorageUnavailable,
    state,
)
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    CacheLimits,
    DeliveryFailure,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    pause_stream,
    subscribe,
    why,
)
from millstream.streams.agent.reading.catch_up import CatchUp

LINES = StreamNamespace("lines", int)
OTHERS = StreamNamespace("others", int)
KEPT = StreamNamespace("kept", int)
GATE: list[asyncio.Event] = []
SEEN: list[int] = []
STANDSTILL_S = 20.0


class World:
    """The faults of the test."""

    fails: type[Exception] | None = None
    hangs = False
    gives_up_slowly = False
    store_fails = False
    states_fail = False


class Hearer(Grain):
    async def listen(self, ack: Literal["auto", "manual"] = "auto") -> None:
        await self.stream(LINES, "a").subscribe(self._on_line, ack=ack)

    async def _on_line(self, event: Event[int]) -> None:
        if World.hangs:
            await GATE[0].wait()
        if World.fails is not None:
            raise World.fails("no luck")
        SEEN.append(event.item)


@dataclass
class Kept:
    count: int = 0


class Keeper(Grain):
    kept = state(Kept)

    @subscribe(KEPT)
    async def on_kept(self, event: Event[int]) -> None:
        SEEN.append(event.item)


class Other(Grain):
    @subscribe(OTHERS)
    async def on_other(self, event: Event[int]) -> None:
        await GATE[0].wait()


class Store(MemoryStateStore):
    """Fails to read rows of subscriptions or of grains while the test wants it."""

    def get(self, key: str) -> Row | None:
        if World.states_fail and "Keeper" in key:
            raise StorageUnavailable("no disk")
        return super().get(key)

    def range(self, prefix: str, after: str, limit: int) -> list[tuple[str, Row]]:
        if World.store_fails and prefix.startswith("subscription/"):
            raise StorageUnavailable("no disk")
        return [*super().range(prefix, after, limit)]


class Slow:
    async def give_up(self, failure: DeliveryFailure, /) -> Literal["skip"]:
        if World.gives_up_slowly:
            await GATE[0].wait()
        return "skip"


@dataclass
class Found:
    lines: list[str]
    sentence: str
    reasons: list[str]


@dataclass
class Story:
    client: Client
    cluster: SimCluster

    async def begin(self, ack: Literal["auto", "manual"] = "auto") -> None:
        await self.client.grain(Hearer, "h").listen(ack)
        await self.publish(0)

    async def publish(self, item: int) -> None:
        await self.client.stream(LINES, "a").publish(item)

    async def subscription(self) -> Any:
        (one,) = await self.client.stream(LINES, "a").subscriptions()
        return one


Tell = Callable[[Story], Awaitable[None]]


def play(
    caplog: pytest.LogCaptureFixture,
    tell: Tell,
    heal: Tell | None = None,
    *,
    is_fault: bool = False,
    **options: Any,
) -> Found:
    """Let a fault last for a minute; return the texts of the log and of `why`."""
    GATE[:], SEEN[:] = [], []
    for name in ("hangs", "gives_up_slowly", "store_fails", "states_fail"):
        setattr(World, name, False)
    World.fails = None
    caplog.set_level(logging.WARNING, "millstream.agent")
    found = Found([], "", [])

    async def main(simulation: Simulation) -> None:
        GATE.append(asyncio.Event())
        store = Store()

        def provider() -> PersistentStreams:
            return PersistentStreams(
                MemoryQueues(),
                mapper=HashRingMapper(queues=1),
                balancer=DeploymentBalancer(),
                options=StreamOptions(
                    standstill_s=STANDSTILL_S,
                    delivery=DeliveryOptions(retries=2, handler_timeout_s=300.0),
                    **options,
                ),
                on_give_up=Slow(),
            )

        cluster = SimCluster(
            simulation,
            silos=2,
            grains=[Hearer, Keeper, Other],
            streams={"default": provider},
            stores={"default": store},
        )
        await cluster.start()
        host = simulation.host("client")

        async def program() -> None:
            async with cluster.client(host, is_operator=True) as client:
                story = Story(client, cluster)
                await tell(story)
                await asyncio.sleep(3 * STANDSTILL_S)
                said = await why(client, client.stream(LINES, "a"))
                found.sentence = str(said)
                found.reasons = [one.reason for one in said.reports[1].subscriptions or ()]
                if heal is not None:
                    await heal(story)
                    await asyncio.sleep(2 * STANDSTILL_S)
                GATE[0].set()

        await simulation.call(host, program())
        await cluster.close()

    run(main, 3, max_virtual_s=900.0)
    found.lines = [
        one.getMessage() for one in caplog.records if "has made no progress" in one.getMessage()
    ]
    assert "fault of Millstream" not in caplog.text or is_fault
    return found


def passed(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [one.getMessage() for one in caplog.records]
    return [line for line in lines if "makes progress again, after" in line]


def test_a_handler_that_does_not_answer_is_named_with_its_silo_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(story: Story) -> None:
        World.hangs = True
        await story.begin()

    async def heal(story: Story) -> None:
        GATE[0].set()

    found = play(caplog, tell, heal)
    assert "s for the reply of Hearer/h in silo silo-" in found.lines[0]
    assert found.lines[0].startswith("default: queue-0: subscription explicit/")
    assert "of lines/a has made no progress for" in found.lines[0]
    assert "s for the reply of Hearer/h in silo silo-" in found.reasons[0]
    assert "Hearer/h has not answered" in found.sentence
    assert len(passed(caplog)) == 1 and SEEN == [0]


def test_an_error_that_is_tried_again_without_end_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(story: Story) -> None:
        World.states_fail = True
        await story.client.stream(KEPT, "k").publish(1)

    async def heal(story: Story) -> None:
        World.states_fail = False

    found = play(caplog, tell, heal)
    assert "of kept/k has made no progress for" in found.lines[0]
    assert "the delivery is retried in" in found.lines[0] and "no disk" in found.lines[0]
    assert len(passed(caplog)) == 1 and SEEN == [1]


def test_a_pause_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(story: Story) -> None:
        await story.begin()
        await asyncio.sleep(1.0)
        await (await story.subscription()).pause()
        await story.publish(1)

    async def heal(story: Story) -> None:
        await (await story.subscription()).resume()

    found = play(caplog, tell, heal)
    assert "the subscription is paused: `resume()` resumes it" in found.lines[0]
    assert "paused" in found.reasons[0] and len(passed(caplog)) == 1


def test_a_pause_of_the_whole_stream_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(story: Story) -> None:
        await story.begin()
        await pause_stream(story.client, LINES, "a")
        await story.publish(1)

    assert "the whole stream is paused: `resume_stream`" in play(caplog, tell).lines[0]


def test_a_failure_handler_that_thinks_for_long_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(story: Story) -> None:
        World.fails, World.gives_up_slowly = ValueError, True
        await story.begin()

    found = play(caplog, tell)
    assert "the failure handler, or the store, has not yet accepted" in found.lines[-1]
    assert "ValueError: no luck" in found.lines[-1]


def test_events_that_are_not_acknowledged_by_hand_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(story: Story) -> None:
        await story.begin("manual")

    found = play(caplog, tell)
    assert "1 events wait for manual acknowledgement: Hearer/h must call" in found.lines[0]


def test_a_stream_whose_subscriptions_cannot_be_read_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(story: Story) -> None:
        World.store_fails = True
        await story.publish(0)

    found = play(caplog, tell)
    assert found.lines[0].startswith("default: queue-0: stream lines/a has made no progress for")
    assert "the subscriptions of the stream are read again, after" in found.lines[0]
    assert "no disk" in found.lines[0] and "no disk" in found.sentence


def test_who_has_no_credit_is_told_apart_from_who_uses_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(story: Story) -> None:
        await story.begin()
        await story.client.stream(OTHERS, "o").publish(0)
        await asyncio.sleep(1.0)
        await story.publish(1)

    found = play(caplog, tell, calls_out_max=1)
    mine = [line for line in found.lines if "lines/a" in line]
    assert "1 of 1 calls of the queue are in flight" in mine[0]
    assert "are in flight" in found.sentence
    other = next(line for line in found.lines if "others/o" in line)
    assert "s for the reply of Other/o" in other


SMALL = CacheLimits(events_max=16, stream_events_max=4)


async def start_lagging(story: Story) -> None:
    """Let the subscription lag so far that its events have left the cache."""
    World.hangs = True
    await story.begin()
    for item in range(1, 60):
        await story.publish(item)
    await asyncio.sleep(5.0)


def test_events_that_cannot_be_read_anew_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(story: Story) -> None:
        await start_lagging(story)

        async def read_from(*_: object) -> None:
            raise QueueUnavailable("the log is away")

        monkeypatch.setattr(MemoryReader, "read_from", read_from)
        World.hangs = False
        GATE[0].set()

    found = play(caplog, tell, cache=SMALL)
    reads = [line for line in found.lines if "its events are read again from the queue" in line]
    assert reads and "the log is away" in reads[-1]
    assert any("reading has made no progress" in line or "lines/a" in line for line in found.lines)


def test_a_lost_wake_up_is_said_to_be_a_fault_with_the_state(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(story: Story) -> None:
        await start_lagging(story)
        monkeypatch.setattr(CatchUp, "wake", lambda self: None)
        World.hangs = False
        GATE[0].set()

    found = play(caplog, tell, is_fault=True, cache=SMALL)
    fault = next(line for line in found.lines if "fault of Millstream" in line)
    assert "state=lagging" in fault and "is_lagging=True" in fault
    assert "the reason is unknown" in found.sentence or "lags behind" in found.sentence


def test_a_queue_that_cannot_be_read_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(story: Story) -> None:
        async def read(*_: object) -> None:
            raise QueueUnavailable("the log is away")

        monkeypatch.setattr(MemoryReceiver, "read", read)
        await story.begin()

    found = play(caplog, tell)
    assert "queue-0: reading has made no progress for" in found.lines[0]
    assert "the log is away" in found.lines[0]


def test_what_moves_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    async def tell(story: Story) -> None:
        await story.begin()
        for item in range(200):
            await story.publish(item)
            await asyncio.sleep(0.5)

    assert play(caplog, tell).lines == [] and passed(caplog) == []
