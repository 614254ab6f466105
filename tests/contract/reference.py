"""A correct adapter in memory, with each capability as a flag, to test the contract suite itself.

A subclass of one of its parts plants a fault (`tests/contract/broken`).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile

from millstream.runtime import (
    CursorTooOld,
    EnqueueFailed,
    QueueFenced,
    QueueFull,
    StaleMapper,
    StreamError,
)
from millstream.streams import (
    AdapterHost,
    Capability,
    MessageLimits,
    OutMessage,
    Page,
    QueueAdapter,
    QueueId,
    QueueMapper,
    QueueMessage,
    StreamId,
    Token,
)
from millstream.streams.testing import AdapterHooks

C = Capability
PATIENCE_S = 60.0  # waiting costs nothing in virtual time
NOWHERE = Token(0, 0)
LOG = frozenset({C.DURABLE, C.ORDERED, C.STABLE_TOKENS})
LEDGER = LOG | {C.WAKEUP, C.REWIND, C.OWN_POSITION, C.FENCED, C.DEDUP, C.SEALED}
MEMORY = LEDGER - {C.DURABLE, C.SEALED} | {C.ITEM_ACK}
LEASES = frozenset(
    {C.DURABLE, C.WAKEUP, C.ITEM_ACK, C.LEASED, C.OWN_POSITION, C.STABLE_TOKENS, C.FENCED, C.DEDUP}
)
TAGS = frozenset({C.ITEM_ACK, C.OWN_POSITION})
KINDS = {"log": LOG, "ledger": LEDGER, "memory": MEMORY, "leases": LEASES, "tags": TAGS}


@dataclass(eq=False)
class Stored:
    """A message and its state."""

    message: OutMessage
    token: Token
    enqueued_s: float
    is_done: bool = False
    attempt: int = 1
    ready_s: float = 0.0
    lease_end_s: float = 0.0
    holder: object | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.message.items))


@dataclass(eq=False)
class Shelf:
    """A queue: its stored messages, and the state of its owner."""

    era: int = 1
    seq: int = 0
    stored: list[Stored] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    own: Token = NOWHERE
    epoch: int = 0
    mapper_epoch: int = 0
    barrier: Token | None = None
    last: Token | None = None
    lost: Token = NOWHERE  # the last deleted message
    retained: dict[str, Token] = field(default_factory=dict)
    bell: asyncio.Event = field(default_factory=asyncio.Event)

    def ring(self) -> None:
        self.bell.set()
        self.bell = asyncio.Event()

    @property
    def first(self) -> Token:
        """The oldest kept message, or the number of the next one."""
        return self.stored[0].token if self.stored else Token(self.era, self.seq + 1)


class Broker:
    """The server, which survives silos."""

    def __init__(self, capacity: int = 110, lease_s: float = 0.1) -> None:
        self.capacity = capacity
        self.lease_s = lease_s
        self.shelves: dict[QueueId, Shelf] = {}
        self.keeps: Callable[[Shelf, Stored], bool] = lambda shelf, one: False
        self.queue_count = 2
        self.watchers: list[Callable[[], None]] = []

    def shelf(self, queue: QueueId) -> Shelf:
        return self.shelves.setdefault(queue, Shelf())

    async def forget(self, queue: QueueId, count: int) -> None:
        """Delete the oldest messages as retention does, except those that readers retain."""
        shelf = self.shelf(queue)
        free = list(takewhile(lambda one: not self.keeps(shelf, one), shelf.stored[:count]))
        del shelf.stored[: len(free)]
        shelf.lost = max((one.token for one in free), default=shelf.lost)

    async def skip(self, queue: QueueId, count: int) -> None:
        """Use numbers without a message, like those of markers."""
        self.shelf(queue).seq += count

    async def relayout(self) -> None:
        """Add a queue."""
        self.queue_count += 1
        for changed in self.watchers:
            changed()

    async def kill(self, adapter: QueueAdapter) -> None:
        """End the connection of a process; the broker releases its unsettled messages."""
        assert isinstance(adapter, ReferenceAdapter)
        adapter.is_dead = True
        for receiver in adapter.receivers:
            receiver.end()


class ReferenceAdapter:
    """The provider, opened in one silo."""

    message_limits = largest = MessageLimits(bytes_max=4_096, items_max=70)

    def __init__(self, queues: ReferenceQueues, host: AdapterHost) -> None:
        self.queues = queues
        self.broker = queues.broker
        self.host = host
        self.receivers: list[ReferenceReceiver] = []
        self.is_dead = False
        self.broker.keeps = self.keeps

    def keeps(self, shelf: Shelf, one: Stored) -> bool:
        """Does a reader retain the message?"""
        return any(one.token >= position for position in shelf.retained.values())

    def has(self, capability: Capability) -> bool:
        return capability in self.queues.capabilities

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        shelf, tokens = self.broker.shelf(queue), list[Token | None]()
        for message in messages:
            await asyncio.sleep(0)
            try:
                tokens.append(self.accept(shelf, message, mapper_epoch))
            except StreamError as error:
                raise EnqueueFailed(tokens, error) from None
        return tokens

    def accept(self, shelf: Shelf, message: OutMessage, mapper_epoch: int) -> Token | None:
        """Store a message, unless it is already stored or too large."""
        if why := self.largest.refusal(message):
            raise StreamError(why)
        mark = message.mark if self.has(C.DEDUP) else None
        if mark is not None and mark.seq <= shelf.known.get(mark.producer, -1):
            return None
        if mapper_epoch < shelf.mapper_epoch:
            raise StaleMapper(f"{mapper_epoch} is older than {shelf.mapper_epoch}")
        if sum(not self.is_done(shelf, one) for one in shelf.stored) >= self.broker.capacity:
            raise QueueFull("no room")
        if mark is not None:
            shelf.known[mark.producer] = mark.seq
        return self.store(shelf, message)

    def is_done(self, shelf: Shelf, one: Stored) -> bool:
        return one.is_done or one.token <= shelf.own

    def store(self, shelf: Shelf, message: OutMessage) -> Token:
        shelf.seq += 1
        shelf.last = Token(shelf.era, shelf.seq)
        shelf.stored.append(Stored(message, shelf.last, self.host.clock.wall_s()))
        shelf.ring()
        return shelf.last

    async def seal(self, queue: QueueId, mapper_epoch: int, era: int, /) -> Token | None:
        shelf = self.broker.shelf(queue)
        if mapper_epoch > shelf.mapper_epoch:
            shelf.mapper_epoch, shelf.era, shelf.seq = mapper_epoch, era, 0
            shelf.barrier = shelf.last
        return shelf.barrier

    def receiver(self, queue: QueueId, epoch: int, /) -> ReferenceReceiver:
        found = self.queues.receiver_class(self, self.broker.shelf(queue), epoch)
        self.receivers.append(found)
        return found

    def reader(self, queue: QueueId, /) -> ReferenceReader:
        return self.queues.reader_class(self.broker.shelf(queue))

    async def retain(self, queue: QueueId, reader: str, position: Token | None, /) -> None:
        shelf = self.broker.shelf(queue)
        if position is None:
            position = shelf.first
        shelf.retained[reader] = max(position, shelf.retained.get(reader, position))

    async def let_go(self, queue: QueueId, reader: str, /) -> None:
        self.broker.shelf(queue).retained.pop(reader, None)

    async def list_retained(self, queue: QueueId, /) -> Mapping[str, Token]:
        return dict(self.broker.shelf(queue).retained)

    async def aclose(self) -> None:
        for receiver in self.receivers:
            await receiver.aclose()


class PromptAdapter(ReferenceAdapter):
    """Stores at once if the whole list fits and has the current mapper's epoch."""

    def enqueue_at_once(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None] | None:
        shelf = self.broker.shelf(queue)
        taken = sum(not self.is_done(shelf, one) for one in shelf.stored)
        if taken + len(messages) > self.broker.capacity or mapper_epoch < shelf.mapper_epoch:
            return None
        return [self.accept(shelf, message, mapper_epoch) for message in messages]


class CountMapper:
    """Maps to a number of queues, which is also the epoch and only grows."""

    def __init__(self, count: int) -> None:
        self.epoch = count

    def queues(self) -> Sequence[QueueId]:
        return [f"queue-{number}" for number in range(self.epoch)]

    def queue_for(self, stream: StreamId, /) -> QueueId:
        return f"queue-{zlib.crc32(str(stream).encode()) % self.epoch}"


class MappedAdapter(ReferenceAdapter):
    """Lets its broker decide the number of queues."""

    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        self.broker.watchers.append(changed)
        return CountMapper(self.broker.queue_count)


class ReferenceReceiver:
    """The owner's read side: a log is read by position, other queues by free messages."""

    def __init__(self, adapter: ReferenceAdapter, shelf: Shelf, epoch: int) -> None:
        self.adapter = adapter
        self.shelf = shelf
        self.epoch = epoch
        self.at = Token(0, 0)
        self.is_closed = False

    def has(self, capability: Capability) -> bool:
        return self.adapter.has(capability)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def check_fence(self) -> None:
        if self.has(C.FENCED) and self.epoch < self.shelf.epoch:
            raise QueueFenced(f"epoch {self.epoch} is older than {self.shelf.epoch}")

    async def start(self, after: Token | None, /) -> None:
        self.check_fence()
        self.shelf.epoch = max(self.shelf.epoch, self.epoch)
        own = self.shelf.own if self.has(C.OWN_POSITION) else Token(0, 0)
        self.at = max(own, after or Token(0, 0))
        self.check_kept(after)

    def check_kept(self, after: Token | None) -> None:
        """Raise CursorTooOld if a message after the position is deleted."""
        if after is not None and self.at < self.shelf.lost:
            raise CursorTooOld("gone", first=self.shelf.first)

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        end_s = self.now + (wait_s if self.has(C.WAKEUP) else 0.0)
        while not self.is_closed:
            self.check_fence()
            bell = self.shelf.bell
            if found := self.within(self.readable(), max_events, max_bytes):
                return [self.give(one) for one in found]
            if self.now >= end_s:
                return []
            await self.wait(bell, end_s)
        return []

    async def wait(self, bell: asyncio.Event, end_s: float) -> None:
        """Wait for a change by others or by time."""
        until_s = min([end_s, *(one.ready_s for one in self.waiting_ones())])
        try:
            async with asyncio.timeout_at(until_s + 1e-3):
                await bell.wait()
        except TimeoutError:
            return

    def waiting_ones(self) -> list[Stored]:
        now = self.now
        return [one for one in self.shelf.stored if one.ready_s > now and not one.is_done]

    def readable(self) -> list[Stored]:
        if self.has(C.ORDERED):
            return [one for one in self.shelf.stored if one.token > self.at and not one.is_done]
        now = self.now
        return [one for one in self.shelf.stored if not one.is_done and one.ready_s <= now]

    def within(self, ones: list[Stored], max_events: int, max_bytes: int) -> list[Stored]:
        """Return as many messages as the limits allow; one at least."""
        events = size_bytes = 0
        for count, one in enumerate(ones):
            events += len(one.message.items)
            size_bytes += one.size_bytes
            if count and (events > max_events or size_bytes > max_bytes):
                return ones[:count]
        return ones

    def give(self, one: Stored) -> QueueMessage:
        """Lease a message."""
        self.at = max(self.at, one.token)
        if not self.has(C.ORDERED):
            lease_s = self.adapter.broker.lease_s if self.has(C.LEASED) else 1e9
            one.holder, one.ready_s = self, self.now + lease_s
        out = one.message
        return QueueMessage(
            out.stream,
            one.token,
            out.items,
            out.headers,
            one.enqueued_s,
            one.attempt if self.has(C.ITEM_ACK) else 0,
            one.ready_s - self.now if self.has(C.LEASED) else 0.0,
        )

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        self.check_fence()
        if upto is not None:
            self.shelf.own = max(self.shelf.own, upto)
        for one in self.named(also):
            one.is_done = True
        self.shelf.ring()

    def named(self, tokens: Sequence[Token]) -> list[Stored]:
        return [one for one in self.shelf.stored if one.token in tokens]

    def mine(self, tokens: Sequence[Token]) -> list[Stored]:
        """Return the messages that this receiver holds."""
        now = self.now
        return [
            one
            for one in self.named(tokens)
            if one.holder is self and not one.is_done and one.ready_s > now
        ]

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        for one in self.mine(tokens):
            one.holder, one.ready_s = None, self.now + delay_s
            one.attempt += has_run
        self.shelf.ring()

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        mine = self.mine(tokens)
        for one in mine:
            one.ready_s = self.now + lease_s
        held = {one.token for one in mine}
        return [token for token in tokens if token not in held]

    async def aclose(self) -> None:
        self.end()

    def end(self) -> None:
        """Stop reading, and release the held messages."""
        self.is_closed = True
        for one in self.shelf.stored:
            if one.holder is self:
                one.holder, one.ready_s = None, 0.0
        self.shelf.ring()


class ReferenceReader:
    """Reads a queue beside its owner."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    async def bounds(self) -> tuple[Token | None, Token | None]:
        kept = self.shelf.stored
        return (kept[0].token, kept[-1].token) if kept else (None, None)

    async def seek(self, when: datetime, /) -> Token | None:
        times = ((one.enqueued_s, one.token) for one in self.shelf.stored)
        return next((token for at_s, token in times if at_s >= when.timestamp()), None)

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        kept = self.shelf.stored
        if position <= self.shelf.lost:
            raise CursorTooOld("gone", first=self.shelf.first)
        found, events, size_bytes = list[QueueMessage](), 0, 0
        for count, one in enumerate(one for one in kept if one.token >= position):
            out = one.message
            is_wanted = streams is None or out.stream in streams
            events += len(out.items) if is_wanted else 0
            size_bytes += one.size_bytes
            if count and (events > max_events or size_bytes > max_bytes):
                return Page(found, one.token, False)
            if is_wanted:
                message = (out.stream, one.token, out.items, out.headers, one.enqueued_s)
                found.append(QueueMessage(*message))
        last = self.shelf.last
        behind = position if last is None else max(position, last._replace(seq=last.seq + 1))
        return Page(found, behind, True)

    async def aclose(self) -> None: ...


class ReferenceQueues:
    """The factory; planted faults replace its parts."""

    adapter_class: type[ReferenceAdapter] = ReferenceAdapter
    receiver_class: type[ReferenceReceiver] = ReferenceReceiver
    reader_class: type[ReferenceReader] = ReferenceReader

    def __init__(self, broker: Broker, capabilities: frozenset[Capability] = LEDGER) -> None:
        self.broker = broker
        self.capabilities = capabilities

    async def open(self, provider: str, host: AdapterHost, /) -> ReferenceAdapter:
        return self.adapter_class(self, host)


def hooks_of(broker: Broker) -> AdapterHooks:
    """Return the hooks of the contract suite."""
    return AdapterHooks(
        forget=broker.forget,
        skip=broker.skip,
        kill=broker.kill,
        relayout=broker.relayout,
        patience_s=PATIENCE_S,
    )


Make = Callable[[], ReferenceQueues]
