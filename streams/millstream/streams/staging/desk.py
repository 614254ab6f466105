"""The driver of a `Coordinator`: stores a writer's state, and carries out its decisions.

Owns `WriterDesk`: the writer's row, the delivery of decided batches, and sweeping. `coordinator`
makes the decisions, and `rows` has the forms of rows.

Invariants:

- An answer leaves only after the state behind it is stored.
- After a failure of the store, the coordinator is opened again from its row.
- One task delivers a decided batch in order, until the queues have accepted all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from millstream.runtime import (
    Corrupt,
    Etag,
    StorageError,
    StorageUnavailable,
    StreamError,
)
from millstream.runtime.extending import Backoff
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.token import Token
from millstream.streams.publishing.send_queue import is_final, refusal_of

from .batch import Batch, Manifest, Placed, iter_placed
from .coordinator import (
    STAGED_BYTES_MAX,
    Abandoned,
    Beginning,
    Coordinator,
    Done,
    EnqueueBatch,
    Full,
    Gone,
    Leased,
    Refused,
    Waiting,
    WriterState,
)
from .rows import REASON_CHARS_MAX, REASONS_MAX, RefusedMessage, StagedRows, out_messages

__all__ = ["Enqueues", "WriterDesk"]

log = logging.getLogger("millstream.staging")

RETRY = Backoff(0.05, 2.0, 5.0)
STATUS_WAIT_S = 1.0
WAITS = "%s: batch %d is decided, and its delivery is retried: %s"
REFUSED = "%s: batch %d is decided, but a queue permanently refuses one of its messages: %s"
DAMAGED = "%s: batch %d is decided, but its delivery waits until a row is restored: %s"
STUCK = "%s: batch %d is decided, but its delivery failed; retrying"
A = TypeVar("A")
T = TypeVar("T")


class Enqueues(Protocol):
    """The stream provider that keeps the messages."""

    def check(self, message: OutMessage, /) -> None:
        """Raise ValueError or StreamError for a message that no queue will ever accept."""
        ...

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | StreamError | None]:
        """Return the outcome of each message; in each queue, a prefix of them is stored.

        Raises ValueError if a message is too large; then nothing is stored.
        """
        ...


class RefusedForGood(Exception):
    """A queue refuses a message of a decided batch permanently."""


class WriterDesk:
    """One writer of one provider, in one silo.

    Args:
        identity: the writer's identity in the queues.
        start: starts a task that ends with the silo or earlier. Raises NotInCluster if the silo has
            ended.
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
        self._steps = 0  # grows when a queue accepts a chunk or settles a message
        self._refusal = ""  # the reason why a queue refuses a message permanently
        self._told: str  # the last refusal of this delivery in the log
        self._is_refused = asyncio.Event()
        self._is_asked = asyncio.Event()  # a caller waits: retry at once

    # -- questions of writers

    async def begin(self, attempt: str, batch: int, part: int, *, once: bool = False) -> Beginning:
        """See `Coordinator.begin`. Raises StorageError."""
        return await self._ask_surely(
            lambda core: core.begin(attempt, batch, part, self._loop.time(), once=once)
        )

    async def lease(self, attempt: str, size_bytes: int) -> Leased | Full | Gone:
        """See `Coordinator.lease`; the lease counts from the silo's request. Raises
        StorageError."""
        return await self._ask_surely(
            lambda core: core.lease(attempt, size_bytes, self._loop.time())
        )

    async def commit(
        self, batch: int, manifests: Sequence[Manifest], wait_s: float
    ) -> Done | Gone | Waiting | Refused:
        """Decide a batch and deliver it. Waiting: it is decided, or waits for another batch.

        Raises ValueError (manifests that do not fit), StorageError.
        """

        def question(core: Coordinator) -> EnqueueBatch | Done | Gone:
            return core.commit(batch, manifests, self._loop.time())

        return await self._answer_delivered(lambda: self._ask_surely(question), wait_s)

    async def abandon(self, batch: int, wait_s: float) -> Abandoned | Waiting | Refused | None:
        """Give up the refused messages of a decided batch, and deliver the rest of it.

        None: the batch does not wait for delivery, and was not the last one that was abandoned.
        Raises StorageError.
        """
        return await self._answer_delivered(
            lambda: self._ask(lambda core: core.abandon(batch)), wait_s
        )

    async def state(self) -> tuple[WriterState, str]:
        """Return the stored state, and the reason why a queue refuses a message permanently.

        A batch that waits is tried first, for at most `STATUS_WAIT_S`. Raises StorageError.
        """
        core = await self._ask(lambda core: core)
        if core.state.delivering is not None:
            delivery = self._deliver(core.state.delivering)
            await self._wait_settled(delivery, self._loop.time() + STATUS_WAIT_S)
            core = await self._ask(lambda core: core)
        return core.state, self._refusal

    async def list_refused(self, batch: int, part: int, chunk: int) -> list[RefusedMessage]:
        """See `StagedRows.next_refused`."""
        return await self._rows.next_refused(self._identity, batch, part, chunk)

    async def _answer_delivered(
        self, ask: Callable[[], Awaitable[A | EnqueueBatch]], wait_s: float
    ) -> A | Waiting | Refused:
        """Return the answer after all earlier deliveries, or the state of the delivery after
        `wait_s`."""
        end_s = self._loop.time() + wait_s
        while True:
            answer = await ask()
            if not isinstance(answer, EnqueueBatch):
                return answer
            self._refusal = ""
            self._is_refused.clear()
            self._is_asked.set()
            delivery = self._deliver(answer.batch)
            await self._wait_settled(delivery, end_s)
            if self._refusal:
                return Refused(answer.batch.number, self._refusal)
            if self._loop.time() >= end_s:
                return Waiting(self._steps)

    async def _wait_settled(self, delivery: asyncio.Task[None], end_s: float) -> None:
        """Wait until a delivery ends, or a queue refuses a message."""
        refused = self._loop.create_task(self._is_refused.wait())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await asyncio.wait([delivery, refused], return_when=asyncio.FIRST_COMPLETED)
        finally:
            refused.cancel()

    async def abort(self, batch: int) -> None:
        """See `Coordinator.abort`. Raises StorageError."""
        await self._ask(lambda core: core.abort(batch, self._loop.time()))

    async def keep_house(self) -> float | None:
        """Continue the delivery, drop silent attempts, and sweep those that are due.

        Returns the seconds until the next work; None: until the next call. Raises StorageError.
        """
        core = await self._ask(lambda core: core)
        if core.state.delivering is not None:
            self._deliver(core.state.delivering)
        accepted = await self._ask(lambda core: core.to_free())
        for attempt in accepted:
            await self._rows.sweep(attempt)
        await self._ask(lambda core: core.on_freed(accepted))
        await self._ask(lambda core: core.expire(self._loop.time()))
        for attempt in await self._ask(lambda core: core.to_sweep(self._loop.time())):
            await self._rows.sweep(attempt)
            await self._ask(lambda core, name=attempt: core.on_swept(name))  # type: ignore[misc]
        await self._forget()
        due_s = await self._ask(lambda core: core.next_due_s())
        return None if due_s is None else due_s - self._loop.time()

    async def _forget(self) -> None:
        """Remove the row of a writer that has ended."""
        async with self._lock:
            core, etag = self._core, self._etag
            if core is None or etag is None or not core.is_over(self._loop.time()):
                return
            self._core = None
            await self._rows.forget_refused(self._identity)
            await self._rows.remove(self._identity, etag)

    # -- the row

    async def _ask(self, question: Callable[[Coordinator], T]) -> T:
        """Return the core's answer, after its change is stored."""
        async with self._lock:
            core = self._core
            if core is None:
                state, self._etag = await self._rows.read(self._identity)
                core = Coordinator(state, self._loop.time(), self._staged_bytes_max)
            self._core = None  # opened again unless the write succeeds
            answer = question(core)
            if core.is_changed:
                self._etag = await self._rows.write(self._identity, core.state, self._etag)
                core.is_changed = False
            self._core = core
            return answer

    async def _ask_surely(self, question: Callable[[Coordinator], T]) -> T:
        """Like `_ask`, but ask again if Gone came from a core that another desk has replaced."""
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
        """Enqueue a decided batch and note its delivery; stop if another desk has delivered it."""
        self._told = ""
        for place in iter_placed(batch):
            deliver = partial(self._deliver_one, batch, place, set())
            if not await self._keep_trying(batch, deliver):
                return
        self._refusal = ""
        await self._keep_trying(batch, partial(self._note_delivered, batch.number))
        await self._keep_trying(batch, self._forget_older)

    async def _keep_trying(self, batch: Batch, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step until it succeeds, and return its result."""
        failures = 0
        while True:
            self._is_asked.clear()
            try:
                return await step()
            except RefusedForGood as error:
                self._note_refusal(batch, str(error))
            except Corrupt as error:
                if str(error) != self._told:
                    log.error(DAMAGED, self._identity, batch.number, error)
                self._told = str(error)
            except (StorageError, StreamError) as error:
                log.info(WAITS, self._identity, batch.number, error)
            except Exception:  # unexpected errors are retried too: the batch is decided
                log.exception(STUCK, self._identity, batch.number)
            failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY.whole_s(failures)):
                    await self._is_asked.wait()

    def _note_refusal(self, batch: Batch, why: str) -> None:
        """Report the refusal to waiting callers; log each cause once."""
        if why != self._told:
            log.error(REFUSED, self._identity, batch.number, why)
        self._refusal = self._told = why
        self._is_refused.set()

    async def _deliver_one(self, batch: Batch, place: Placed, accepted: set[int]) -> bool:
        """Enqueue a chunk, except for messages that were accepted before. False: another desk has
        delivered the batch.

        If the number of queues changes between two calls, the new queue of a stream does not know
        its messages, and would accept them again. Raises RefusedForGood, and temporary errors.
        """
        chunk = await self._rows.get(place.attempt, place.index)
        if chunk is None:
            await self._check_delivered(batch, place)
            return False
        messages = out_messages(chunk, self._identity, place.first)
        if await self._ask(lambda core: core.state.is_abandoned):
            await self._settle(batch, place, messages)
            return True
        left = [at for at in range(len(messages)) if at not in accepted]
        outcomes = await self._offer([messages[at] for at in left])
        accepted.update(at for at, one in zip(left, outcomes, strict=True) if one is None)
        failures = [one for one in outcomes if one is not None]
        for failure in (*(one for one in failures if isinstance(one, RefusedForGood)), *failures):
            raise failure
        self._steps += 1
        return True

    async def _offer(self, messages: Sequence[OutMessage]) -> list[Exception | None]:
        """Enqueue messages. Returns the error of each one; RefusedForGood if it is permanent."""
        try:
            outcomes = await self._into.store(messages)
        except ValueError:  # a limit was lowered: a message is too large, and none was sent
            outcomes = [refusal_of(self._into, message) for message in messages]
        return [failure_of(outcome) for outcome in outcomes]

    async def _settle(self, batch: Batch, place: Placed, messages: Sequence[OutMessage]) -> None:
        """Enqueue a chunk whose refused messages are given up.

        A refused message is noted before later ones are sent: after that, the queue would take its
        sequence for known. Raises temporary errors.
        """
        rows, row = self._rows, (self._identity, batch.number)
        given_up, etag = await rows.read_refused(*row, place.part, place.index)
        places = {one.place for one in given_up}
        if not given_up and not any(await self._offer(messages)):
            self._steps += 1
            return
        for at, message in enumerate(messages):
            if at in places:
                continue
            (failure,) = await self._offer([message])
            self._steps += 1
            if isinstance(failure, RefusedForGood):
                why = str(failure)[:REASON_CHARS_MAX] if len(given_up) < REASONS_MAX else ""
                given_up.append(make_refused_message(place, at, message, why))
                etag = await rows.put_refused(*row, given_up, etag)
            elif failure is not None:
                raise failure

    async def _note_delivered(self, batch: int) -> None:
        """Record the delivery.

        Stored rows give the number of refused messages, because another desk may have recorded
        some.
        """
        refused, part, chunk = 0, 0, -1
        while page := await self._rows.next_refused(self._identity, batch, part, chunk):
            refused += len(page)
            part, chunk = page[-1].part, page[-1].chunk
        await self._ask(lambda core: core.on_delivered(batch, self._loop.time(), refused))

    async def _forget_older(self) -> None:
        """Delete the refused messages of all batches except the last abandoned one."""
        last = await self._ask(lambda core: core.state.abandoned)
        if last is not None:
            await self._rows.forget_refused(self._identity, last.batch)

    async def _check_delivered(self, batch: Batch, place: Placed) -> None:
        """Read the state that another desk has stored, because a chunk is missing.

        Raises StorageUnavailable.
        """
        self._core = None
        found = await self._ask(lambda core: core.state.delivering)
        if found is not None and found.number == batch.number:
            raise StorageUnavailable(f"chunk {place.index} of attempt {place.attempt} is missing")


def failure_of(outcome: Token | StreamError | None) -> Exception | None:
    """Return the reason why a message is not stored; None if it is stored."""
    if not isinstance(outcome, StreamError):
        return None
    if not is_final(outcome):
        return outcome
    return RefusedForGood(f"{type(outcome).__name__}: {outcome}")


def make_refused_message(place: Placed, at: int, message: OutMessage, why: str) -> RefusedMessage:
    """Return the record of a message that was given up."""
    size, count = sum(map(len, message.items)), len(message.items)
    key = message.stream.key
    return RefusedMessage(place.part, place.index, at, key, count, size, why)
