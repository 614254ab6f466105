"""Sources that can only push: a receiver that buffers what they push until it is read.

Owns: `PushReceiver`, what it asks of a source, and its limits. Not: connecting to the source.
Invariants: what is held is bounded, and the source is paused before that; a message that is held
is not held twice; what was released is read again from here, so a source need not be able to take
anything back; since it is not told, attempts are not counted (`QueueMessage.attempt` is 0).
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
BEYOND_PAUSE = 2  # a paused source may push so many times the limits before it is refused


class PushSource(Protocol):
    """One queue of a broker that calls back, for one owner.

    All methods, and `push`, are called on the event loop of the silo. What a client library calls
    back in a thread of its own goes over to the loop first, by `loop.call_soon_threadsafe`.
    """

    async def start(self, push: Callable[[QueueMessage], None], after: Token | None, /) -> None:
        """Connect, and begin to push what is behind a position; None: what is not acknowledged.

        Called once. Take the queue over from a former owner that never closed its connection.
        `push` may be called from now on, also before this returns; it never waits. It raises
        QueueFull, and has not taken the message, if the source goes on pushing although it is
        paused: push that message again after `resume`. Raises StreamError: no connection.
        """
        ...

    def pause(self) -> None:
        """Push no more. What is on its way may still be pushed, up to the limits once more, or is
        kept by the source until `resume`.

        Called from within `push`, so it must neither wait nor raise.
        """
        ...

    def resume(self) -> None:
        """Go on behind the last message that was pushed.

        May be called from within `ack`, so it must neither wait nor raise; it may call `push`.
        """
        ...

    async def ack(self, upto: Token | None, also: Sequence[Token], /) -> None:
        """These are done, as `QueueReceiver.ack` has it: the broker pushes them to nobody again."""
        ...

    async def aclose(self) -> None:
        """Disconnect and push no more; whoever starts next is given what is not acknowledged.

        Called once, also if `start` has raised or was not called.
        """
        ...


class PushReceiver:
    """A `QueueReceiver` over a source that can only push.

    Args:
        source: what pushes, for this queue and owner.
        capabilities: those of the provider. With ITEM_ACK messages are kept from being read until
            they are acknowledged, and count as held; without it they are held until they are read.
        events_max: the source is paused while so many events are held, and goes on once fewer than
            half of them are; 1 or more. A source that pushes on what was on its way when the pause
            came (its prefetch) must not have more than that on its way.
        bytes_max: the same in bytes of items.

    Attributes: `events_max`; `events_held`: events that are held now; `is_paused`: was the source
    told to pause; `refused`: pushes that raised QueueFull.

    Raises ConfigError: a limit is below 1.
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
                raise ConfigError(f"PushReceiver({name}={limit!r}): not 1 or more")
        self._source = source
        self._keeps = Capability.ITEM_ACK in capabilities
        self.events_max = events_max
        self._bytes_max = bytes_max
        self._ready: deque[QueueMessage] = deque()
        self._held: set[Token] = set()  # of all parts
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
        """Take a message; one that is held already is dropped.

        Raises QueueFull: it is not taken, since the source goes on though it is paused.
        """
        if self._is_closed or message.token in self._held:
            return
        if self._is_beyond(BEYOND_PAUSE):
            self.refused += 1
            raise QueueFull(
                f"{self.events_held} events and {self._bytes} bytes are held, {BEYOND_PAUSE} times "
                "the limit: the source must not push while it is paused"
            )
        self._ready.append(
            msgspec.structs.replace(message, attempt=0) if message.attempt else message
        )
        self._changed.set()
        self._held.add(message.token)
        self._count(message, 1)

    def on_disconnect(self, error: BaseException) -> None:
        """The source has lost its connection: the next read raises, so that the runtime closes
        this receiver and opens another one.

        Args:
            error: why; a StreamError is raised as it is, another one as QueueUnavailable.
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
        """Count a message in (1) or out (-1), and pause the source or let it go on."""
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
        await self._source.start(self.push, after)

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
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
        """What was released and has waited is ready again."""
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
        await self._source.ack(upto, also)
        for token in also if upto is None else [*also, *(t for t in self._out if t <= upto)]:
            message = self._out.pop(token, None)
            if message is not None:
                self._let_go(message)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """Give messages out again from here, behind `delay_s`."""
        ready_s = asyncio.get_running_loop().time() + delay_s
        for token in tokens:
            message = self._out.pop(token, None)
            if message is not None:
                heapq.heappush(self._delayed, (ready_s, next(self._numbers), message))
        self._changed.set()

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """Nothing is leased: what is out is held until the owner ends."""
        return [token for token in tokens if token not in self._out]

    async def aclose(self) -> None:
        """End; what is held is dropped here, and given out anew by the source."""
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
