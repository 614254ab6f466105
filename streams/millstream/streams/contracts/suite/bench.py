"""The bench: opened adapters of one provider, and operations that many checks need.

Owns: the silos and receivers that a check opened, and closing them. Invariant: checks see the
adapter only through its contract, and every call passes a guard.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from millstream.runtime import StreamError
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.contracts.message import OutMessage, ProducerMark, QueueMessage
from millstream.streams.contracts.queue import (
    BringsMapper,
    QueueAdapter,
    QueueAdapterFactory,
    QueueReceiver,
)
from millstream.streams.contracts.shapes import capabilities_of, require_shape
from millstream.streams.contracts.token import Token

from .guarded import (
    CALL_LIMIT_S,
    START_LIMIT_S,
    GuardedAdapter,
    GuardedReader,
    GuardedReceiver,
    abandon,
    within,
)
from .hooks import AdapterHooks, Make, without_hook
from .host import BenchHost, BenchMapper, BenchWorld
from .verdict import ContractBroken, NotRun, expect

__all__ = ["AdapterBench", "Generated", "expect_first", "texts"]

PROVIDER = "contract"
EVENTS_MAX, BYTES_MAX = 1000, 1 << 20
COLLECT_S = 10.0  # how long to wait for expected messages
QUIET_S = 0.03  # how long to wait for messages that must not arrive
LONG_S = 5.0  # a wait that an event ends early
SOON_S = 2.0  # how fast that event must end it
STREAMS = 500  # number of streams, where the stream does not matter
POLL_S = 0.002  # between reads of a provider without WAKEUP
Generated = Callable[[QueueId, int], Sequence[bytes]]
LastCall = Callable[[QueueAdapter], Awaitable[object]]


class AdapterBench:
    """A provider under test, as a check is given it. The suite creates it.

    Attributes:
        adapter: the adapter of the first silo.
        capabilities: the capabilities that the factory declares.
        mapper: the mapper of the provider.
        has_mapper: whether the provider has a mapper of its own.
        hooks: the hooks of the author.
        generated: gives the items of a provider that refuses `enqueue`.
    """

    def __init__(
        self,
        make: Make,
        generated: Generated | None = None,
        mapper: QueueMapper | None = None,
        hooks: AdapterHooks | None = None,
    ) -> None:
        self.generated = generated
        self.hooks = hooks or AdapterHooks()
        self.capabilities: frozenset[Capability] = frozenset()
        self.mapper: QueueMapper = mapper or BenchMapper()
        self.has_mapper = mapper is not None
        self.adapter: GuardedAdapter
        self._make = make
        self._world = BenchWorld()
        self._numbers = itertools.count()
        self._silos: dict[GuardedAdapter, list[GuardedReceiver | GuardedReader]] = {}
        self._tasks: list[asyncio.Task[list[QueueMessage]]] = []

    # -- life

    async def open(self) -> None:
        """Open the first silo. Raises ConfigError if its receiver lacks a part of the contract."""
        self.adapter = await self.another_silo()
        if isinstance(self.adapter.raw, BringsMapper):
            self.mapper = self.adapter.raw.mapper(lambda: None)
            self.has_mapper = True
        require_shape(self.adapter.raw.receiver(self.queue, 1), QueueReceiver, "the receiver")

    async def another_silo(self, make: Make | None = None) -> GuardedAdapter:
        """Open the same provider in one more silo.

        Args:
            make: makes another factory of it. None: the factory under test.
        """
        factory = (make or self._make)()
        require_shape(factory, QueueAdapterFactory, "the factory")
        host = BenchHost(self.mapper, PROVIDER, self._world)
        raw = await within(factory.open(PROVIDER, host), START_LIMIT_S, "open")
        require_shape(raw, QueueAdapter, "the adapter")
        self.capabilities = capabilities_of(factory, "the factory")
        silo = GuardedAdapter(raw, self.capabilities)
        self._silos[silo] = []
        return silo

    async def kill(self, last: LastCall | None = None) -> None:
        """Kill the process of the first silo, and open another one in its place.

        Needs the hook `kill`.

        Args:
            last: a call of its adapter. The process dies in the iteration of the event loop in
                which the call returns.
        """
        dead, hook = self.adapter, self.hooks.kill
        if hook is None:
            raise NotRun(without_hook("kill"))

        async def call_and_die() -> None:
            if last is not None:
                await last(dead.raw)
            await hook(dead.raw)

        await within(call_and_die(), CALL_LIMIT_S, "the hook `kill`, after a call of the adapter,")
        del self._silos[dead]
        self.adapter = await self.another_silo()

    async def reopen(self) -> None:
        """Open the stored content again, as after a restart of every silo."""
        await self.aclose()
        self.adapter = await self.another_silo()

    async def aclose(self) -> None:
        """Close everything that was opened; separate checks find errors in that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        receivers = [one for opened in self._silos.values() for one in opened]
        for opened in (*receivers, *self._silos):
            try:
                await opened.aclose()
            except (ContractBroken, StreamError):
                continue
        self._tasks, self._silos = [], {}

    # -- the provider under test

    def has(self, *capabilities: Capability) -> bool:
        """Return whether all these capabilities are declared.

        Args:
            capabilities: the capabilities.
        """
        return self.capabilities.issuperset(capabilities)

    @property
    def is_ordered(self) -> bool:
        """Whether the provider declares `ORDERED`."""
        return self.has(Capability.ORDERED)

    @property
    def is_read_only(self) -> bool:
        """Whether the provider refuses `enqueue`."""
        return self.generated is not None

    @property
    def queue(self) -> QueueId:
        """The queue that most checks use."""
        return self.mapper.queues()[0]

    @property
    def other_queue(self) -> QueueId | None:
        """A second queue, if the mapper has one."""
        queues = self.mapper.queues()
        return queues[1] if len(queues) > 1 else None

    def second_queue(self) -> QueueId:
        """Return a second queue. Raises NotRun if the mapper has only one queue."""
        if self.other_queue is None:
            raise NotRun("the mapper has only one queue")
        return self.other_queue

    def stream(
        self, number: int = 0, queue: QueueId | None = None, namespace: str = "n"
    ) -> StreamId:
        """Return a stream of a queue.

        Args:
            number: number of the stream among those of the queue, from 0.
            queue: the queue. None: the queue that most checks use.
            namespace: name of the namespace.
        """
        wanted = queue or self.queue
        found = (StreamId(namespace, f"key/{n}") for n in range(10_000))
        mine = (stream for stream in found if self.mapper.queue_for(stream) == wanted)
        return next(itertools.islice(mine, number, None))

    def next_stream(self, queue: QueueId | None = None) -> StreamId:
        """Return the stream of the next message: with `ORDERED` always the same one.

        Without `ORDERED`, each message has its own stream: while one event of a stream is out, a
        queue may keep the others back.

        Args:
            queue: the queue. None: the queue that most checks use.
        """
        number = 0 if self.is_ordered else next(self._numbers) % STREAMS
        return self.stream(number, queue)

    # -- writing

    def message(
        self, text: str, stream: StreamId | None = None, mark: ProducerMark | None = None
    ) -> OutMessage:
        """Return a message of one item, with a header.

        Args:
            text: the text of the item and of the header.
            stream: the stream. None: the next one.
            mark: the producer and sequence. None: the message has no number.
        """
        return OutMessage(stream or self.next_stream(), [text.encode()], {"h": text}, mark)

    def mark(self, producer: str, *numbers: int) -> list[OutMessage]:
        """Return messages of a producer, one per sequence.

        Args:
            producer: name of the producer.
            numbers: the sequences.
        """
        return [self.message(f"{producer}{n}", None, ProducerMark(producer, n)) for n in numbers]

    async def publish(self, *texts: str, queue: QueueId | None = None) -> list[str]:
        """Enqueue one message per text, one by one; return the first items of the queue.

        Args:
            texts: the texts.
            queue: the queue. None: the queue that most checks use.
        """
        queue = queue or self.queue
        if self.generated is not None:
            return [text_of(item) for item in self.generated(queue, len(texts))]
        for text in texts:
            message = self.message(text, self.next_stream(queue))
            await self.adapter.enqueue(queue, [message])
        return list(texts)

    async def forget(self, count: int) -> None:
        """Let the provider lose the first messages of the queue. Needs the hook `forget`.

        Args:
            count: number of messages.
        """
        if self.hooks.forget is None:
            raise NotRun(without_hook("forget"))
        await self.hooks.forget(self.queue, count)

    async def skip(self, count: int) -> None:
        """Let the provider use up numbers of the queue. Needs the hook `skip`.

        Args:
            count: how many numbers.
        """
        if self.hooks.skip is None:
            raise NotRun(without_hook("skip"))
        await self.hooks.skip(self.queue, count)

    def move_clock(self, by_s: float) -> None:
        """Move the hosts' wall clock forward.

        Args:
            by_s: seconds.
        """
        self._world.bench_clock.moved_s += by_s

    # -- reading

    def receiver(
        self, epoch: int = 1, queue: QueueId | None = None, silo: GuardedAdapter | None = None
    ) -> GuardedReceiver:
        """Return a receiver that is not started.

        Args:
            epoch: number of the ownership.
            queue: the queue. None: the queue that most checks use.
            silo: the adapter. None: that of the first silo.
        """
        silo = silo or self.adapter
        found = silo.receiver(queue or self.queue, epoch)
        self._silos[silo].append(found)
        return found

    async def begin(
        self,
        epoch: int = 1,
        after: Token | None = None,
        *,
        queue: QueueId | None = None,
        silo: GuardedAdapter | None = None,
    ) -> GuardedReceiver:
        """Return a started receiver.

        Args:
            epoch: number of the ownership.
            after: the receiver begins after this position.
            queue: the queue. None: the queue that most checks use.
            silo: the adapter. None: that of the first silo.
        """
        found = self.receiver(epoch, queue, silo)
        await found.start(after)
        return found

    async def take_over(
        self, epoch: int, position: Token | None, silo: GuardedAdapter | None = None
    ) -> GuardedReceiver:
        """Return the receiver of a new owner, started as the runtime starts it.

        Args:
            epoch: number of the ownership.
            position: the acknowledged position, used if the provider keeps none.
            silo: the adapter. None: that of the first silo.
        """
        is_kept = self.has(Capability.OWN_POSITION)
        return await self.begin(epoch, None if is_kept else position, silo=silo)

    async def collect(
        self, receiver: GuardedReceiver, count: int, delay_s: float = 0.0
    ) -> list[QueueMessage]:
        """Read until there are enough messages.

        Args:
            receiver: the receiver.
            count: number of messages.
            delay_s: how long messages may be delayed or leased, in seconds.

        Raises:
            ContractBroken: they do not arrive.
        """
        loop, found = asyncio.get_running_loop(), list[QueueMessage]()
        end_s = loop.time() + delay_s + COLLECT_S
        while len(found) < count:
            most = count - len(found) if self.is_read_only else EVENTS_MAX
            more = await receiver.read(most, BYTES_MAX, QUIET_S)
            found += more
            if not more:
                is_late = loop.time() > end_s
                expect(not is_late, f"{count - len(found)} more messages", texts(found))
                await asyncio.sleep(POLL_S)
        return found

    async def some(self, receiver: GuardedReceiver, most: int) -> list[QueueMessage]:
        """Read a few events, at least one message.

        Args:
            receiver: the receiver.
            most: largest number of events.

        Raises:
            ContractBroken: no message arrives.
        """
        end_s = asyncio.get_running_loop().time() + COLLECT_S
        while not (found := await receiver.read(most, BYTES_MAX, QUIET_S)):
            expect(asyncio.get_running_loop().time() < end_s, "one more message", "none")
            await asyncio.sleep(POLL_S)
        return found

    async def everything(self, receiver: GuardedReceiver, count: int) -> list[QueueMessage]:
        """Read exactly so many messages; acknowledge single messages at once.

        Args:
            receiver: the receiver.
            count: number of messages.
        """
        found = list[QueueMessage]()
        while len(found) < count:
            more = await self.collect(receiver, 1)
            if not self.is_ordered:
                await receiver.ack(None, [message.token for message in more])
            found += more
        more = await receiver.read(EVENTS_MAX, BYTES_MAX, QUIET_S)
        expect(
            len(found) == count and not more, f"{count} messages and no more", texts(found + more)
        )
        return found

    def waiting(
        self, receiver: GuardedReceiver, wait_s: float = LONG_S
    ) -> asyncio.Task[list[QueueMessage]]:
        """Begin a read and return its task.

        Args:
            receiver: the receiver.
            wait_s: how long the read waits, in seconds.
        """
        task = asyncio.ensure_future(receiver.read(EVENTS_MAX, BYTES_MAX, wait_s))
        self._tasks.append(task)
        return task

    async def acknowledge(
        self, receiver: GuardedReceiver, messages: Sequence[QueueMessage]
    ) -> Token | None:
        """Acknowledge messages as the runtime does. Return the position, or None if there is none.

        Args:
            receiver: the receiver.
            messages: the messages.
        """
        last = messages[-1].token if messages and self.is_ordered else None
        await receiver.ack(last, () if self.is_ordered else [one.token for one in messages])
        return last

    def same(self, found: Sequence[QueueMessage], wanted: Sequence[str]) -> None:
        """Expect these messages, and in this order if the provider is ordered.

        Args:
            found: the messages.
            wanted: the texts of their items.
        """
        came = texts(found)
        is_so = came == list(wanted) if self.is_ordered else sorted(came) == sorted(wanted)
        expect(is_so, f"{list(wanted)}", came)

    def reader(self, silo: GuardedAdapter | None = None) -> GuardedReader:
        """Return a reader of the queue.

        Args:
            silo: the adapter. None: that of the first silo.
        """
        silo = silo or self.adapter
        found = silo.reader(self.queue)
        self._silos[silo].append(found)
        return found


async def wait_ended(task: asyncio.Task[list[QueueMessage]], what: str) -> None:
    """Expect that a running call ends soon, with any result."""
    done, _ = await asyncio.wait({task}, timeout=SOON_S)
    expect(bool(done), f"{what} within {SOON_S:g} s", "a call that is still running")


async def cancel_read(receiver: GuardedReceiver, after_turns: int) -> None:
    """Begin a read, cancel it after some iterations of the loop, and expect that it ends."""
    call = receiver.raw.read(EVENTS_MAX, BYTES_MAX, LONG_S)
    await cancel_call(call, after_turns, "a read")


async def cancel_call(call: Coroutine[Any, Any, Any], after_turns: int, what: str) -> None:
    """Begin a call, cancel it after some iterations of the loop, and expect that it ends."""
    task = asyncio.ensure_future(call)
    for _ in range(1 + after_turns):  # one iteration to begin it
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=SOON_S)
    await abandon(task, call)
    wanted = f"{what} that is cancelled ends within {SOON_S:g} s"
    expect(bool(done), wanted, "a call that is still running")


def expect_first(first: Token | None, lost: Token, kept: Token) -> None:
    """Expect `CursorTooOld.first` above all lost messages, and not above a kept message."""
    is_so = first is not None and lost < first <= kept
    wanted = f"CursorTooOld(text, first={kept}), with the oldest kept message"
    expect(is_so, f"{wanted}; {lost} is the last lost message", str(first))


def text_of(item: bytes) -> str:
    """Return an item as text. Generated items need not be text."""
    return bytes(item).decode(errors="backslashreplace")


def texts(messages: Sequence[QueueMessage]) -> list[str]:
    """The items of messages, as text."""
    return [text_of(item) for message in messages for item in message.items]
