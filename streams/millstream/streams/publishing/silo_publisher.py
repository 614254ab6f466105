"""Publishing from a silo: messages go to the queues that carry their streams.

Owns: `SiloPublisher`. Not: waiting, retries and order within a queue (`sender`, `send_queue`),
storing messages (an adapter). Invariants: each queue stores its messages in order, either all of
them or a prefix. When streams move to other queues, waiting messages move with them, in order, and
no later message overtakes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from millstream.runtime import NotInCluster, QueueUnavailable, StreamError
from millstream.runtime.extending import Budget, Clock, Tasks
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.contracts.message import OutMessage, content_bytes
from millstream.streams.contracts.queue import QueueAdapter
from millstream.streams.contracts.token import Token

from .send_queue import Publish, SendQueue
from .sender import Awaited, QueueSender, forsake
from .split import PublishLimits, SendLimits, check_size, messages_of, split_items

__all__ = ["SiloPublisher"]


class SiloPublisher:
    """The publisher of one provider in one silo."""

    def __init__(
        self,
        name: str,
        adapter: QueueAdapter,
        mapper: QueueMapper,
        limits: PublishLimits,
        send: SendLimits,
        enqueue_wait_s: float,
        clock: Clock,
        tasks: Tasks,
        budget: Budget,
    ) -> None:
        self._name = f"{type(adapter).__name__} of stream provider {name!r}"
        self._adapter = adapter
        self._mapper = mapper
        self._limits = limits
        self._send = send
        self._enqueue_wait_s = enqueue_wait_s
        self._clock = clock
        self._tasks = tasks
        self._budget = budget
        self._senders: dict[QueueId, QueueSender] = {}
        self._closed = ""
        self._held: list[tuple[Publish, Awaited]] | None = None  # they wait while streams move

    async def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Token | None:
        """Store events of one stream, in order. Return the token of the last message, if known.

        Raises ValueError if an event is too large, and the refusal of the queue. The
        `accepted_events` of a refusal is the number of stored events.
        """
        shared = {} if headers is None else dict(headers)
        if self._limits.small(stream, bodies, shared) >= 0:
            messages = [OutMessage(stream, bodies, shared)]
        else:
            parts = messages_of(stream, bodies, shared, self._limits)
            messages = [OutMessage(stream, part, shared) for part in parts]
        publish = Publish(messages, self._clock.now(), self._enqueue_wait_s)
        if self._held is None:
            await self._sender(self._mapper.queue_for(stream)).publish(publish)
        else:
            await self._hold(publish)
        if publish.error is not None:
            raise publish.error
        return publish.tokens[-1] if publish.tokens else None

    def admit(self, message: OutMessage) -> str:
        """Check a message, and return a name that no other call returns.

        Raises ValueError if the message is too large, and StreamError if the mapper has no queue
        for its stream.
        """
        self.check(message)
        wall_us, chance = int(self._clock.wall_s() * 1e6), self._clock.uniform(0.0, 1.0)
        return f"{wall_us:x}-{int(chance * 2**52):013x}"

    def check(self, message: OutMessage) -> None:
        """Raise an error for a message that no queue will ever accept.

        Raises ValueError if the message is too large, and StreamError if the mapper has no queue
        for its stream.
        """
        check_size(message, self._limits)
        self._mapper.queue_for(message.stream)

    async def store(self, messages: Sequence[OutMessage]) -> list[Token | StreamError | None]:
        """Store messages of any streams. Return the outcome of each message, in order.

        Each queue stores a prefix of its messages, and the other messages get the error of the
        queue. If the mapper has no queue for one of the streams, no message is stored. If later
        events of the same producer were stored, the refused event would count as a repeat. Raises
        ValueError for a message that is too large, before any message is sent.
        """
        if self._are_too_long(messages):
            return await self._store_cut(messages)
        homes: list[QueueId] = []
        try:
            for message in messages:  # faster than a comprehension for single events
                homes.append(self._mapper.queue_for(message.stream))
        except StreamError as refused:
            return [refused] * len(messages)
        if len(messages) == 1:  # most often, where events come one by one
            publish = self._publish_of(messages)
            await self._offer(homes[0], publish)
            return [publish.tokens[0] if publish.tokens else publish.error]
        by_queue: dict[QueueId, list[int]] = {}
        for at, queue in enumerate(homes):
            by_queue.setdefault(queue, []).append(at)
        publishes = {
            queue: self._publish_of([messages[at] for at in places])
            for queue, places in by_queue.items()
        }
        sends = [self._offer(queue, publish) for queue, publish in publishes.items()]
        await (sends[0] if len(sends) == 1 else asyncio.gather(*sends))
        outcomes: list[Token | StreamError | None] = [None] * len(messages)
        for queue, publish in publishes.items():
            for at, outcome in zip(by_queue[queue], publish.outcomes(), strict=True):
                outcomes[at] = outcome
        return outcomes

    def _are_too_long(self, messages: Sequence[OutMessage]) -> bool:
        """Whether any message has too many items for one message of the queue."""
        return any(len(one.items) > 1 and len(self._cut(one)) > 1 for one in messages)

    def _cut(self, message: OutMessage) -> list[OutMessage]:
        """Split a message of a client, which does not know the provider's limits.

        A message with a sequence stays whole where order matters: the sequence names all of it.
        """
        if self._limits.items_max > 1 and (message.mark is not None or self._fits(message)):
            return [message]
        limits = replace(self._limits, bytes_max=self._limits.message_bytes_max)
        with_items = msgspec.structs.replace
        parts = split_items(message.items, limits, with_items(message, items=()))
        return [with_items(message, items=part) for part in parts]

    def _fits(self, message: OutMessage) -> bool:
        size = content_bytes(message.items, message.headers)
        return size <= self._limits.message_bytes_max and not self._limits.queue.refusal(message)

    async def _store_cut(self, messages: Sequence[OutMessage]) -> list[Token | StreamError | None]:
        """Store messages, each in as many parts as the queues need."""
        cut = [self._cut(one) for one in messages]
        outcomes = iter(await self.store([part for parts in cut for part in parts]))
        return [last_of([next(outcomes) for _ in parts]) for parts in cut]

    def store_together(self, lists: Sequence[Sequence[OutMessage]]) -> list[bool | StreamError]:
        """Store lists of messages without waiting. Each list has messages of one stream.

        Each queue gets the lists of all its streams together. The result has a value for each list.
        True: the list is stored. False: no message of the list is stored. An error: nobody knows
        whether the list is stored.
        """
        found: list[bool | StreamError] = [False] * len(lists)
        if self._held is not None:
            return found
        by_queue: dict[QueueId, list[int]] = {}
        try:
            for at, messages in enumerate(lists):
                by_queue.setdefault(self._mapper.queue_for(messages[0].stream), []).append(at)
        except StreamError:
            return found  # `store` raises it again
        for queue, places in by_queue.items():
            ready, sizes = [], list[int]()
            for at in places:
                size = self._size_of(lists[at])
                if size < 0:
                    break
                ready.append(lists[at])
                sizes.append(size)
            ends = self._sender(queue).store_together(ready, sizes)
            for at, error in zip(places, ends, strict=False):
                found[at] = True if error is None else error
        return found

    def _size_of(self, messages: Sequence[OutMessage]) -> int:
        """Return the bytes of the messages, or -1 if a message may have to be split or refused.

        In that case only `store` can handle the messages.
        """
        total, limits = 0, self._limits
        for one in messages:
            size = limits.small(one.stream, one.items, one.headers)
            if size < 0:
                if not self._fits(one) or self._are_too_long((one,)):
                    return -1
                size = content_bytes(one.items, one.headers)
            total += size
        return total

    async def remap(self, adopt: Callable[[], object]) -> None:
        """Move streams to other queues. `adopt` changes the mapper while no message is sent.

        Calls that are running end first. Waiting and new messages are then mapped again, in order.
        """
        assert self._held is None, "one change at a time"
        self._held, moved = [], list[tuple[Publish, Awaited]]()
        try:
            for sender in list(self._senders.values()):
                moved += await sender.give_up()
            adopt()
        finally:
            held, self._held = self._held, None
            for publish, end in (*moved, *held):
                self._place(publish, end)

    async def _hold(self, publish: Publish) -> None:
        """Let a publish wait until the streams have moved."""
        assert self._held is not None
        end: Awaited = asyncio.get_running_loop().create_future()
        self._held.append((publish, end))
        try:
            await end
        except BaseException:
            forsake(publish)
            raise

    def _place(self, publish: Publish, end: Awaited) -> None:
        """Send a publish to the new queues of its streams."""
        if end.done():
            return  # the caller has gone
        try:
            parts = publish.split(self._queue_of, self._clock.now())
        except StreamError as refused:  # refused by the new mapper
            publish.end(refused)
            end.set_result(None)
            return
        if len(parts) == 1:
            publish.parts.clear()
            self._take(next(iter(parts)), publish, end)
            return
        ends = [asyncio.get_running_loop().create_future() for _ in parts]
        self._tasks.start(self._join(publish, ends, end))
        for (queue, part), its_end in zip(parts.items(), ends, strict=True):
            self._take(queue, part, its_end)

    def _queue_of(self, message: OutMessage) -> QueueId:
        return self._mapper.queue_for(message.stream)

    def _take(self, queue: QueueId, publish: Publish, end: Awaited) -> None:
        try:
            self._sender(queue).take(publish, end)
        except NotInCluster as error:
            publish.end(QueueUnavailable(str(error)))
            end.set_result(None)

    async def _join(self, publish: Publish, ends: Sequence[Awaited], end: Awaited) -> None:
        """End a publish with parts in several queues when all its parts are over."""
        await asyncio.gather(*ends)
        publish.is_over = True
        if not end.done():
            end.set_result(None)

    async def _offer(self, queue: QueueId, publish: Publish) -> None:
        """Send a publish. If too many bytes wait, the refusal becomes the error of the publish."""
        try:
            if self._held is None:
                await self._sender(queue).publish(publish)
            else:
                await self._hold(publish)
        except StreamError as error:
            publish.end(error)

    def _publish_of(self, messages: Sequence[OutMessage]) -> Publish:
        for one in messages:
            producer = "" if one.mark is None else one.mark.producer
            if self._limits.small(one.stream, one.items, one.headers, producer) < 0:
                check_size(one, self._limits)
        return Publish(messages, self._clock.now(), self._enqueue_wait_s)

    def _sender(self, queue: QueueId) -> QueueSender:
        if self._closed:
            raise NotInCluster(self._closed)
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders[queue] = QueueSender(
                SendQueue(queue, self._send),
                queue,
                self._adapter,
                self._mapper,
                self._name,
                self._send.call_limit_s,
                self._clock,
                self._tasks,
                self._budget,
            )
        return sender

    def close(self, reason: str) -> None:
        """End the waiting publishes, and refuse new ones."""
        self._closed = reason
        for sender in self._senders.values():
            sender.close(reason)


def last_of(outcomes: Sequence[Token | StreamError | None]) -> Token | StreamError | None:
    """The outcome of a message with several parts: the first refusal, or the last token."""
    refusals = (one for one in outcomes if isinstance(one, StreamError))
    return next(refusals, outcomes[-1] if outcomes else None)
