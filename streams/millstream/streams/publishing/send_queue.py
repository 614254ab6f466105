"""The messages that wait to be enqueued in one queue, and the effects of an adapter's answer. Pure.

Owns: `SendQueue`, `Publish`. Not: calling the adapter (`sender`). Source: Kafka's producer with one
request in flight. Invariants:

- Messages are sent in the order in which their publishes were added, one list at a time.
- A prefix of each publish is stored; refused and dropped messages are never sent again.
- After a failed sequence of a producer, no later message of that producer is sent, so that the
  adapter never takes an unstored message for known.
- Waiting messages have at most `waiting_bytes_max`, or are one publish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from millstream.runtime import (
    PublishUnknown,
    QueueFull,
    QueueUnavailable,
    StaleMapper,
    StreamError,
)
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.message import OutMessage, content_bytes
from millstream.streams.contracts.token import Token

from .split import SendLimits

__all__ = ["Publish", "SendQueue", "is_final", "is_passing", "refusal_of"]


def is_passing(cause: StreamError) -> bool:
    """Whether the same messages may be accepted a little later."""
    return isinstance(cause, QueueFull | QueueUnavailable | StaleMapper)


def is_final(cause: Exception) -> bool:
    """Whether the same message will never be accepted."""
    if isinstance(cause, PublishUnknown) or not isinstance(cause, StreamError):
        return False
    return not is_passing(cause)


class MessageChecks(Protocol):
    """Says whether queues can ever accept a message."""

    def check(self, message: OutMessage, /) -> None:
        """Raise ValueError or StreamError for a message that no queue will ever accept."""
        ...


def refusal_of(into: MessageChecks, message: OutMessage) -> StreamError:
    """Why a message was not stored, if one message of its list was too large and none was sent."""
    try:
        into.check(message)
    except (ValueError, StreamError) as error:
        return StreamError(str(error))
    return QueueUnavailable(
        "the message was not sent, because another message of its list was refused"
    )


class Publish:
    """Messages of one caller for one queue: all of them are stored, or a prefix.

    `deadline_s`: until this time, a queue that is full or unavailable is retried; each accepted
    message moves it on by `wait_s`.
    """

    __slots__ = (
        "_sizes_bytes",
        "deadline_s",
        "error",
        "home",
        "is_over",
        "messages",
        "parts",
        "tokens",
        "wait_s",
    )

    def __init__(self, messages: Sequence[OutMessage], now_s: float, wait_s: float) -> None:
        self.messages = messages
        self.tokens: list[Token | None] = []  # tokens of the stored messages
        self.error: StreamError | None = None
        self.home: SendQueue | None = None  # the queue where it waits
        self.parts: list[tuple[Sequence[int], Publish]] = []  # if its streams are in several queues
        self.wait_s = wait_s
        self.deadline_s = now_s + wait_s
        self.is_over = not messages
        self._sizes_bytes: list[int] | None = None  # computed only for lists and waiting messages

    @property
    def sizes_bytes(self) -> list[int]:
        """The size of each message, computed on first use."""
        if self._sizes_bytes is None:
            self._sizes_bytes = [content_bytes(one.items, one.headers) for one in self.messages]
        return self._sizes_bytes

    @property
    def size_bytes(self) -> int:
        """The size of all messages."""
        return sum(self.sizes_bytes)

    def split(self, queue_of: Callable[[OutMessage], QueueId], now_s: float) -> dict[str, Publish]:
        """Split the unstored messages by queue; the new publishes become parts of this one."""
        by_queue: dict[QueueId, list[int]] = {}
        for at in range(len(self.tokens), len(self.messages)):
            by_queue.setdefault(queue_of(self.messages[at]), []).append(at)
        found: dict[QueueId, Publish] = {}
        for queue, places in by_queue.items():
            found[queue] = Publish([self.messages[at] for at in places], now_s, self.wait_s)
            self.parts.append((places, found[queue]))
        return found

    def outcomes(self) -> list[Token | StreamError | None]:
        """For each message its token, or the reason why it is not stored."""
        rest = len(self.messages) - len(self.tokens)
        found: list[Token | StreamError | None] = [*self.tokens, *[self.error] * rest]
        for places, part in self.parts:
            for at, outcome in zip(places, part.outcomes(), strict=True):
                found[at] = outcome
        return found

    @property
    def producer(self) -> str:
        """The producer of its messages, or ""."""
        mark = self.messages[0].mark if self.messages else None
        return "" if mark is None else mark.producer

    def end(self, cause: StreamError | None = None) -> None:
        """End the publish. Without `cause`, no message of it is left to send.

        `cause` is the reason why the messages after `tokens` are not known to be stored. `error`
        becomes a copy of `cause`, because one cause can end the publishes of several callers. The
        method wakes no caller; `QueueSender` does.
        """
        self.is_over = True
        if cause is not None:
            self.error = type(cause)(*cause.args)
            done = self.messages[: len(self.tokens)]
            self.error.accepted_events = sum(len(message.items) for message in done)


class SendQueue:
    """The publishes of one silo to one queue."""

    def __init__(self, queue: str, limits: SendLimits) -> None:
        self._queue = queue
        self._limits = limits
        self._waiting: deque[Publish] = deque()
        self._out: list[tuple[Publish, int]] = []  # messages of each publish that are being sent
        self._bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no publish is waiting or being sent."""
        return not self._waiting

    def takes_alone(self, publish: Publish) -> bool:
        """Whether the queue is empty and the publish fits into one list."""
        if self._waiting:
            return False
        count, limits = len(publish.messages), self._limits
        return count == 1 or (
            count <= limits.batch_messages_max and publish.size_bytes <= limits.batch_bytes_max
        )

    def cut(self, lists: Sequence[Sequence[OutMessage]], sizes_bytes: Sequence[int]) -> list[int]:
        """Cut a run of lists so that each part fits the limits; returns the end of each part."""
        ends: list[int] = []
        count = size = 0
        limits = self._limits
        for at, one in enumerate(lists):
            count += len(one)
            size += sizes_bytes[at]
            is_full = count > limits.batch_messages_max or size > limits.batch_bytes_max
            if at and is_full:
                ends.append(at)
                count, size = len(one), sizes_bytes[at]
        return [*ends, len(lists)] if lists else []

    def add(self, publish: Publish) -> None:
        """Let a publish wait. Raises QueueFull: too many bytes wait already."""
        limit = self._limits.waiting_bytes_max
        if self._waiting and self._bytes + publish.size_bytes > limit:
            raise QueueFull(
                f"{self._queue}: {self._bytes} bytes wait to be enqueued in this silo; "
                f"enqueue_waiting_bytes_max is {limit}: publish slower"
            )
        self._waiting.append(publish)
        self._bytes += publish.size_bytes
        publish.home = self

    def drop(self, publish: Publish) -> None:
        """Drop the unsent messages of a publish whose caller has gone; messages being sent are
        finished."""
        if publish.is_over:
            return
        out = next((count for one, count in self._out if one is publish), 0)
        publish.messages = publish.messages[: len(publish.tokens) + out]
        if not out:
            publish.end()
            self._leave([publish])

    def take_back(self) -> list[Publish]:
        """Remove and return all waiting publishes, in order; none is being sent."""
        assert not self._out, f"{self._queue}: a list is out"
        found = [publish for publish in self._waiting if not publish.is_over]
        self._waiting.clear()
        self._bytes = 0
        for publish in found:
            publish.home = None
        return found

    def batch(self) -> list[OutMessage]:
        """The next list to enqueue, which is being sent from now on; [] if no publish waits."""
        assert not self._out, f"{self._queue}: one list at a time"
        if len(self._waiting) == 1:
            (publish,) = self._waiting
            if len(publish.messages) == 1:  # the usual case: single events
                self._out = [(publish, 1)]
                return list(publish.messages)
        found: list[OutMessage] = []
        size, limits = 0, self._limits
        for publish in self._waiting:
            if publish.is_over:
                continue
            for at in range(len(publish.tokens), len(publish.messages)):
                size += publish.sizes_bytes[at]
                is_full = size > limits.batch_bytes_max or len(found) >= limits.batch_messages_max
                if found and is_full:
                    return found
                found.append(publish.messages[at])
                self._note_out(publish)
        return found

    def _note_out(self, publish: Publish) -> None:
        if self._out and self._out[-1][0] is publish:
            self._out[-1] = (publish, self._out[-1][1] + 1)
        else:
            self._out.append((publish, 1))

    def on_answer(
        self, tokens: Sequence[Token | None], cause: StreamError | None, now_s: float
    ) -> list[Publish]:
        """Apply an answer: a prefix of the list is stored (`tokens`), then came `cause`, if any.

        Returns the publishes that are over; the next `batch` has the rest again.
        """
        out, self._out = self._out, []
        self._store(out, tokens, now_s)
        rest = [publish for publish, _ in out if not publish.is_over]
        ended = [publish for publish, _ in out if publish.is_over]
        if cause is not None:
            ended += self._fail(rest, cause, now_s)
        self._leave(ended)
        return ended

    def _store(
        self, out: Sequence[tuple[Publish, int]], tokens: Sequence[Token | None], now_s: float
    ) -> None:
        at = 0
        for publish, count in out:
            found = tokens[at : at + count]
            at += count
            publish.tokens.extend(found)
            if found:
                publish.deadline_s = now_s + publish.wait_s
            if len(publish.tokens) == len(publish.messages):
                publish.end()

    def _fail(self, offered: Sequence[Publish], cause: StreamError, now_s: float) -> list[Publish]:
        """End the failed ones of the publishes that were sent and are not wholly stored."""
        if isinstance(cause, PublishUnknown):
            failed = list(offered)
        elif is_passing(cause):
            failed = [publish for publish in offered if publish.deadline_s <= now_s]
        else:
            failed = list(offered[:1])  # refused for good; later ones were not attempted
        for publish in failed:
            publish.end(cause)
        if any(publish.producer for publish in failed):
            failed += self._fail_behind(set(failed), cause)
        return failed

    def _fail_behind(self, failed: set[Publish], cause: StreamError) -> list[Publish]:
        """End the waiting publishes that follow a failed one of the same producer."""
        producers: set[str] = set()
        behind: list[Publish] = []
        for publish in self._waiting:
            if publish in failed:
                producers.add(publish.producer)
            elif publish.producer and publish.producer in producers and not publish.is_over:
                publish.end(self._not_sent(publish.producer, cause))
                behind.append(publish)
        return behind

    def _not_sent(self, producer: str, cause: StreamError) -> QueueUnavailable:
        return QueueUnavailable(
            f"{self._queue}: the message was not sent, because an earlier message of producer "
            f"{producer!r} failed: {type(cause).__name__}: {cause}"
        )

    def _leave(self, ended: Sequence[Publish]) -> None:
        """Remove finished publishes; one in the middle is removed when all before it are."""
        self._bytes -= sum(publish.size_bytes for publish in ended)
        while self._waiting and self._waiting[0].is_over:
            self._waiting.popleft()

    def close(self, reason: str) -> list[Publish]:
        """End all publishes: messages being sent may be accepted, waiting ones were not sent."""
        out, self._out = {publish for publish, _ in self._out}, []
        ended = [publish for publish in self._waiting if not publish.is_over]
        for publish in ended:
            text = f"{self._queue}: {reason}"
            publish.end(PublishUnknown(text) if publish in out else QueueUnavailable(text))
        self._leave(ended)
        return ended

    def check(self) -> None:
        """Assert the invariants; for tests."""
        alive = [publish for publish in self._waiting if not publish.is_over]
        assert self._bytes == sum(publish.size_bytes for publish in alive)
        assert not self._waiting or not self._waiting[0].is_over
        assert [one for one, _ in self._out] == alive[: len(self._out)]
        assert all(len(one.tokens) < len(one.messages) for one in alive)
        assert all(count <= len(one.messages) - len(one.tokens) for one, count in self._out)
