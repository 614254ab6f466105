"""Events of a stream for a program that is no grain: a loop over them.

Owns: `StreamEvents`: what the program has in hand, what it is done with, and the task that asks
the inbox for more. Not: the inbox, the subscription. Invariants: an event is acknowledged when the
next one is asked for, when the filter leaves it out, or when the `async with` ends without an
exception; at most `events_max` are held; one call to the inbox is out at a time, and whatever it
meets, it is made again.
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
"""How long one question for events may wait for the first."""
ANSWER_S = 5.0
LEAVE_S = 5.0
"""How long leaving may take; then the inbox notices by itself."""
BEAT_FIRST_S = 5.0
SLICE_S = 0.001
"""How long a run of events that the filter leaves out may hold up the program's loop."""
RETRY = Backoff(first_s=0.05, ceiling_s=2.0)

log = logging.getLogger("millstream.consumer")


@dataclass(frozen=True, slots=True)
class Outside:
    """How a consumer outside comes by its events. `join` stores the subscription, and returns the
    number of the session. `on_gap` hears that some are gone. `where`: which it is handed."""

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
    """The events of a stream, in a program: what `Stream.consume` returns.

    `async with stream.consume(name="audit") as events: async for event in events: ...`; used once.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._session = 0
        self._page: deque[Item] = deque()
        self._taken = Taken()
        self._seen_before = 0  # of the page, how many may have been handled before
        self._current: Item | None = None  # in the hands of the program
        self._done: list[Token] = []  # acknowledged here, and not yet known to the inbox
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
        if self._session or self._is_closed:
            raise ConfigError("consume() was entered before: call it again for each `async with`")
        self._session = await self._outside.join()
        inbox = with_options(self._outside.inbox, timeout=ANSWER_S)
        with suppress(CallError, ClusterError, StorageError):  # the task asks again
            await inbox.take(self._session, Acks(), 0, 0.0)  # from now on events are expected
        self._pump = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closed = True
        if error is None:
            self._acknowledge()
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])
        await self._leave()

    def __aiter__(self) -> StreamEvents[T]:
        return self

    async def __anext__(self) -> Event[T]:
        """The next event; the one before is acknowledged.

        Raises StreamError (another consumer has come for the name, or the subscription was
        ended), TypeError (the item is not of the namespace's type), NotInCluster, NotHosted, and
        what `on_gap` raises: it is called again before the event is given. What `where` raises, or
        TypeError (it answers neither True nor False): asking again passes over its event.
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
        """Until an event is in hand, and what is gone before it has been told."""
        while not self._page:
            await self._wait_for_page()
        if self._gap is not None:
            await self._tell(*self._gap)
            self._gap = None

    def _fits(self, event: Event[T]) -> bool:
        """Is it to be handed out? A filter sees it as it was published."""
        outside = self._outside
        if outside.where is None:
            return True
        seen = msgspec.structs.replace(event, attempt=1, redelivered=False)
        return answer_of(outside.where, seen, f"{self.subscription}: where")

    def _check_use(self) -> None:
        if self._has_reader:
            raise StreamError(f"{self.subscription}: another task waits for the next event")
        if self._pump is None:
            raise StreamError(
                f"{self.subscription} is read inside `async with stream.consume(...) as events`"
            )

    async def _wait_for_page(self) -> None:
        pump = self._pump
        if pump is None:
            raise StreamError(f"{self.subscription}: its `async with` has ended")
        if pump.done():
            await pump  # raises what it met
        change = asyncio.ensure_future(self._change.wait())
        try:
            await asyncio.wait([change, pump], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    async def _tell(self, after: Token | None, first: Token) -> None:
        """Events are gone before the next one, unless the program has seen beyond."""
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
        """The program is done with what it has in hand."""
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
        """Ask for events while there are none in hand, and tell what is done."""
        failures, beat_s = 0, BEAT_FIRST_S
        while True:
            await self._wait_for_need(beat_s)
            try:
                taken = await self._take()
            except (NotInCluster, NotHosted):
                raise
            except (CallError, ClusterError, StorageError) as error:
                failures += 1
                log.info("%s: its events are not there yet: %s", self.subscription, error)
                await asyncio.sleep(RETRY.whole_s(failures))
                continue
            failures, beat_s = 0, taken.beat_s or beat_s
            if taken.is_over:
                raise StreamError(f"{self.subscription}: {taken.is_over}")
            self._keep(taken)

    async def _wait_for_need(self, beat_s: float) -> None:
        """Until there is something to ask or to tell; at most for `beat_s`."""
        if self._done or not self._has_events:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(beat_s):
                await self._change.wait()

    @property
    def _has_events(self) -> bool:
        return bool(self._page) or self._current is not None

    async def _take(self) -> Taken:
        """Tell the inbox what is done; take more if nothing is in hand."""
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
        """Tell what is done, and go; whether it succeeds or not."""
        if self._session:
            inbox = with_options(self._outside.inbox, timeout=LEAVE_S)
            try:
                await asyncio.shield(inbox.leave(self._session, self._acks()))
            except MillstreamError as error:
                log.info("%s: leaving was not heard: %s", self.subscription, error)


async def yield_at(at_s: float) -> float:
    """Let the loop go round once it is that time; returns when to do so next."""
    now_s = asyncio.get_running_loop().time
    if now_s() < at_s:
        return at_s
    await asyncio.sleep(0)
    return now_s() + SLICE_S
