"""Numbered messages through failing gateways: each is stored once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import spin

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
from millstream.streams.extending import IngestMessage, NumberedPublisher, encode_messages
from millstream.streams.publishing.ingest import IngestTarget
from millstream.streams.publishing.numbered import OPENING_S, WINDOW_BYTES_MAX

T = TypeVar("T")
ACCEPTED = [0, 1, 3, 6, 7, 9, 12, 13, 15, 18]
"""The number of messages after each number of calls."""


class Log:
    """A queue that drops repeats by producer and highest sequence; it is full at times."""

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

    def store_together(self, lists: Sequence[Sequence[OutMessage]]) -> list[bool | StreamError]:
        return [False] * len(lists)


class Gateways:
    """Two gateways before one log; a call goes to one of them, and may be lost or answered late."""

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
    """Run a coroutine in virtual time; return its result."""

    async def main(simulation: Simulation) -> T:
        return await go()

    return run(main, 1).result


async def publish(gateways: Any, name: str, calls: int, window: int) -> None:
    publisher = NumberedPublisher(gateways, "lines", "w/0", name, window=window)
    seq = 0
    for number in range(calls):
        count = number % 3 + 1
        messages = [IngestMessage("a", seq + at, [msgspec.Raw(b"\x01")]) for at in range(count)]
        await publisher.publish(encode_messages(messages), count)
        publisher.check()
        seq += count
        assert publisher.accepted <= seq
        assert publisher.accepted in ACCEPTED
    await publisher.drain()
    assert publisher.accepted == seq


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
    """Like Spark's speculative execution: several attempts of one task send at once."""

    async def go() -> list[int]:
        log = Log(full)
        gateways = Gateways(log, fates)
        await asyncio.gather(*(publish(gateways, f"p{n}", calls, window) for n in range(writers)))
        return log.kept

    assert simulated(go) == list(range(ACCEPTED[calls]))


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
    ("error", "wait_s", "calls"),
    [
        (QueueFull("full"), 20.0, 16),
        (QueueUnavailable("away"), 20.0, 16),
        (CallTimeout("late"), 20.0, 16),
        (SiloUnavailable("gone"), 20.0, 16),
        (NotHosted("no provider"), OPENING_S, 8),
        (ValueError("too large"), 0.0, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_pass_is_tried_again_within_the_patience(
    error: Exception, wait_s: float, calls: int
) -> None:
    async def go() -> tuple[float, int]:
        loop, gateway = asyncio.get_running_loop(), Refusing(error)
        publisher = NumberedPublisher(gateway, "lines", "w/0", "p", patience_s=20.0)
        await asyncio.sleep(100.0)  # the patience begins with the first failure
        started_s = loop.time()
        with pytest.raises(type(error)):
            await publisher.publish(encode_messages([]), 1)
        await publisher.aclose()
        return loop.time() - started_s, gateway.calls

    took_s, made = simulated(go)
    assert took_s == pytest.approx(wait_s, abs=0.1)
    assert made == calls


class Limping:
    """A gateway that always refuses every second call."""

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


@pytest.mark.parametrize("window", [1, 3])
def test_without_a_fault_each_call_is_sent_once_in_one_session(window: int) -> None:
    async def go() -> tuple[int, list[int]]:
        log = Log([])
        gateways = Gateways(log, [])
        await publish(gateways, "p", 6, window)
        return gateways.calls, log.kept

    assert simulated(go) == (6, list(range(12)))


class Silent:
    """A gateway that does not answer."""

    frame_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.out = 0

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        self.out += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.out -= 1


def test_what_is_out_is_given_up_by_closing() -> None:
    async def go() -> list[int]:
        silent: Any = Silent()
        publisher = NumberedPublisher(silent, "lines", "w/0", "p", window=4)
        for _ in range(3):
            await publisher.publish(encode_messages([]), 1)
        await asyncio.sleep(1.0)
        found = [silent.out]
        await publisher.aclose()
        await publisher.aclose()
        await publisher.drain()  # no call is out
        return [*found, silent.out, publisher.accepted]

    assert simulated(go) == [3, 0, 0]


class Answering(Silent):
    """A gateway that answers a second later."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        self.out += 1
        self.most = max(self.most, self.out)
        await asyncio.sleep(1.0)
        self.out -= 1
        return 1


@pytest.mark.parametrize(
    ("sizes", "most", "waited_s"),
    [
        ([WINDOW_BYTES_MAX - 9, 9, 0], 3, 0.0),
        ([WINDOW_BYTES_MAX - 9, 10, 0], 2, 1.0),
        ([WINDOW_BYTES_MAX + 1, 1], 1, 1.0),  # larger than the limit, so it is out alone
        ([10, WINDOW_BYTES_MAX + 1], 1, 1.0),
    ],
)
def test_calls_without_an_answer_have_a_limit_of_bytes(
    sizes: list[int], most: int, waited_s: float
) -> None:
    async def go() -> tuple[int, float]:
        loop, answering = asyncio.get_running_loop(), Answering()
        gateway: Any = answering
        publisher = NumberedPublisher(gateway, "lines", "w/0", "p", window=9)
        for size in sizes:
            await publisher.publish(bytes(size), 1)
            publisher.check()
        sent_s = loop.time()
        await publisher.drain()
        return answering.most, sent_s

    out, sent_s = simulated(go)
    assert out == most and sent_s == pytest.approx(waited_s, abs=0.1)


async def test_no_failure_is_left_that_nobody_has_looked_at() -> None:
    loop, seen = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda loop, found: seen.append(found))
    refusing: Any = Refusing(QueueFull("full"))
    publisher = NumberedPublisher(refusing, "lines", "w/0", "p", window=4, patience_s=1e-3)
    with pytest.raises(QueueFull) as raised:
        for _ in range(4):
            await publisher.publish(encode_messages([]), 1)
    assert raised.value.__notes__ == ["retried for 0.001 s, and nothing was accepted"]
    await publisher.aclose()
    gc.collect()  # reports tasks whose errors nobody read
    await spin()
    assert seen == []


def test_what_was_out_is_not_sent_on_when_a_session_is_over() -> None:
    class Stuck(Silent):
        """The first call fails; later ones get no answer."""

        async def call(self, *args: Any, **kwargs: Any) -> Any:
            if args[-2]:
                return await super().call(*args, **kwargs)
            await asyncio.sleep(0.5)
            if args[-3] == "p.0":
                raise QueueFull("full")
            return 1

    async def go() -> int:
        stuck: Any = Stuck()
        publisher = NumberedPublisher(stuck, "lines", "w/0", "p", window=4)
        for _ in range(3):
            await publisher.publish(encode_messages([]), 1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20.0):
                await publisher.drain()
        out: int = stuck.out  # of the second session
        await publisher.aclose()
        return out

    assert simulated(go) == 1  # `drain` was cancelled while it waited for the second one
