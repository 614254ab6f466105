"""Sources that can only push: a receiver that buffers pushed messages until they are read.

Owns: `PushReceiver`, the contract of a source, and the limits of the buffer. Not: connecting to the
source. Invariants: the buffer is bounded, and the source is paused at the limit. A buffered message
is not buffered twice. A released message is read again from the buffer, so the source never takes a
message back. The source therefore cannot count attempts (`QueueMessage.attempt` is 0).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from millstream.runtime import ConfigError, QueueFull, QueueUnavailable, StreamError
from millstream.runtime.extending import show_text

from .answers import text_of
from .capability import Capability
from .message import QueueMessage
from .token import Token

__all__ = ["PushReceiver", "PushSource"]

EVENTS_MAX = 1000
BYTES_MAX = 4 << 20
BEYOND_PAUSE = 2  # a paused source may fill the buffer to this many times its limits


class PushSource(Protocol):
    """One queue of a broker that can only push messages, for one owner.

    Implement this for a client library with callbacks, and wrap it in a `PushReceiver`. The event
    loop of the silo calls all methods. The source must call `push` on that loop as well. If the
    client library calls back in a thread of its own, go over to the loop with
    `loop.call_soon_threadsafe`.
    """

    async def start(self, push: Callable[[QueueMessage], None], after: Token | None, /) -> None:
        """Connect, and begin to push the messages after a position.

        Called once. Take the queue over from a former owner that never closed its connection.

        Args:
            push: takes one message and never waits. It may be called before `start` returns. It
                raises `QueueFull`, and has not taken the message, if the source keeps pushing
                although it is paused; push that message again after `resume`.
            after: begin with the message after this token. None: begin with the messages that the
                broker knows as not acknowledged.

        Raises:
            StreamError: the source cannot connect.
        """
        ...

    def pause(self) -> None:
        """Stop pushing. Messages on their way may still be pushed, up to the limits once more.

        The source may also keep such messages until `resume`. `push` may call this method, so it
        must neither wait nor raise.
        """
        ...

    def resume(self) -> None:
        """Continue after the last message that was pushed.

        `ack` may call this method, so it must neither wait nor raise. It may call `push`.
        """
        ...

    async def ack(self, upto: Token | None, also: Sequence[Token], /) -> None:
        """Acknowledge messages at the broker, so that it never pushes them again.

        Args:
            upto: every message up to this token is processed; None: no such position.
            also: tokens of single messages that are processed, as for `QueueReceiver.ack`.
        """
        ...

    async def aclose(self) -> None:
        """Disconnect and push no more. The next owner gets the messages that are not acknowledged.

        Called once, even if `start` raised or was not called.
        """
        ...


class PushReceiver:
    """A `QueueReceiver` over a `PushSource`: it buffers the messages that the source pushes.

    The receiver pauses the source when the buffer is full. It drops a message whose token is
    already in the buffer. A released message is handed out again from the buffer. See [Sources that
    can only push](../guides/queue_adapter.md#sources-that-can-only-push).

    Args:
        source: the source of this queue and owner.
        capabilities: the capabilities of the provider. With `ITEM_ACK`, a message stays in the
            buffer until it is acknowledged; without it, until it is read.
        events_max: the receiver pauses the source at this number of buffered events, and resumes it
            below half of that; at least 1. A source must not have more events than that on their
            way when it is paused (its prefetch).
        bytes_max: the same limit in bytes of items; at least 1. The default is 4 MiB.

    Attributes:
        events_max: the limit of events.
        events_held: events in the buffer now.
        is_paused: whether the source is paused.
        refused: how many pushes raised `QueueFull`.

    Raises:
        ConfigError: a limit is below 1.
    """

    def __init__(
        self,
        source: PushSource,
        capabilities: Collection[Capability],
        *,
        events_max: int = EVENTS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        for name, limit in (("events_max", events_max), ("bytes_max", bytes_max)):
            if limit < 1:
                raise ConfigError(f"PushReceiver({name}={limit!r}): give a number of at least 1")
        self._source = source
        self._keeps = Capability.ITEM_ACK in capabilities
        self.events_max = events_max
        self._bytes_max = bytes_max
        self._ready: deque[QueueMessage] = deque()
        self._held: set[Token] = set()  # tokens of all messages in the buffer
        self._out: dict[Token, QueueMessage] = {}
        self._delayed: list[tuple[float, int, QueueMessage]] = []
        self._numbers = itertools.count()
        self.events_held = 0
        self._bytes = 0
        self.is_paused = False
        self.refused = 0
        self._lost: BaseException | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    # -- the source's side

    def push(self, message: QueueMessage) -> None:
        """Take a message from the source; a message that is in the buffer already is dropped.

        Args:
            message: the message.

        Raises:
            QueueFull: the buffer has twice its limit, because the source pushes although it is
                paused. The message was not taken.
        """
        if self._is_closed or message.token in self._held:
            return
        if self._is_beyond(BEYOND_PAUSE):
            self.refused += 1
            raise QueueFull(
                f"the buffer has {self.events_held} events and {self._bytes} bytes, at least "
                f"{BEYOND_PAUSE} times the limit: the source must not push while it is paused"
            )
        self._ready.append(
            msgspec.structs.replace(message, attempt=0) if message.attempt else message
        )
        self._changed.set()
        self._held.add(message.token)
        self._count(message, 1)

    def on_disconnect(self, error: BaseException) -> None:
        """Report that the source has lost its connection.

        The next read raises, so the runtime closes this receiver and opens another one.

        Args:
            error: the cause. The read raises a `StreamError` as it is, and any other error as
                `QueueUnavailable`.
        """
        self._lost = self._lost or error
        self._changed.set()

    def _is_beyond(self, times: float) -> bool:
        is_beyond = self.events_held >= self.events_max * times
        return is_beyond or self._bytes >= self._bytes_max * times

    def _let_go(self, message: QueueMessage) -> None:
        self._held.discard(message.token)
        self._count(message, -1)

    def _count(self, message: QueueMessage, sign: int) -> None:
        """Count a message in (1) or out (-1); pause or resume the source accordingly."""
        self.events_held += sign * len(message.items)
        self._bytes += sign * sum(map(len, message.items))
        if not self.is_paused and self._is_beyond(1):
            self.is_paused = True
            self._source.pause()
        elif self.is_paused and not self._is_closed and not self._is_beyond(0.5):
            self.is_paused = False
            self._source.resume()

    # -- the reader's side

    async def start(self, after: Token | None, /) -> None:
        """Start the source, as `QueueReceiver.start` says.

        Args:
            after: the last acknowledged token; the source begins with the next message. None: the
                source itself knows which messages are not acknowledged, and begins with those.

        Raises:
            StreamError: the source cannot connect.
        """
        await self._source.start(self.push, after)

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        """Take messages from the buffer, as `QueueReceiver.read` says.

        Args:
            max_events: largest number of events (items). One message may exceed both limits.
            max_bytes: largest number of bytes of items.
            wait_s: how long to wait for the first message, in seconds.

        Raises:
            StreamError: the source has lost its connection.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        while not self._is_closed:
            if self._lost is not None:
                raise fault_of_connection(self._lost)
            self._ripen(loop.time())
            if self._ready:
                return self._take(max_events, max_bytes)
            if loop.time() >= end_s:
                break
            soonest = [self._delayed[0][0]] if self._delayed else []
            await self._wait(min([end_s, *soonest]))
        return []

    async def _wait(self, until_s: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout_at(until_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _ripen(self, now_s: float) -> None:
        """Make released messages ready again whose delay has passed."""
        while self._delayed and self._delayed[0][0] <= now_s:
            self._ready.append(heapq.heappop(self._delayed)[2])

    def _take(self, max_events: int, max_bytes: int) -> list[QueueMessage]:
        found: list[QueueMessage] = []
        while self._ready:
            message = self._ready[0]
            max_events -= len(message.items)
            max_bytes -= sum(map(len, message.items))
            if found and (max_events < 0 or max_bytes < 0):
                break
            found.append(self._ready.popleft())
        for message in found:
            if self._keeps:
                self._out[message.token] = message
            else:
                self._let_go(message)
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        """Acknowledge messages at the source and remove them from the buffer.

        Args:
            upto: every message up to and including this token is processed; None: no such position.
            also: tokens of single messages that are processed.
        """
        await self._source.ack(upto, also)
        for token in also if upto is None else [*also, *(t for t in self._out if t <= upto)]:
            message = self._out.pop(token, None)
            if message is not None:
                self._let_go(message)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """Hand messages out again from the buffer, after a delay.

        Args:
            tokens: the messages.
            delay_s: shortest time before they are read again, in seconds.
            has_run: not used, because attempts are not counted.
        """
        ready_s = asyncio.get_running_loop().time() + delay_s
        for token in tokens:
            message = self._out.pop(token, None)
            if message is not None:
                heapq.heappush(self._delayed, (ready_s, next(self._numbers), message))
        self._changed.set()

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """Return the messages that this receiver does not have; the others have no lease to extend.

        Args:
            tokens: the messages.
            lease_s: not used.
        """
        return [token for token in tokens if token not in self._out]

    async def aclose(self) -> None:
        """Close the source and drop the buffer; the source pushes unacknowledged messages to the
        next owner."""
        if self._is_closed:
            return
        self._is_closed = True
        self._changed.set()
        self._ready.clear()
        self._out.clear()
        self._delayed.clear()
        await self._source.aclose()


def fault_of_connection(error: BaseException) -> StreamError:
    """The error that a read raises when the source has lost its connection."""
    if isinstance(error, StreamError):
        return error
    return QueueUnavailable(
        f"the source is disconnected: {type(error).__name__}: {show_text(text_of(error))}"
    )
