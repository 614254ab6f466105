"""The contract suite of queue adapters, for authors to run against their own.

    @pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=lambda check: check.__name__)
    async def test_my_queues(check, tmp_path):
        await run_adapter_check(check, lambda: MyQueues(tmp_path))

A provider that refuses `enqueue` and makes its own messages is checked with `generated`: a function
that gives the first items of a queue, whose messages have one item each.

Owns: the checks of `queue.QueueAdapterFactory` and what it opens. A check that asks for a
capability which the factory does not declare, or for a message of its own where `enqueue` is
refused, passes without doing anything. Invariant: checks see the adapter only through its contract.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

from millstream.runtime import MemoryStateStore, QueueFenced, StateStore, StreamError
from millstream.runtime.extending import Clock, Members, Targets, Tasks

from .capability import Capability
from .identity import QueueId, StreamId
from .mapping import QueueMapper
from .message import OutMessage, ProducerMark, QueueMessage
from .queue import QueueAdapter, QueueAdapterFactory, QueueReceiver
from .shapes import require_shape
from .token import Token

__all__ = ["ADAPTER_CHECKS", "AdapterBench", "run_adapter_check"]

QUEUE = "queue-0"
OTHER_QUEUE = "queue-1"
READ_WAIT_S = 10.0
EVENTS_MAX, BYTES_MAX = 1000, 1 << 20
Check = Callable[["AdapterBench"], Coroutine[Any, Any, None]]
Generated = Callable[[QueueId, int], Sequence[bytes]]


class BenchClock:
    """A fixed stamp, and the loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return 1_700_000_000.0

    def uniform(self, low: float, high: float, /) -> float:
        return low


class BenchMapper:
    """Each stream in the queue that its key names, or in the first."""

    epoch = 1

    def queues(self) -> Sequence[QueueId]:
        return (QUEUE, OTHER_QUEUE)

    def queue_for(self, stream: StreamId, /) -> QueueId:
        return stream.key if stream.key in self.queues() else QUEUE


class BenchHost:
    """The `AdapterHost` of a bench: no cluster behind it."""

    cluster = "contract"
    silo = "127.0.0.1:0@1"

    def __init__(self, mapper: QueueMapper | None = None, provider: str = "contract") -> None:
        self.provider = provider
        self.mapper: QueueMapper = mapper or BenchMapper()
        self.clock: Clock = BenchClock()
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self._store = MemoryStateStore()
        self._era = 0

    @property
    def members(self) -> Members:
        raise NotImplementedError("this bench has no cluster")

    @property
    def targets(self) -> Targets:
        raise NotImplementedError("this bench has no system targets")

    def grain(self, cls: type[Any], key: str, /) -> Any:
        """Adapters that use grains are checked inside a cluster."""
        raise NotImplementedError("this bench has no grains")

    def store(self, name: str = "default", /) -> StateStore:
        return self._store

    async def owner(self, queue: QueueId, /) -> tuple[str, int] | None:
        return None

    async def era(self) -> int:
        return self._era

    async def raise_era(self, seen: int, /) -> int:
        self._era = max(self._era, seen + 1)
        return self._era


class AdapterBench:
    """An opened adapter, and what checks need again and again."""

    def __init__(
        self,
        make: Callable[[], QueueAdapterFactory],
        generated: Generated | None = None,
        mapper: QueueMapper | None = None,
    ) -> None:
        self.make = make
        self.mapper = mapper
        self.generated = generated
        self.factory = make()
        self.adapter: QueueAdapter

    async def open(self) -> None:
        """Open the adapter, and compare its shape with the contract."""
        require_shape(self.factory, QueueAdapterFactory, "the factory")
        self.adapter = await self.factory.open("contract", BenchHost(self.mapper))
        require_shape(self.adapter, QueueAdapter, "the adapter")
        require_shape(self.adapter.receiver(QUEUE, 1), QueueReceiver, "the receiver")

    async def reopen(self) -> None:
        """As after a restart: another factory over what the first one stored."""
        await self.adapter.aclose()
        self.factory = self.make()
        await self.open()

    def has(self, capability: Capability) -> bool:
        """Is it declared?"""
        return capability in self.factory.capabilities

    @property
    def is_read_only(self) -> bool:
        """Does the provider refuse `enqueue`?"""
        return self.generated is not None

    async def publish(self, *texts: str, key: str = "k", queue: str = QUEUE) -> list[str]:
        """Enqueue one message per text; returns the texts that the queue begins with."""
        if self.generated is not None:
            return [text_of(item) for item in self.generated(queue, len(texts))]
        for text in texts:
            message = OutMessage(StreamId("n", key), [text.encode()], {"h": text})
            await self.adapter.enqueue(queue, [message], 1)
        return list(texts)

    async def begin(self, epoch: int = 1, queue: str = QUEUE) -> QueueReceiver:
        """A started receiver."""
        receiver = self.adapter.receiver(queue, epoch)
        await receiver.start(None)
        return receiver

    async def read(self, receiver: QueueReceiver, count: int) -> list[QueueMessage]:
        """Read until there are `count` messages; fails after `READ_WAIT_S`."""
        found: list[QueueMessage] = []
        async with asyncio.timeout(READ_WAIT_S):
            while len(found) < count:
                most = count - len(found) if self.is_read_only else EVENTS_MAX
                found.extend(await receiver.read(most, BYTES_MAX, 0.05))
        return found


def text_of(item: bytes) -> str:
    """An item as text; generated ones need not be text."""
    return bytes(item).decode(errors="backslashreplace")


def texts(messages: Sequence[QueueMessage]) -> list[str]:
    """The items of messages, as text."""
    return [text_of(item) for message in messages for item in message.items]


async def check_messages_are_read_as_they_were_enqueued(bench: AdapterBench) -> None:
    """Stream, items and headers survive."""
    if bench.is_read_only:
        return
    items = [b"one", b"", b"\x00\xff"]
    message = OutMessage(StreamId("a", "b/c"), items, {"x": "y"})
    await bench.adapter.enqueue(QUEUE, [message], 1)
    (found,) = await bench.read(await bench.begin(), 1)
    assert (found.stream, [bytes(item) for item in found.items]) == (StreamId("a", "b/c"), items)
    assert dict(found.headers) == {"x": "y"} and found.token.index == 0


async def check_messages_are_read_in_order_with_rising_tokens(bench: AdapterBench) -> None:
    """Order of acceptance, tokens rise strictly."""
    wanted = await bench.publish(*map(str, range(200)))
    found = await bench.read(await bench.begin(), 200)
    tokens = [Token(*message.token) for message in found]
    assert texts(found) == wanted
    assert all(a < b for a, b in itertools.pairwise(tokens))


async def check_queues_are_independent(bench: AdapterBench) -> None:
    """A message of one queue is not in another."""
    here = await bench.publish("here")
    there = await bench.publish("there", queue=OTHER_QUEUE)
    assert texts(await bench.read(await bench.begin(queue=OTHER_QUEUE), 1)) == there
    assert texts(await bench.read(await bench.begin(), 1)) == here


async def check_an_empty_queue_reads_as_nothing(bench: AdapterBench) -> None:
    """[] after the wait, which has an end."""
    if bench.is_read_only:
        return
    async with asyncio.timeout(READ_WAIT_S):
        assert list(await (await bench.begin()).read(10, 1000, 0.01)) == []


async def check_a_read_keeps_to_its_limits(bench: AdapterBench) -> None:
    """At most so many events and bytes; one message at least."""
    await bench.publish(*["x" * 100] * 10)
    receiver = await bench.begin()
    found = await receiver.read(3, BYTES_MAX, 0.05)
    assert 1 <= len(found) <= 3
    size = len(found[0].items[0]) * 5 // 2  # generated items may be of any size
    sizes = [len(message.items[0]) for message in await receiver.read(100, size, 0.05)]
    assert len(sizes) == 1 or 1 < sum(sizes) <= size
    assert len(await receiver.read(100, 1, 0.05)) == 1


async def check_what_is_not_acknowledged_is_read_again(bench: AdapterBench) -> None:
    """By the next receiver, with the same tokens if they are stable."""
    wanted = await bench.publish("a", "b", "c")
    first = await bench.begin()
    before = await bench.read(first, 3)
    await first.aclose()
    second = await bench.begin(epoch=2)
    if not bench.has(Capability.FENCED):
        await second.start(None)
    again = await bench.read(second, 3)
    assert texts(again) == wanted
    if bench.has(Capability.STABLE_TOKENS):
        assert [m.token for m in again] == [m.token for m in before]


async def check_what_is_acknowledged_is_not_read_again(bench: AdapterBench) -> None:
    """Acknowledging is idempotent; an older token changes nothing."""
    wanted = await bench.publish("a", "b", "c")
    first = await bench.begin()
    found = await bench.read(first, 3)
    for token in (found[1].token, found[1].token, found[0].token, None):
        await first.ack(token)
    await first.aclose()
    second = bench.adapter.receiver(QUEUE, 2)
    await second.start(found[1].token)  # where the runtime keeps the position
    assert texts(await bench.read(second, 1)) == wanted[2:]


async def check_a_waiting_read_is_woken(bench: AdapterBench) -> None:
    """WAKEUP: `read` returns as soon as something is there."""
    if bench.is_read_only or not bench.has(Capability.WAKEUP):
        return
    receiver = await bench.begin()
    waiting = asyncio.ensure_future(receiver.read(10, 1000, READ_WAIT_S * 10))
    await asyncio.sleep(0)
    await bench.publish("late")
    async with asyncio.timeout(READ_WAIT_S):
        assert texts(await waiting) == ["late"]


async def check_an_older_epoch_is_fenced(bench: AdapterBench) -> None:
    """FENCED: `start` and `ack` of an older epoch are refused and change nothing."""
    if not bench.has(Capability.FENCED):
        return
    wanted = await bench.publish("a", "b")
    old = await bench.begin(epoch=1)
    found = await bench.read(old, 2)
    new = await bench.begin(epoch=2)
    await expect_fenced(old.ack(found[1].token))
    await expect_fenced(bench.adapter.receiver(QUEUE, 1).start(None))
    assert texts(await bench.read(new, 2)) == wanted


async def expect_fenced(call: Coroutine[Any, Any, None]) -> None:
    """Await a call that must raise QueueFenced."""
    try:
        await call
    except QueueFenced:
        return
    raise AssertionError("a receiver of an older epoch was not fenced")


async def check_a_repeated_sequence_is_stored_once(bench: AdapterBench) -> None:
    """DEDUP: by producer and sequence."""
    if bench.is_read_only or not bench.has(Capability.DEDUP):
        return
    for seq in (0, 1, 0, 1, 2):
        message = OutMessage(StreamId("n", "k"), [str(seq).encode()], {}, ProducerMark("p", seq))
        await bench.adapter.enqueue(QUEUE, [message], 1)
    await bench.publish("end")
    assert texts(await bench.read(await bench.begin(), 4)) == ["0", "1", "2", "end"]


async def check_messages_survive_reopening(bench: AdapterBench) -> None:
    """DURABLE: what was accepted is there after a restart."""
    if bench.is_read_only or not bench.has(Capability.DURABLE):
        return
    await bench.publish("a", "b")
    await bench.reopen()
    await bench.publish("c")
    assert texts(await bench.read(await bench.begin(), 3)) == ["a", "b", "c"]


async def check_closing_and_releasing_are_harmless(bench: AdapterBench) -> None:
    """`release` is accepted; `aclose` may come twice."""
    await bench.publish("a")
    receiver = await bench.begin()
    found = await bench.read(receiver, 1)
    await receiver.release([found[0].token], 0.0, False)
    for _ in range(2):
        await receiver.aclose()
        await bench.adapter.aclose()


async def check_a_read_only_adapter_refuses_messages(bench: AdapterBench) -> None:
    """StreamError, and the queue is as it was."""
    if not bench.is_read_only:
        return
    wanted = await bench.publish("a", "b")
    try:
        await bench.adapter.enqueue(QUEUE, [OutMessage(StreamId("n", "k"), [b"x"])], 1)
    except StreamError:
        assert texts(await bench.read(await bench.begin(), 2)) == wanted
        return
    raise AssertionError("a message was accepted by a provider that generates its own")


ADAPTER_CHECKS: Sequence[Check] = (
    check_messages_are_read_as_they_were_enqueued,
    check_messages_are_read_in_order_with_rising_tokens,
    check_queues_are_independent,
    check_an_empty_queue_reads_as_nothing,
    check_a_read_keeps_to_its_limits,
    check_what_is_not_acknowledged_is_read_again,
    check_what_is_acknowledged_is_not_read_again,
    check_a_waiting_read_is_woken,
    check_an_older_epoch_is_fenced,
    check_a_repeated_sequence_is_stored_once,
    check_messages_survive_reopening,
    check_closing_and_releasing_are_harmless,
    check_a_read_only_adapter_refuses_messages,
)


async def run_adapter_check(
    check: Check,
    make: Callable[[], QueueAdapterFactory],
    generated: Generated | None = None,
    mapper: QueueMapper | None = None,
) -> None:
    """Run one check on a freshly made factory, and close what was opened.

    `generated`, where the provider refuses `enqueue`: the first so many items of a queue.
    """
    bench = AdapterBench(make, generated, mapper)
    await bench.open()
    try:
        await check(bench)
    finally:
        await bench.adapter.aclose()
