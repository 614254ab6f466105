"""Staging from outside: writers send chunks to a gateway's `$staging` target, and commit there.

Owns: the target: what is refused, the lanes of messages, storing chunks under leases. Not: what is
decided (`writer`, in whichever silo), the other side of it (`stager`). Invariants: every answer may
be asked for again; a chunk is stored by the silo that received it, within the lease that it asked
for before; what could not be enqueued later is refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.runtime import ConfigError, NotInCluster, SiloUnavailable, StorageUnavailable
from millstream.runtime.extending import Role, SystemTarget, open_to, shown
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.publishing.ingest import IngestMessage, producer_of
from millstream.streams.publishing.split import PublishLimits, check_size

from .batch import CHUNKS_MAX, Manifest
from .coordinator import Begun, Done, Full, Gone, Leased, Waiting
from .rows import NAME, Chunk, StagedMessage, StagedRows, StoredChunk

__all__ = ["FORM", "Staged", "StagingTarget"]

FORM = 1
"""Of these calls: a writer of another form is refused."""
WRITER_BYTES_MAX = 512
COMMIT_WAIT_S_MAX = 5.0
"""How long a commit is kept waiting; then it is answered, and asked again."""
NUMBER_MAX = 1 << 62


T = TypeVar("T")


class Staged(msgspec.Struct, frozen=True):
    """A chunk is stored; of each of these lanes it has so many messages."""

    lanes: list[str]
    counts: list[int]


class Writer(Protocol):
    """Who coordinates a writer, wherever it is."""

    def begin(
        self, attempt: str, batch: int, part: int, once: bool
    ) -> Coroutine[Any, Any, Begun | Done | Full | Gone]: ...
    def lease(self, attempt: str, size_bytes: int) -> Coroutine[Any, Any, Leased | Full | Gone]: ...
    def commit(
        self, batch: int, manifests: list[Manifest], wait_s: float
    ) -> Coroutine[Any, Any, Done | Gone | Waiting]: ...
    def abort(self, batch: int) -> Coroutine[Any, Any, None]: ...


class StagingTarget(SystemTarget):
    """Takes what writers stage, for one provider (`$staging/<provider>`).

    Args:
        writer: the coordinator of a writer's name.
        queue_of: the queue that carries a stream. Raises StreamError.
        refusal: why nothing can be staged for this provider; empty: it can.
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
        """Open an attempt to write a part of a batch; `once`: the writer has this batch alone.

        Raises ConfigError (nothing can be staged here, or not in this form), ValueError (a name or
        number), StorageError.
        """
        if form != FORM:
            raise ConfigError(
                f"the writer stages in form {form}, this cluster in form {FORM}: install the same "
                "version of Millstream in both"
            )
        if self._refusal:
            raise ConfigError(self._refusal)
        check_number("batch", batch)
        check_number("part", part)
        check_attempt(attempt)
        return await answered(self._of(namespace, writer).begin(attempt, batch, part, once))

    @open_to(Role.CLIENT)
    async def stage(
        self,
        namespace: str,
        writer: str,
        attempt: str,
        index: int,
        messages: list[IngestMessage],
    ) -> Staged | Full | Gone:
        """Store a chunk of an attempt that is open.

        Raises ValueError (a name, too large), StreamError (no queue carries a stream),
        StorageError.
        """
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        check_attempt(attempt)
        if not 0 <= index < CHUNKS_MAX:
            raise ValueError(
                f"chunk {index} of an attempt; CHUNKS_MAX is {CHUNKS_MAX}: write less in one batch"
            )
        chunk = StoredChunk(self._chunk(namespace, messages))
        answer = await answered(self._of(namespace, writer).lease(attempt, len(chunk.data)))
        if not isinstance(answer, Leased):
            return answer
        try:
            async with asyncio.timeout_at(asked_s + answer.lease_s):
                found = await self._rows.put(attempt, index, chunk)
        except TimeoutError:
            text = f"chunk {index} of attempt {attempt} was not stored within its lease"
            raise StorageUnavailable(text) from None
        return Staged(found.lanes, found.counts())

    def _chunk(self, namespace: str, messages: list[IngestMessage]) -> Chunk:
        lanes: dict[str, int] = {}
        staged = []
        for one in messages:
            stream, items = StreamId(namespace, one.key), [bytes(item) for item in one.items]
            check_size(stream, items, one.headers, self._limits)
            lane = lanes.setdefault(self._queue_of(stream), len(lanes))
            staged.append(StagedMessage(lane, one.key, items, one.headers))
        return Chunk(namespace, list(lanes), staged)

    @open_to(Role.CLIENT)
    async def commit(
        self, namespace: str, writer: str, batch: int, manifests: list[Manifest], wait_s: float
    ) -> Done | Gone | Waiting:
        """Decide a batch, and wait until it is delivered.

        Args:
            manifests: of the attempts that are to be seen, one for each part.
            wait_s: at most `COMMIT_WAIT_S_MAX`.

        Raises ValueError (manifests that do not fit), StorageError.
        """
        check_number("batch", batch)
        wait_s = min(wait_s, COMMIT_WAIT_S_MAX)
        return await answered(self._of(namespace, writer).commit(batch, manifests, wait_s))

    @open_to(Role.CLIENT)
    async def abort(self, namespace: str, writer: str, batch: int) -> None:
        """Drop what is open of a batch, and of those before it. Raises StorageError."""
        check_number("batch", batch)
        await answered(self._of(namespace, writer).abort(batch))

    def _of(self, namespace: str, writer: str) -> Writer:
        size = len(writer.encode())
        if not 0 < size <= WRITER_BYTES_MAX:
            raise ValueError(
                f"writer {shown(writer)!r} has {size} bytes: write 1 to {WRITER_BYTES_MAX}"
            )
        return self._writer(producer_of(namespace, writer))


async def answered(call: Coroutine[Any, Any, T]) -> T:
    """What a writer's grain answers. Raises what it raises, and SiloUnavailable: this silo stops,
    which is nothing to whoever asks by another one."""
    try:
        return await call
    except NotInCluster as error:
        raise SiloUnavailable(str(error)) from None


def check_number(what: str, number: int) -> None:
    if not 0 <= number < NUMBER_MAX:
        raise ValueError(f"{what} {number}: write a whole number from 0 up to 2**62")


def check_attempt(attempt: str) -> None:
    if not NAME.fullmatch(attempt):
        raise ValueError(f"attempt {shown(attempt)!r}: write up to 64 letters, digits and hyphens")
