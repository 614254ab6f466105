"""Reading anew what the cache keeps the places of only: for subscriptions that have come so far.

Owns: `CatchUp`, the reader beside the receiver, one scan at a time for all that wait. Not: which
messages are away (`cache`), or who waits (`dispatch`). Invariants: what an adapter does wrongly is
said and tried again; what was looked at and not found is lost, counted, and never waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from millstream.runtime import CursorTooOld
from millstream.runtime.extending import Backoff, Tasks
from millstream.streams.agent.cache import QueueCache
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.answers import AdapterFault, checked_messages, fault_of
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import Page
from millstream.streams.contracts.queue import QueueReader
from millstream.streams.contracts.token import Token

from .receiving import end_tasks

__all__ = ["CatchUp", "Waiting"]

EVENTS_MIN = 64  # of a page, however full the cache is
BYTES_MIN = 1 << 16
END = Token(1 << 32, 0)  # behind every message


class Waiting(Protocol):
    """Who waits for what is away."""

    def lagging(self) -> Mapping[StreamId, Token]:
        """The messages that are waited for: of each stream the first."""
        ...

    def fetched(self) -> None:
        """Something came, or is lost: see who can go on."""
        ...


class CatchUp:
    """Reads one queue again, while somebody waits for it.

    Args:
        make: makes a reader.
        say: takes what the adapter did wrongly.
        lost: takes the stream, the first message and the number of events that are gone.
    """

    def __init__(
        self,
        make: Callable[[], QueueReader],
        cache: QueueCache,
        waiting: Waiting,
        options: StreamOptions,
        tasks: Tasks,
        *,
        where: str,
        say: Callable[[str], None],
        lost: Callable[[StreamId, Token, int], None],
    ) -> None:
        self._make = make
        self._cache = cache
        self._waiting = waiting
        self._options = options
        self._tasks = tasks
        self._where = where
        self._say = say
        self._lost = lost
        self._retries = Backoff(options.read_retry_s, 2, options.read_retry_ceiling_s)
        self._reader: QueueReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def wake(self) -> None:
        """Somebody waits."""
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = self._tasks.start(self._run())

    async def _run(self) -> None:
        failures = 0
        while wanted := self._waiting.lagging():
            try:
                await self._read_anew(wanted)
                failures = 0
            except AdapterFault as fault:
                failures += 1
                wait_s = self._retries.whole_s(failures)
                self._say(f"{fault}; it is read again in {wait_s:g} s")
                await self._let_go()
                await asyncio.sleep(wait_s)
                continue
            self._waiting.fetched()

    async def _read_anew(self, wanted: Mapping[StreamId, Token]) -> None:
        """One page for all that wait. Raises AdapterFault."""
        position = min(wanted.values())
        try:
            page = await self._page(position, frozenset(wanted))
        except CursorTooOld as error:
            first = error.first if isinstance(error.first, Token) else END
            self._lose(wanted, first)
            if first <= position:
                raise AdapterFault(f"{self._at()} has {first}, and refuses {position}") from None
            return
        for message in page.messages:
            self._cache.fill(message)
        self._lose(wanted, page.next)

    def _lose(self, wanted: Mapping[StreamId, Token], before: Token) -> None:
        """All before that was looked at."""
        for stream, token in wanted.items():
            if count := self._cache.lose(stream, token, before):
                self._lost(stream, token, count)

    async def _page(self, position: Token, streams: frozenset[StreamId]) -> Page:
        """Raises CursorTooOld, AdapterFault."""
        task = self._tasks.start(self._called(position, streams))
        limit_s = self._options.call_limit_s
        await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            task.cancel()
            raise AdapterFault(f"{self._at()} gave no answer for {limit_s:g} s, and is left behind")
        answer: object = task.result()
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, Page) or not isinstance(answer.next, Token):
            raise AdapterFault(f"{self._at()} returned no Page")
        checked_messages(answer.messages, None, True, self._at())
        if answer.next <= position:
            raise AdapterFault(f"{self._at()} does not lead on from {position}: {answer.next}")
        return answer

    async def _called(self, position: Token, streams: frozenset[StreamId]) -> object:
        """What the adapter answers or raises."""
        flow, (events, size_bytes) = self._options.flow, self._cache.room()
        events = max(EVENTS_MIN, min(events, flow.read_events_max))
        size_bytes = max(BYTES_MIN, min(size_bytes, flow.read_bytes_max))
        try:
            if self._reader is None:
                self._reader = self._make()
            return await self._reader.read_from(position, events, size_bytes, streams)
        except CursorTooOld as error:
            return error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return AdapterFault(str(fault_of(self._at(), error)))

    def _at(self) -> str:
        return f"{self._where}: {type(self._reader).__name__}.read_from"

    async def _let_go(self) -> None:
        """Close the reader, whatever comes of that."""
        reader, self._reader = self._reader, None
        if reader is None:
            return

        async def close() -> None:
            try:
                await reader.aclose()
            except Exception as error:
                self._say(str(fault_of(f"{self._where}: {type(reader).__name__}.aclose", error)))

        await asyncio.wait([self._tasks.start(close())], timeout=self._options.call_limit_s)

    async def close(self) -> None:
        """End, in bounded time."""
        self._is_closed = True
        if self._task is not None:
            await end_tasks([self._task])
        await self._let_go()
