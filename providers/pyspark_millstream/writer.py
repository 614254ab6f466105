"""The work in Spark's tasks: they send a partition's Arrow batches and return a count.

With `delivery=staged`, tasks stage rows (`staging`) and the driver commits, so a batch becomes
visible as a whole or not at all. With `delivery=direct`, rows become visible as they arrive, and
commit and abort do nothing. A repeated task or batch sends the same identities (`tokens`) again,
and the cluster drops repeats. This is exactly-once only if the repeated task sees the same rows in
the same order: use a replayable source, no shuffle between source and write, and the same number of
partitions. Two attempts of a task may run at once (speculation). Each sends without a gap, so both
send the same messages.

The id of a streaming query, which is in its checkpoint, identifies the query; `writer_id` replaces
it. A batch write has a new identity for each `save()`. With `writer_id` it is a job that can be
repeated. Inside `foreachBatch`, the identity is the `writer_id` with the id of the micro-batch and
the written columns, so that two writes of one batch are two writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.runtime import Env

from .options import WriteOptions, parse
from .rows import CallCutter, Chunk, Chunker, MessageSize, encode_message
from .tokens import Numbering, Origin

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "StreamWriter", "Written", "plan", "send_rows"]

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
KEY_TYPES = ("string", "char", "varchar", "tinyint", "smallint", "int", "bigint")

Messages = Sequence[WriterCommitMessage | None]
Properties = Callable[[str], str | None]
"""The local properties of a task."""


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    rows: int
    messages: int
    calls: int


def plan(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Parse the options and check them against the DataFrame's columns. Raises ValueError."""
    if overwrite:
        raise ValueError(
            "a stream cannot be overwritten: write mode('append'), or outputMode('append')"
        )
    options = parse(given, schema.fieldNames())
    kind = schema[options.key_column].dataType.simpleString()
    if kind.partition("(")[0].partition(" ")[0] not in KEY_TYPES:
        raise ValueError(
            f"option 'key_column': {options.key_column!r} is {kind}; a stream key is text: "
            f"write a string or integer column, or cast this one to string"
        )
    return options


def send_rows(options: WriteOptions, origin: Origin, batches: Iterator[RecordBatch]) -> Written:
    """Publish a partition's rows, in order; returns when all of them are accepted.

    Raises ValueError (a null key, a frame too large). Raises errors of a publish after
    `patience_s`: StreamError, CallTimeout or SiloUnavailable. Raises at once NotHosted (no such
    provider) or ConfigError (another cluster).
    """
    from .task_sender import sending  # 0.25 s of imports that the driver's processes do not need

    size = MessageSize(options.message_bytes)
    chunker = Chunker(options.key_column, options.value_columns, options.chunk_rows, size)
    numbering, calls = Numbering(origin), CallCutter()
    with sending(options, origin) as link:
        for chunk in _chunks(chunker, batches):
            for rows in chunk:
                if call := calls.add(encode_message(rows, numbering.take())):
                    link.send(*call)
            if call := calls.rest():
                link.send(*call)
        link.drain()
    assert link.accepted == numbering.used, (link.accepted, numbering.used)
    return Written(chunker.rows, numbering.used, link.calls)


def _chunks(chunker: Chunker, batches: Iterator[RecordBatch]) -> Iterator[Chunk]:
    for batch in batches:
        yield from chunker.feed(batch)
    yield from chunker.rest()


def _task() -> tuple[Properties, int]:
    """Return the local properties and the partition of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a Millstream writer runs only inside a Spark task")
    return context.getLocalProperty, context.partitionId()


def batch_origin(writer: str, properties: Properties, partition: int) -> Origin:
    """Return the identity of a task of `df.write`; the batch is 0 outside of `foreachBatch`."""
    return Origin(writer, int(properties(BATCH_ID) or 0), partition)


def batch_writer(options: WriteOptions, env: Env) -> str:
    """Return the identity of a `save()`: `writer_id` with these columns, or a new one."""
    if not options.writer_id:
        return f"{env.new_id():016x}{env.new_id():016x}"
    return "/".join((options.writer_id, options.key_column, *options.value_columns))


def stream_origin(writer_id: str, properties: Properties, partition: int) -> Origin:
    """Return the identity of a task of `df.writeStream`. Raises RuntimeError without one."""
    writer, batch = writer_id or properties(QUERY_ID), properties(BATCH_ID)
    if not writer or batch is None:
        raise RuntimeError(f"Spark set no local property {QUERY_ID} or {BATCH_ID} in this task")
    return Origin(writer, int(batch), partition)


def write_rows(
    options: WriteOptions, origin: Origin, batches: Iterator[RecordBatch], *, once: bool
) -> WriterCommitMessage:
    """Write a partition's rows as the option `delivery` says."""
    if options.delivery == "direct":
        return send_rows(options, origin, batches)
    from .staging import stage_rows

    return stage_rows(options, origin, batches, once=once)


def commit(options: WriteOptions, messages: Messages) -> None:
    """Make staged rows visible; return when all of them are accepted."""
    if options.delivery == "staged":
        from .staging import commit_batch

        commit_batch(options, messages)


def abort(options: WriteOptions, messages: Messages) -> None:
    """Drop the rows that tasks staged."""
    if options.delivery == "staged":
        from .staging import abort_batch

        abort_batch(options, messages)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`; made in the driver, and pickled into every task."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = batch_writer(options, Env())

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write one partition."""
        origin, once = batch_origin(self._writer, *_task()), not self._options.writer_id
        return write_rows(self._options, origin, iterator, once=once)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit, because all tasks succeeded."""
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort, because a task failed for good."""
        abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`; the driver makes one for every micro-batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write one partition of a micro-batch."""
        origin = stream_origin(self._options.writer_id, *_task())
        return write_rows(self._options, origin, iterator, once=False)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch, because all its tasks succeeded."""
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort a micro-batch, because a task failed for good."""
        abort(self._options, messages)
