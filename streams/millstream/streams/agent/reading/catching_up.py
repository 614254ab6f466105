"""Reading anew for subscriptions that are behind: one scan for all that wait.

Owns: `CatchUp`, the reader beside the receiver, the gaps that it finds. Not: what each still needs
(`behind`), or who waits (`dispatch`). Invariants: what an adapter does wrongly is said and tried
again; what the provider has dropped is a gap, and never waited for; what comes while a page is read
stays in the cache for whom the page is read, and no longer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from millstream.runtime import CursorTooOld
from millstream.runtime.extending import Backoff, Clock, Tasks
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.positions import before
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.losses import Loss
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.answers import AdapterFault, checked_messages, fault_of
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import Page, QueueMessage
from millstream.streams.contracts.queue import QueueReader
from millstream.streams.contracts.token import Token

from .receiving import end_tasks

__all__ = ["CatchUp", "Findings", "Waiting"]

EVENTS_MIN = 64  # of a page, however full the cache is
BYTES_MIN = 1 << 16
END = Token(1 << 32, 0)  # behind every message


class Waiting(Protocol):
    """Who waits for what is read anew."""

    def lagging(self) -> Sequence[Cursor]:
        """Those that have nothing to deliver."""
        ...

    def lost(self, behind: Cursor, loss: Loss, /) -> None:
        """What one of them needs is gone."""
        ...

    def fetched(self) -> None:
        """Something came, or is lost: see who can go on."""
        ...


class Findings(Protocol):
    """Who hears what reading anew found out."""

    def at_fault(self, text: str, /) -> None:
        """The adapter did something wrongly."""
        ...

    def gone(self, behind: Cursor, wanted: Token, first: Token, /) -> None:
        """What it needed from `wanted` on is gone up to `first`."""
        ...

    def begins_ahead(self, behind: Cursor, start: Token, last: Token | None, /) -> None:
        """It was to begin at `start`, and the queue ends at `last`."""
        ...


class CatchUp:
    """Reads one queue again, while somebody waits for it.

    Args:
        make: makes a reader.
    """

    def __init__(
        self,
        make: Callable[[], QueueReader],
        cache: QueueCache,
        waiting: Waiting,
        findings: Findings,
        options: StreamOptions,
        tasks: Tasks,
        *,
        clock: Clock,
        note: Callable[[Loss], None],
        where: str,
    ) -> None:
        self._make = make
        self._cache = cache
        self._waiting = waiting
        self._findings = findings
        self._options = options
        self._tasks = tasks
        self._clock = clock
        self._note = note  # for the queue's record
        self._where = where
        self._retries = Backoff(options.read_retry_s, 2, options.read_retry_ceiling_s)
        self._reader: QueueReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._doing = ""  # what is under way,
        self._since_s = 0.0  # and since when

    @property
    def doing(self) -> str:
        """What is waited for, in words; empty: nothing is read anew."""
        if self._task is None or self._task.done():
            return ""
        since_s = self._clock.now() - self._since_s
        return f"{self._doing or 'a page is next'}, since {since_s:.1f} s"

    def _do(self, text: str) -> None:
        self._doing, self._since_s = text, self._clock.now()

    def wake(self) -> None:
        """Somebody waits."""
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = self._tasks.start(self._run())

    async def _run(self) -> None:
        failures = 0
        while wanted := self._waiting.lagging():
            try:
                await self._begin([behind for behind in wanted if behind.is_new])
                await self._read_anew([one for one in wanted if one.is_lagging and not one.has_all])
                failures = 0
                self._do("")
            except AdapterFault as fault:
                failures += 1
                wait_s = self._retries.whole_s(failures)
                text = f"{fault}; it is read again in {wait_s:g} s"
                self._findings.at_fault(text)
                self._do(text)
                for behind in wanted:
                    behind.let_go()
                await self._let_go()
                await asyncio.sleep(wait_s)
                continue
            self._waiting.fetched()

    async def _begin(self, new: Sequence[Cursor]) -> None:
        """Compare where they begin with what the provider keeps. Raises AdapterFault."""
        if not new:
            return
        bounds: Any = await self._call("bounds", lambda reader: reader.bounds())
        if not (isinstance(bounds, tuple) and len(bounds) == 2) or not all(
            one is None or isinstance(one, Token) for one in bounds
        ):
            raise AdapterFault(f"{self._at('bounds')} returned no two tokens")
        first, last = bounds
        for behind in new:
            start = behind.start
            if behind.begin_within(first, last):
                self._findings.begins_ahead(behind, start, last)

    async def _read_anew(self, wanted: Sequence[Cursor]) -> None:
        """One page for all that wait. Raises AdapterFault."""
        if not wanted:
            return
        for behind in wanted:
            behind.keeps = True
        position = min(behind.following for behind in wanted)
        try:
            page = await self._page(position, frozenset(behind.key[0] for behind in wanted))
        except CursorTooOld as error:
            self._lose(wanted, position, error.first if isinstance(error.first, Token) else END)
            return
        found: dict[StreamId, list[QueueMessage]] = defaultdict(list)
        for message in page.messages:
            found[message.stream].append(message)
        for behind in wanted:
            if behind.is_lagging:
                behind.take(found[behind.key[0]], page.next)

    def _lose(self, wanted: Sequence[Cursor], position: Token, first: Token) -> None:
        for behind in wanted:
            if behind.is_lagging and (lost := behind.lose(first)) is not None:
                self._findings.gone(behind, lost, behind.following)
                loss = Loss(before(lost), behind.following)
                self._waiting.lost(behind, loss)
                self._note(loss)
        if first <= position:
            raise AdapterFault(f"{self._at('read_from')} has {first}, and refuses {position}")

    async def _page(self, position: Token, streams: frozenset[StreamId]) -> Page:
        """Raises CursorTooOld, AdapterFault."""
        flow, (events, size_bytes) = self._options.flow, self._cache.room()
        events = max(EVENTS_MIN, min(events, flow.read_events_max))
        size_bytes = max(BYTES_MIN, min(size_bytes, flow.read_bytes_max))
        page: Any = await self._call(
            "read_from", lambda reader: reader.read_from(position, events, size_bytes, streams)
        )
        where = self._at("read_from")
        if not isinstance(page, Page) or not isinstance(page.next, Token):
            raise AdapterFault(f"{where} returned no Page")
        checked_messages(page.messages, None, True, where)
        if page.next <= position:
            raise AdapterFault(f"{where} does not lead on from {position}: {page.next}")
        return page

    async def _call(self, method: str, call: Callable[[QueueReader], Awaitable[object]]) -> object:
        """What the adapter answers. Raises CursorTooOld, AdapterFault."""
        self._do(f"{self._at(method)} is to answer")
        task = self._tasks.start(self._called(method, call))
        limit_s = self._options.call_limit_s
        await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            task.cancel()
            raise AdapterFault(
                f"{self._at(method)} gave no answer for {limit_s:g} s, and is left behind"
            )
        answer = task.result()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _called(
        self, method: str, call: Callable[[QueueReader], Awaitable[object]]
    ) -> object:
        """What the adapter answers or raises."""
        try:
            if self._reader is None:
                self._reader = self._make()
            return await call(self._reader)
        except CursorTooOld as error:
            return error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return AdapterFault(str(fault_of(self._at(method), error)))

    def _at(self, method: str) -> str:
        return f"{self._where}: {type(self._reader).__name__}.{method}"

    async def _let_go(self) -> None:
        """Close the reader, whatever comes of that."""
        reader, self._reader = self._reader, None
        if reader is None:
            return

        async def close() -> None:
            try:
                await reader.aclose()
            except Exception as error:
                where = f"{self._where}: {type(reader).__name__}.aclose"
                self._findings.at_fault(str(fault_of(where, error)))

        await asyncio.wait([self._tasks.start(close())], timeout=self._options.call_limit_s)

    async def close(self) -> None:
        """End, in bounded time."""
        self._is_closed = True
        if self._task is not None:
            await end_tasks([self._task])
        await self._let_go()
