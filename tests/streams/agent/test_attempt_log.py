"""The log shows each failed attempt of a handler, but no flood of lines."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster
from millstream.runtime.repeated import LINES_MAX, WINDOW_S
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.agent.delivery.dispatch import AttemptLog
from millstream.streams.agent.delivery.steps import Failure, FailureKind

LINES = StreamNamespace("lines", str)


class Clerk(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        if event.attempt < 3:
            raise ValueError(f"cannot read {event.item!r}\nsecond line")


def streams() -> PersistentStreams:
    delivery = DeliveryOptions(retries=5, backoff=Backoff(0.001, 1, 0.001))
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(),
        options=StreamOptions(delivery=delivery),
    )


async def test_each_failed_attempt_is_a_line_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    def found() -> list[Any]:
        return [r for r in caplog.records if "Clerk/a.on_line failed" in r.getMessage()]

    caplog.set_level(logging.WARNING, "millstream.delivery")
    async with LocalCluster(grains=[Clerk], streams={"default": streams}) as cluster:
        await cluster.stream(LINES, "a").publish("x")
        await until(lambda: len(found()) == 2)
        silo = cluster.silos[0].address
    first, second = found()
    assert "of lines/a, attempt 1 of 6 (handler): ValueError: cannot read 'x'" in first.getMessage()
    assert "attempt 2 of 6" in second.getMessage() and "second line" not in second.getMessage()
    assert (first.silo, first.grain, first.key) == (silo, "Clerk", "a")
    assert (first.queue, first.stream) == ("queue-0", "lines/a")


async def test_a_key_cannot_make_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def impatient() -> PersistentStreams:
        options = StreamOptions(delivery=DeliveryOptions(retries=0))
        return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer(), options=options)

    async with LocalCluster(grains=[Clerk], streams={"default": impatient}) as cluster:
        await cluster.stream(LINES, "a\nforged").publish("x")
        await until(lambda: "gave up" in caplog.text)
    said = [r.getMessage() for r in caplog.records if "forged" in r.getMessage()]
    assert [line for line in said if "failed at" in line or "gave up" in line]
    assert all("a\\nforged" in line and "\n" not in line for line in said)


class Item:
    """The attributes of a subscriber and its delivery that a log line shows."""

    grain_type = grain_key = handler = stream = id = "x"
    options = DeliveryOptions()


def test_a_flood_of_failures_is_some_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    lines, item = AttemptLog("silo", "queue-0"), Item()
    one: Any = item
    failure = Failure(FailureKind.HANDLER, "ValueError: no")
    for number in range(1000):
        lines.log_failure(one, None, 1, failure, 5.0 + number / 1000)
    assert len(caplog.records) == LINES_MAX
    lines.log_failure(one, None, 1, failure, 5.0 + WINDOW_S)
    assert len(caplog.records) == LINES_MAX + 1
    left_out = 1000 - LINES_MAX
    assert caplog.messages[-1].endswith(f"no (similar lines left out: {left_out})")
    lines.log_failure(one, None, 1, failure, 5.1 + WINDOW_S)
    assert "left out" not in caplog.messages[-1]


async def test_an_unreachable_consumer_is_no_failed_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fine(Grain):
        @subscribe(LINES)
        async def on_line(self, event: Event[str]) -> None:
            done.set()

    done = asyncio.Event()
    async with LocalCluster(grains=[Fine], streams={"default": streams}) as cluster:
        await cluster.stream(LINES, "a").publish("x")
        await done.wait()
    assert not [r for r in caplog.records if "failed at" in r.getMessage()]
