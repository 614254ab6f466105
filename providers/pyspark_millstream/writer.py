"""What runs in Spark's tasks: a partition's Arrow batches go out, a count comes back.

`delivery=staged`: tasks stage (`staging`), the driver commits: a batch is seen whole or not at all.
`delivery=direct`: rows are visible as they arrive; commit and abort have nothing to do. A repeated
task, or a repeated batch, sends the same identities (`tokens`) again, and the cluster drops what
it has. That is exactly-once only if the task sees the same rows in the same order: a replayable
source, no shuffle between it and the write, the same number of partitions. Two attempts of a task
may run at once (speculation): each sends without a hole, so what one finds stored is what the other
sent.
A streaming query is identified by its query id, which lives in the checkpoint; `writer_id`
replaces it. A batch write has a fresh identity per `save()`; with `writer_id` it is a job that can
be run again. Inside `foreachBatch` a `writer_id` counts together with the micro-batch's id; and
with the columns that are written, so that two writes of one batch are two writers.
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
"""A task's local properties."""


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    rows: int
    messages: int
    calls: int


def plan(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Options checked against the DataFrame's columns. Raises ValueError."""
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

    Raises ValueError (a null key, a frame too large), and what a publish raises: after `patience_s`
    StreamError, CallTimeout or SiloUnavailable; at once NotHosted (no such provider) or ConfigError
    (another cluster).
    """
    from .task_sender import sending  # 0.25 s of imports, which the driver's processes do not need

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
    """The local properties and the partition of the running task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a Millstream writer runs inside a Spark task only")
    return context.getLocalProperty, context.partitionId()


def batch_origin(writer: str, properties: Properties, partition: int) -> Origin:
    """Identity of a task of `df.write`; the batch is 0 outside of `foreachBatch`."""
    return Origin(writer, int(properties(BATCH_ID) or 0), partition)


def batch_writer(options: WriteOptions, env: Env) -> str:
    """Who a `save()` is: the job that `writer_id` names, as far as it writes these columns."""
    if not options.writer_id:
        return f"{env.new_id():016x}{env.new_id():016x}"
    return "/".join((options.writer_id, options.key_column, *options.value_columns))


def stream_origin(writer_id: str, properties: Properties, partition: int) -> Origin:
    """Identity of a task of `df.writeStream`. Raises RuntimeError if Spark tells none."""
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
    """Make what tasks staged visible; return when all of it is accepted."""
    if options.delivery == "staged":
        from .staging import commit_batch

        commit_batch(options, messages)


def abort(options: WriteOptions, messages: Messages) -> None:
    """Drop what tasks staged."""
    if options.delivery == "staged":
        from .staging import abort_batch

        abort_batch(options, messages)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`; made in the driver, pickled into every task."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writer = batch_writer(options, Env())

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write one partition."""
        origin, once = batch_origin(self._writer, *_task()), not self._options.writer_id
        return write_rows(self._options, origin, iterator, once=once)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good."""
        abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`; made anew in the driver for every micro-batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Write one partition of a micro-batch."""
        origin = stream_origin(self._options.writer_id, *_task())
        return write_rows(self._options, origin, iterator, once=False)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a micro-batch are done."""
        commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task of a micro-batch has failed for good."""
        abort(self._options, messages)
