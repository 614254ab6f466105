"""Requests to the writers of queues, in any silo: to append, and to keep messages.

Owns: `Writers`. Invariants: one silo is asked at a time, and another one only after an answer that
nothing was done. After an error of the call itself the outcome is unknown: the caller gets
PublishUnknown, and may send the messages again with the same sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from millstream.providers.ledger.topic.form import TopicMessage
from millstream.runtime import (
    CallError,
    ClusterError,
    NotHosted,
    PublishUnknown,
    QueueUnavailable,
    SiloUnavailable,
    StorageError,
)
from millstream.runtime.extending import Backoff
from millstream.streams import AdapterHost, QueueId

from .desk import Desk
from .target import LedgerTarget, WriterAnswer, WriterReason, append_here, let_go_here, retain_here

__all__ = ["Writers"]

BETWEEN_TRIES = Backoff(first_s=0.01, ceiling_s=0.25)


Call = Callable[[], Coroutine[Any, Any, WriterAnswer]]
CallOf = Callable[[str], Coroutine[Any, Any, WriterAnswer]]


class Writers:
    """Follows the writers of one provider's queues."""

    def __init__(
        self, host: AdapterHost, desk: Desk, wait_s: float, unowned_after_s: float
    ) -> None:
        self._host = host
        self._desk = desk
        self._wait_s = wait_s
        self._unowned_after_s = unowned_after_s
        self._target = f"{LedgerTarget.target_name}/{host.provider}"
        self._writers: dict[QueueId, str] = {}  # the silos that were asked last
        self._unowned_since_s: dict[QueueId, float] = {}

    async def append(self, queue: QueueId, messages: Sequence[TopicMessage]) -> list[int | None]:
        """Append messages; return their numbers. Raises QueueFull, QueueUnavailable,
        PublishUnknown."""
        call, sent = self._host.targets.call, list(messages)
        answer = await self._ask(
            queue,
            lambda: append_here(self._desk, queue, messages),
            lambda silo: call(silo, self._target, LedgerTarget.append, queue, sent),
        )
        return answer.check()

    async def retain(self, queue: QueueId, reader: str, number: int | None) -> None:
        """Keep messages from `number` on for a reader. Raises QueueUnavailable (they may be kept),
        ConfigError: the topic has too many cursors."""
        call = self._host.targets.call
        await self._again(
            queue,
            lambda: retain_here(self._desk, queue, reader, number),
            lambda silo: call(silo, self._target, LedgerTarget.retain, queue, reader, number),
        )

    async def let_go(self, queue: QueueId, reader: str) -> None:
        """Keep nothing more for a reader. Raises QueueUnavailable: messages may still be kept."""
        call = self._host.targets.call
        await self._again(
            queue,
            lambda: let_go_here(self._desk, queue, reader),
            lambda silo: call(silo, self._target, LedgerTarget.let_go, queue, reader),
        )

    async def _again(self, queue: QueueId, here: Call, there: CallOf) -> None:
        """Send a request that may be repeated, whether it was done or not."""
        try:
            (await self._ask(queue, here, there)).check()
        except PublishUnknown as error:
            raise QueueUnavailable(f"{error}; a retry does no harm") from None

    async def _ask(self, queue: QueueId, here: Call, there: CallOf) -> WriterAnswer:
        """Return the answer of the writer. Raises QueueUnavailable, PublishUnknown."""
        until_s, attempt, why = self._host.clock.now() + self._wait_s, 0, ""
        while True:
            answer = await self._try(queue, here, there)
            if answer is not None and not answer.is_elsewhere:
                return answer
            if answer is not None and answer.text:
                why = f": {answer.text}"
            self._writers.pop(queue, None)
            attempt += 1
            pause_s = BETWEEN_TRIES.delay_s(attempt, self._host.clock.uniform(0.0, 1.0))
            if self._host.clock.now() + pause_s > until_s:
                text = f"{queue}: nothing is stored, because no silo opened the queue"
                raise QueueUnavailable(f"{text} within {self._wait_s:g} s{why}")
            await asyncio.sleep(pause_s)

    async def _try(self, queue: QueueId, here: Call, there: CallOf) -> WriterAnswer | None:
        """Ask the present writer of the queue. Return None if the queue has no writer."""
        if self._desk.topic(queue) is not None:
            return await here()
        silo = self._writers.get(queue) or await self._writer(queue)
        if silo is None:
            return None if await self._stand_in(queue) is None else await here()
        if silo == self._host.silo:  # it is about to open it
            return WriterAnswer(reason=WriterReason.NOT_HERE, text=self._desk.refusal(queue))
        self._writers[queue] = silo
        return await self._send(silo, queue, there)

    async def _writer(self, queue: QueueId) -> str | None:
        """Return the silo that owns the queue; None if no live silo does. Raises
        QueueUnavailable."""
        try:
            owner = await self._host.owner(queue)
        except StorageError as error:
            raise QueueUnavailable(f"{queue}: the owner cannot be read: {error}") from None
        if owner is None:
            return None
        silo = owner[0]
        if silo != self._host.silo and not self._host.members.is_live(silo):
            return None
        self._unowned_since_s.pop(queue, None)
        return silo

    async def _stand_in(self, queue: QueueId) -> object | None:
        """Open a queue here that had no owner for a while. Return None before that, or if another
        process was faster."""
        now_s = self._host.clock.now()
        since_s = self._unowned_since_s.setdefault(queue, now_s)
        if now_s - since_s < self._unowned_after_s:
            return None
        return await self._desk.stand_in(queue)

    async def _send(self, silo: str, queue: QueueId, there: CallOf) -> WriterAnswer | None:
        try:
            return await there(silo)
        except NotHosted:
            return None  # it has not opened the provider yet
        except SiloUnavailable as error:
            if not error.may_have_run:
                return None
            raise self._unknown(silo, queue, error) from None
        except (CallError, ClusterError) as error:
            raise self._unknown(silo, queue, error) from None

    def _unknown(self, silo: str, queue: QueueId, error: Exception) -> PublishUnknown:
        self._writers.pop(queue, None)
        return PublishUnknown(f"{queue}: silo {silo} may have accepted the request: {error}")
