"""Enqueueing in one queue: the driver of a `SendQueue`.

Owns: `QueueSender`: one call of the adapter at a time, its time limit, the pause before a retry;
and storing at once, if no publish waits and the adapter supports it. Not: the effects of an answer
(`send_queue`). Invariants: publishers cannot cancel a call that is under way. After `call_limit_s`
the fate of its messages is unknown, the call is cancelled, and the waiting publishes continue
without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from millstream.runtime import EnqueueFailed, PublishUnknown, StreamError
from millstream.runtime.extending import Backoff, Budget, Clock, Tasks
from millstream.streams.contracts.answers import (
    AdapterFault,
    check_prefix,
    check_tokens,
    fault_of,
)
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.queue import EnqueuesAtOnce
from millstream.streams.contracts.token import Token

from .send_queue import Publish, SendQueue, is_passing

__all__ = ["Awaited", "Enqueue", "QueueSender", "forsake"]

log = logging.getLogger("millstream.streams")

RETRY = Backoff(0.02, 2, 0.5)


Awaited = asyncio.Future[None]
EnqueueAtOnce = Callable[[QueueId, Sequence[OutMessage], int], Sequence[Token | None] | None]


class Enqueue(Protocol):
    """Stores messages: an adapter."""

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]: ...


class Epoch(Protocol):
    """Knows the current layout of queues: a mapper."""

    @property
    def epoch(self) -> int: ...


def forsake(publish: Publish) -> None:
    """Drop the unsent messages of a publish whose caller has gone, wherever they wait."""
    for one in (publish, *(part for _, part in publish.parts)):
        if one.home is not None:
            one.home.drop(one)
        elif not one.is_over:
            one.end()


class QueueSender:
    """Sends the messages of one silo to one queue.

    Args:
        name: name of provider and adapter, for errors.
        call_limit_s: how long one call of the adapter may take.
        budget: the silo's budget; publishes that never suspend yield by it.
    """

    def __init__(
        self,
        waiting: SendQueue,
        queue: QueueId,
        adapter: Enqueue,
        mapper: Epoch,
        name: str,
        call_limit_s: float,
        clock: Clock,
        tasks: Tasks,
        budget: Budget,
    ) -> None:
        self._waiting = waiting
        self._queue = queue
        self._adapter = adapter
        self._at_once = adapter.enqueue_at_once if isinstance(adapter, EnqueuesAtOnce) else None
        self._mapper = mapper
        self._where = f"{name}.enqueue of {queue}"
        self._where_at_once = f"{name}.enqueue_at_once of {queue}"
        self._call_limit_s = call_limit_s
        self._clock = clock
        self._tasks = tasks
        self._budget = budget
        self._ends: dict[Publish, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None  # the task waits for a publish
        self._called_s: float | None = None  # when the current call of the adapter began
        self._watch: asyncio.TimerHandle | None = None
        self._failures = 0  # in a row
        self._leaving: asyncio.Future[None] | None = None  # resolved when the call has ended

    async def publish(self, publish: Publish) -> None:
        """Return when the publish is over; it has the tokens and the error. Raises QueueFull.

        If the caller is cancelled, waiting messages are never sent; a call under way is finished.
        """
        if publish.is_over:
            return  # it has no messages
        if self._store_at_once(publish):
            self._budget.left -= 1  # `spend` inlined, to save a call
            if not self._budget.left:
                await self._budget.pause()
            return
        self._waiting.add(publish)
        end = self._ends[publish] = asyncio.get_running_loop().create_future()
        self._wake()
        try:
            await end
        except BaseException:
            forsake(publish)
            raise
        finally:
            self._ends.pop(publish, None)

    def take(self, publish: Publish, end: Awaited) -> None:
        """Store a publish that another task awaits; `end` is resolved when it is over."""
        try:
            self._waiting.add(publish)
        except StreamError as error:
            publish.end(error)
            end.set_result(None)
            return
        self._ends[publish] = end
        self._wake()

    async def give_up(self) -> list[tuple[Publish, Awaited]]:
        """Wait until no call is in flight. Then remove and return all waiting publishes.

        Each publish comes with its future.
        """
        if self._called_s is not None:
            self._leaving = asyncio.get_running_loop().create_future()
            await self._leaving
        return [
            (publish, self._ends.pop(publish))
            for publish in self._waiting.take_back()
            if publish in self._ends
        ]

    def _call_over(self) -> None:
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.set_result(None)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._send())
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _store_at_once(self, publish: Publish) -> bool:
        """Store a publish without waiting.

        Return False if that is not possible; none of its messages is stored then.
        """
        if self._at_once is None or not self._waiting.takes_alone(publish):
            return False
        found = self._store_now(self._at_once, publish.messages)
        if found is None:
            return False
        if isinstance(found, StreamError):
            publish.end(found)
        else:
            publish.tokens, publish.is_over = found, True
        return True

    def store_together(
        self, lists: Sequence[Sequence[OutMessage]], sizes_bytes: Sequence[int]
    ) -> list[StreamError | None]:
        """Store lists without waiting, in as few calls of the adapter as the limits allow.

        Returns the outcome of the first lists: None, or an error if it is unknown whether the list
        is stored. None of the other lists is stored.
        """
        ends: list[StreamError | None] = []
        if self._at_once is None or not self._waiting.is_idle:
            return ends
        begin = 0
        for end in self._waiting.cut(lists, sizes_bytes):
            joined = lists[begin]
            if end - begin > 1:
                joined = [message for one in lists[begin:end] for message in one]
            found = self._store_now(self._at_once, joined)
            if found is None:  # a shorter list may fit
                return ends + self._store_some(self._at_once, lists[begin:end])
            error = found if isinstance(found, StreamError) else None
            ends += [error] * (end - begin)
            begin = end
        return ends

    def _store_some(
        self, at_once: EnqueueAtOnce, lists: Sequence[Sequence[OutMessage]]
    ) -> list[StreamError | None]:
        ends: list[StreamError | None] = []
        for one in lists if len(lists) > 1 else ():
            found = self._store_now(at_once, one)
            if found is None:
                break
            ends.append(found if isinstance(found, StreamError) else None)
        return ends

    def _store_now(
        self, at_once: EnqueueAtOnce, messages: Sequence[OutMessage]
    ) -> list[Token | None] | StreamError | None:
        """Return the tokens.

        An error means that it is unknown whether the messages are stored. None means that no
        message is stored.
        """
        try:
            answer = at_once(self._queue, messages, self._mapper.epoch)
            if answer is None:
                return None
            return check_tokens(answer, len(messages), self._where_at_once)
        except AdapterFault as error:
            return self._unknown(error)
        except StreamError:
            return None  # `enqueue` raises it again
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also CancelledError, which only the adapter can raise
            return self._unknown(fault_of(self._where_at_once, error))

    async def _send(self) -> None:
        """Enqueue waiting messages, until a call takes too long."""
        me, loop = self._task, asyncio.get_running_loop()
        while self._task is me:
            batch = self._waiting.batch()
            if not batch:
                self._idle = loop.create_future()
                await self._idle
                continue
            self._called_s = self._clock.now()
            if self._watch is None:
                self._watch = self._tasks.call_later(self._call_limit_s, self._look)
            tokens, cause = await self._call(batch, me)
            if self._task is not me:
                return
            self._called_s = None
            self._end(self._waiting.on_answer(tokens, cause, self._clock.now()))
            if self._leaving is not None:
                self._call_over()
                await asyncio.sleep(0)  # let `give_up` take the waiting publishes
            if cause is not None:
                await self._pause(cause, made_progress=bool(tokens))

    def _look(self) -> None:
        """Check whether a call is late. One timer serves many calls, to keep calls cheap."""
        self._watch = None
        if self._called_s is None:
            return
        left_s = self._called_s + self._call_limit_s - self._clock.now()
        if left_s > 0:
            self._watch = self._tasks.call_later(left_s, self._look)
        else:
            self._too_late()

    async def _call(
        self, batch: list[OutMessage], me: asyncio.Task[None] | None
    ) -> tuple[Sequence[Token | None], StreamError | None]:
        """Call the adapter; returns the tokens of the stored prefix, and the error of the rest."""
        count = len(batch)
        try:
            found = await self._adapter.enqueue(self._queue, batch, self._mapper.epoch)
            return check_tokens(found, count, self._where), None
        except EnqueueFailed as error:
            return self._prefix(error, count)
        except AdapterFault as error:
            return (), self._unknown(error)
        except StreamError as error:
            return (), error
        except asyncio.CancelledError as error:
            if self._task is not me:
                raise  # the call was too late, or the silo stops
            if me is not None:
                me.uncancel()  # only the adapter can have cancelled it
            return (), self._unknown(error)
        except Exception as error:
            return (), self._unknown(error)

    def _prefix(
        self, error: EnqueueFailed, count: int
    ) -> tuple[Sequence[Token | None], StreamError | None]:
        try:
            tokens = check_prefix(error, count, self._where)
        except AdapterFault as fault:
            return (), self._unknown(fault)
        return tokens, fault_of(self._where, error.cause)

    def _unknown(self, error: BaseException) -> PublishUnknown:
        text = str(fault_of(self._where, error))
        log.error("%s; it is unknown whether the messages are stored", text)
        return PublishUnknown(f"the messages may have been accepted: {text}")

    async def _pause(self, cause: StreamError, *, made_progress: bool) -> None:
        if made_progress or not is_passing(cause):
            self._failures = 0
            return
        self._failures += 1
        await asyncio.sleep(RETRY.whole_s(self._failures))

    def _too_late(self) -> None:
        """The adapter does not answer: the fate of this call is unknown, waiting messages
        continue."""
        task, self._task, self._called_s = self._task, None, None
        if task is not None:
            task.cancel()
        text = f"{self._where} gave no answer for {self._call_limit_s:g} s (call_limit_s)"
        cause = self._unknown(AdapterFault(text))
        self._end(self._waiting.on_answer((), cause, self._clock.now()))
        self._call_over()
        if not self._waiting.is_idle:
            self._task = self._tasks.start(self._send())

    def _end(self, publishes: Sequence[Publish]) -> None:
        for publish in publishes:
            end = self._ends.get(publish)
            if end is not None and not end.done():
                end.set_result(None)

    def close(self, reason: str) -> None:
        """End the call in flight and all waiting publishes."""
        task, self._task = self._task, None
        self._end(self._waiting.close(reason))
        self._call_over()
        if task is not None:
            task.cancel()
        if self._watch is not None:
            self._watch.cancel()
