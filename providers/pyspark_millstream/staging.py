"""`delivery=staged`: a task stages its rows under a new name, and the driver makes them visible.

This module owns the staging by tasks, and the commit and abort of a batch; all functions block.
`StagedAttempt` and `StagedBatch` own retries, `background` the clients, and `rows` the rows.
Invariants: no two attempts share a name. Uncommitted rows are never visible. A batch with a
decision is not written again. A partition without rows opens no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from millstream.runtime import Env
from millstream.streams.staging.batch import Manifest
from millstream.streams.staging.coordinator import Begun
from millstream.streams.staging.stager import StagedAttempt, StagedBatch, StagedWriterName

from .background import Background, background
from .options import WriteOptions
from .rows import CallCutter, Chunker, MessageSize, encode_message
from .tokens import Origin

if TYPE_CHECKING:
    from pyarrow import RecordBatch

__all__ = ["StagedPart", "abort_batch", "commit_batch", "stage_rows"]

NAME_BYTES_MAX = 200
"""Bytes of a writer's name; a longer name is shortened and made unique by a digest."""
Messages = Sequence[WriterCommitMessage | None]


@dataclass
class StagedPart(WriterCommitMessage):
    """The result of one task. `manifest` is None if its batch already had a decision."""

    rows: int
    messages: int
    calls: int
    name: StagedWriterName
    batch: int
    manifest: Manifest | None


@dataclass
class NoRows(WriterCommitMessage):
    """The result of a task whose partition was empty."""


class Link:
    """One attempt, with methods that block, for a task."""

    def __init__(
        self, background: Background, options: WriteOptions, origin: Origin, name: StagedWriterName
    ) -> None:
        self._background = background
        self._options = options
        self._origin = origin
        self._name = name
        self._attempt: StagedAttempt
        self._open = AsyncExitStack()

    def begin(self) -> bool:
        """Open the attempt; False if the batch has a decision. Raises as `StagedAttempt.begin`."""
        return self._background.run(self._begin())

    @property
    def limits(self) -> Begun:
        """The limits of each message, once the attempt is open."""
        return self._attempt.limits

    def stage(self, messages: bytes) -> None:
        """Send a chunk; wait while the window is full. Raises as `StagedAttempt.stage` does."""
        self._background.run(self._attempt.stage(messages))

    def finish(self) -> Manifest:
        """Wait until everything is staged. Raises as `stage` does."""
        return self._background.run(self._attempt.finish())

    def close(self) -> None:
        """Give up unanswered calls."""
        self._background.run(self._open.aclose())

    async def _begin(self) -> bool:
        options, origin, env = self._options, self._origin, Env()
        client = await self._open.enter_async_context(self._background.client(options))
        self._attempt = StagedAttempt(
            client.gateway,
            self._name,
            origin.batch,
            origin.partition,
            f"{env.new_id():016x}{env.new_id():016x}",
            window=options.window,
            patience_s=options.patience_s,
        )
        self._open.push_async_callback(self._attempt.aclose)
        return await self._attempt.begin()


@contextmanager
def open_link(options: WriteOptions, origin: Origin, name: StagedWriterName) -> Iterator[Link]:
    """Yield a `Link`, and close it in any case."""
    link = Link(background(), options, origin, name)
    try:
        yield link
    finally:
        link.close()


def stage_rows(
    options: WriteOptions, origin: Origin, batches: Iterator[RecordBatch], *, once: bool = False
) -> WriterCommitMessage:
    """Stage a partition's rows, in order; returns when all of them are stored.

    Args:
        once: No other batch is written under this name.

    Raises ValueError (a null key, a message that is too large). Raises errors of calls after
    `patience_s`: StreamError, StorageError, CallTimeout or SiloUnavailable. Raises at once
    NotHosted (no such provider) or ConfigError (another cluster or version, or a provider that
    cannot drop repeats).
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return NoRows()
    name = make_writer_name(options, origin.writer, once=once)
    with open_link(options, origin, name) as link:
        if not link.begin():
            for _ in batches:
                pass  # so that Spark's worker keeps its state
            return StagedPart(0, 0, 0, name, origin.batch, None)
        return stage(options, origin, name, link, first, batches)


def stage(
    options: WriteOptions,
    origin: Origin,
    name: StagedWriterName,
    link: Link,
    first: RecordBatch,
    rest: Iterator[RecordBatch],
) -> StagedPart:
    size = message_size(options, link.limits)
    chunker = Chunker(options.key_column, options.value_columns, options.chunk_rows, size)
    calls = CallCutter()
    for chunk in chunker.all(first, rest):
        for rows in chunk:
            if call := calls.add(encode_message(rows)):
                link.stage(call.body)
    if call := calls.rest():
        link.stage(call.body)
    manifest = link.finish()
    assert manifest.messages == calls.messages, (manifest.messages, calls.messages)
    return StagedPart(chunker.rows, calls.messages, calls.calls, name, origin.batch, manifest)


def message_size(options: WriteOptions, limits: Begun) -> MessageSize:
    """Return the limits of a message: those of the options, and those of the queues."""
    most = limits.bytes_max
    return MessageSize(min(options.message_bytes, most), limits.items_max, most)


def make_writer_name(options: WriteOptions, writer: str, *, once: bool) -> StagedWriterName:
    """Return the name of a writer in the cluster; a long name keeps its beginning."""
    if len(writer.encode()) > NAME_BYTES_MAX:
        writer = f"{writer[:32]}-{sha256(writer.encode()).hexdigest()}"
    return StagedWriterName(options.provider, options.namespace, writer, once)


def commit_batch(options: WriteOptions, messages: Messages) -> None:
    """Make the staged rows of these tasks visible; return when all of them are accepted.

    Raises as `StagedBatch.commit` does. A second call has no effect.
    """
    parts = parts_of(messages)
    if parts:
        manifests = [part.manifest for part in parts if part.manifest is not None]
        background().run(commit(options, parts[0], manifests))


def abort_batch(options: WriteOptions, messages: Messages) -> None:
    """Drop the staged rows of a batch, if a task's message names it; otherwise they expire."""
    parts = parts_of(messages)
    if parts:
        background().run(abort(options, parts[0]))


def parts_of(messages: Messages) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart)]


async def commit(options: WriteOptions, of: StagedPart, manifests: list[Manifest]) -> None:
    async with background().client(options) as client:
        batch = StagedBatch(client.gateway, of.name, of.batch, patience_s=options.patience_s)
        await batch.commit(manifests)


async def abort(options: WriteOptions, of: StagedPart) -> None:
    async with background().client(options) as client:
        batch = StagedBatch(client.gateway, of.name, of.batch, patience_s=options.patience_s)
        await batch.abort()
