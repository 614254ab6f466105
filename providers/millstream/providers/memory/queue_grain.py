"""The queue in memory: one grain for each queue, around a `QueueLog`.

This module owns the location of the content and its moves. `queue_log` owns the content, and
`adapter` splits the lists of producers. Invariants:

- A graceful stop stores the content, and the next activation continues with it.
- One activation takes stored content. It marks the row by compare-and-set before it serves.
- A crash loses the content. The era rises, so tokens never go backwards.
- The adapter of the same silo has the log exactly while this activation serves.
- Stored rows have a checksum. A damaged row is neither read nor dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol

import msgspec

from millstream.runtime import (
    PREFER_LOCAL,
    Conflict,
    DeactivationReason,
    Etag,
    Grain,
    QueueFull,
    Row,
    StateStore,
    StorageError,
    StorageUnavailable,
    always_interleave,
    grain,
)
from millstream.runtime.extending import (
    isolated,
    open_row,
    seal_content,
    services_of,
    stopping,
)
from millstream.streams import AdapterHost, QueueId

from .eras import Eras
from .local_logs import LocalLogs
from .queue_log import MemoryOptions, QueueLog
from .wire_form import (
    NumberedMessages,
    QueuedMessage,
    StoredQueue,
    make_stored,
    messages_of,
    out_message,
)

__all__ = ["MemoryQueue"]

log = logging.getLogger("millstream.memory")

QUEUE = msgspec.msgpack.Decoder(StoredQueue)
MESSAGES = msgspec.msgpack.Decoder(list[QueuedMessage])
FOREVER_S = 1e9
CHUNK_MESSAGES = 2_000
ROWS_PER_SCAN = 1_000
KEEP_TRIES_MAX = 6
KEEP_RETRY_S = 0.1


class OpenedAdapter(Protocol):
    """The provider's adapter in this silo."""

    @property
    def options(self) -> MemoryOptions: ...
    @property
    def host(self) -> AdapterHost: ...
    @property
    def logs(self) -> LocalLogs: ...


@grain(name="millstream.MemoryQueue", placement=PREFER_LOCAL)
class MemoryQueue(Grain):
    """One queue; the key is `provider/queue`."""

    log_class: ClassVar[type[QueueLog]] = QueueLog

    def __init__(self) -> None:
        self._log = QueueLog("", MemoryOptions(), 0)
        self._is_stopping = False
        self._mark = b""  # the stored row, while this activation has the content
        self._is_anew = False  # content of an earlier era was lost

    # -- life

    @property
    def _adapter(self) -> OpenedAdapter:
        adapter: OpenedAdapter = services_of(self).part(self.key.partition("/")[0]).adapter
        return adapter

    @property
    def _store(self) -> StateStore:
        store: StateStore = services_of(self).store(self._adapter.options.store)
        return store

    @property
    def _queue(self) -> QueueId:
        return self.key.partition("/")[2]

    async def on_activate(self) -> None:
        """Continue with stored content, or begin a new era."""
        adapter = self._adapter
        found = await self._store.read(self._row_key)
        row = None if found is None else open_row(self._row_key, found.data, QUEUE.decode)
        if row is not None and row.is_clean:
            await self._load(row, adapter.options)
        else:
            host = adapter.host
            era = await host.raise_era(await host.era())
            eras = Eras(era, mapper_epoch=await host.mapper_epoch())
            self._log = self.log_class(self.key, adapter.options, era, eras=eras)
            self._is_anew = row is not None
        await self._take(found)
        await self._clear_chunks()  # from here on, no activation reads them
        self.context.keep_alive(FOREVER_S)
        if self._is_stopping:
            self._log.stop_waits()
        else:
            adapter.logs.serves(self._queue, self._log)

    @property
    def _row_key(self) -> str:
        return f"memory-queue/{self.key}"

    async def _take(self, found: Row | None) -> None:
        """Mark the row that was read, so that a later activation finds no content."""
        holder = f"{self.context.silo}#{services_of(self).activation_id}"
        mark = StoredQueue(self._log.era, False, 0, self._log.epoch, 0, holder)
        self._mark = seal_content(self._row_key, msgspec.msgpack.encode(mark))
        await self._keep(self._put_mark, None if found is None else found.etag)

    async def _put_mark(self, expect: Etag | None) -> None:
        try:
            await self._store.write(self._row_key, self._mark, expect, services_of(self).fence)
        except Conflict:
            if not await self._is_stored(self._mark):  # an earlier attempt may have
                raise

    async def _is_stored(self, *rows: bytes) -> bool:
        found = await self._store.read(self._row_key)
        return found is not None and found.data in rows

    async def _save(self, data: bytes) -> None:
        """Replace the mark of this activation with the row of the content."""
        found = await self._store.read(self._row_key)
        if found is None or found.data not in (self._mark, data):
            raise Conflict(f"{self.key}: another activation took over the queue")
        await self._store.write(self._row_key, data, found.etag, services_of(self).fence)

    async def _load(self, row: StoredQueue, options: MemoryOptions) -> None:
        messages: list[QueuedMessage] = []
        for chunk in range(row.chunks):
            found = await self._store.read(self._chunk_key(chunk))
            if found is None:
                raise QueueFull(f"{self.key}: stored chunk {chunk} of {row.chunks} is missing")
            part = open_row(self._chunk_key(chunk), found.data, MESSAGES.decode)
            messages += part
        producers = dict(row.producers)
        self._log = self.log_class(
            self.key,
            options,
            row.era,
            epoch=row.epoch,
            start=row.start,
            producers=producers,
            eras=row.eras,
        )
        self._log.load(messages_of(NumberedMessages(row.era, row.start + 1, messages)))
        self._is_anew = row.is_anew

    async def _clear_chunks(self) -> None:
        """Delete the content rows of a former activation, whether or not they were loaded.

        Remaining rows do no harm: a later activation deletes or overwrites them.
        """
        prefix = f"memory-queue-content/{self.key}/"
        try:
            while rows := await self._store.scan(prefix, "", ROWS_PER_SCAN):
                for key, row in rows:
                    await self._store.clear(key, row.etag, services_of(self).fence)
        except StorageError as error:
            log.info("%s: rows of stored content are not deleted yet: %s", self.key, error)

    def _chunk_key(self, chunk: int) -> str:
        return f"memory-queue-content/{self.key}/{chunk:08d}"

    @stopping
    def _stopping(self) -> None:
        """Stop serving, because the queue is about to move."""
        self._is_stopping = True
        self._adapter.logs.serves_no_more(self._queue, self._log)
        self._log.stop_waits()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Store the content, so that the next activation continues with it."""
        self._adapter.logs.serves_no_more(self._queue, self._log)
        log = self._log
        log.close("the queue moves")
        chunks = 0
        for at in range(0, log.depth, CHUNK_MESSAGES):
            part = log.content(log.done + at, min(CHUNK_MESSAGES, log.depth - at))
            key = self._chunk_key(chunks)
            data = seal_content(key, msgspec.msgpack.encode(make_stored(part)))
            await self._keep(self._put_chunk, key, data)
            chunks += 1
        row = msgspec.msgpack.encode(self._as_stored(chunks))
        await self._keep(self._save, seal_content(self._row_key, row))

    def _as_stored(self, chunks: int) -> StoredQueue:
        log, is_lost = self._log, self._is_lost
        mark = log.era, True, log.done, log.epoch, chunks
        return StoredQueue(*mark, producers=log.producers, eras=log.eras, is_anew=is_lost)

    @property
    def _is_lost(self) -> bool:
        """Whether earlier content was lost and no message has been acknowledged since."""
        return self._is_anew and not self._log.done

    async def _put_chunk(self, key: str, data: bytes) -> None:
        found = await self._store.read(key)
        expect = None if found is None else found.etag  # an earlier attempt may have stored it
        await self._store.write(key, data, expect, services_of(self).fence)

    async def _keep(self, write: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Write a row of the content, and retry while the store is unavailable."""
        for attempt in range(KEEP_TRIES_MAX):
            try:
                return await write(*args)
            except StorageUnavailable:
                if attempt + 1 == KEEP_TRIES_MAX:
                    raise
                await asyncio.sleep(KEEP_RETRY_S * 2**attempt)

    # -- calls from other silos, and calls while the adapter has no log

    @always_interleave
    @isolated
    async def append(
        self, messages: list[QueuedMessage], mapper_epoch: int = 1
    ) -> list[tuple[int, int]]:
        """Accept messages in order; returns (era, number) of each, number 0 for a repeated one.

        Waits for room up to `enqueue_wait_s`, in order of arrival. Raises QueueFull (no room in
        that time), StaleMapper (a seal names a newer mapper epoch), StreamError (never fits).
        """
        enqueued_s = messages[0].enqueued_s if messages else 0.0
        out = [out_message(one) for one in messages]
        tokens = await self._log.append(out, enqueued_s, mapper_epoch)
        return [(self._log.era, 0) if t is None else (t.era, t.seq) for t in tokens]

    @always_interleave
    async def seal(self, mapper_epoch: int, era: int) -> tuple[int, int]:
        """Refuse older mapper epochs; returns (era, number) of the last message, or (0, 0)."""
        barrier = self._log.seal(mapper_epoch, era)
        return (0, 0) if barrier is None else (barrier.era, barrier.seq)

    @always_interleave
    async def begin(self, epoch: int) -> tuple[int, int, bool]:
        """Fence older readers; returns (era, number of the last acknowledged message, loss).

        `loss`: earlier content was lost, and no message has been acknowledged since.
        """
        done = self._log.begin(epoch)
        return self._log.era, done, self._is_lost

    @always_interleave
    @isolated
    async def read(
        self, epoch: int, era: int, after: int, max_events: int, max_bytes: int, wait_s: float
    ) -> NumberedMessages:
        """Return the messages after number `after` of `era`; waits up to `wait_s` for the first."""
        start, found = await self._log.read(epoch, era, after, max_events, max_bytes, wait_s)
        return NumberedMessages(self._log.era, start + 1, make_stored(found))

    @always_interleave
    async def acknowledge(self, epoch: int, era: int, upto: int, also: list[int]) -> None:
        """Drop all messages up to number `upto`, and the messages with the numbers in `also`."""
        self._log.acknowledge(epoch, era, upto, also)

    @always_interleave
    async def wake(self, epoch: int) -> None:
        """End the waiting read of an epoch, because its reader closes."""
        self._log.wake(epoch)

    @always_interleave
    async def bounds(self) -> tuple[int, int, int, int]:
        """Return (era, number) of the first stored message and of the last; n, n-1 if none is."""
        first, last, eras = self._log.done + 1, self._log.end, self._log.eras
        return eras.of(first), first, eras.of(last), last

    @always_interleave
    @isolated
    async def look(self, number: int, max_events: int, max_bytes: int) -> NumberedMessages:
        """Return messages from a number on; acknowledged ones are empty."""
        start, found = self._log.look(number, max_events, max_bytes)
        return NumberedMessages(self._log.era, start + 1, make_stored(found))

    @always_interleave
    async def seek(self, when_s: float) -> tuple[int, int]:
        """Return (era, number) of the first message stored at or after a time.

        The number is 0 if there is none yet.
        """
        number = await self._log.seek(when_s)
        return self._log.eras.of(number), number

    @always_interleave
    async def depth(self) -> int:
        """Return the number of messages from the oldest unacknowledged one on."""
        return self._log.depth

    @always_interleave
    async def backlog(self) -> int:
        """Return the number of stored events that are not read yet."""
        return self._log.backlog
