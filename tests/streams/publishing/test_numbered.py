"""Numbered messages through gateways that fail: each is stored once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import (
    CallTimeout,
    NotHosted,
    QueueFull,
    QueueUnavailable,
    SiloUnavailable,
    StreamError,
)
from millstream.runtime.testing import Simulation, run
from millstream.streams import OutMessage, Token
from millstream.streams.publishing.ingest import IngestMessage, IngestTarget
from millstream.streams.publishing.numbered import OPENING_S, NumberedPublisher, encode_messages

T = TypeVar("T")


class Log:
    """A queue that drops what it knows by producer and highest sequence; it is full at times."""

    def __init__(self, fates: Sequence[bool]) -> None:
        self.kept: list[int] = []
        self._fates = iter(fates)

    async def store(self, messages: Sequence[OutMessage]) -> list[Token | StreamError | None]:
        outcomes: list[Token | StreamError | None] = []
        for message in messages:
            await asyncio.sleep(0)
            if outcomes and isinstance(outcomes[-1], StreamError):
                outcomes.append(outcomes[-1])
                continue
            if next(self._fates, False):
                outcomes.append(QueueFull("full"))
                continue
            assert message.mark is not None
            if not self.kept or message.mark.seq > self.kept[-1]:
                self.kept.append(message.mark.seq)
            outcomes.append(None)
        return outcomes

    def store_at_once(self, messages: Sequence[OutMessage]) -> None:
        return None


class Gateways:
    """Two gateways before one log; calls go to the one or the other, are lost or answered late."""

    frame_bytes_max = 1 << 20

    def __init__(self, log: Log, fates: Sequence[int]) -> None:
        self.targets = [IngestTarget(log), IngestTarget(log)]
        self.calls = 0
        self._fates = iter(fates)

    def call(
        self, name: str, target: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        self.calls += 1
        return self._call(next(self._fates, 0), *args)

    async def _call(
        self, fate: int, namespace: str, producer: str, session: str, place: int, raw: msgspec.Raw
    ) -> int:
        messages = msgspec.msgpack.decode(raw, type=list[IngestMessage])
        at, lost = fate % 2, fate // 2
        if lost == 1:
            raise SiloUnavailable("lost on the way", may_have_run=False)
        stored = await self.targets[at].publish_next(namespace, producer, session, place, messages)
        if lost == 2:
            raise SiloUnavailable("the answer is lost")
        return stored


def simulated(go: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What it returns, in virtual time."""

    async def main(simulation: Simulation) -> T:
        return await go()

    return run(main, 1).result


async def publish(gateways: Any, name: str, calls: int, window: int) -> None:
    publisher = NumberedPublisher(gateways, "lines", "w/0", name, window=window)
    for number in range(calls):
        messages = [IngestMessage("a", 2 * number + at, [msgspec.Raw(b"\x01")]) for at in (0, 1)]
        await publisher.publish(encode_messages(messages), 2)
        publisher.check()
    await publisher.drain()
    assert publisher.accepted == 2 * calls


@given(
    calls=st.integers(1, 8),
    window=st.integers(1, 4),
    writers=st.integers(1, 3),
    full=st.lists(st.booleans(), max_size=30),
    fates=st.lists(st.integers(0, 5), max_size=40),
)
def test_attempts_at_once_through_failing_gateways_store_each_message_once_and_in_order(
    calls: int, window: int, writers: int, full: list[bool], fates: list[int]
) -> None:
    """As Spark's speculation does it: several attempts of one task send the same at once."""

    async def go() -> list[int]:
        log = Log(full)
        gateways = Gateways(log, fates)
        await asyncio.gather(*(publish(gateways, f"p{n}", calls, window) for n in range(writers)))
        return log.kept

    assert simulated(go) == list(range(2 * calls))


class Refusing:
    """A gateway that always gives the same answer."""

    frame_bytes_max = 1 << 20

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (QueueFull("full"), 20.0),
        (QueueUnavailable("away"), 20.0),
        (CallTimeout("late"), 20.0),
        (SiloUnavailable("gone"), 20.0),
        (NotHosted("no provider"), OPENING_S),
        (ValueError("too large"), 0.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_pass_is_tried_again_within_the_patience(error: Exception, wait_s: float) -> None:
    async def go() -> tuple[float, int]:
        loop, gateway = asyncio.get_running_loop(), Refusing(error)
        publisher = NumberedPublisher(gateway, "lines", "w/0", "p", patience_s=20.0)
        started_s = loop.time()
        with pytest.raises(type(error)):
            await publisher.publish(encode_messages([]), 1)
        await publisher.aclose()
        return loop.time() - started_s, gateway.calls

    took_s, calls = simulated(go)
    assert took_s == pytest.approx(wait_s, abs=0.1)
    assert (calls > 5) == (wait_s > 0)


class Limping:
    """A gateway that refuses every second call, for ever."""

    frame_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, *args: Any, **kwargs: Any) -> int:
        self.calls += 1
        await asyncio.sleep(1.0)
        if self.calls % 2:
            raise QueueFull("full")
        return 1


def test_the_patience_begins_anew_with_what_is_accepted() -> None:
    async def go() -> int:
        limping: Any = Limping()
        publisher = NumberedPublisher(limping, "lines", "w/0", "p", patience_s=5.0)
        for _ in range(20):
            await publisher.publish(encode_messages([]), 1)
        return publisher.accepted

    assert simulated(go) == 20
