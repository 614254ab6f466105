"""The record of the ledgers' topics in a simulated run, and the checks against it.

Owns: `Book`: messages by queue and number, their readers, and acknowledgements. Not: programs that
read (`queues`). Invariant: the book is outside of the cluster, so no crash reaches it.
All checks take time that is linear in the number of stored messages:

- `check_log` finds lost messages.
- `saw` finds messages with a second content, and messages that nobody sent.
- `check_acks` finds wrong order of a producer or in real time, and duplicates.
- `queues` finds missing numbers, and an end that moves backwards for a reader.

If an owner of an old epoch confirmed messages after the end, these would be lost or differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec
from tests.sim.suites.run.record import Run

from millstream.runtime.testing import Delivered
from millstream.streams import OutMessage, ProducerMark, QueueMessage

__all__ = ["Book", "Content", "Log"]


class Content(NamedTuple):
    """The content of a message."""

    stream: str
    items: tuple[str, ...]


class Log(NamedTuple):
    """A queue as one reader read it: from its first message up to `end`, without a missing
    number."""

    reader: str
    first: int
    end: int


class Ack(NamedTuple):
    """A queue confirmed that a message is stored as `number`."""

    number: int
    started_s: float
    ended_s: float
    mark: ProducerMark | None


def content_of(message: OutMessage | QueueMessage) -> Content:
    """Return the content of a message."""
    items = tuple(msgspec.msgpack.decode(item) for item in message.items)
    return Content("/".join(message.stream), items)


class Book:
    """The known messages of the queues of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: defaultdict[str, dict[int, Content]] = defaultdict(dict)
        self._acks: defaultdict[str, list[Ack]] = defaultdict(list)
        self._tried_s: dict[tuple[str, ProducerMark], float] = {}
        self._trimmed: defaultdict[str, int] = defaultdict(int)

    @property
    def queues(self) -> list[str]:
        """The queues with messages."""
        return sorted(self._seen)

    def on_tried(self, queue: str, message: OutMessage) -> float:
        """Note an attempt to enqueue a message; return the time of its first attempt."""
        now_s = self._run.simulation.loop.time()
        if message.mark is None:
            return now_s
        return self._tried_s.setdefault((queue, message.mark), now_s)

    def on_accepted(self, queue: str, number: int, message: OutMessage, started_s: float) -> None:
        """Note that a queue confirmed a message."""
        self.saw(queue, number, content_of(message), "its publisher")
        now_s = self._run.simulation.loop.time()
        self._acks[queue].append(Ack(number, started_s, now_s, message.mark))

    def saw(self, queue: str, number: int, content: Content, who: str) -> None:
        """Note the content of a message for one reader; all readers must see the same at any
        time."""
        known = self._seen[queue].setdefault(number, content)
        if known != content:
            self._run.on_violated(f"{queue}: message {number} is {content} for {who}, and {known}")

    def on_trimmed(self, queue: str, first: int) -> None:
        """Note that messages before `first` are deleted."""
        self._trimmed[queue] = max(first, self._trimmed[queue])

    def queue_of(self, stream: str) -> str | None:
        """Return the queue of a stream; None if no message of the stream is known."""
        for queue, seen in self._seen.items():
            if any(content.stream == stream for content in seen.values()):
                return queue
        return None

    def items_of(self, stream: str) -> list[str]:
        """Return the known items of a stream, in order."""
        return [
            item
            for seen in self._seen.values()
            for _, content in sorted(seen.items())
            if content.stream == stream
            for item in content.items
        ]

    def items(self) -> Counter[str]:
        """Count how often each item is stored."""
        return Counter(
            i for seen in self._seen.values() for one in seen.values() for i in one.items
        )

    def learn(self) -> None:
        """Add messages that were deleted after their delivery: perhaps only their handlers saw
        them."""
        queues = {one.stream: queue for queue, seen in self._seen.items() for one in seen.values()}
        heard: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for _, event in self._run.history.of(Delivered):
            _, number, index = tuple(event.token)
            heard[event.stream, number][index] = event.item
        for (stream, number), items in heard.items():
            queue = queues.get(stream, "")
            if number < self._trimmed[queue] and number not in self._seen[queue]:
                content = Content(stream, tuple(item for _, item in sorted(items.items())))
                self.saw(queue, number, content, "its handlers")
                self._run.figures["known from handlers"] += 1

    def check_log(self, queue: str, log: Log) -> Iterator[str]:
        """Check the final content of a queue: it has all acknowledged messages, and all that were
        seen."""
        if log.first < self._trimmed[queue]:
            yield f"{queue}: {log.reader} begins at {log.first}, after {self._trimmed[queue]}"
        self.on_trimmed(queue, log.first)
        for ack in self._acks[queue]:
            if ack.number >= log.end:
                yield f"{queue}: {ack} was acknowledged; {log.reader} reads to {log.end}"
        for number, content in self._seen[queue].items():
            if number >= log.end:
                yield f"{queue}: {content} was seen as {number}; {log.reader} reads to {log.end}"

    def check_acks(self) -> Iterator[str]:
        """Check the order of acknowledged messages: for each producer, and in real time."""
        for queue, acks in self._acks.items():
            yield from self._check_producers(queue, acks)
            yield from self._check_times(queue, acks)

    def _check_producers(self, queue: str, acks: Iterable[Ack]) -> Iterator[str]:
        numbers: dict[str, dict[int, int]] = defaultdict(dict)
        for ack in acks:
            if ack.mark is None:
                continue
            producer, seq = ack.mark.producer, ack.mark.seq
            if numbers[producer].setdefault(seq, ack.number) != ack.number:
                yield f"{queue}: {ack} was stored before as {numbers[producer][seq]}"
        for producer, found in numbers.items():
            order = [number for _, number in sorted(found.items())]
            if any(one >= other for one, other in pairwise(order)):
                yield f"{queue}: {producer} has its sequences in the order {order}"

    def _check_times(self, queue: str, acks: Iterable[Ack]) -> Iterator[str]:
        """Check real-time order: a message that was acknowledged before another was sent is stored
        before it."""
        ended = sorted((ack.ended_s, ack.number) for ack in acks)
        at, highest = 0, 0
        for ack in sorted(acks, key=lambda one: one.started_s):
            while at < len(ended) and ended[at][0] < ack.started_s:
                highest = max(highest, ended[at][1])
                at += 1
            if ack.number <= highest:
                yield f"{queue}: {ack} was sent when {highest} was acknowledged"

    def check_delivered(self) -> Iterator[str]:
        """Check that handlers got the content that is stored at each position."""
        streams: dict[str, dict[int, Content]] = defaultdict(dict)
        for seen in self._seen.values():
            for number, content in seen.items():
                streams[content.stream][number] = content
        for at_s, event in self._run.history.of(Delivered):
            _, number, index = tuple(event.token)
            stored = streams[event.stream].get(number)
            if stored is None or stored.items[index : index + 1] != (event.item,):
                yield f"t={at_s:.6f}: {event.subscription} got {event.item} as {number}: {stored}"
