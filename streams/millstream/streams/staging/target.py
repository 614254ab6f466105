"""The entry point of staged writes: the target `$staging` of a gateway.

It refuses invalid calls, assigns messages to lanes, and stores chunks under leases. The writer's
grain (`writer`) makes the decisions, in any silo. `stager` is the client's side.

Invariants: every call may be repeated. The silo that received a chunk stores it, within the lease
that it requested before. A message that could not be enqueued later is refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.runtime import (
    CallError,
    ClusterError,
    ConfigError,
    NotInCluster,
    SiloUnavailable,
    StorageUnavailable,
)
from millstream.runtime.extending import Role, SystemTarget, open_to, show_text
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.message import OutMessage, ProducerMark, message_bytes
from millstream.streams.publishing.ingest import IngestMessage, producer_of
from millstream.streams.publishing.split import PublishLimits, check_size

from .batch import CHUNKS_MAX, Manifest
from .coordinator import Abandoned, Begun, Done, Full, Gone, Leased, Refused, Waiting
from .rows import NAME, Chunk, RefusedMessage, StagedMessage, StagedRows, StoredChunk
from .status import WriterStatus, status_of

__all__ = ["FORM", "Staged", "StagingTarget"]

FORM = 2
"""The version of these calls. A writer that uses another version is refused."""
WRITER_BYTES_MAX = 512
WRITERS_MAX = 100
"""Limit of the writers in one answer."""
LANE_BYTES_MAX = 256
"""Bytes that each message reserves for the name of its queue."""
COMMIT_WAIT_S_MAX = 5.0
"""Seconds after which a waiting commit is answered; the caller then asks again."""
NUMBER_MAX = 1 << 62


T = TypeVar("T")


class Staged(msgspec.Struct, frozen=True):
    """A chunk is stored, with this number of messages for each of these lanes."""

    lanes: list[str]
    counts: list[int]


class Writer(Protocol):
    """The coordinator of a writer, in any silo."""

    def begin(
        self, attempt: str, batch: int, part: int, once: bool
    ) -> Coroutine[Any, Any, Begun | Done | Full | Gone]: ...
    def lease(self, attempt: str, size_bytes: int) -> Coroutine[Any, Any, Leased | Full | Gone]: ...
    def commit(
        self, batch: int, manifests: list[Manifest], wait_s: float
    ) -> Coroutine[Any, Any, Done | Gone | Waiting | Refused]: ...
    def abandon(
        self, batch: int, wait_s: float
    ) -> Coroutine[Any, Any, Abandoned | Waiting | Refused | None]: ...
    def status(self) -> Coroutine[Any, Any, WriterStatus]: ...
    def list_refused(
        self, batch: int, part: int, chunk: int
    ) -> Coroutine[Any, Any, list[RefusedMessage]]: ...
    def abort(self, batch: int) -> Coroutine[Any, Any, None]: ...


class StagingTarget(SystemTarget):
    """Accepts staged messages for one provider (`$staging/<provider>`).

    Args:
        writer: returns the coordinator of a writer's name.
        queue_of: returns the queue that carries a stream. Raises StreamError.
        refusal: the reason why this provider cannot stage anything; empty if it can.
    """

    target_name = "$staging"

    def __init__(
        self,
        rows: StagedRows,
        writer: Callable[[str], Writer],
        queue_of: Callable[[StreamId], QueueId],
        limits: PublishLimits,
        refusal: str,
    ) -> None:
        self._rows = rows
        self._writer = writer
        self._queue_of = queue_of
        self._limits = limits
        self._refusal = refusal

    @open_to(Role.CLIENT)
    async def begin(
        self,
        form: int,
        namespace: str,
        writer: str,
        batch: int,
        part: int,
        attempt: str,
        once: bool,
    ) -> Begun | Done | Full | Gone:
        """Open an attempt to write a part of a batch. `once`: the writer has only this batch.

        Raises ConfigError (staging is impossible here, or the form differs), ValueError (an invalid
        name or number), StorageError.
        """
        if form != FORM:
            raise ConfigError(
                f"the writer uses form {form} of these calls, but this cluster uses form {FORM}: "
                "install the same version of Millstream in both"
            )
        if self._refusal:
            raise ConfigError(self._refusal)
        check_number("batch", batch)
        check_number("part", part)
        check_attempt(attempt)
        answer = await ask(self._of(namespace, writer).begin(attempt, batch, part, once))
        return self._with_limits(namespace, writer) if isinstance(answer, Begun) else answer

    def _with_limits(self, namespace: str, writer: str) -> Begun:
        """Return the limits of a message, less the space for the names that are added here."""
        mark = ProducerMark(f"{producer_of(namespace, writer)}/{'q' * LANE_BYTES_MAX}", 0)
        head = message_bytes(OutMessage(StreamId(namespace, ""), (), {}, mark))
        queue, content = self._limits.queue, self._limits.message_bytes_max
        bytes_max = max(1, min(queue.bytes_max - head, content))
        return Begun(queue.items_max, bytes_max)

    @open_to(Role.CLIENT)
    async def stage(
        self,
        namespace: str,
        writer: str,
        attempt: str,
        index: int,
        messages: list[IngestMessage],
    ) -> Staged | Full | Gone:
        """Store a chunk of an open attempt.

        Raises ValueError (an invalid name, or too large), StreamError (no queue carries a stream),
        StorageError.
        """
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        check_attempt(attempt)
        if not 0 <= index < CHUNKS_MAX:
            raise ValueError(
                f"chunk {index} is above the limit of an attempt; CHUNKS_MAX is {CHUNKS_MAX}: "
                "write less in one batch"
            )
        of = self._of(namespace, writer)
        identity = producer_of(namespace, writer)
        chunk = StoredChunk(self._chunk(namespace, identity, messages))
        answer = await ask(of.lease(attempt, len(chunk.data)))
        if not isinstance(answer, Leased):
            return answer
        try:
            async with asyncio.timeout_at(asked_s + answer.lease_s):
                found = await self._rows.put(attempt, index, chunk)
        except TimeoutError:
            text = f"chunk {index} of attempt {attempt} was not stored within its lease"
            raise StorageUnavailable(text) from None
        return Staged(found.lanes, found.counts())

    def _chunk(self, namespace: str, identity: str, messages: list[IngestMessage]) -> Chunk:
        lanes: dict[str, int] = {}
        staged = []
        for one in messages:
            stream, items = StreamId(namespace, one.key), [bytes(item) for item in one.items]
            queue = self._queue_of(stream)
            mark = ProducerMark(f"{identity}/{queue}", 0)
            check_size(OutMessage(stream, items, one.headers or {}, mark), self._limits)
            lane = lanes.setdefault(queue, len(lanes))
            staged.append(StagedMessage(lane, one.key, items, one.headers))
        return Chunk(namespace, list(lanes), staged)

    @open_to(Role.CLIENT)
    async def commit(
        self, namespace: str, writer: str, batch: int, manifests: list[Manifest], wait_s: float
    ) -> Done | Gone | Waiting | Refused:
        """Decide a batch, and wait until it is delivered. Refused: a queue refuses a message
        permanently.

        Args:
            manifests: the manifests of the chosen attempts, one for each part.
            wait_s: seconds to wait, at most `COMMIT_WAIT_S_MAX`.

        Raises ValueError (manifests that do not fit), StorageError.
        """
        check_number("batch", batch)
        wait_s = min(wait_s, COMMIT_WAIT_S_MAX)
        return await ask(self._of(namespace, writer).commit(batch, manifests, wait_s))

    @open_to(Role.OPERATOR)
    async def abandon(
        self, namespace: str, writer: str, batch: int, wait_s: float
    ) -> Abandoned | Waiting | Refused:
        """Give up the refused messages of a decided batch; the accepted ones are published.

        Raises LookupError (the batch does not wait to be published), StorageError.
        """
        check_number("batch", batch)
        wait_s = min(wait_s, COMMIT_WAIT_S_MAX)
        answer = await ask(self._of(namespace, writer).abandon(batch, wait_s))
        if answer is None:
            raise LookupError(
                f"batch {batch} of writer {show_text(writer)} in {show_text(namespace)} does not "
                "wait to be published: `millstream staged list` shows the batches that wait"
            )
        return answer

    @open_to(Role.OPERATOR)
    async def writers(self, after: str, limit: int) -> list[WriterStatus]:
        """Return the writers after an identity, in order, with the refusal of batches that wait.

        Raises ValueError (the limit), StorageError.
        """
        if not 1 <= limit <= WRITERS_MAX:
            raise ValueError(f"limit is {limit}; it must be 1 to {WRITERS_MAX}")
        found = []
        for writer, state in await self._rows.writers(after, limit):
            status = status_of(writer, state)
            if state.delivering is not None:
                with suppress(CallError, ClusterError):  # the row alone is good enough
                    status = await ask(self._writer(writer).status())
            found.append(status)
        return found

    @open_to(Role.OPERATOR)
    async def status(self, namespace: str, writer: str) -> WriterStatus:
        """Return the status of a writer. Raises LookupError (it never staged anything),
        StorageError."""
        identity = producer_of(namespace, writer)
        if (await self._rows.read(identity))[1] is None:
            raise LookupError(
                f"there is no writer {show_text(writer)} in {show_text(namespace)}: `millstream "
                "staged list` shows all writers"
            )
        return await ask(self._of(namespace, writer).status())

    @open_to(Role.OPERATOR)
    async def list_refused(
        self, namespace: str, writer: str, batch: int, part: int, chunk: int
    ) -> list[RefusedMessage]:
        """Return the given-up messages of the next chunk that has any; [] at the end.

        Args:
            part: 0 at first, then that of the last message of the answer.
            chunk: -1 at first, then that of the last message of the answer.

        Raises StorageError.
        """
        check_number("batch", batch)
        check_number("part", part)
        return await ask(self._of(namespace, writer).list_refused(batch, part, chunk))

    @open_to(Role.CLIENT)
    async def abort(self, namespace: str, writer: str, batch: int) -> None:
        """Drop the open attempts of a batch and of earlier ones. Raises StorageError."""
        check_number("batch", batch)
        await ask(self._of(namespace, writer).abort(batch))

    def _of(self, namespace: str, writer: str) -> Writer:
        size = len(writer.encode())
        if not 0 < size <= WRITER_BYTES_MAX:
            raise ValueError(
                f"the name of writer {show_text(writer)!r} has {size} bytes; it must have 1 to "
                f"{WRITER_BYTES_MAX}"
            )
        return self._writer(producer_of(namespace, writer))


async def ask(call: Coroutine[Any, Any, T]) -> T:
    """Return the answer of a writer's grain. Raises its errors; SiloUnavailable if this silo stops,
    because another silo can answer."""
    try:
        return await call
    except NotInCluster as error:
        raise SiloUnavailable(str(error)) from None


def check_number(what: str, number: int) -> None:
    if not 0 <= number < NUMBER_MAX:
        raise ValueError(f"{what} is {number}; it must be a whole number from 0 up to 2**62")


def check_attempt(attempt: str) -> None:
    if not NAME.fullmatch(attempt):
        raise ValueError(
            f"attempt {show_text(attempt)!r}: its name must be up to 64 letters, digits and hyphens"
        )
