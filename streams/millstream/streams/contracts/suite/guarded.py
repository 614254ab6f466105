"""An adapter behind a guard: every call has a time limit, and every answer is checked.

Owns: the limits of calls, and abandoning a call that never ends. Invariants: no adapter can block a
check, unless it blocks the event loop itself. A wrong answer is `ContractBroken`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from millstream.runtime import CursorTooOld, EnqueueFailed, StreamError
from millstream.streams.contracts.answers import (
    AdapterFault,
    check_messages,
    check_prefix,
    check_tokens,
)
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.message import OutMessage, Page, QueueMessage
from millstream.streams.contracts.queue import (
    EnqueuesAtOnce,
    QueueAdapter,
    QueueReader,
    QueueReceiver,
    Retains,
    Rewinds,
    Seals,
    TellsFailed,
)
from millstream.streams.contracts.token import Token

from .verdict import ContractBroken, NotRun, expect

__all__ = ["GuardedAdapter", "GuardedReader", "GuardedReceiver", "abandon", "within"]

CALL_LIMIT_S = 10.0
START_LIMIT_S = 120.0  # a provider may recover there
ABANDON_TURNS = 10
T = TypeVar("T")


async def within(call: Coroutine[Any, Any, T], limit_s: float, what: str) -> T:
    """The answer of an adapter's call. Raises its StreamError, or ContractBroken."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    except asyncio.CancelledError:
        await abandon(task, call)
        raise
    if not done:
        await abandon(task, call)
        raise ContractBroken(f"{what} ends within {limit_s:g} s", "a call that is still running")
    return result_of(task, what)


def result_of(task: asyncio.Task[T], what: str) -> T:
    """The answer of a call that has ended. Raises its StreamError, or ContractBroken."""
    wanted = f"{what} returns, or raises a StreamError"
    if task.cancelled():
        raise ContractBroken(wanted, "CancelledError, although the suite did not cancel the call")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, StreamError | ContractBroken):
        raise error
    raise ContractBroken(wanted, f"{type(error).__name__}: {error}") from error


async def abandon(task: asyncio.Task[Any], call: Coroutine[Any, Any, Any]) -> None:
    """Cancel a call; if it ignores that, close its coroutine under the task, which then ends."""
    task.cancel()
    await _some_turns(task)
    if not task.done():
        try:
            call.close()
        except RuntimeError:
            return  # it ignores that too, and nothing can end it
        task.cancel()
        await _some_turns(task)
    if task.done() and not task.cancelled():
        task.exception()  # read it, so that asyncio does not log it


async def _some_turns(task: asyncio.Task[Any]) -> None:
    for _ in range(ABANDON_TURNS):
        if task.done():
            return
        await asyncio.sleep(0)


def check_first(error: CursorTooOld, asked: Token | None, what: str) -> None:
    """Check the position that CursorTooOld names. Raises ContractBroken."""
    first: object = error.first
    if first is None:
        return
    wanted = f"{what} raises CursorTooOld(text, first=the token of a whole message, or None)"
    if not isinstance(first, Token):
        raise ContractBroken(wanted, first)
    expect(first.index == 0, wanted, str(first))
    expect(asked is None or first > asked, f"`first` of {what} above {asked}", str(first))


class GuardedReceiver:
    """A receiver whose calls end, and whose answers have the contract's shape."""

    def __init__(self, raw: QueueReceiver, is_ordered: bool) -> None:
        self.raw = raw
        self._is_ordered = is_ordered
        self._given: Token | None = None

    async def start(self, after: Token | None = None) -> None:
        try:
            await within(self.raw.start(after), START_LIMIT_S, "start")
        except CursorTooOld as error:
            check_first(error, after, "start")
            raise

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> list[QueueMessage]:
        call = self.raw.read(max_events, max_bytes, wait_s)
        answer = await within(call, wait_s + CALL_LIMIT_S, f"read(wait_s={wait_s:g})")
        try:
            found = check_messages(answer, None, self._is_ordered, "read", given=self._given)
        except AdapterFault as fault:
            raise ContractBroken(
                "read returns messages in the order of tokens", str(fault)
            ) from None
        if found:
            self._given = found[-1].token
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        await within(self.raw.ack(upto, also), CALL_LIMIT_S, "ack")

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        await within(self.raw.release(tokens, delay_s, has_run), CALL_LIMIT_S, "release")

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        lost = await within(self.raw.extend(tokens, lease_s), CALL_LIMIT_S, "extend")
        is_right = isinstance(lost, Sequence) and all(one in tokens for one in lost)
        expect(is_right, "extend returns the tokens of its list that are lost", lost)
        return lost

    async def fail(self, tokens: Sequence[Token], reason: str) -> None:
        if not isinstance(self.raw, TellsFailed):
            raise NotRun("the receiver does not implement `TellsFailed`")
        await within(self.raw.fail(tokens, reason), CALL_LIMIT_S, "fail")

    async def aclose(self) -> None:
        await within(self.raw.aclose(), CALL_LIMIT_S, "aclose")


class GuardedReader:
    """A reader whose calls end, and whose answers have the contract's shape."""

    def __init__(self, raw: QueueReader) -> None:
        self.raw = raw

    async def bounds(self) -> tuple[Token | None, Token | None]:
        answer = await within(self.raw.bounds(), CALL_LIMIT_S, "bounds")
        is_right = isinstance(answer, tuple) and len(answer) == 2
        is_right = is_right and all(one is None or isinstance(one, Token) for one in answer)
        expect(is_right, "bounds returns a tuple of two tokens, or None for each", answer)
        return answer

    async def seek(self, when: datetime) -> Token | None:
        answer = await within(self.raw.seek(when), CALL_LIMIT_S, "seek")
        expect(answer is None or isinstance(answer, Token), "seek returns a token or None", answer)
        return answer

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None = None,
    ) -> Page:
        call = self.raw.read_from(position, max_events, max_bytes, streams)
        try:
            page = await within(call, CALL_LIMIT_S, "read_from")
        except CursorTooOld as error:
            check_first(error, position, "read_from")
            raise
        expect(isinstance(page, Page), "read_from returns a Page", page)
        expect(isinstance(page.next, Token), "Page.next is a token", page.next)
        try:
            return page._replace(messages=check_messages(page.messages, None, True, "read_from"))
        except AdapterFault as fault:
            raise ContractBroken("a page has messages in the order of tokens", str(fault)) from None

    async def aclose(self) -> None:
        await within(self.raw.aclose(), CALL_LIMIT_S, "the reader's aclose")


class GuardedAdapter:
    """An adapter whose calls end, and whose answers have the contract's shape."""

    def __init__(self, raw: QueueAdapter, capabilities: frozenset[Capability]) -> None:
        self.raw = raw
        self._is_ordered = Capability.ORDERED in capabilities
        self._enqueues = 0

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int = 1
    ) -> list[Token | None]:
        count = len(messages)
        self._enqueues += 1
        if self._enqueues % 2:  # alternate, to check both methods, and both together
            tokens = self.enqueue_at_once(queue, messages, mapper_epoch)
            if tokens is not None:
                return tokens
        try:
            call = self.raw.enqueue(queue, messages, mapper_epoch)
            answer = await within(call, CALL_LIMIT_S, "enqueue")
            return check_tokens(answer, count, "enqueue")
        except EnqueueFailed as error:
            wanted = "the cause of EnqueueFailed is a StreamError"
            expect(isinstance(error.cause, StreamError), wanted, error.cause)
            self._check_prefix(error, count)
            raise
        except AdapterFault as fault:
            raise ContractBroken(
                "enqueue returns a token or None per message", str(fault)
            ) from None

    def enqueue_at_once(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int = 1
    ) -> list[Token | None] | None:
        """Store without waiting, as the runtime would.

        None means that the caller must call `enqueue`.
        """
        if not isinstance(self.raw, EnqueuesAtOnce):
            return None
        wanted = "enqueue_at_once returns a token or None per message, or None"
        try:
            answer = self.raw.enqueue_at_once(queue, messages, mapper_epoch)
            return None if answer is None else check_tokens(answer, len(messages), "the call")
        except AdapterFault as fault:
            raise ContractBroken(wanted, str(fault)) from None
        except StreamError:
            return None  # nothing is stored
        except Exception as error:
            raise ContractBroken(wanted, f"{type(error).__name__}: {error}") from error

    def _check_prefix(self, error: EnqueueFailed, count: int) -> None:
        try:
            check_prefix(error, count, "enqueue")
        except AdapterFault as fault:
            raise ContractBroken("`accepted` is a prefix of the list", str(fault)) from None

    def receiver(self, queue: QueueId, epoch: int) -> GuardedReceiver:
        return GuardedReceiver(self.raw.receiver(queue, epoch), self._is_ordered)

    def reader(self, queue: QueueId) -> GuardedReader:
        if not isinstance(self.raw, Rewinds):
            raise ContractBroken("an adapter that declares REWIND has `reader`", "no such method")
        return GuardedReader(self.raw.reader(queue))

    def _retains(self) -> Retains:
        if not isinstance(self.raw, Retains):
            raise ContractBroken("an adapter with all three methods of `Retains`", self.raw)
        return self.raw

    async def retain(self, queue: QueueId, reader: str, position: Token | None) -> None:
        await within(self._retains().retain(queue, reader, position), CALL_LIMIT_S, "retain")

    async def let_go(self, queue: QueueId, reader: str) -> None:
        await within(self._retains().let_go(queue, reader), CALL_LIMIT_S, "let_go")

    async def list_retained(self, queue: QueueId) -> Mapping[str, Token]:
        answer = await within(self._retains().list_retained(queue), CALL_LIMIT_S, "list_retained")
        is_right = isinstance(answer, Mapping)
        is_right = is_right and all(isinstance(one, Token) for one in answer.values())
        expect(is_right, "list_retained returns a mapping of names to tokens", answer)
        return answer

    async def seal(self, queue: QueueId, mapper_epoch: int, era: int) -> Token | None:
        if not isinstance(self.raw, Seals):
            raise ContractBroken("an adapter that declares SEALED has `seal`", "no such method")
        barrier = await within(self.raw.seal(queue, mapper_epoch, era), CALL_LIMIT_S, "seal")
        is_right = barrier is None or isinstance(barrier, Token)
        expect(is_right, "seal returns a token or None", barrier)
        return barrier

    async def aclose(self) -> None:
        await within(self.raw.aclose(), CALL_LIMIT_S, "the adapter's aclose")
