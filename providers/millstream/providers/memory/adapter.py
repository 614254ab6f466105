"""The memory provider's adapter and receiver.

Owns: batching of a silo's publishes (one append per queue at a time, of everything that came
meanwhile). Invariants: messages of one silo are appended to a queue in the order of `enqueue`;
when an append fails, everything that waited behind it for the same queue fails too, so nothing
overtakes a gap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from millstream.runtime import (
    CallTimeout,
    ClusterError,
    Grain,
    PublishUnknown,
    QueueFull,
    QueueUnavailable,
    StreamError,
)
from millstream.runtime.extending import Tasks, check_kind
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.queue import (
    AdapterContext,
    Capability,
    OutMessage,
    QueueMessage,
)
from millstream.streams.contracts.token import Token

from .queue_grain import MemoryOptions, MemoryQueue, QueuedMessage

__all__ = ["MemoryAdapter", "MemoryQueues", "MemoryReceiver"]


class MemoryQueues:
    """Queues in the memory of the cluster: `PersistentStreams(MemoryQueues(), ...)`.

    Each queue is a grain beside its first reader. Content survives moves of the reader and the
    graceful stop of its silo; it is lost with a silo that crashes.
    """

    grains: ClassVar[tuple[type[Grain], ...]] = (MemoryQueue,)
    capabilities = frozenset(
        {
            Capability.WAKEUP,
            Capability.ORDERED,
            Capability.STABLE_TOKENS,
            Capability.FENCED_ACK,
            Capability.DEDUP,
        }
    )

    def __init__(self, options: MemoryOptions | None = None) -> None:
        self._options = MemoryOptions() if options is None else options
        check_kind("MemoryQueues(options)", self._options, MemoryOptions)

    async def open(self, provider: str, context: AdapterContext, /) -> MemoryAdapter:
        return MemoryAdapter(provider, context, self._options)


class MemoryAdapter:
    """The memory provider in one silo."""

    def __init__(self, provider: str, context: AdapterContext, options: MemoryOptions) -> None:
        self.options = options
        self._provider = provider
        self._context = context
        self._senders: dict[QueueId, Sender] = {}

    def _queue(self, queue: QueueId) -> MemoryQueue:
        grain: MemoryQueue = self._context.grain(MemoryQueue, f"{self._provider}/{queue}")
        return grain

    async def enqueue(
        self, queue: QueueId, message: OutMessage, mapper_epoch: int, /
    ) -> Token | None:
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders[queue] = Sender(
                self._queue(queue), self.options, self._context.tasks
            )
        mark = message.mark
        queued = QueuedMessage(
            message.stream.namespace,
            message.stream.key,
            list(message.items),
            dict(message.headers) or None,
            "" if mark is None else mark.producer,
            0 if mark is None else mark.seq,
            self._context.wall_s(),
        )
        return await sender.send(queued)

    def receiver(self, queue: QueueId, epoch: int, /) -> MemoryReceiver:
        return MemoryReceiver(self._queue(queue), epoch)

    async def aclose(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()


class Sender:
    """What one silo publishes to one queue.

    A message that comes while none is under way is sent in its publisher's task; what comes
    meanwhile waits for a task of the sender's own.
    """

    def __init__(self, queue: MemoryQueue, options: MemoryOptions, tasks: Tasks) -> None:
        self._queue = queue
        self._options = options
        self._tasks = tasks
        self._waiting: deque[tuple[QueuedMessage, asyncio.Future[Token | None]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_sending = False

    async def send(self, message: QueuedMessage) -> Token | None:
        """Send a message, or let it wait; returns once it is accepted."""
        if not self._is_sending:
            return await self._send_one(message)
        future: asyncio.Future[Token | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, future))
        return await future

    async def _send_one(self, message: QueuedMessage) -> Token | None:
        self._is_sending = True
        try:
            ((era, seq),) = await self._queue.append([message])
        except Exception as error:
            self._fail((), error)
            raise publish_error(error) from None
        finally:
            if self._waiting:
                self._task = self._tasks.start(self._send_all())
            else:
                self._is_sending = False
        return Token(era, seq) if seq else None

    def _take_batch(self) -> list[tuple[QueuedMessage, asyncio.Future[Token | None]]]:
        batch: list[tuple[QueuedMessage, asyncio.Future[Token | None]]] = []
        size = events = 0
        while self._waiting and len(batch) < self._options.batch_messages_max:
            message = self._waiting[0][0]
            size += message.size_bytes
            events += len(message.items)
            is_over = size > self._options.batch_bytes_max or events > self._options.capacity_events
            if batch and is_over:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch = self._take_batch()
                try:
                    numbers = await self._queue.append([message for message, _ in batch])
                except asyncio.CancelledError:
                    self._fail(batch, PublishUnknown("may have been accepted: the silo stops"))
                    raise
                except Exception as error:
                    self._fail(batch, error)
                    continue
                for (_, future), (era, seq) in zip(batch, numbers, strict=True):
                    if not future.done():
                        future.set_result(Token(era, seq) if seq else None)
        finally:
            self._task, self._is_sending = None, False

    def _fail(self, batch: Sequence[Any], error: Exception) -> None:
        """What was sent fails with the error; what waits behind it was not accepted for sure."""
        behind = list(self._waiting)
        self._waiting.clear()
        for waiting, make in ((batch, publish_error), (behind, unsent_error)):
            for _, future in waiting:
                if not future.done():
                    future.set_exception(make(error))

    def close(self) -> None:
        """Fail what waits."""
        self._fail((), QueueUnavailable("the silo stops"))
        if self._task is not None:
            self._task.cancel()


def publish_error(error: Exception) -> Exception:
    """What a publisher gets: was it refused, or is the outcome unknown?"""
    if isinstance(error, StreamError):
        return type(error)(*error.args)
    if isinstance(error, CallTimeout | ClusterError):
        return PublishUnknown(f"may have been accepted: {error}")
    return QueueUnavailable(f"{type(error).__name__}: {error}")


def unsent_error(error: Exception) -> Exception:
    """What the publishers behind a failure get: theirs was not sent."""
    if isinstance(error, QueueFull):
        return QueueFull(*error.args)
    return QueueUnavailable(f"not sent, since what was before it failed: {error}")


class MemoryReceiver:
    """The read side of one in-memory queue, for one epoch."""

    def __init__(self, queue: MemoryQueue, epoch: int) -> None:
        self._queue = queue
        self._epoch = epoch
        self._era = 0
        self._after = 0

    async def start(self, after: Token | None, /) -> None:
        self._era, self._after = await self._queue.begin(self._epoch)
        if after is not None and after.era == self._era:
            self._after = max(self._after, after.seq)

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        try:
            found = await self._queue.read(
                self._epoch, self._era, self._after, max_events, max_bytes, wait_s
            )
        except CallTimeout as error:
            raise QueueUnavailable(str(error)) from None
        self._era, self._after = found.era, found.first_seq - 1 + len(found.messages)
        return [
            QueueMessage(
                StreamId(message.namespace, message.key),
                Token(found.era, found.first_seq + at),
                message.items,
                message.headers or {},
                message.enqueued_s,
            )
            for at, message in enumerate(found.messages)
        ]

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        if upto is not None:
            await self._queue.acknowledge(self._epoch, upto.era, upto.seq)

    async def backlog(self) -> int:
        return await self._queue.backlog()

    async def release(self, tokens: Sequence[Token], delay_s: float, /) -> None:
        """A log: what is not acknowledged is read again by the next receiver."""

    async def aclose(self) -> None:
        return None
