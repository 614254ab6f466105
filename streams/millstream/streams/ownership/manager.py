"""Owning queues: acquires what the balancer wants, hands over what it no longer wants.

Owns: one loop per queue, and the agents of this silo. Not: the decision (`ownership.decide`),
which queues are wanted (a balancer). Invariants: an agent runs exactly while this silo owns its
queue; it is paused before the record says so, stopped before the record is freed; a lost queue's
agent is stopped without a word.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from millstream.runtime import Conflict, MillstreamError, Status, StorageError
from millstream.streams.agent.reader import PullingAgent
from millstream.streams.contracts.identity import QueueId

from .decision import (
    Acquire,
    Decision,
    FirstSeen,
    Free,
    Hold,
    Keep,
    Local,
    Lost,
    Owned,
    OwnershipStore,
    Pause,
    Pausing,
    QueueRecord,
    Situation,
    StoredRecord,
    Unowned,
    Wait,
    decide,
)

if TYPE_CHECKING:
    from millstream.streams.provider.provider import PersistentStreams

__all__ = ["QueueManager"]

log = logging.getLogger("millstream.manager")


class OwnedQueue:
    """One queue as this silo sees it."""

    __slots__ = ("agent", "changed", "local", "task")

    def __init__(self) -> None:
        self.local: Local = Unowned()
        self.agent: PullingAgent | None = None
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class QueueManager:
    """The queues of one provider in one silo."""

    def __init__(self, provider: PersistentStreams, store: OwnershipStore) -> None:
        self._provider = provider
        self._store = store
        self._options = provider.options.ownership
        self._loop = asyncio.get_running_loop()
        self._seen = FirstSeen()
        self._wanted: frozenset[QueueId] = frozenset()
        self._queues = {queue: OwnedQueue() for queue in provider.mapper.queues()}
        self._is_stopping = False

    def start(self) -> None:
        """Run a loop per queue."""
        for queue, owned in self._queues.items():
            owned.task = self._provider.services.tasks.start(self._own(queue, owned))

    def want(self, queues: frozenset[QueueId]) -> None:
        """The balancer's word: what this silo should read."""
        if self._is_stopping:
            return
        changed, self._wanted = self._wanted ^ queues, queues
        for queue in sorted(changed):
            self.wake(queue)

    def wake(self, queue: QueueId) -> None:
        """Something about a queue changed: decide again."""
        owned = self._queues.get(queue)
        if owned is not None:
            owned.changed.set()

    def wake_all(self) -> None:
        """The membership changed."""
        for queue in sorted(self._wanted):
            self.wake(queue)

    def agent(self, queue: QueueId) -> PullingAgent | None:
        """This silo's agent of a queue, or None."""
        return self._queues[queue].agent

    def agents(self) -> list[PullingAgent]:
        """Every agent of this silo."""
        return [owned.agent for owned in self._queues.values() if owned.agent is not None]

    # -- one queue

    async def _own(self, queue: QueueId, owned: OwnedQueue) -> None:
        while True:
            owned.changed.clear()
            wait_s: float | None = self._options.poll_s
            try:
                wait_s = await self._decide(queue, owned)
            except StorageError as error:
                log.warning("%s: the queue record: %s", queue, error)
            except Exception:
                log.exception("%s: owning failed; trying again", queue)
            if wait_s is None and self._is_stopping:
                return  # it is free, and its record says so
            if owned.changed.is_set():
                continue
            try:
                async with asyncio.timeout(wait_s):
                    await owned.changed.wait()
            except TimeoutError:
                continue

    async def _decide(self, queue: QueueId, owned: OwnedQueue) -> float | None:
        """Read, decide, act; returns how long nothing needs to be looked at (None: until woken)."""
        agent = owned.agent
        if agent is not None and agent.is_fenced:
            await self._drop(queue, owned)
            return 0.0
        stored = await self._store.read(queue)
        now = self._loop.time()
        situation = Situation(
            record=None if stored is None else stored.record,
            seen_s=self._seen.saw(queue, None if stored is None else stored.etag, now),
            now_s=now,
            me=self._provider.services.address,
            live=self._live(),
            is_wanted=queue in self._wanted and not self._is_stopping,
            local=owned.local,
            checkpoint=None if agent is None else agent.checkpoint,
            in_flight=0 if agent is None else agent.in_flight,
            undone=0 if agent is None else agent.undone,
        )
        return await self._act(queue, owned, stored, decide(situation, self._options))

    def _live(self) -> frozenset[str]:
        view = self._provider.services.members.view
        return frozenset(row.silo for row in view.rows if row.status is not Status.DEAD)

    async def _act(
        self, queue: QueueId, owned: OwnedQueue, stored: StoredRecord | None, decision: Decision
    ) -> float | None:
        now = self._loop.time()
        match decision:
            case Keep():
                is_idle = isinstance(owned.local, Unowned) and queue not in self._wanted
                return None if is_idle else self._options.poll_s
            case Wait(until_s=until_s):
                return max(0.0, until_s - now)
            case Lost():
                await self._drop(queue, owned)
            case Acquire():
                await self._acquire(queue, owned, stored, decision)
            case Hold(record=record):
                await self._write(queue, stored, record)
                if isinstance(owned.local, Pausing) and owned.agent is not None:
                    owned.agent.resume()
                owned.local = Owned(record.epoch)
            case Pause(record=record):
                if not isinstance(owned.local, Pausing) and owned.agent is not None:
                    owned.agent.pause()
                    owned.local = Pausing(record.epoch, now + self._options.max_handoff_s)
                await self._write(queue, stored, record)
            case Free(record=record):
                await self._free(queue, owned, stored, record)
        return 0.0

    async def _write(
        self, queue: QueueId, stored: StoredRecord | None, record: QueueRecord
    ) -> None:
        before_s = self._loop.time()
        etag = await self._store.write(queue, record, None if stored is None else stored.etag)
        self._seen.saw(queue, etag, before_s)

    async def _acquire(
        self,
        queue: QueueId,
        owned: OwnedQueue,
        stored: StoredRecord | None,
        decision: Acquire,
    ) -> None:
        record = decision.record
        try:
            await self._write(queue, stored, record)
        except Conflict:
            return  # another silo was first: read again
        owned.local = Owned(record.epoch)
        owned.agent = PullingAgent(
            self._provider, queue, record.epoch, record.checkpoint, may_repeat=decision.may_repeat
        )
        owned.agent.start()
        how = " (taken)" if decision.is_forced else ""
        log.info("%s: owned in epoch %d%s", queue, record.epoch, how)

    async def _free(
        self, queue: QueueId, owned: OwnedQueue, stored: StoredRecord | None, record: QueueRecord
    ) -> None:
        agent, owned.agent, owned.local = owned.agent, None, Unowned()
        if agent is not None:
            await agent.stop()
            if not agent.is_acked and agent.checkpoint is None and record.handoff is not None:
                record = replace(record, handoff=replace(record.handoff, clean=False))
        await self._write(queue, stored, record)
        log.info("%s: freed, %s", queue, record.handoff)
        self._provider.announce_free(queue)

    async def _drop(self, queue: QueueId, owned: OwnedQueue) -> None:
        """The queue belongs to another silo now."""
        agent, owned.agent, owned.local = owned.agent, None, Unowned()
        if agent is not None:
            agent.is_fenced = True
            await agent.stop()
            log.warning("%s: lost", queue)

    # -- stopping

    async def stop(self) -> None:
        """Hand every queue over: pause, drain, free. Bounded by the hand-off time."""
        self._is_stopping, self._wanted = True, frozenset()
        for queue in self._queues:
            self.wake(queue)
        if tasks := self._tasks():
            limit_s = self._options.max_handoff_s + self._options.force_after_s
            await asyncio.wait(tasks, timeout=limit_s)  # each ends when its queue is free
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for agent in self.agents():
            try:
                await agent.stop()
            except MillstreamError as error:
                log.warning("%s: while stopping: %s", agent.queue, error)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [owned.task for owned in self._queues.values() if owned.task is not None]

    def abort(self) -> None:
        """Stop without a word, as when the silo was evicted."""
        self._is_stopping = True
        for owned in self._queues.values():
            if owned.task is not None:
                owned.task.cancel()
            if owned.agent is not None:
                owned.agent.abort()
