"""Reading from outside: programs page a provider's queues through a silo's `$rewind` target.

Owns: the target: what is refused, what is asked of readers and how their answers are looked at.
Not: the readers (`kept`), the other side (`outside`). Invariants: nothing is written, and the owner
of a queue is not disturbed; whoever asks twice for what is still kept gets the same; every page
leads on, or says that the queue ends there; what is gone is said, and not left out. What was
accepted when `extents` is asked is in its answer, unless the owner of the queue does not answer in
time: other silos may hear of the last message a moment later, so all are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.runtime import ConfigError, CursorTooOld, MillstreamError, SiloUnavailable
from millstream.runtime.extending import SystemTarget, Tasks, shown
from millstream.streams.contracts.answers import AdapterFault, checked_messages, fault_of
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.message import Page, QueueMessage
from millstream.streams.contracts.queue import QueueReader, Rewinds
from millstream.streams.contracts.token import Token

from .asking import in_time
from .item_columns import Column
from .kept import KeptReaders

__all__ = [
    "FORM",
    "Extent",
    "Others",
    "ReadMessage",
    "ReadPage",
    "RewindTarget",
    "check_form",
    "check_queues",
    "refusal_of",
]

FORM = 1
"""Of these calls: a program of another form is refused."""
QUEUES_MAX = 4096
"""Queues that one call may name."""
NAME_BYTES_MAX = 512
PAGE_EVENTS_MAX = 10_000
PAGE_BYTES_MAX = 4 << 20

ASK_LIMIT_S = 2.0
"""How long other silos are waited for, to say how far they know that queues go."""

T = TypeVar("T")


class Extent(msgspec.Struct, array_like=True, frozen=True):
    """How far a queue goes: the first message that is kept, the last that was accepted.

    Both None: it has no message. `is_open`: publishers use it, or did before the last change of the
    number of queues; else it is here as it was asked for.
    """

    queue: str
    first: Token | None
    last: Token | None
    is_open: bool = True


class ReadMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message; item i of it has the token's index i. `enqueued_s`: wall clock."""

    key: str
    token: Token
    items: list[msgspec.Raw]
    enqueued_s: float
    headers: dict[str, str] | None = None


class ReadPage(msgspec.Struct, array_like=True, frozen=True):
    """Messages of one namespace; read on at `next`.

    `at_end`: nothing is stored behind `next` yet. `gone`: where the position was is nothing any
    more; this is the first message that is kept.
    """

    messages: list[ReadMessage]
    next: Token
    at_end: bool = False
    gone: Token | None = None


class Others(Protocol):
    """The other silos that may have the provider, and what they answer."""

    def silos(self) -> Sequence[str]: ...
    def extents(self, silo: str, queues: list[str], /) -> Coroutine[Any, Any, list[Extent]]: ...
    def columns(self, silo: str, namespace: str, /) -> Coroutine[Any, Any, list[Column]]: ...


class RewindTarget(SystemTarget):
    """Reads the queues of one provider for programs outside (`$rewind/<provider>`).

    Args:
        adapter: `Rewinds`, or `refusal` says why nothing is read.
        queues: those that have to be read now.
        columns: those of a namespace's items, if this silo knows them.
    """

    target_name = "$rewind"
    open_to_clients = frozenset({"columns", "extents", "seek", "read"})

    def __init__(
        self,
        provider: str,
        adapter: object,
        queues: Callable[[], Sequence[QueueId]],
        tasks: Tasks,
        call_limit_s: float,
        refusal: str,
        columns: Callable[[str], list[Column]],
        others: Others,
    ) -> None:
        self._columns = columns
        self._others = others
        self._provider = provider
        self._adapter = adapter
        self._queues = queues
        self._tasks = tasks
        self._call_limit_s = call_limit_s
        self._refusal = refusal
        self._kept = KeptReaders(self._made, tasks, call_limit_s)

    def _made(self, queue: QueueId) -> QueueReader:
        assert isinstance(self._adapter, Rewinds)
        return self._adapter.reader(queue)

    async def aclose(self) -> None:
        """Read no more."""
        await self._kept.aclose()
        self._tasks.cancel()

    # -- calls

    async def extents(self, form: int, asked: list[str]) -> list[Extent]:
        """How far the queues go that are read now, and those that are asked for.

        Raises ConfigError (nothing is read here, or not in this form), StreamError.
        """
        now = self._checked(form, asked)
        wanted = list(dict.fromkeys([*now, *asked]))
        here, there = await asyncio.gather(
            self.extents_here(wanted),
            self._elsewhere(lambda silo: self._others.extents(silo, wanted)),
        )
        found = {one.queue: one for one in here}
        for one in (one for extents in there for one in extents):
            if one.queue in found:
                found[one.queue] = farther(found[one.queue], one)
        return [msgspec.structs.replace(one, is_open=one.queue in now) for one in found.values()]

    async def extents_here(self, queues: list[str]) -> list[Extent]:
        """How far this silo knows that these queues go. Raises StreamError."""
        return await self._each(queues, self._extent)

    async def _elsewhere(self, ask: Callable[[str], Awaitable[list[T]]]) -> list[list[T]]:
        """What the other silos answer, in their order, as many as do so in time."""

        async def asked(silo: str) -> list[T]:
            with suppress(MillstreamError):
                return await ask(silo)
            return []

        tasks = [self._tasks.start(asked(silo)) for silo in self._others.silos()]
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

    async def columns(self, form: int, namespace: str) -> list[Column]:
        """The columns of a namespace's items; empty: no silo that answers in time knows them.

        Raises ConfigError.
        """
        self._checked(form, ())
        here = await self.columns_here(namespace)
        if here:
            return here
        there = await self._elsewhere(lambda silo: self._others.columns(silo, namespace))
        return next(filter(None, there), [])

    async def columns_here(self, namespace: str) -> list[Column]:
        """Those that this silo knows."""
        return self._columns(namespace)

    async def seek(self, form: int, when_s: float) -> dict[str, Token | None]:
        """In each queue that is read now, the first message accepted at or after a wall time.

        Raises ConfigError, ValueError (no such time), StreamError: its messages have no times.
        """
        now = self._checked(form, ())
        try:
            when = datetime.fromtimestamp(when_s, UTC)
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"{when_s} is no time: write seconds since 1970") from None

        async def sought(queue: QueueId) -> tuple[QueueId, Token | None]:
            answer = await self._call(queue, "seek", lambda reader: reader.seek(when))
            return queue, self._token(queue, "seek", answer)

        return dict(await self._each(now, sought))

    async def read(
        self,
        form: int,
        queue: str,
        namespace: str,
        position: Token,
        end: Token,
        events_max: int,
        bytes_max: int,
    ) -> ReadPage:
        """Messages of a namespace, from `position` on, before `end`.

        Args:
            events_max, bytes_max: what is looked at, found or not, within `PAGE_EVENTS_MAX` and
                `PAGE_BYTES_MAX`; one message at least.

        Raises ConfigError, StreamError.
        """
        self._checked(form, [queue])
        events = min(max(1, events_max), PAGE_EVENTS_MAX)
        size = min(max(1, bytes_max), PAGE_BYTES_MAX)
        try:
            answer = await self._call(
                queue, "read_from", lambda reader: reader.read_from(position, events, size, None)
            )
        except CursorTooOld as error:
            first = self._token(queue, "read_from", error.first)
            if first is None or first <= position:
                raise AdapterFault(
                    f"{self._at(queue)}.read_from says that {position} is gone and {first} the "
                    "first that is kept"
                ) from error
            return ReadPage([], position, gone=first)
        page = self._page(queue, position, answer)
        found = [one for one in page.messages if one.token < end]
        mine = [sent(one) for one in found if one.stream.namespace == namespace]
        is_over = len(found) < len(page.messages) or page.next >= end
        return ReadPage(mine, end if is_over else page.next, page.at_end)

    def _page(self, queue: QueueId, position: Token, answer: Any) -> Page:
        """What a reader answered, looked at. Raises AdapterFault."""
        where = f"{self._at(queue)}.read_from"
        if not isinstance(answer, Page):
            raise AdapterFault(f"{where} returned {type(answer).__name__}, not a Page")
        messages = checked_messages(answer.messages, None, True, where)
        following = self._token(queue, "read_from", answer.next)
        newest = messages[-1].token if messages else position
        if messages and messages[0].token < position._replace(index=0):
            raise AdapterFault(f"{where} returned {messages[0].token}, which is before {position}")
        if following is None or following < newest or (messages and following == newest):
            raise AdapterFault(f"{where} says that it goes on at {following}, behind {newest}")
        if following == position and not answer.at_end:
            raise AdapterFault(f"{where} found nothing at {position}, and does not go on behind it")
        return Page(messages, following, bool(answer.at_end))

    # -- adapters

    def _checked(self, form: int, asked: Collection[str]) -> Sequence[QueueId]:
        """The queues that are read now. Raises ConfigError: nothing is read; ValueError."""
        check_form(form)
        if self._refusal:
            raise ConfigError(self._refusal)
        check_queues(asked)
        return self._queues()

    async def _each(
        self, queues: Sequence[QueueId], call: Callable[[QueueId], Awaitable[T]]
    ) -> list[T]:
        """Ask of all at once; raises what the first one raises, once all have answered."""
        answers = await asyncio.gather(*map(call, queues), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _call(
        self, queue: QueueId, method: str, call: Callable[[QueueReader], Awaitable[object]]
    ) -> object:
        """What a reader answers, in time. Raises StreamError, SiloUnavailable (this one stops)."""
        where = f"{self._at(queue)}.{method}"
        try:
            async with self._kept.reader(queue) as reader:
                try:
                    return await in_time(
                        self._tasks, self._call_limit_s, where, lambda: call(reader)
                    )
                except CursorTooOld as error:  # an answer like others: the reader is sound
                    gone = error
        except SiloUnavailable:
            raise
        except Exception as error:
            raise fault_of(where, error) from error
        raise gone

    def _at(self, queue: QueueId) -> str:
        return f"stream provider {self._provider!r}, queue {queue}: reader"

    def _token(self, queue: QueueId, method: str, answer: Any) -> Token | None:
        if answer is None or isinstance(answer, Token):
            return answer
        raise AdapterFault(f"{self._at(queue)}.{method} gave {answer!r} as a token")


def check_form(form: int) -> None:
    """Raise ConfigError unless a program outside has the form of these calls."""
    if form != FORM:
        raise ConfigError(
            f"the reader reads in form {form}, this cluster in form {FORM}: install the same "
            "version of Millstream in both"
        )


def check_queues(asked: Collection[str]) -> None:
    """Raise ValueError unless they may be names of queues, and not too many."""
    if len(asked) > QUEUES_MAX:
        raise ValueError(f"{len(asked)} queues in one call; QUEUES_MAX is {QUEUES_MAX}")
    for queue in asked:
        size = len(queue.encode(errors="replace"))
        if not 0 < size <= NAME_BYTES_MAX:
            raise ValueError(f"queue {shown(queue)!r} has {size} bytes: 1 to {NAME_BYTES_MAX}")


def farther(one: Extent, other: Extent) -> Extent:
    """What two silos know of a queue, put together."""
    if one.first is None or one.last is None:
        return other
    if other.first is None or other.last is None:
        return one
    return Extent(one.queue, max(one.first, other.first), max(one.last, other.last))


def sent(message: QueueMessage) -> ReadMessage:
    """A message as it is sent: its items are not decoded."""
    items = [msgspec.Raw(item) for item in message.items]
    headers = dict(message.headers) if message.headers else None
    return ReadMessage(message.stream.key, message.token, items, message.enqueued_s, headers)


def refusal_of(provider: str, capabilities: Collection[Capability]) -> str:
    """Why a provider's queues are not read from outside; empty: they are."""
    where = f"stream provider {provider!r} cannot be read again"
    if Capability.REWIND not in capabilities:
        return f"{where}: it has no REWIND. Read a provider that has, such as LedgerQueues"
    if Capability.ITEM_ACK in capabilities:
        return (
            f"{where} by a reader outside: it forgets messages one by one, once they are done "
            "(ITEM_ACK). Read a provider that keeps them for a time, such as LedgerQueues"
        )
    return ""
