"""Reads the queue again, apart from its receiver, for lagging subscriptions and questions.

Owns `ContainedReader`, whose calls are contained and whose answers are checked, and `CatchUp`, one
scan for all lagging subscriptions with the gaps that it finds. `cache.cursor` knows the missing
messages of each subscription, and `dispatch` knows the subscriptions that wait.

Invariants:

- A wrong answer is logged, and the page is read again.
- Messages that the provider has dropped are a gap; no subscription waits for them.
- Messages that arrive before an answer stay in the cache for the cursors of the question, and no
  longer.
- An answer says nothing about messages that arrived after its question.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from millstream.runtime import CursorTooOld
from millstream.runtime.extending import Backoff, Clock, Tasks
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.positions import before, following
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.agent.findings import QueueFindings
from millstream.streams.agent.losses import Loss, Losses
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.answers import AdapterFault, check_messages
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import Page, QueueMessage
from millstream.streams.contracts.queue import QueueReader
from millstream.streams.contracts.token import Token

from .contained_receiver import answer_of, end_tasks

__all__ = ["CatchUp", "ContainedReader"]

EVENTS_MIN = 64  # events of a page, however full the cache is
BYTES_MIN = 1 << 16
END = Token(1 << 32, 0)  # after every message


class ContainedReader:
    """A reader of the queue, made at its first call; each call ends within the limit.

    Args:
        make: makes a reader.
        where: names provider and queue.
    """

    def __init__(
        self,
        make: Callable[[], QueueReader],
        where: str,
        findings: QueueFindings,
        tasks: Tasks,
        limit_s: float,
    ) -> None:
        self._make = make
        self._where = where
        self._findings = findings
        self._tasks = tasks
        self._limit_s = limit_s
        self._reader: QueueReader | None = None

    def at(self, method: str) -> str:
        """Return the names of adapter and method."""
        return f"{self._where}: {type(self._reader).__name__}.{method}"

    async def bounds(self) -> tuple[Token | None, Token | None]:
        """Return the first and the last kept message; None while empty. Raises AdapterFault."""
        bounds = await self._call("bounds", lambda reader: reader.bounds())
        if isinstance(bounds, tuple) and len(bounds) == 2:
            first, last = bounds
            if isinstance(first, Token | None) and isinstance(last, Token | None):
                return first, last
        raise AdapterFault(f"{self.at('bounds')} did not return two tokens, or None for each")

    async def seek(self, when: datetime) -> Token | None:
        """Return the first message accepted at that time or later, or None if there is none yet.

        Raises AdapterFault.
        """
        token = await self._call("seek", lambda reader: reader.seek(when))
        if isinstance(token, Token | None):
            return token
        raise AdapterFault(f"{self.at('seek')} did not return a token or None")

    async def find_start(self, when: datetime) -> str:
        """Return the beginning of the messages of that time as the start of a subscription. If
        there are none, it is the beginning of the messages after this call. Raises AdapterFault."""
        _, last = await self.bounds()
        token = await self.seek(when)
        if token is None:
            token = None if last is None else following(last)
        return "earliest" if token is None else str(token)

    async def page(
        self, position: Token, events: int, size_bytes: int, streams: frozenset[StreamId]
    ) -> Page | CursorTooOld:
        """Return the messages from a position on, or the error that they are lost.

        Raises AdapterFault.
        """

        async def read(reader: QueueReader) -> Page | CursorTooOld:
            try:
                return await reader.read_from(position, events, size_bytes, streams)
            except CursorTooOld as error:
                return error

        page, where = await self._call("read_from", read), self.at("read_from")
        if isinstance(page, CursorTooOld):
            return page
        if not isinstance(page, Page) or not isinstance(page.next, Token):
            raise AdapterFault(f"{where} did not return a Page")
        check_messages(page.messages, None, True, where)
        if page.next <= position:
            raise AdapterFault(
                f"{where} returned a Page with next={page.next}, which must be above {position}"
            )
        return page

    async def _call(self, method: str, call: Callable[[QueueReader], Awaitable[object]]) -> object:
        async def call_once() -> object:
            if self._reader is None:
                self._reader = self._make()
            return await call(self._reader)

        return await answer_of(self._tasks, lambda: self.at(method), call_once, self._limit_s)

    async def aclose(self) -> None:
        """Close the reader; the next call makes another one."""
        try:
            if self._reader is not None:
                await self._call("aclose", lambda reader: reader.aclose())
        except AdapterFault as fault:
            self._findings.at_fault(str(fault))
        finally:
            self._reader = None


def _is_here(cursor: Cursor) -> bool:
    """Whether the messages of a cursor are here already, because another subscription of its
    stream has read them again."""
    if cursor.is_lagging:
        cursor.take((), cursor.following)
    return not cursor.is_away


class CatchUp:
    """Reads one queue again, while a subscription waits for that."""

    def __init__(
        self,
        reader: ContainedReader,
        cache: QueueCache,
        dispatch: Dispatch,
        findings: QueueFindings,
        losses: Losses,
        options: StreamOptions,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._cache = cache
        self._dispatch = dispatch
        self._findings = findings
        self._losses = losses  # for the queue record
        self._flow = options.flow
        self._tasks = tasks
        self._clock = clock
        self._retries = Backoff(options.read_retry_s, 2, options.read_retry_ceiling_s)
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._doing = ""  # the present step,
        self._since_s = 0.0  # and its beginning

    @property
    def doing(self) -> str:
        """The present step, in words. The text is empty if nothing is being read again."""
        if self._task is None or self._task.done():
            return ""
        since_s = self._clock.now() - self._since_s
        return f"{self._doing or 'the next page is read soon'} (began {since_s:.1f} s ago)"

    def _do(self, text: str) -> None:
        self._doing, self._since_s = text, self._clock.now()

    def wake(self) -> None:
        """Begin, because a subscription waits."""
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = self._tasks.start(self._run())

    async def _run(self) -> None:
        failures = 0
        while wanted := self._dispatch.lagging():
            try:
                if new := [one for one in wanted if one.is_new]:
                    await self._begin(new)
                if away := [one for one in wanted if not _is_here(one)]:
                    await self._read_again(away)
                failures = 0
                self._do("")
            except AdapterFault as fault:
                failures += 1
                wait_s = self._retries.whole_s(failures)
                text = f"{fault}; the read is retried in {wait_s:g} s"
                self._findings.at_fault(text)
                self._do(text)
                for behind in wanted:
                    behind.let_go()
                await self._reader.aclose()
                await asyncio.sleep(wait_s)
                continue
            self._dispatch.on_fetched()

    async def _begin(self, new: Sequence[Cursor]) -> None:
        """Compare the beginnings of cursors with the kept messages. Raises AdapterFault."""
        self._do(f"waiting for {self._reader.at('bounds')}")
        newest = self._cache.newest
        for behind in new:
            behind.keeps = True
        first, last = await self._reader.bounds()
        for behind in new:
            start = behind.start
            if behind.begin_within(first, last, newest):
                self._findings.begins_ahead(behind, start, last)

    async def _read_again(self, wanted: Sequence[Cursor]) -> None:
        """Read one page for all that wait. Raises AdapterFault."""
        for behind in wanted:
            behind.keeps = True
        position = min(behind.following for behind in wanted)
        events, size_bytes = self._cache.room()
        self._do(f"waiting for {self._reader.at('read_from')}")
        page = await self._reader.page(
            position,
            max(EVENTS_MIN, min(events, self._flow.read_events_max)),
            max(BYTES_MIN, min(size_bytes, self._flow.read_bytes_max)),
            frozenset(behind.key[0] for behind in wanted),
        )
        if isinstance(page, CursorTooOld):
            self._lose(wanted, position, page.first if isinstance(page.first, Token) else END)
            return
        found: dict[StreamId, list[QueueMessage]] = defaultdict(list)
        for message in page.messages:
            found[message.stream].append(message)
        for behind in sorted(wanted, key=lambda one: one.following):  # so that they share messages
            if behind.is_lagging:
                behind.take(found[behind.key[0]], page.next)

    def _lose(self, wanted: Sequence[Cursor], position: Token, first: Token) -> None:
        """Handle the loss of all messages before `first`. Raises AdapterFault if `position` is not
        among them."""
        for behind in wanted:
            if behind.is_lagging and (lost := behind.lose(first)) is not None:
                self._findings.on_gone(behind, lost, behind.following)
                loss = Loss(before(lost), behind.following)
                self._dispatch.on_events_lost(behind, loss)
                self._losses.note(loss, self._clock.wall_s())
        if first <= position:
            where = self._reader.at("read_from")
            raise AdapterFault(
                f"{where} raised CursorTooOld for {position}, although it keeps {first}"
            )

    async def close(self) -> None:
        """Stop, in bounded time."""
        self._is_closed = True
        if self._task is not None:
            await end_tasks([self._task])
        await self._reader.aclose()
