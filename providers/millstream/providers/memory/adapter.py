"""The memory provider's adapter, receiver and reader.

This module turns requests of a silo into calls of the grains that have the queues. If a queue is in
the same silo, it uses the queue's log directly. `queue_grain` owns the content. The runtime keeps
messages that wait to be enqueued. If a list of messages is refused, a prefix of the list is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from millstream.runtime import (
    CallTimeout,
    ClusterError,
    CursorTooOld,
    EnqueueFailed,
    Grain,
    MillstreamError,
    PublishUnknown,
    QueueUnavailable,
    StreamError,
    with_options,
)
from millstream.runtime.extending import check_kind
from millstream.streams import (
    AdapterHost,
    Capability,
    MessageLimits,
    OutMessage,
    Page,
    PersistentStreams,
    QueueId,
    QueueMessage,
    StreamId,
    Token,
)

from .local_logs import LocalLogs
from .queue_grain import MemoryQueue
from .queue_log import MemoryOptions, size_of
from .wire_form import make_queued, messages_of

__all__ = ["MemoryAdapter", "MemoryQueues", "MemoryReceiver", "memory_streams"]


ANSWER_S = 5.0  # how long an answer may take, in addition to the waiting time of a read


class MemoryQueues:
    """Queues in the memory of the cluster: a queue provider for `PersistentStreams`.

    Use it for tests, for development, and where the loss of events in a crash is acceptable:
    `PersistentStreams(MemoryQueues(), ...)`, or `memory_streams()` with the usual options.

    Each queue is a grain (`millstream.MemoryQueue`, with the key `provider/queue`). Its first
    caller, usually the first reader, decides its silo.

    - A move of the reader keeps the content.
    - When the silo of a queue stops gracefully, the queue stores its content and the last sequence
      of each producer in the state store. The next activation continues with them.
    - When that silo crashes, the content is lost, and so are the sequences. The era rises, so
      tokens never go backwards. An outbox that sends its messages again after the crash stores them
      a second time.
    - Repeats of a producer's sequence are dropped while the queue remembers the producer. A queue
      remembers 10,000 producers.
    - An acknowledged event releases its capacity at once, even if older events are not
      acknowledged. Readers outside the owner see the events that are not acknowledged.
    - A list of messages is appended in parts that fit into an empty queue. If the list is refused,
      a prefix of it is stored. Later publications of the silo wait in the runtime, in order.
    - A queue accepts at most 10,000,000 messages after its oldest unacknowledged one. Above that it
      raises `QueueFull`.

    Capabilities: `WAKEUP`, `ORDERED`, `STABLE_TOKENS`, `REWIND`, `ITEM_ACK`, `OWN_POSITION`,
    `FENCED`, `DEDUP`, `SEALED`.

    Args:
        options: Limits of each queue, and the store that keeps the content while a queue moves.
            Default: `MemoryOptions()`. Give all silos the same options.

    Raises:
        ConfigError: `options` is not a `MemoryOptions`.
    """

    grains: ClassVar[tuple[type[Grain], ...]] = (MemoryQueue,)
    capabilities = frozenset(
        {
            Capability.WAKEUP,
            Capability.ORDERED,
            Capability.STABLE_TOKENS,
            Capability.REWIND,
            Capability.ITEM_ACK,
            Capability.OWN_POSITION,
            Capability.FENCED,
            Capability.DEDUP,
            Capability.SEALED,
        }
    )

    def __init__(self, options: MemoryOptions | None = None) -> None:
        self._options = MemoryOptions() if options is None else options
        check_kind("MemoryQueues(options)", self._options, MemoryOptions)

    async def open(self, provider: str, host: AdapterHost, /) -> MemoryAdapter:
        """Open the provider in one silo; the runtime calls this method.

        Args:
            provider: The name of the stream provider.
            host: The silo's side of the adapter.
        """
        return MemoryAdapter(host, self._options)


class MemoryAdapter:
    """The memory provider in one silo."""

    capabilities = MemoryQueues.capabilities

    def __init__(self, host: AdapterHost, options: MemoryOptions) -> None:
        self.host = host
        self._clock = host.clock
        self.options = options
        self.message_limits = MessageLimits(options.capacity_bytes, options.capacity_events)
        self._queues: dict[QueueId, MemoryQueue] = {}
        self.logs = LocalLogs()

    def _queue(self, queue: QueueId) -> MemoryQueue:
        grain = self._queues.get(queue)
        if grain is None:
            grain = self.host.grain(MemoryQueue, f"{self.host.provider}/{queue}")
            self._queues[queue] = grain
        return grain

    def enqueue_at_once(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None] | None:
        """Store messages if the queue is in this silo and has room; otherwise return None."""
        log = self.logs.find(queue)
        if log is None or mapper_epoch < log.eras.mapper_epoch:
            return None
        return log.append_now(messages, self._clock.wall_s())

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages, and wait up to `enqueue_wait_s` for room."""
        enqueued_s = self._clock.wall_s()
        tokens: list[Token | None] = []
        for part in parts_within(messages, self.message_limits):
            try:
                log = self.logs.find(queue)
                if log is not None:
                    tokens += await log.append(part, enqueued_s, mapper_epoch)
                else:
                    tokens += await self._send(queue, part, enqueued_s, mapper_epoch)
            except Exception as error:
                raise EnqueueFailed(tokens, publish_error(error)) from None
        return tokens

    async def _send(
        self,
        queue: QueueId,
        messages: Sequence[OutMessage],
        enqueued_s: float,
        mapper_epoch: int,
    ) -> list[Token | None]:
        """Send messages to the silo that has the queue."""
        sent = [make_queued(message, enqueued_s) for message in messages]
        numbers = await self._queue(queue).append(sent, mapper_epoch)
        return [Token(era, seq) if seq else None for era, seq in numbers]

    async def seal(self, queue: QueueId, mapper_epoch: int, era: int, /) -> Token | None:
        """Refuse older mapper epochs from now on. Return the token of the last message before the
        seal, or None."""
        barrier, number = await self._queue(queue).seal(mapper_epoch, era)
        return Token(barrier, number) if number else None

    def reader(self, queue: QueueId, /) -> MemoryReader:
        return MemoryReader(self._queue(queue))

    def receiver(self, queue: QueueId, epoch: int, /) -> MemoryReceiver:
        return MemoryReceiver(self.logs, queue, self._queue(queue), epoch)

    async def aclose(self) -> None:
        """Release nothing, because the grains belong to the silo."""


def parts_within(
    messages: Sequence[OutMessage], limits: MessageLimits
) -> Iterator[Sequence[OutMessage]]:
    """Split messages into parts that fit into an empty queue. One message may be larger."""
    start = events = size_bytes = 0
    for at, message in enumerate(messages if len(messages) > 1 else ()):
        events += len(message.items)
        size_bytes += size_of(message)
        if at > start and (events > limits.items_max or size_bytes > limits.bytes_max):
            yield messages[start:at]
            start, events, size_bytes = at, len(message.items), size_of(message)
    yield messages[start:]


def publish_error(error: Exception) -> StreamError:
    """Tell a refusal from an unknown outcome."""
    if isinstance(error, StreamError):
        return error
    if isinstance(error, CallTimeout | ClusterError):
        return PublishUnknown(f"the messages may have been accepted: {error}")
    return QueueUnavailable(f"{type(error).__name__}: {error}")


class MemoryReceiver:
    """The read side of one queue in memory, for one epoch.

    Args:
        logs: The queues of this silo.
        queue: The queue to read.
        grain: A reference to the queue, for use when another silo has it.
    """

    def __init__(self, logs: LocalLogs, queue: QueueId, grain: MemoryQueue, epoch: int) -> None:
        self._logs = logs
        self._id = queue
        self._queue = grain
        self._epoch = epoch
        self._patient = grain  # a reference whose timeout fits the waiting time of a read
        self._wait_s = -1.0
        self._era = 0
        self._after = 0

    async def start(self, after: Token | None, /) -> None:
        """Begin after a position.

        Raises:
            CursorTooOld: A crash lost the earlier content, and nothing was acknowledged since.
        """
        self._era, self._after, is_lost = await self._queue.begin(self._epoch)
        if after is not None and after.era >= self._era:
            self._after = max(self._after, after.seq)
        elif is_lost:
            text = (
                f"{self._id}: messages from before era {self._era} were lost in the crash of a silo"
            )
            raise CursorTooOld(text, first=Token(self._era, self._after + 1))

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        log = self._logs.find(self._id)
        if log is None:
            return await self._read_afar(max_events, max_bytes, wait_s)
        start, found = await log.read(
            self._epoch, self._era, self._after, max_events, max_bytes, wait_s
        )
        if log.era == self._era:
            self._after = start + len(found)
        else:
            self._go_on(log.era, start + len(found))
        return list_unfinished(found)

    def _go_on(self, era: int, after: int) -> None:
        """Advance past the messages that were read.

        Raises:
            QueueUnavailable: A crash replaced the content, so its era differs.
        """
        if era != self._era:
            raise QueueUnavailable(
                f"{self._id}: its content of era {self._era} was lost in the crash of a silo"
            )
        self._after = after

    async def _read_afar(
        self, max_events: int, max_bytes: int, wait_s: float
    ) -> Sequence[QueueMessage]:
        """Read from another silo, or from the next silo of a queue that moves."""
        if wait_s != self._wait_s:
            self._wait_s = wait_s
            self._patient = with_options(self._queue, timeout=wait_s + ANSWER_S)
        try:
            found = await self._patient.read(
                self._epoch, self._era, self._after, max_events, max_bytes, wait_s
            )
        except CallTimeout as error:
            raise QueueUnavailable(str(error)) from None
        self._go_on(found.era, found.first_seq - 1 + len(found.messages))
        return list_unfinished(messages_of(found))

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        era = self._era  # of the content; messages that were read in an older era no longer exist
        numbers = [token.seq for token in also if token.era >= era]
        number = 0 if upto is None or upto.era < era else upto.seq
        log = self._logs.find(self._id)
        if log is None:
            await self._queue.acknowledge(self._epoch, era, number, numbers)
        else:
            log.acknowledge(self._epoch, era, number, numbers)

    async def backlog(self) -> int:
        log = self._logs.find(self._id)
        return await self._queue.backlog() if log is None else log.backlog

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """Do nothing: the next receiver reads unacknowledged messages again."""

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """Return nothing, because this provider has no leases."""
        return ()

    async def aclose(self) -> None:
        try:
            await self._queue.wake(self._epoch)
        except MillstreamError:
            return  # a waiting read ends by its own timeout


class MemoryReader:
    """Reads a queue in memory without owning it; it sees the messages that are not acknowledged."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def bounds(self) -> tuple[Token | None, Token | None]:
        first_era, first, last_era, last = await self._queue.bounds()
        if first > last:
            return None, None
        return Token(first_era, first), Token(last_era, last)

    async def seek(self, when: datetime, /) -> Token | None:
        era, number = await self._queue.seek(when.timestamp())
        return Token(era, number) if number else None

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        """Return a page of unacknowledged messages from a position on.

        Raises:
            CursorTooOld: `position` is before the first stored message, which is `first`.
        """
        era, first, last_era, last = await self._queue.bounds()
        if position < Token(era, first):
            oldest = Token(era, first)
            text = f"{position} is older than the first stored message, {oldest}"
            raise CursorTooOld(text, first=oldest)
        found = await self._queue.look(position.seq, max_events, max_bytes)
        following = found.first_seq + len(found.messages)
        everything = list_unfinished(messages_of(found))
        messages = [m for m in everything if streams is None or m.stream in streams]
        newest = max((m.token.era for m in everything), default=position.era)
        if following > last:  # a seal may have raised the era since `position` was given
            newest = max(newest, last_era)
        return Page(messages, Token(newest, max(following, position.seq)), following > last)

    async def aclose(self) -> None:
        """Release nothing."""


def list_unfinished(messages: list[QueueMessage | None]) -> Sequence[QueueMessage]:
    """Return the messages, without the places of acknowledged ones."""
    if len(messages) == 1 and messages[0] is not None:
        return [messages[0]]
    return [message for message in messages if message is not None]


def memory_streams() -> PersistentStreams:
    """Return streams over queues in memory, with the usual options.

    A stream provider serves one silo. A cluster in one process calls this function once for each
    silo, so give it the function: `LocalCluster(streams={"default": memory_streams}, ...)`. A
    program with one silo gives a provider: `Silo(streams={"default": memory_streams()}, ...)`. For
    other options, write `PersistentStreams(MemoryQueues(...), ...)`.

    Returns:
        A new `PersistentStreams` over `MemoryQueues()`.
    """
    return PersistentStreams(MemoryQueues())
