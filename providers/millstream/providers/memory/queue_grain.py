"""The in-memory queue: one grain per queue, around a `Partition`.

Owns: messages that are accepted and not yet acknowledged, their numbers, the epoch of the reader.
Not: batching of producers (`adapter`). Invariants: a message is numbered when it is accepted, and
keeps its number; a reader of an older epoch is refused; a graceful stop stores the content and the
next activation goes on with it; stored content is taken by one activation, which marks the row by
compare-and-set before it serves; a crash loses it, and the era rises, so tokens never run
backwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from millstream.runtime import (
    PREFER_LOCAL,
    Conflict,
    DeactivationReason,
    Etag,
    Grain,
    QueueFenced,
    QueueFull,
    Row,
    StateStore,
    StorageError,
    StorageUnavailable,
    always_interleave,
    grain,
)
from millstream.runtime.extending import (
    check_fields,
    isolated,
    services_of,
    stopping,
    text_bytes,
)
from millstream.streams import AdapterHost
from millstream.streams.contracts.message import content_bytes

from .arrivals import Arrivals
from .partition import Partition
from .room import Room

__all__ = ["MemoryOptions", "MemoryQueue", "NumberedMessages", "QueuedMessage"]

log = logging.getLogger("millstream.memory")

READER = "agents"
FOREVER_S = 1e9
PRODUCERS_MAX = 10_000
CHUNK_MESSAGES = 2_000
ROWS_PER_SCAN = 1_000
KEEP_TRIES_MAX = 6
KEEP_RETRY_S = 0.1
LOOKED_AT_MAX = 4_096
SPAN_MAX = 10_000_000  # messages from the oldest that is not done on; one that is done costs 8 B


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Limits of each in-memory queue. Raises ConfigError.

    A publish to a queue with `capacity_events` events, or `capacity_bytes` bytes, that are not
    acknowledged waits for room, first come first served, up to `enqueue_wait_s` at a time; the
    publisher tries again up to `StreamOptions.enqueue_wait_s`, then it raises QueueFull. `store`
    keeps what outlives an activation: the content of a queue whose silo stops gracefully.
    """

    capacity_events: int = 100_000
    capacity_bytes: int = 256 << 20
    enqueue_wait_s: float = field(default=0.25, metadata={"min": 0})
    store: str = "default"

    def __post_init__(self) -> None:
        check_fields(self)


class QueuedMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message as it is stored."""

    namespace: str
    key: str
    items: list[bytes]
    headers: dict[str, str] | None
    producer: str
    seq: int
    enqueued_s: float

    @property
    def is_gone(self) -> bool:
        """Does it stand in the place of a message that is done? No stream has an empty name."""
        return not self.namespace

    @property
    def size_bytes(self) -> int:
        """Bytes of its items and texts, of which a frame has to hold all. Cost: O(items)."""
        return content_bytes(self.items, self.headers) + text_bytes((self.namespace, self.key))


def size_of(messages: Sequence[QueuedMessage]) -> tuple[int, int]:
    """Events and bytes of messages."""
    events = sum(len(message.items) for message in messages)
    return events, sum(message.size_bytes for message in messages)


GONE = QueuedMessage("", "", [], None, "", 0, 0.0)
"""In the place of a message that is done before older ones are."""


class NumberedMessages(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive messages of one era; the first has number `first_seq`."""

    era: int
    first_seq: int
    messages: list[QueuedMessage]


class StoredQueue(msgspec.Struct, array_like=True, frozen=True):
    """What outlives an activation; `is_clean`: its content was stored with it.

    `holder`: the activation that has the content, while it is not clean.
    """

    era: int
    is_clean: bool
    start: int
    epoch: int
    chunks: int
    holder: str = ""
    producers: dict[str, int] = {}


class Opened(Protocol):
    """The provider's adapter in this silo."""

    @property
    def options(self) -> MemoryOptions: ...
    @property
    def host(self) -> AdapterHost: ...


@grain(name="millstream.MemoryQueue", placement=PREFER_LOCAL)
class MemoryQueue(Grain):
    """One queue; the key is `provider/queue`."""

    def __init__(self) -> None:
        self._options = MemoryOptions()
        self._era = 0
        self._epoch = 0
        self._partition: Partition[QueuedMessage] = Partition()
        self._room = Room(self._options.capacity_events, self._options.capacity_bytes)
        self._arrivals = Arrivals()
        self._read_end = 0  # the reader has had the messages below this offset,
        self._read_events = 0  # which are so many events that are not acknowledged
        self._producers: OrderedDict[str, int] = OrderedDict()
        self._mark = b""  # the row, while this activation has the content

    # -- life

    @property
    def _store(self) -> StateStore:
        store: StateStore = services_of(self).store(self._options.store)
        return store

    async def on_activate(self) -> None:
        """Go on with stored content, or begin a new era."""
        adapter: Opened = services_of(self).part(self.key.partition("/")[0]).adapter
        self._options = adapter.options
        self._room = Room(self._options.capacity_events, self._options.capacity_bytes)
        found = await self._store.read(self._row_key)
        stored = None if found is None else msgspec.msgpack.decode(found.data, type=StoredQueue)
        if stored is not None and stored.is_clean:
            await self._load(stored)
        else:
            self._era = await adapter.host.raise_era(await adapter.host.era())
            self._partition = Partition()
        self._partition.register(READER, "earliest")
        await self._take(found)
        await self._clear_chunks()  # from here on nobody reads them
        self.context.keep_alive(FOREVER_S)

    @property
    def _row_key(self) -> str:
        return f"memory-queue/{self.key}"

    async def _take(self, found: Row | None) -> None:
        """Mark the row that was read: whoever activates after this finds no content."""
        holder = f"{self.context.silo}#{services_of(self).activation_id}"
        mark = StoredQueue(self._era, False, 0, self._epoch, 0, holder)
        self._mark = msgspec.msgpack.encode(mark)
        await self._keep(self._put_mark, None if found is None else found.etag)

    async def _put_mark(self, expect: Etag | None) -> None:
        try:
            await self._store.write(self._row_key, self._mark, expect, services_of(self).fence)
        except Conflict:
            if not await self._is_stored(self._mark):  # by an earlier try without an answer
                raise

    async def _is_stored(self, *rows: bytes) -> bool:
        found = await self._store.read(self._row_key)
        return found is not None and found.data in rows

    async def _save(self, data: bytes) -> None:
        """Put the content's row in the place of this activation's mark."""
        found = await self._store.read(self._row_key)
        if found is None or found.data not in (self._mark, data):
            raise Conflict(f"{self.key}: another activation has taken the queue")
        await self._store.write(self._row_key, data, found.etag, services_of(self).fence)

    async def _load(self, stored: StoredQueue) -> None:
        self._era, self._epoch = stored.era, stored.epoch
        self._partition = Partition(start=stored.start)
        self._producers = OrderedDict(stored.producers)
        events = size_bytes = 0
        for chunk in range(stored.chunks):
            key = self._chunk_key(chunk)
            row = await self._store.read(key)
            if row is None:
                raise QueueFull(f"{self.key}: stored chunk {chunk} of {stored.chunks} is missing")
            for message in msgspec.msgpack.decode(row.data, type=list[QueuedMessage]):
                events += len(message.items)
                size_bytes += message.size_bytes
                self._partition.append(GONE if message.is_gone else message)
        # the capacity may have been lowered: what is here has room until the queue moves again
        options = self._options
        self._room = Room(
            max(events, options.capacity_events), max(size_bytes, options.capacity_bytes)
        )
        self._room.try_acquire(events, size_bytes)

    async def _clear_chunks(self) -> None:
        """Drop the rows of a former activation, whether it was loaded, or died while it stored.

        Rows that stay do no harm: a later activation drops or overwrites them.
        """
        prefix = f"memory-queue-content/{self.key}/"
        try:
            while rows := await self._store.scan(prefix, "", ROWS_PER_SCAN):
                for key, row in rows:
                    await self._store.clear(key, row.etag, services_of(self).fence)
        except StorageError as error:
            log.info("%s: rows of stored content stay a while: %s", self.key, error)

    def _chunk_key(self, chunk: int) -> str:
        return f"memory-queue-content/{self.key}/{chunk:08d}"

    @stopping
    def _stopping(self) -> None:
        """The queue is about to move: readers that wait go, and come back to its next place."""
        self._arrivals.close()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Store the content, so that the next activation goes on with it."""
        self._room.close(f"{self.key}: the queue moves")
        start, count = self._partition.committed(READER), self._partition.depth(READER)
        chunks = 0
        for at in range(0, count, CHUNK_MESSAGES):
            part = self._partition.read_at(start + at, min(CHUNK_MESSAGES, count - at))
            await self._keep(self._put_chunk, self._chunk_key(chunks), msgspec.msgpack.encode(part))
            chunks += 1
        producers = dict(self._producers)
        stored = StoredQueue(self._era, True, start, self._epoch, chunks, "", producers)
        await self._keep(self._save, msgspec.msgpack.encode(stored))

    async def _put_chunk(self, key: str, data: bytes) -> None:
        found = await self._store.read(key)
        expect = None if found is None else found.etag  # an earlier try may have stored it
        await self._store.write(key, data, expect, services_of(self).fence)

    async def _keep(self, write: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Write a row for the content; a store that is away for a moment costs nothing."""
        for attempt in range(KEEP_TRIES_MAX):
            try:
                return await write(*args)
            except StorageUnavailable:
                if attempt + 1 == KEEP_TRIES_MAX:
                    raise
                await asyncio.sleep(KEEP_RETRY_S * 2**attempt)

    # -- producers

    @always_interleave
    @isolated
    async def append(self, messages: list[QueuedMessage]) -> list[tuple[int, int]]:
        """Accept messages in order; returns (era, number) of each, number 0 for a repeated one.

        Waits for room, first come first served. Raises QueueFull.
        """
        fresh = [message for message in messages if not self._is_known(message)]
        events, size_bytes = size_of(fresh)
        self._refuse_too_large(events, size_bytes)
        if not self._room.try_acquire(events, size_bytes):
            await self._wait_for_room(events, size_bytes)
        numbers = [self._accept(message) for message in messages]
        accepted = [m for m, (_, number) in zip(messages, numbers, strict=True) if number]
        if len(accepted) != len(fresh):  # repeated while it waited, or in this very batch
            events_in, bytes_in = size_of(accepted)
            self._room.release(events - events_in, size_bytes - bytes_in)
        self._arrivals.wake()
        return numbers

    def _refuse_too_large(self, events: int, size_bytes: int) -> None:
        """Raise QueueFull for what would never have room, or stand too far behind what waits."""
        options = self._options
        if self._partition.depth(READER) >= SPAN_MAX:
            raise QueueFull(
                f"{self.key}: its oldest event is not done, and {SPAN_MAX:,} messages came since "
                "(SPAN_MAX): see which subscription is paused or does not get on"
            )
        if events > options.capacity_events or size_bytes > options.capacity_bytes:
            raise QueueFull(
                f"{self.key}: one batch has {events} events of {size_bytes} bytes; "
                f"capacity_events is {options.capacity_events}, capacity_bytes is "
                f"{options.capacity_bytes}"
            )

    def _accept(self, message: QueuedMessage) -> tuple[int, int]:
        """Store a message and note its sequence, in one step; number 0 for a repeated one."""
        if self._is_known(message):
            return self._era, 0
        self._note(message)
        return self._era, self._partition.append(message) + 1

    async def _wait_for_room(self, events: int, size_bytes: int) -> None:
        options, room = self._options, self._room
        try:
            async with asyncio.timeout(options.enqueue_wait_s):
                await room.acquire(events, size_bytes)
        except TimeoutError:
            raise QueueFull(
                f"{self.key}: full, {options.enqueue_wait_s:g} s long at a time: "
                f"{room.events_taken} of {options.capacity_events} events (capacity_events), "
                f"{room.bytes_taken} of {options.capacity_bytes} bytes (capacity_bytes)"
            ) from None

    def _is_known(self, message: QueuedMessage) -> bool:
        """Has this producer's sequence been accepted?"""
        known = self._producers.get(message.producer, -1) if message.producer else -1
        return bool(message.producer) and message.seq <= known

    def _note(self, message: QueuedMessage) -> None:
        """The sequence is accepted: what comes with it again is dropped."""
        if not message.producer:
            return
        assert message.seq > self._producers.get(message.producer, -1), "a sequence only rises"
        self._producers[message.producer] = message.seq
        self._producers.move_to_end(message.producer)
        if len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)

    # -- the reader

    @always_interleave
    async def begin(self, epoch: int) -> tuple[int, int]:
        """Fence older readers; returns (era, number of the last acknowledged message)."""
        self._check_epoch(epoch)
        self._read_end, self._read_events = self._partition.committed(READER), 0
        return self._era, self._partition.committed(READER)

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise QueueFenced(f"{self.key}: epoch {epoch} is older than {self._epoch}")
        self._epoch = epoch

    @always_interleave
    @isolated
    async def read(
        self, epoch: int, era: int, after: int, max_events: int, max_bytes: int, wait_s: float
    ) -> NumberedMessages:
        """Messages behind number `after` of `era`; waits up to `wait_s` for the first."""
        self._check_epoch(epoch)
        start = max(after, self._partition.committed(READER)) if era == self._era else 0
        start = self._first_held(max(start, self._partition.committed(READER)))
        if start >= self._partition.end and wait_s > 0:
            await self._arrivals.wait(wait_s)
            self._check_epoch(epoch)
        found = self._messages_at(start, max_events, max_bytes)
        self._count_read(start, found)
        return NumberedMessages(self._era, start + 1, found)

    def _first_held(self, start: int) -> int:
        """Behind the messages at `start` that are done, as far as one look goes."""
        count = 1  # nearly always the first one is held
        while start < self._partition.end:
            for at, message in enumerate(self._partition.read_at(start, count), start):
                if not message.is_gone:
                    return at
            if count > 1:
                return min(start + count, self._partition.end)
            start, count = start + 1, LOOKED_AT_MAX
        return start

    def _messages_at(self, start: int, max_events: int, max_bytes: int) -> list[QueuedMessage]:
        """Messages from an offset on, within both limits, but one at least."""
        found: list[QueuedMessage] = []
        for message in self._partition.read_at(start, max_events):
            max_events -= len(message.items)
            max_bytes -= message.size_bytes
            if found and (max_events < 0 or max_bytes < 0):
                break
            found.append(message)
        return found

    def _count_read(self, start: int, messages: Sequence[QueuedMessage]) -> None:
        """What the reader gets for the first time counts as read."""
        fresh = messages[max(0, self._read_end - start) :]
        self._read_events += sum(len(message.items) for message in fresh)
        self._read_end = max(self._read_end, start + len(messages))

    @always_interleave
    async def acknowledge(self, epoch: int, era: int, upto: int, also: list[int]) -> None:
        """Forget messages up to and including a number, and single ones behind it.

        Again, or an older one, is harmless. Single ones give their room back at once.
        """
        self._check_epoch(epoch)
        if era == self._era:
            self._forget_upto(upto)
            for number in also:
                self._forget(number)

    def _forget(self, number: int) -> None:
        if self._partition.committed(READER) < number <= self._partition.end:
            events, size_bytes = size_of([self._partition.replace(number - 1, GONE)])
            self._room.release(events, size_bytes)
            self._read_events = max(0, self._read_events - events)

    def _forget_upto(self, upto: int) -> None:
        start = self._partition.committed(READER)
        if upto <= start:
            return
        count = min(upto, self._partition.end) - start
        done = self._partition.pull(READER, count)
        self._partition.commit(READER)
        self._partition.trim()
        events, size_bytes = size_of(done)
        self._room.release(events, size_bytes)
        self._read_events = max(0, self._read_events - events)

    @always_interleave
    async def wake(self, epoch: int) -> None:
        """The reader of an epoch ends: if it waits, it waits no longer."""
        if epoch == self._epoch:
            self._arrivals.wake()

    # -- readers beside it

    @always_interleave
    async def bounds(self) -> tuple[int, int, int]:
        """(era, number of the first message that is held, of the last one); equal to (n, n-1) if
        none is."""
        return self._era, self._partition.committed(READER) + 1, self._partition.end

    @always_interleave
    @isolated
    async def look(self, number: int, max_events: int, max_bytes: int) -> NumberedMessages:
        """Messages from a number of this era on, also those that are done, as empty ones.

        At most `max_events` messages are looked at, as many as have `max_bytes`, but one at least.
        """
        start = max(number - 1, self._partition.committed(READER))
        found = self._messages_at(min(start, self._partition.end), max_events, max_bytes)
        return NumberedMessages(self._era, start + 1, found)

    @always_interleave
    async def seek(self, when_s: float) -> tuple[int, int]:
        """(era, number of the first message that was stored at or after a time; 0: none yet)."""
        at = self._partition.committed(READER)
        while at < self._partition.end:
            for number, message in enumerate(self._partition.read_at(at, LOOKED_AT_MAX), at + 1):
                if message.enqueued_s >= when_s and not message.is_gone:
                    return self._era, number
            await asyncio.sleep(0)
            at = max(at + LOOKED_AT_MAX, self._partition.committed(READER))
        return self._era, 0

    @always_interleave
    async def depth(self) -> int:
        """Messages that are not acknowledged."""
        return self._partition.depth(READER)

    @always_interleave
    async def backlog(self) -> int:
        """Events that are stored and not read yet."""
        return self._room.events_taken - self._read_events
