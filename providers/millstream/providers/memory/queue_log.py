"""The content of one queue in memory: accepted messages that are not acknowledged.

This module owns `QueueLog`: message numbers, capacity, the sequences of producers, the reader's
epoch, and the seal (`eras`). `queue_grain` owns the location of the content and its moves. Only
waiting is asynchronous, so code in the same silo uses the log without a call. Invariants:

- A message gets its number when it is accepted, and keeps it.
- A repeated sequence of a producer is not stored again.
- A reader of an older epoch is refused.
- An acknowledged message releases its capacity at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn

import msgspec

from millstream.runtime import QueueFenced, QueueFull, StaleMapper, StreamError
from millstream.runtime.extending import check_fields, text_bytes
from millstream.streams import OutMessage, QueueMessage, Token
from millstream.streams.contracts.message import content_bytes

from .arrivals import Arrivals
from .eras import Eras
from .partition import Partition, PartitionOptions
from .room import QueueRoom

__all__ = ["Held", "MemoryOptions", "QueueLog", "size_of"]

READER = "agents"
PRODUCERS_MAX = 10_000
LOOKED_AT_MAX = 4_096
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
SPAN_MAX = 10_000_000  # messages after the oldest unacknowledged one; 8 bytes each


SEGMENTS = PartitionOptions(segment_size=64)  # half a KiB for a queue without events


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Limits of each queue of `MemoryQueues`.

    A publish to a queue at its limit waits for room, in order of arrival, for up to
    `enqueue_wait_s`. The publisher then retries for up to `StreamOptions.enqueue_wait_s`. After
    that it raises `QueueFull`.

    Attributes:
        capacity_events: Unacknowledged events in one queue, at least 1.
        capacity_bytes: Unacknowledged bytes in one queue, at least 1. Default: 256 MiB.
        enqueue_wait_s: Seconds for which one append waits for room, at least 0.
        store: The name of the silo's state store that keeps the content while a queue moves.

    Raises:
        ConfigError: A value has the wrong type or is outside its limits.
    """

    capacity_events: int = 100_000
    capacity_bytes: int = 256 << 20
    enqueue_wait_s: float = field(default=0.25, metadata={"min": 0})
    store: str = "default"

    def __post_init__(self) -> None:
        check_fields(self)


class Held(msgspec.Struct, frozen=True):
    """A message and its use of the capacity."""

    message: QueueMessage
    events: int
    size_bytes: int


def size_of(message: QueueMessage | OutMessage) -> int:
    """Return the bytes of the message's items and texts. Cost: O(items)."""
    namespace, key = message.stream
    names = len(namespace) + len(key)
    if not (namespace.isascii() and key.isascii()):
        names = text_bytes(message.stream)
    return content_bytes(message.items, message.headers) + names


class QueueLog:
    """One queue of one provider, in one silo.

    Args:
        key: Provider and queue, for errors.
        era: The era of the content.
        epoch: The epoch of the reader.
        start: The number of the last acknowledged message.
        producers: The last sequence of each producer, the oldest first.
        eras: The eras of the tokens. Default: the era of the content.
    """

    def __init__(
        self,
        key: str,
        options: MemoryOptions,
        era: int,
        *,
        epoch: int = 0,
        start: int = 0,
        producers: Mapping[str, int] | None = None,
        eras: Eras | None = None,
    ) -> None:
        self.key = key
        self._options = options
        self._epoch = epoch
        self._partition: Partition[Held | None] = Partition(SEGMENTS, start)
        self._partition.register(READER, "earliest")
        self._room = QueueRoom(options.capacity_events, options.capacity_bytes)
        self._arrivals = Arrivals()
        self._read_end = start  # the reader has read the messages below this offset
        self._read_events = 0  # and this number of unacknowledged events is below it
        self._producers = OrderedDict(producers or {})
        self.era = era  # of the content; the eras of tokens may be different
        self.eras = eras or Eras(era)
        self.done = start  # messages up to this number are acknowledged
        self.end = start  # number of the last accepted message

    # -- life

    def load(self, messages: Iterable[QueueMessage | None]) -> None:
        """Load the content of a former activation, in order.

        None stands for an acknowledged message.
        """
        events = size_bytes = 0
        for message in messages:
            held = None
            if message is not None:
                held = Held(message, len(message.items), size_of(message))
                events += held.events
                size_bytes += held.size_bytes
            self.end = self._partition.append(held) + 1
        # the capacity may have been lowered: the loaded content has room until the next move
        options = self._options
        self._room = QueueRoom(
            max(events, options.capacity_events), max(size_bytes, options.capacity_bytes)
        )
        self._room.try_acquire(events, size_bytes)

    def stop_waits(self) -> None:
        """End the waits of readers, which retry at the next silo of the queue."""
        self._arrivals.close()

    def close(self, reason: str) -> None:
        """Accept no more messages."""
        self._arrivals.close()
        self._room.close(f"{self.key}: {reason}")

    @property
    def epoch(self) -> int:
        """The epoch of the reader."""
        return self._epoch

    @property
    def depth(self) -> int:
        """The number of messages from the oldest unacknowledged one on."""
        return self.end - self.done

    @property
    def backlog(self) -> int:
        """The number of stored events after the reader's position."""
        return self._room.events_taken - self._read_events

    @property
    def room(self) -> QueueRoom:
        """The used capacity."""
        return self._room

    @property
    def producers(self) -> dict[str, int]:
        """The last sequence of each producer, the oldest first."""
        return dict(self._producers)

    def content(self, start: int, count: int) -> list[QueueMessage | None]:
        """Return at most `count` messages after number `start`, with None in place of each
        acknowledged one."""
        return [
            None if held is None else held.message for held in self._partition.read_at(start, count)
        ]

    # -- producers

    def append_now(
        self, messages: Sequence[OutMessage], enqueued_s: float
    ) -> list[Token | None] | None:
        """Accept messages in order; returns the token of each, None for a repeated one.

        Returns None in place of a list if there is no room at this moment. Raises StreamError if
        the messages can never have room.
        """
        if len(messages) == 1 and messages[0].mark is None:  # nearly always: avoids a list
            events, size_bytes = len(messages[0].items), size_of(messages[0])
            sizes: Sequence[int] = (size_bytes,)
        else:
            sizes = [size_of(message) for message in messages]
            events, size_bytes = self._count_needed(messages, sizes)
        options = self._options
        if (
            events > options.capacity_events
            or size_bytes > options.capacity_bytes
            or self.end - self.done >= SPAN_MAX
        ):
            self._refuse(events, size_bytes)
        if not self._room.try_acquire(events, size_bytes):
            return None
        return self._accept_all(messages, sizes, events, size_bytes, enqueued_s)

    async def append(
        self, messages: Sequence[OutMessage], enqueued_s: float, mapper_epoch: int = 1
    ) -> list[Token | None]:
        """Accept messages as `append_now` does, and wait for room, in order of arrival.

        Raises QueueFull (no room within `enqueue_wait_s`), StaleMapper, StreamError (never fits).
        """
        if mapper_epoch < self.eras.mapper_epoch:
            return self.append_stale(messages)
        tokens = self.append_now(messages, enqueued_s)
        if tokens is not None:
            return tokens
        sizes = [size_of(message) for message in messages]
        events, size_bytes = self._count_needed(messages, sizes)
        await self._wait_for_room(events, size_bytes)
        if mapper_epoch < self.eras.mapper_epoch:  # sealed during the wait
            self._room.release(events, size_bytes)
            return self.append_stale(messages)
        return self._accept_all(messages, sizes, events, size_bytes, enqueued_s)

    def _count_needed(
        self, messages: Sequence[OutMessage], sizes: Sequence[int]
    ) -> tuple[int, int]:
        """Count the events and bytes of the messages that were not accepted before.

        The sequence of a message shows whether it is a repeat. A message without one counts.
        """
        events = size_bytes = 0
        for message, size in zip(messages, sizes, strict=True):
            if message.mark is None or not self._is_known(message):
                events += len(message.items)
                size_bytes += size
        return events, size_bytes

    def _accept_all(
        self,
        messages: Sequence[OutMessage],
        sizes: Sequence[int],
        events: int,
        size_bytes: int,
        enqueued_s: float,
    ) -> list[Token | None]:
        """Store messages whose room is acquired, and release the room that repeats do not need."""
        tokens: list[Token | None] = []
        for message, size in zip(messages, sizes, strict=True):
            mark = message.mark
            if mark is not None:
                if self._is_known(message):
                    tokens.append(None)
                    continue
                self._note(mark.producer, mark.seq)
            items = list(message.items)
            headers = dict(message.headers) if message.headers else NO_HEADERS
            token = Token(self.eras.newest, self.end + 1)
            kept = QueueMessage(message.stream, token, items, headers, enqueued_s)
            self.end = self._partition.append(Held(kept, len(items), size)) + 1
            tokens.append(token)
            events -= len(items)
            size_bytes -= size
        if events or size_bytes:  # of repeats, also those accepted during the wait
            self._room.release(events, size_bytes)
        if self._arrivals.waits:
            self._arrivals.wake()
        return tokens

    def _refuse(self, events: int, size_bytes: int) -> NoReturn:
        """Raise StreamError for messages that can never have room, and QueueFull above SPAN_MAX."""
        options = self._options
        if self.end - self.done >= SPAN_MAX:
            raise QueueFull(
                f"{self.key}: the oldest message is not acknowledged, and {SPAN_MAX:,} messages "
                "were accepted since (SPAN_MAX): find the subscription that is paused or makes no "
                "progress"
            )
        raise StreamError(
            f"{self.key}: one batch has {events} events and {size_bytes} bytes, which never fit: "
            f"capacity_events is {options.capacity_events}, capacity_bytes is "
            f"{options.capacity_bytes}"
        )

    def append_stale(self, messages: Sequence[OutMessage]) -> list[Token | None]:
        """Accept messages of an older mapper epoch if all their sequences are known.

        Raises StaleMapper otherwise: the stream may be in another queue.
        """
        if not all(map(self._is_known, messages)):
            raise StaleMapper(
                f"{self.key}: sealed for mapper epoch {self.eras.mapper_epoch}; the stream may "
                "belong to another queue now"
            )
        return [None] * len(messages)

    def seal(self, mapper_epoch: int, era: int) -> Token | None:
        """Refuse older mapper epochs from now on. Return the token of the last message before the
        seal, or None."""
        last = None if self.end == 0 else Token(self.eras.of(self.end), self.end)
        return self.eras.seal(mapper_epoch, era, last, self.end)

    async def _wait_for_room(self, events: int, size_bytes: int) -> None:
        options, room = self._options, self._room
        try:
            async with asyncio.timeout(options.enqueue_wait_s):
                await room.acquire(events, size_bytes)
        except TimeoutError:
            raise QueueFull(
                f"{self.key}: full for {options.enqueue_wait_s:g} s: "
                f"{room.events_taken} of {options.capacity_events} events (capacity_events), "
                f"{room.bytes_taken} of {options.capacity_bytes} bytes (capacity_bytes)"
            ) from None

    def _is_known(self, message: OutMessage) -> bool:
        """Whether the sequence of this message's producer was accepted before."""
        mark = message.mark
        return mark is not None and mark.seq <= self._producers.get(mark.producer, -1)

    def _note(self, producer: str, seq: int) -> None:
        """Remember the sequence, so that its repeats are dropped."""
        self._producers[producer] = seq
        self._producers.move_to_end(producer)
        if len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)

    # -- the reader

    def begin(self, epoch: int) -> int:
        """Fence older readers; returns the number of the last acknowledged message."""
        self.check_epoch(epoch)
        self._read_end, self._read_events = self.done, 0
        return self.done

    def check_epoch(self, epoch: int) -> None:
        """Raise QueueFenced for an epoch older than the newest one seen."""
        if epoch < self._epoch:
            raise QueueFenced(f"{self.key}: epoch {epoch} is older than {self._epoch}")
        self._epoch = epoch

    async def read(
        self, epoch: int, era: int, after: int, max_events: int, max_bytes: int, wait_s: float
    ) -> tuple[int, list[QueueMessage | None]]:
        """Return the messages after number `after` of `era`; waits up to `wait_s` for the first.

        The result is the number before the first of these messages, and the messages.
        """
        if epoch != self._epoch:
            self.check_epoch(epoch)
        start = max(after, self.done) if era == self.era else self.done
        found, events = self._messages_at(start, max_events, max_bytes)
        if found and found[0] is None:
            start = self._first_held(start)
            found, events = self._messages_at(start, max_events, max_bytes)
        if not found and wait_s > 0:
            await self._arrivals.wait(wait_s)
            if epoch != self._epoch:
                self.check_epoch(epoch)
            found, events = self._messages_at(start, max_events, max_bytes)
        end = start + len(found)
        if start != self._read_end:  # rereads messages, or skips messages of an earlier reader
            events = self._events_between(self._read_end, end)
        self._read_events += events
        self._read_end = max(self._read_end, end)
        return start, found

    def _first_held(self, start: int) -> int:
        """Skip acknowledged messages at `start`, as far as one look reaches."""
        for at, held in enumerate(self._partition.read_at(start, LOOKED_AT_MAX), start):
            if held is not None:
                return at
        return min(start + LOOKED_AT_MAX, self.end)

    def _messages_at(
        self, start: int, max_events: int, max_bytes: int
    ) -> tuple[list[QueueMessage | None], int]:
        """Return messages from an offset on (within both limits, at least one) and events."""
        found: list[QueueMessage | None] = []
        events = 0
        for held in self._partition.read_at(start, max_events):
            if held is None:
                found.append(None)
                continue
            max_bytes -= held.size_bytes
            if found and (events + held.events > max_events or max_bytes < 0):
                break
            events += held.events
            found.append(held.message)
        return found, events

    def _events_between(self, start: int, end: int) -> int:
        """Count the unacknowledged events between two offsets."""
        events = 0
        while (start := self._partition.first_held(start)) < end:
            count = min(end - start, LOOKED_AT_MAX)
            held = self._partition.read_at(start, count)
            events += sum(one.events for one in held if one is not None)
            start += count
        return events

    def acknowledge(self, epoch: int, era: int, upto: int, also: Sequence[int]) -> None:
        """Drop all messages up to number `upto`, and the messages with the numbers in `also`.

        Numbers of dropped messages have no effect. Each dropped message frees its capacity at once.
        """
        self.check_epoch(epoch)
        if era == self.era:
            self._forget_upto(upto)
            for number in also:
                self._forget(number)

    def _forget(self, number: int) -> None:
        if self.done < number <= self._partition.end:
            self._free([self._partition.let_go(number - 1)], number - 1)

    def _forget_upto(self, upto: int) -> None:
        first, count = self.done, min(upto, self.end) - self.done
        if count <= 0:
            return
        done = self._partition.pull(READER, count)
        self.done = self._partition.commit(READER)
        self._partition.trim()
        self._free(done, first)
        self._read_end = max(self._read_end, self.done)

    def _free(self, messages: Sequence[Held | None], start: int) -> None:
        """Release the capacity of messages that began at offset `start`."""
        events = size_bytes = read_events = 0
        for at, held in enumerate(messages, start):
            if held is not None:
                events += held.events
                size_bytes += held.size_bytes
                if at < self._read_end:
                    read_events += held.events
        self._room.release(events, size_bytes)
        self._read_events -= read_events

    def wake(self, epoch: int) -> None:
        """End the waiting read of an epoch, because its reader closes."""
        if epoch == self._epoch:
            self._arrivals.wake()

    # -- readers that do not own the queue

    def look(
        self, number: int, max_events: int, max_bytes: int
    ) -> tuple[int, list[QueueMessage | None]]:
        """Return messages from a number of this era on, with None for acknowledged ones.

        The method looks at no more than `max_events` messages of `max_bytes` together, but at least
        one. It skips a long run of acknowledged messages. The result is the number before the first
        of these messages, and the messages.
        """
        start = self._partition.first_held(min(max(number - 1, self.done), self.end))
        return start, self._messages_at(start, max_events, max_bytes)[0]

    async def seek(self, when_s: float) -> int:
        """Return the number of the first message stored at or after a time, or 0 if there is none
        yet."""
        at = self.done
        while at < self.end:
            for number, held in enumerate(self._partition.read_at(at, LOOKED_AT_MAX), at + 1):
                if held is not None and held.message.enqueued_s >= when_s:
                    return number
            await asyncio.sleep(0)
            at = max(at + LOOKED_AT_MAX, self.done)
        return 0

    def check(self) -> None:
        """Assert the invariants. Cost: O(stored)."""
        self._partition.check()
        assert (self.done, self.end) == (
            self._partition.find_committed(READER),
            self._partition.end,
        )
        held = [one for one in self._partition.read_at(self.done, self.depth) if one is not None]
        assert self._room.events_taken == sum(one.events for one in held)
        assert self._room.bytes_taken == sum(one.size_bytes for one in held)
        unread = self._partition.read_at(self._read_end, self.end - self._read_end)
        assert self.backlog == sum(one.events for one in unread if one is not None)
