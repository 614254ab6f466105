"""Events of a stream for a program that is no grain: a loop over them.

Owns: `StreamEvents`: the events that the program holds and has processed, and the task that asks
the inbox for more. Not: the inbox, the subscription. Invariants: an event is acknowledged when the
program asks for the next one, when the filter leaves it out, or when the `async with` ends without
an exception. The program holds at most `events_max`. One call to the inbox is under way at a time,
and a failed call is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from millstream.runtime import (
    CallError,
    ClusterError,
    ConfigError,
    MillstreamError,
    NotHosted,
    NotInCluster,
    StorageError,
    StreamError,
    with_options,
)
from millstream.runtime.extending import Backoff, Codec
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .event import Event, Gap
from .filters.event_filter import Where, answer_of
from .inbox import Acks, Inbox, Taken

__all__ = ["Outside", "StreamEvents"]

T = TypeVar("T")
TAKE_WAIT_S = 10.0
"""How long one call for events may wait for the first event."""
ANSWER_S = 5.0
LEAVE_S = 5.0
"""How long leaving may take; after that, the inbox notices the absence itself."""
BEAT_FIRST_S = 5.0
SLICE_S = 0.001
"""How long a run of filtered events may block the program's event loop."""
RETRY = Backoff(first_s=0.05, ceiling_s=2.0)

log = logging.getLogger("millstream.consumer")


@dataclass(frozen=True, slots=True)
class Outside:
    """The connections of a consumer outside the cluster to its events.

    `join` stores the subscription, and returns the number of the session. `on_gap` is awaited for a
    gap. `where` is the filter.
    """

    subscription: str
    stream: StreamId
    inbox: Inbox
    join: Callable[[], Awaitable[int]]
    codec: Codec[Any]
    runtime: object
    events_max: int
    on_gap: Callable[[Gap], Awaitable[None]] | None = None
    where: Where | None = None


class StreamEvents(Generic[T]):
    """The events of a stream in a program; `Stream.consume` returns it.

    Use it once, with `async with`: the subscription exists when the block begins. Then write
    `async for event in events`. An event is acknowledged when the loop asks for the next event, or
    when the block ends without an exception. If the block ends with an exception, its last event
    is not acknowledged. One task at a time may wait for an event. Errors on the way to the cluster
    are retried without end.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._session = 0
        self._page: deque[Item] = deque()
        self._taken = Taken()
        self._seen_before = 0  # events of the page that may have been handled before
        self._current: Item | None = None  # the event that the program has now
        self._done: list[Token] = []  # acknowledged here; the inbox does not know it yet
        self._last: Token | None = None
        self._gap: tuple[Token | None, Token] | None = None  # before the first event of the page
        self._change = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._has_reader = False
        self._is_closed = False

    @property
    def subscription(self) -> str:
        """Id of the subscription."""
        return self._outside.subscription

    # -- the program's side

    async def __aenter__(self) -> StreamEvents[T]:
        """Store the subscription and begin to receive events.

        Raises:
            ConfigError: the object was used before.
        """
        if self._session or self._is_closed:
            raise ConfigError(
                "this result of consume() was used before: call consume() for each `async with`"
            )
        self._session = await self._outside.join()
        inbox = with_options(self._outside.inbox, timeout=ANSWER_S)
        with suppress(CallError, ClusterError, StorageError):  # the task asks again
            await inbox.take(self._session, Acks(), 0, 0.0)  # from here on, the inbox keeps events
        self._pump = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session; acknowledge the current event if the block ended without an
        exception."""
        self._is_closed = True
        if error is None:
            self._acknowledge()
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])
        await self._leave()

    def __aiter__(self) -> StreamEvents[T]:
        """Iterate over the events."""
        return self

    async def __anext__(self) -> Event[T]:
        """Acknowledge the event before, and return the next one.

        Errors of `on_gap` come out of the loop; asking for the next event calls it again, before
        the event is returned. Errors of `where` come out of the loop as well; asking for the next
        event skips the event that it failed on.

        Raises:
            StreamError: another consumer has taken over the name, the subscription was ended,
                another task waits for an event, or the block has ended.
            TypeError: an item does not have the namespace's type, or `where` returned neither True
                nor False.
            NotHosted: no silo has the provider.
            NotInCluster: the client was closed.
        """
        self._check_use()
        self._has_reader = True
        yield_at_s = 0.0
        try:
            while True:
                self._acknowledge()
                await self._be_ready()
                event = self._next()
                if self._fits(event):
                    return event
                yield_at_s = await yield_at(yield_at_s)
        finally:
            self._has_reader = False

    async def _be_ready(self) -> None:
        """Wait until an event is there, and report a gap before it."""
        while not self._page:
            await self._wait_for_page()
        if self._gap is not None:
            await self._tell(*self._gap)
            self._gap = None

    def _fits(self, event: Event[T]) -> bool:
        """Whether the filter accepts the event, as it was published."""
        outside = self._outside
        if outside.where is None:
            return True
        seen = msgspec.structs.replace(event, attempt=1, redelivered=False)
        return answer_of(outside.where, seen, f"{self.subscription}: where")

    def _check_use(self) -> None:
        if self._has_reader:
            raise StreamError(
                f"{self.subscription}: another task waits for the next event; one task at a time "
                "may read"
            )
        if self._pump is None:
            raise StreamError(
                f"{self.subscription} can be read only inside "
                "`async with stream.consume(...) as events`"
            )

    async def _wait_for_page(self) -> None:
        pump = self._pump
        if pump is None:
            raise StreamError(f"{self.subscription}: its `async with` has ended")
        if pump.done():
            await pump  # raises the error of the task
        change = asyncio.ensure_future(self._change.wait())
        try:
            await asyncio.wait([change, pump], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    async def _tell(self, after: Token | None, first: Token) -> None:
        """Report a gap before the next event, unless the program has seen later events."""
        outside, last = self._outside, self._last
        if outside.on_gap is not None and (last is None or last < first):
            await outside.on_gap(Gap(outside.stream, outside.subscription, last or after, first))

    def _next(self) -> Event[T]:
        outside, item = self._outside, self._page.popleft()
        self._current = item
        self._seen_before -= 1
        event: Event[T] = Event(
            outside.codec.decode(item.body, outside.runtime),
            item.token,
            outside.stream.key,
            self._taken.attempt,
            dict(item.headers or ()),
            self._seen_before >= 0,
            outside.subscription,
        )
        return event

    def _acknowledge(self) -> None:
        """Record that the program has processed the current event."""
        current, self._current = self._current, None
        if current is not None:
            self._done.append(current.token)
            self._last = current.token
            self._on_change()

    # -- the inbox's side

    def _on_change(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _run(self) -> None:
        """Ask for events while the program has none, and send acknowledgements."""
        failures, beat_s = 0, BEAT_FIRST_S
        while True:
            await self._wait_for_need(beat_s)
            try:
                taken = await self._take()
            except (NotInCluster, NotHosted):
                raise
            except (CallError, ClusterError, StorageError) as error:
                failures += 1
                text = "%s: the next events could not be fetched; retrying: %s"
                log.info(text, self.subscription, error)
                await asyncio.sleep(RETRY.whole_s(failures))
                continue
            failures, beat_s = 0, taken.beat_s or beat_s
            if taken.is_over:
                raise StreamError(f"{self.subscription}: {taken.is_over}")
            self._keep(taken)

    async def _wait_for_need(self, beat_s: float) -> None:
        """Wait until there is something to ask or to acknowledge; at most for `beat_s`."""
        if self._done or not self._has_events:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(beat_s):
                await self._change.wait()

    @property
    def _has_events(self) -> bool:
        return bool(self._page) or self._current is not None

    async def _take(self) -> Taken:
        """Send acknowledgements, and take more events if the program has none."""
        wait_s = 0.0 if self._has_events else TAKE_WAIT_S
        events_max = 0 if self._has_events else self._outside.events_max
        acks = self._acks()
        inbox = with_options(self._outside.inbox, timeout=wait_s + ANSWER_S)
        taken = await inbox.take(self._session, acks, events_max, wait_s)
        del self._done[: len(acks.tokens)]
        return taken

    def _acks(self) -> Acks:
        return Acks(self._taken.queue, list(self._done), self._last)

    def _keep(self, taken: Taken) -> None:
        if taken.items:
            self._taken, self._seen_before, self._gap = taken, taken.seen_before, taken.gap
            self._page.extend(taken.items)
            self._on_change()

    async def _leave(self) -> None:
        """Send the last acknowledgements and end the session; a failure is only logged."""
        if self._session:
            inbox = with_options(self._outside.inbox, timeout=LEAVE_S)
            try:
                await asyncio.shield(inbox.leave(self._session, self._acks()))
            except MillstreamError as error:
                text = "%s: the end of the session could not be reported: %s"
                log.info(text, self.subscription, error)


async def yield_at(at_s: float) -> float:
    """Let other tasks run once that time has come; returns the next such time."""
    now_s = asyncio.get_running_loop().time
    if now_s() < at_s:
        return at_s
    await asyncio.sleep(0)
    return now_s() + SLICE_S
