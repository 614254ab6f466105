"""Appending to queues, whoever writes them.

Owns: `Publishing`. Invariants: messages go to one silo at a time; they go to another one only after
an answer which says that nothing of them is stored; after an error of the call itself their fate is
unknown, and whoever publishes sends the same sequences again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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

from .desk import Answer, Desk, LedgerTarget, Reason, append_here

__all__ = ["Publishing"]

BETWEEN_TRIES = Backoff(first_s=0.01, ceiling_s=0.25)


class Publishing:
    """Follows the writers of one provider's queues."""

    def __init__(
        self, host: AdapterHost, desk: Desk, wait_s: float, unowned_after_s: float
    ) -> None:
        self._host = host
        self._desk = desk
        self._wait_s = wait_s
        self._unowned_after_s = unowned_after_s
        self._writers: dict[QueueId, str] = {}  # silos that were asked last
        self._unowned_since_s: dict[QueueId, float] = {}

    async def append(self, queue: QueueId, messages: Sequence[TopicMessage]) -> list[int | None]:
        """Append messages; their numbers. Raises QueueFull, QueueUnavailable, PublishUnknown."""
        until_s, attempt, why = self._host.clock.now() + self._wait_s, 0, ""
        while True:
            answer = await self._try(queue, messages)
            if answer is not None and not answer.is_elsewhere:
                return answer.check()
            if answer is not None and answer.text:
                why = f": {answer.text}"
            self._writers.pop(queue, None)
            attempt += 1
            pause_s = BETWEEN_TRIES.delay_s(attempt, self._host.clock.uniform(0.0, 1.0))
            if self._host.clock.now() + pause_s > until_s:
                text = f"{queue}: nothing is stored, no silo writes it yet"
                raise QueueUnavailable(f"{text} after {self._wait_s:g} s{why}")
            await asyncio.sleep(pause_s)

    async def _try(self, queue: QueueId, messages: Sequence[TopicMessage]) -> Answer | None:
        """Append where the queue is written now; None: nobody writes it."""
        if self._desk.topic(queue) is not None:
            return await append_here(self._desk, queue, messages)
        silo = self._writers.get(queue) or await self._writer(queue)
        if silo is None:
            topic = await self._stand_in(queue)
            return None if topic is None else await append_here(self._desk, queue, messages)
        if silo == self._host.silo:  # it is about to open it
            return Answer(reason=Reason.NOT_HERE, text=self._desk.refusal(queue))
        self._writers[queue] = silo
        return await self._send(silo, queue, messages)

    async def _writer(self, queue: QueueId) -> str | None:
        """The silo that owns the queue. Raises QueueUnavailable."""
        try:
            owner = await self._host.owner(queue)
        except StorageError as error:
            raise QueueUnavailable(f"{queue}: who writes it cannot be read: {error}") from None
        if owner is None:
            return None
        silo = owner[0]
        if silo != self._host.silo and not self._host.members.is_live(silo):
            return None
        self._unowned_since_s.pop(queue, None)
        return silo

    async def _stand_in(self, queue: QueueId) -> object | None:
        """Write a queue that nobody has owned for a while."""
        now_s = self._host.clock.now()
        since_s = self._unowned_since_s.setdefault(queue, now_s)
        if now_s - since_s < self._unowned_after_s:
            return None
        return await self._desk.stand_in(queue)

    async def _send(
        self, silo: str, queue: QueueId, messages: Sequence[TopicMessage]
    ) -> Answer | None:
        target = f"{LedgerTarget.target_name}/{self._host.provider}"
        try:
            return await self._host.targets.call(
                silo, target, LedgerTarget.append, queue, list(messages)
            )
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
        return PublishUnknown(f"{queue}: may have been accepted by {silo}: {error}")
