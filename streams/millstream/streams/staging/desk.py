"""Where a writer's decisions are stored, carried out and told: the driver of a `Coordinator`.

Owns: `WriterDesk`: its row, delivering what is decided, sweeping. Not: the decisions
(`coordinator`), the forms of rows (`rows`), who calls it. Invariants: an answer leaves once what it
rests on is stored; after a failure of the store the coordinator is opened anew from its row; a
decided batch is delivered in order, by one task, until all of it is accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from millstream.runtime import Etag, StorageError, StorageUnavailable, StreamError
from millstream.runtime.extending import Backoff
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.token import Token

from .batch import Batch, Manifest, Placed, placed
from .coordinator import (
    STAGED_BYTES_MAX,
    Beginning,
    Coordinator,
    Deliver,
    Done,
    Full,
    Gone,
    Leased,
    Waiting,
)
from .rows import StagedRows, out_messages

__all__ = ["Enqueues", "WriterDesk"]

log = logging.getLogger("millstream.staging")

RETRY = Backoff(0.05, 2.0, 5.0)
WAITS = "%s: batch %d is decided, and waits to be delivered: %s"
STUCK = "%s: batch %d is decided, and cannot be delivered; it is tried again"
T = TypeVar("T")


class Enqueues(Protocol):
    """What keeps the messages: a stream provider."""

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | StreamError | None]:
        """The outcome of each message; per queue, a prefix of them is stored."""
        ...


class WriterDesk:
    """One writer of one provider, in one silo.

    Args:
        identity: of the writer in the queues.
        start: starts a task, which ends with the silo or before. Raises NotInCluster: it ended.
    """

    def __init__(
        self,
        rows: StagedRows,
        identity: str,
        into: Enqueues,
        start: Callable[[Any], asyncio.Task[None]],
        staged_bytes_max: int = STAGED_BYTES_MAX,
    ) -> None:
        self._rows = rows
        self._identity = identity
        self._into = into
        self._start = start
        self._staged_bytes_max = staged_bytes_max
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._core: Coordinator | None = None
        self._etag: Etag | None = None
        self._delivery: asyncio.Task[None] | None = None
        self._steps = 0  # chunks that were accepted

    # -- what writers ask

    async def begin(self, attempt: str, batch: int, part: int, *, once: bool = False) -> Beginning:
        """See `Coordinator.begin`. Raises StorageError."""
        return await self._ask_surely(
            lambda core: core.begin(attempt, batch, part, self._loop.time(), once=once)
        )

    async def lease(self, attempt: str, size_bytes: int) -> Leased | Full | Gone:
        """See `Coordinator.lease`; it counts from when the silo asked. Raises StorageError."""
        return await self._ask_surely(
            lambda core: core.lease(attempt, size_bytes, self._loop.time())
        )

    async def commit(
        self, batch: int, manifests: Sequence[Manifest], wait_s: float
    ) -> Done | Gone | Waiting:
        """Decide a batch and deliver it. Waiting: it is decided, or waits for another one.

        Raises ValueError (manifests that do not fit), StorageError.
        """
        end_s = self._loop.time() + wait_s
        while True:
            answer = await self._ask_surely(
                lambda core: core.commit(batch, manifests, self._loop.time())
            )
            if not isinstance(answer, Deliver):
                return answer
            delivery = self._deliver(answer.batch)
            await asyncio.wait([delivery], timeout=max(0.0, end_s - self._loop.time()))
            if not delivery.done() or self._loop.time() >= end_s:
                return Waiting(self._steps)

    async def abort(self, batch: int) -> None:
        """See `Coordinator.abort`. Raises StorageError."""
        await self._ask(lambda core: core.abort(batch, self._loop.time()))

    async def keep_house(self) -> float | None:
        """Go on with what is decided, drop what is silent, sweep what is due.

        Returns how long there is nothing to do; None: until the next call. Raises StorageError.
        """
        core = await self._ask(lambda core: core)
        if core.state.delivering is not None:
            self._deliver(core.state.delivering)
        accepted = await self._ask(lambda core: core.to_free())
        for attempt in accepted:
            await self._rows.sweep(attempt)
        await self._ask(lambda core: core.freed(accepted))
        await self._ask(lambda core: core.expire(self._loop.time()))
        for attempt in await self._ask(lambda core: core.to_sweep(self._loop.time())):
            await self._rows.sweep(attempt)
            await self._ask(lambda core, name=attempt: core.swept(name))  # type: ignore[misc]
        await self._forget()
        due_s = await self._ask(lambda core: core.next_due_s())
        return None if due_s is None else max(0.0, due_s - self._loop.time())

    async def _forget(self) -> None:
        """Remove the row of a writer that is over."""
        async with self._lock:
            core, etag = self._core, self._etag
            if core is None or etag is None or not core.is_over(self._loop.time()):
                return
            self._core = None
            await self._rows.remove(self._identity, etag)

    # -- the row

    async def _ask(self, question: Callable[[Coordinator], T]) -> T:
        """The core's answer, once what it changed is stored."""
        async with self._lock:
            core = self._core
            if core is None:
                state, self._etag = await self._rows.read(self._identity)
                core = Coordinator(state, self._loop.time(), self._staged_bytes_max)
            self._core = None  # unless all goes well
            answer = question(core)
            if core.is_changed:
                self._etag = await self._rows.write(self._identity, core.state, self._etag)
                core.is_changed = False
            self._core = core
            return answer

    async def _ask_surely(self, question: Callable[[Coordinator], T]) -> T:
        """`_ask`, and again if Gone was the answer of one that another desk has replaced."""
        answer = await self._ask(question)
        if isinstance(answer, Gone) and await self._is_replaced():
            answer = await self._ask(question)
        return answer

    async def _is_replaced(self) -> bool:
        async with self._lock:
            _, etag = await self._rows.read(self._identity)
            if etag != self._etag:
                self._core = None
            return etag != self._etag

    # -- delivering

    def _deliver(self, batch: Batch) -> asyncio.Task[None]:
        if self._delivery is None or self._delivery.done():
            self._delivery = self._start(self._deliver_all(batch))
        return self._delivery

    async def _deliver_all(self, batch: Batch) -> None:
        """Enqueue a decided batch, and note that it is; ends where another desk has done so."""
        for place in placed(batch):
            if not await self._keep_trying(batch, partial(self._deliver_one, batch, place)):
                return
        await self._keep_trying(batch, partial(self._note_delivered, batch.number))

    async def _keep_trying(self, batch: Batch, step: Callable[[], Awaitable[T]]) -> T:
        """Its result, however long that takes."""
        failures = 0
        while True:
            try:
                return await step()
            except (StorageError, StreamError) as error:
                log.info(WAITS, self._identity, batch.number, error)
            except Exception:  # what cannot be, or is another's fault: it is decided all the same
                log.exception(STUCK, self._identity, batch.number)
            failures += 1
            await asyncio.sleep(RETRY.whole_s(failures))

    async def _deliver_one(self, batch: Batch, place: Placed) -> bool:
        """Enqueue a chunk; False: the batch is delivered, by another desk."""
        chunk = await self._rows.get(place.attempt, place.index)
        if chunk is None:
            await self._check_delivered(batch, place)
            return False
        for outcome in await self._into.store(out_messages(chunk, self._identity, place.first)):
            if isinstance(outcome, StreamError):
                raise outcome
        self._steps += 1
        return True

    async def _note_delivered(self, batch: int) -> None:
        await self._ask(lambda core: core.delivered(batch, self._loop.time()))

    async def _check_delivered(self, batch: Batch, place: Placed) -> None:
        """A chunk is not there: read what another desk has stored. Raises StorageUnavailable."""
        self._core = None
        found = await self._ask(lambda core: core.state.delivering)
        if found is not None and found.number == batch.number:
            raise StorageUnavailable(f"chunk {place.index} of attempt {place.attempt} is not there")
