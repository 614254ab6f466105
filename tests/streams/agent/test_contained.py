"""A faulty receiver harms only its own queue, is named and counted, and loses no event.

The receiver takes messages from a list at once and returns them a little later, like clients of
brokers. So a read that is cancelled has lost its messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.runtime import CursorTooOld, Grain, LocalCluster, state
from millstream.streams import (
    AdapterHost,
    Capability,
    Event,
    FlowOptions,
    HashRingMapper,
    OutMessage,
    OwnershipOptions,
    PersistentStreams,
    QueueId,
    QueueMessage,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.agent.reading import contained_receiver

LINES = StreamNamespace("lines", str, subscriptions="implicit")
SUMS = StreamNamespace("sums", int, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)
LOG_CAPABILITIES = frozenset(
    {Capability.ORDERED, Capability.STABLE_TOKENS, Capability.OWN_POSITION, Capability.WAKEUP}
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    monkeypatch.setattr(contained_receiver, "END_S", 0.05)


class Reader(Grain):
    total = state(int)

    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)

    @subscribe(SUMS, commit_with=total)
    async def on_sum(self, event: Event[int]) -> None:
        self.total.value += event.item
        SEEN[self.key].append(str(event.item))


class Plain(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)


class Faults:
    """Faults of the next calls of a method: an error, a wrong value, or no answer."""

    def __init__(self) -> None:
        self.log: list[QueueMessage] = []
        self.acked = 0
        self.coming: dict[str, list[Any]] = defaultdict(list)
        self.calls: Counter[str] = Counter()
        self.hanging: Counter[str] = Counter()
        self.out: Counter[str] = Counter()
        self.repeats = 0

    async def enter(self, method: str) -> Any:
        self.calls[method] += 1
        fault = self.coming[method].pop(0) if self.coming[method] else None
        if fault == "hang":
            await self.hang(method)
        if isinstance(fault, BaseException):
            raise fault
        return fault

    async def hang(self, method: str) -> None:
        """Wait until the test ends the call; ignore cancellation."""
        self.hanging[method] += 1
        while self.hanging[method]:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue


class Queues:
    def __init__(self, faults: Faults, capabilities: frozenset[Capability]) -> None:
        self.faults = faults
        self.capabilities = capabilities

    async def open(self, provider: str, host: AdapterHost) -> Queues:
        return self

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        log = self.faults.log
        for one in messages:
            log.append(QueueMessage(one.stream, Token(1, len(log) + 1), one.items, one.headers))
        return [None] * len(messages)

    def receiver(self, queue: QueueId, epoch: int) -> Receiver:
        return Receiver(self.faults, Capability.STABLE_TOKENS in self.capabilities)

    async def aclose(self) -> None: ...


class Receiver:
    def __init__(self, faults: Faults, is_stable: bool) -> None:
        self.faults = faults
        self.is_stable = is_stable
        self.at = 0
        self.is_closed = False

    async def start(self, after: Token | None) -> None:
        assert after is None or self.is_stable
        await self.faults.enter("start")
        self.at = max(self.faults.acked, 0 if after is None else after.seq)

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Any:
        faults = self.faults
        assert not faults.out["read"] or faults.hanging["read"], "one read at a time"
        faults.out["read"] += 1
        try:
            wrong = await faults.enter("read")
            if wrong is not None:
                return wrong
            self.at = max(0, self.at - faults.repeats)
            taken = faults.log[self.at : self.at + 3]
            self.at += len(taken)
            for _ in range(5):
                await asyncio.sleep(0)
        finally:
            faults.out["read"] -= 1
        if self.is_stable:
            return taken
        return [  # numbers begin again with each receiver
            QueueMessage(one.stream, Token(1, 1 + number), one.items)
            for number, one in enumerate(taken)
        ]

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        await self.faults.enter("ack")
        if upto is not None and self.is_stable:
            self.faults.acked = max(self.faults.acked, upto.seq)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None:
        await self.faults.enter("aclose")


OPTIONS = StreamOptions(
    read_retry_s=0.01,
    read_wait_s=0.01,
    flow=FlowOptions(ack_every_s=0.0),
    ownership=OwnershipOptions(poll_s=0.01, max_handoff_s=0.5),
)
# Only for tests with a call that never ends: on a busy machine, a correct call may take longer.
IMPATIENT = replace(OPTIONS, read_limit_s=0.05, start_limit_s=0.05, call_limit_s=0.05)


def cluster_of(
    faults: Faults,
    capabilities: frozenset[Capability] = LOG_CAPABILITIES,
    grain: type[Grain] = Reader,
    options: StreamOptions = OPTIONS,
) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            Queues(faults, capabilities),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=options,
        )

    return LocalCluster(silos=1, grains=[grain], streams={"default": provider})


def provider_of(cluster: LocalCluster) -> PersistentStreams:
    provider = cluster.silos[0].services.part("default")
    assert isinstance(provider, PersistentStreams)
    return provider


FAULTS: dict[str, tuple[str, Any]] = {
    "start raises CancelledError": ("start", asyncio.CancelledError()),
    "read raises CancelledError": ("read", asyncio.CancelledError()),
    "ack raises CancelledError": ("ack", asyncio.CancelledError()),
    "aclose raises CancelledError": ("aclose", asyncio.CancelledError()),
    "read returns a number": ("read", 7),
    "read returns None among its messages": ("read", [None]),
    "start never ends": ("start", "hang"),
    "read never ends": ("read", "hang"),
    "ack never ends": ("ack", "hang"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_queue_is_read_on_in_the_same_epoch(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    method, fault = FAULTS[name]
    faults = Faults()
    faults.coming[method] = [fault, fault]
    if method == "aclose":
        faults.coming["read"] = [ValueError("so it is replaced")] * 2
    options = IMPATIENT if fault == "hang" else OPTIONS
    async with cluster_of(faults, options=options) as cluster:
        for text in "abcdefgh":
            await cluster.stream(LINES, "k").publish(text)
        await until(lambda: len(SEEN["k"]) >= 8 and faults.acked == 8)
        await spin()
        assert SEEN["k"] == list("abcdefgh")
        assert faults.calls[method] >= 2
        (stats,) = provider_of(cluster).stats()
        assert stats.epoch == 1 and stats.faults >= 2
        faults.hanging.clear()
    if isinstance(fault, asyncio.CancelledError):
        assert f"default: queue-0: Receiver.{method} raised CancelledError" in caplog.text


async def test_what_is_at_fault_is_named(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    faults.coming["read"] = [ValueError("odd"), asyncio.CancelledError(), "hang"]
    with caplog.at_level(logging.WARNING, "millstream.agent"):
        async with cluster_of(faults, options=IMPATIENT) as cluster:
            await cluster.stream(LINES, "k").publish("a")
            await until(lambda: SEEN["k"] == ["a"])
            faults.hanging.clear()
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert (
        "default: queue-0: Receiver.read raised ValueError: odd; the receiver is replaced" in said
    )


async def test_a_stop_does_not_wait_for_what_never_ends() -> None:
    faults = Faults()
    async with cluster_of(faults, options=IMPATIENT) as cluster:
        await cluster.stream(LINES, "k").publish("a")
        await until(lambda: SEEN["k"] == ["a"])
        faults.coming = defaultdict(
            list, {name: ["hang"] * 9 for name in ("read", "ack", "aclose")}
        )
        async with asyncio.timeout(15):
            await cluster.silos[0].stop()
        faults.hanging.clear()


async def test_nothing_is_lost_when_a_balancer_takes_its_wish_back() -> None:
    faults = Faults()
    async with cluster_of(faults) as cluster:
        manager = provider_of(cluster).manager
        wanted = ["a" * n for n in range(1, 120)]
        for number, text in enumerate(wanted):
            await cluster.stream(LINES, "k").publish(text)
            manager.want([] if number % 2 else ["queue-0"])
            await spin(number % 11)
        manager.want(["queue-0"])
        await until(lambda: len(set(SEEN["k"])) == len(wanted))
        assert list(dict.fromkeys(SEEN["k"])) == wanted


async def test_an_item_that_is_given_again_takes_effect_once() -> None:
    faults = Faults()
    faults.repeats = 2
    async with cluster_of(faults) as cluster:
        for number in range(1, 11):
            await cluster.stream(SUMS, "k").publish(number)
        await until(lambda: len(SEEN["k"]) >= 10)
        await spin(100)
        assert SEEN["k"] == [str(number) for number in range(1, 11)]


async def test_nothing_is_dropped_as_known_without_stable_tokens() -> None:
    faults = Faults()
    own = frozenset({Capability.OWN_POSITION, Capability.ORDERED})
    async with cluster_of(faults, own, Plain) as cluster:
        for text in "abcdefgh":
            await cluster.stream(LINES, "k").publish(text)
        await until(lambda: len(SEEN["k"]) >= 8 and faults.calls["ack"] > 1)
        assert SEEN["k"] == list("abcdefgh")


async def test_what_is_gone_is_counted_and_reading_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults()
    faults.coming["start"] = [CursorTooOld("too old", first=Token(1, 5))]
    async with cluster_of(faults) as cluster:
        await cluster.stream(LINES, "k").publish("a")
        await until(lambda: SEEN["k"] == ["a"])
        (stats,) = provider_of(cluster).stats()
    assert stats.gaps == 1
    assert "reading continues at 00000001-0000000000000005-00000000" in caplog.text
