"""Reading from outside: programs page a provider's queues through a silo's `$rewind` target.

Owns: the target: its refusals, the calls of readers, and the checks of their answers. Not: the
readers (`kept`), the other side (`outside`). Invariants: nothing is written, and the owner of a
queue is not disturbed. A repeated call for stored messages gets the same messages. Every page leads
further, or says that the queue ends. Missing messages are reported, not skipped. The answer of
`extents` has every message that was accepted before the call, unless the owner of the queue does
not answer in time. Other silos may learn of the last message a moment later, so all silos are
asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.runtime import CursorTooOld, MillstreamError, SiloUnavailable
from millstream.runtime.extending import Role, SiloServices, SystemTarget, open_to
from millstream.streams.contracts.answers import AdapterFault, check_messages, fault_of
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.message import Page, QueueMessage
from millstream.streams.contracts.queue import QueueReader, Rewinds
from millstream.streams.contracts.token import Token

from .adapter_calls import AdapterCalls
from .item_columns import Column
from .kept import KeptReaders

__all__ = [
    "Extent",
    "Extents",
    "OtherSilos",
    "Others",
    "ReadMessage",
    "ReadPage",
    "ReadSpan",
    "RewindTarget",
    "span_of",
]

PAGE_EVENTS_MAX = 10_000
PAGE_BYTES_MAX = 4 << 20
SPAN_PAGES_MAX = 16
"""Pages that one call measures without sending them."""

ASK_LIMIT_S = 2.0
"""How long to wait for the other silos to answer."""

T = TypeVar("T")


class Extent(msgspec.Struct, array_like=True, frozen=True):
    """The extent of a queue: the first message that is kept, and the last that was accepted.

    Both are None if the queue has no message. `is_open`: publishers use the queue, or used it
    before the last change of the number of queues; otherwise it is listed only because the caller
    named it.
    """

    queue: str
    first: Token | None
    last: Token | None
    is_open: bool = True

    @property
    def end(self) -> Token | None:
        """The position after the last message, or None if the queue has no message."""
        return None if self.last is None else Token(self.last.era, self.last.seq + 1)


class Extents(msgspec.Struct, array_like=True, frozen=True):
    """The extents of queues, and the incarnation of the provider that numbers their messages."""

    incarnation: str
    queues: list[Extent]


class ReadMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message; the item at place i has the token's index i. `enqueued_s`: wall clock."""

    key: str
    token: Token
    items: list[msgspec.Raw]
    enqueued_s: float
    headers: dict[str, str] | None = None


class ReadPage(msgspec.Struct, array_like=True, frozen=True):
    """Messages of one namespace; read on at `next`.

    `at_end`: no message is stored after `next` yet. `gone`: messages at the position are gone;
    this is the first message that is kept.
    """

    messages: list[ReadMessage]
    next: Token
    at_end: bool = False
    gone: Token | None = None


class ReadSpan(msgspec.Struct, array_like=True, frozen=True):
    """A measured part of a queue: it ends before `next`, and has so many bytes of items.

    `is_over`: more would exceed the limit, or is not asked for; otherwise continue at `next`.
    """

    next: Token
    bytes: int
    is_over: bool


class Others(Protocol):
    """The other silos that may have the provider, and their answers."""

    def silos(self) -> Sequence[str]: ...
    def extents(self, silo: str, queues: list[str], /) -> Coroutine[Any, Any, list[Extent]]: ...
    def columns(self, silo: str, namespace: str, /) -> Coroutine[Any, Any, list[Column]]: ...


class RewindTarget(SystemTarget):
    """Reads the queues of one provider for programs outside (`$rewind/<provider>`).

    Args:
        calls: the calls of an adapter; without `Rewinds`, their `refusal` has the reason.
        columns: the columns of a namespace's items, if this silo knows them.
    """

    target_name = "$rewind"

    def __init__(
        self, calls: AdapterCalls, columns: Callable[[str], list[Column]], others: Others
    ) -> None:
        self._calls = calls
        self._columns = columns
        self._others = others
        self._kept = KeptReaders(self._make, calls.tasks, calls.call_limit_s)

    def _make(self, queue: QueueId) -> QueueReader:
        adapter = self._calls.adapter
        assert isinstance(adapter, Rewinds)
        return adapter.reader(queue)

    async def aclose(self) -> None:
        """Close the readers."""
        await self._kept.aclose()
        self._calls.tasks.cancel()

    # -- calls

    @open_to(Role.CLIENT)
    async def extents(self, form: int, asked: list[str]) -> Extents:
        """The extents of the queues that are read now, and of the named ones.

        Raises ConfigError (the provider is not read, or not in this form), StreamError,
        StorageError.
        """
        self._calls.check(form, asked)
        incarnation = await self._calls.incarnation.text()
        now = self._calls.queues()
        wanted = list(dict.fromkeys([*now, *asked]))
        here, there = await asyncio.gather(
            self.extents_here(wanted),
            self._elsewhere(lambda silo: self._others.extents(silo, wanted)),
        )
        found = {one.queue: one for one in here}
        for one in (one for extents in there for one in extents):
            if one.queue in found:
                found[one.queue] = farther(found[one.queue], one)
        return Extents(
            incarnation,
            [msgspec.structs.replace(one, is_open=one.queue in now) for one in found.values()],
        )

    async def extents_here(self, queues: list[str]) -> list[Extent]:
        """The extents of these queues, as this silo knows them. Raises StreamError."""
        return list((await self._calls.each(queues, self._extent)).values())

    async def _elsewhere(self, ask: Callable[[str], Awaitable[list[T]]]) -> list[list[T]]:
        """The answers of the other silos that answer in time, in their order."""

        async def ask_one(silo: str) -> list[T]:
            with suppress(MillstreamError):
                return await ask(silo)
            return []

        tasks = [self._calls.tasks.start(ask_one(silo)) for silo in self._others.silos()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=ASK_LIMIT_S)
            for task in late:
                task.cancel()
        return [task.result() for task in tasks if task.done() and not task.cancelled()]

    async def _extent(self, queue: QueueId) -> Extent:
        answer: Any = await self._call(queue, "bounds", lambda reader: reader.bounds())
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise AdapterFault(f"{self._at(queue)}.bounds returned {answer!r}, not two tokens")
        first, last = (self._token(queue, "bounds", one) for one in answer)
        if first is None or last is None:
            first = last = None
        return Extent(queue, first, last)

    @open_to(Role.CLIENT)
    async def columns(self, form: int, namespace: str) -> list[Column]:
        """Return the columns of a namespace's items.

        The list is empty if no silo that answers in time knows them. Raises ConfigError if the
        caller uses another version of these calls.
        """
        self._calls.check(form, ())
        here = await self.columns_here(namespace)
        if here:
            return here
        there = await self._elsewhere(lambda silo: self._others.columns(silo, namespace))
        return next(filter(None, there), [])

    async def columns_here(self, namespace: str) -> list[Column]:
        """The columns that this silo knows."""
        return self._columns(namespace)

    @open_to(Role.CLIENT)
    async def seek(self, form: int, when_s: float) -> dict[str, Token | None]:
        """The first message of each queue that was accepted at or after a wall time.

        Raises ConfigError, ValueError (no such time), StreamError: its messages have no times.
        """
        self._calls.check(form, ())
        try:
            when = datetime.fromtimestamp(when_s, UTC)
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"{when_s} is not a time: write seconds since 1970") from None

        async def seek_one(queue: QueueId) -> Token | None:
            answer = await self._call(queue, "seek", lambda reader: reader.seek(when))
            return self._token(queue, "seek", answer)

        return await self._calls.each(self._calls.queues(), seek_one)

    @open_to(Role.CLIENT)
    async def read(
        self,
        form: int,
        incarnation: str,
        queue: str,
        namespace: str,
        position: Token,
        end: Token,
        events_max: int,
        bytes_max: int,
    ) -> ReadPage:
        """Messages of a namespace, from `position` on, before `end`.

        Args:
            incarnation: of the provider that assigned `position` and `end`; "": this one.
            events_max, bytes_max: limits of the messages to look at, within `PAGE_EVENTS_MAX` and
                `PAGE_BYTES_MAX`; at least one message is looked at.

        Raises ConfigError, StreamError, StorageError.
        """
        self._calls.check(form, [queue])
        await self._calls.check_incarnation(incarnation)
        events = min(max(1, events_max), PAGE_EVENTS_MAX)
        size = min(max(1, bytes_max), PAGE_BYTES_MAX)
        page = await self._read_from(queue, position, events, size)
        if isinstance(page, Token):
            return ReadPage([], position, gone=page)
        found = [one for one in page.messages if one.token < end]
        mine = [make_read_message(one) for one in found if one.stream.namespace == namespace]
        is_over = len(found) < len(page.messages) or page.next >= end
        return ReadPage(mine, end if is_over else page.next, page.at_end)

    @open_to(Role.CLIENT)
    async def measure(
        self,
        form: int,
        incarnation: str,
        queue: str,
        namespace: str,
        position: Token,
        end: Token,
        bytes_max: int,
    ) -> ReadSpan:
        """The end of a span with so many bytes of a namespace's items, from `position` on, before
        `end`.

        The span has at least one message, if there is one. Missing messages have no bytes. At most
        `SPAN_PAGES_MAX` pages are looked at. Raises as `read`.
        """
        self._calls.check(form, [queue])
        await self._calls.check_incarnation(incarnation)
        span = ReadSpan(position, 0, position >= end)
        for _ in range(SPAN_PAGES_MAX):
            left = max(1, min(bytes_max - span.bytes, PAGE_BYTES_MAX))
            if span.is_over:
                break
            page = await self._read_from(queue, span.next, PAGE_EVENTS_MAX, left)
            if isinstance(page, Token):
                span = ReadSpan(min(page, end), span.bytes, page >= end)
            else:
                span = span_of(span, page, namespace, end, bytes_max)
        return span

    async def _read_from(
        self, queue: QueueId, position: Token, events: int, size: int
    ) -> Page | Token:
        """A page; or the first message that is kept, if messages at the position are gone."""
        try:
            answer = await self._call(
                queue, "read_from", lambda reader: reader.read_from(position, events, size, None)
            )
        except CursorTooOld as error:
            first = self._token(queue, "read_from", error.first)
            if first is None or first <= position:
                raise AdapterFault(
                    f"{self._at(queue)}.read_from raised CursorTooOld for {position}, with "
                    f"first={first}, which is not after that position"
                ) from error
            return first
        return self._page(queue, position, answer)

    def _page(self, queue: QueueId, position: Token, answer: Any) -> Page:
        """Check the answer of a reader. Raises AdapterFault."""
        where = f"{self._at(queue)}.read_from"
        if not isinstance(answer, Page):
            raise AdapterFault(f"{where} returned {type(answer).__name__}, not a Page")
        messages = check_messages(answer.messages, None, True, where)
        following = self._token(queue, "read_from", answer.next)
        newest = messages[-1].token if messages else position
        if messages and messages[0].token < position._replace(index=0):
            raise AdapterFault(f"{where} returned {messages[0].token}, which is before {position}")
        if following is None or following < newest or (messages and following == newest):
            raise AdapterFault(
                f"{where} returned a Page with next={following}, which is not after {newest}"
            )
        if following == position and not answer.at_end:
            raise AdapterFault(
                f"{where} returned an empty Page with next={position}, the position that was "
                "asked for, and without at_end"
            )
        return Page(messages, following, bool(answer.at_end))

    # -- adapters

    async def _call(
        self, queue: QueueId, method: str, call: Callable[[QueueReader], Awaitable[object]]
    ) -> object:
        """The answer of a reader, in time. Raises StreamError, SiloUnavailable (this silo
        stops)."""
        where = f"{self._at(queue)}.{method}"
        try:
            async with self._kept.reader(queue) as reader:
                try:
                    return await self._calls.in_time(where, lambda: call(reader))
                except CursorTooOld as error:  # a normal answer: the reader stays usable
                    gone = error
        except SiloUnavailable:
            raise
        except Exception as error:
            raise fault_of(where, error) from error
        raise gone

    def _at(self, queue: QueueId) -> str:
        return self._calls.where(queue, "reader")

    def _token(self, queue: QueueId, method: str, answer: Any) -> Token | None:
        if answer is None or isinstance(answer, Token):
            return answer
        raise AdapterFault(f"{self._at(queue)}.{method} gave {answer!r} as a token")


def farther(one: Extent, other: Extent) -> Extent:
    """The extents of a queue that two silos know, merged."""
    if one.first is None or one.last is None:
        return other
    if other.first is None or other.last is None:
        return one
    return Extent(one.queue, max(one.first, other.first), max(one.last, other.last))


def span_of(span: ReadSpan, page: Page, namespace: str, end: Token, bytes_max: int) -> ReadSpan:
    """Return a span, extended by the messages of a page that fit."""
    size = span.bytes
    for one in page.messages:
        if one.token >= end:
            return ReadSpan(end, size, is_over=True)
        if one.stream.namespace == namespace:
            more = sum(map(len, one.items))
            if size and size + more > bytes_max:
                return ReadSpan(one.token._replace(index=0), size, is_over=True)
            size += more
    is_over = page.next >= end or page.at_end or size >= bytes_max
    return ReadSpan(min(page.next, end), size, is_over)


def make_read_message(message: QueueMessage) -> ReadMessage:
    """Return a message as it is sent. Its items are not decoded."""
    items = [msgspec.Raw(item) for item in message.items]
    headers = dict(message.headers) if message.headers else None
    return ReadMessage(message.stream.key, message.token, items, message.enqueued_s, headers)


class OtherSilos:
    """The other active silos, with or without the provider (`Others`)."""

    def __init__(self, services: SiloServices, provider: str) -> None:
        self._services = services
        self._target = f"{RewindTarget.target_name}/{provider}"

    def silos(self) -> Sequence[str]:
        """Their addresses."""
        services = self._services
        return [silo for silo in services.members.active() if silo != services.address]

    def extents(self, silo: str, queues: list[str], /) -> Coroutine[Any, Any, list[Extent]]:
        """The extents of queues, as one silo knows them."""
        call = self._services.targets.call
        return call(silo, self._target, RewindTarget.extents_here, queues)

    def columns(self, silo: str, namespace: str, /) -> Coroutine[Any, Any, list[Column]]:
        """The columns of a namespace's items, as one silo knows them."""
        call = self._services.targets.call
        return call(silo, self._target, RewindTarget.columns_here, namespace)
