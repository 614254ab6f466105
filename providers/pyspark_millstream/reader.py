"""What Spark calls to read: where a query is, how far a batch goes, the rows of a range.

Offsets are {queue: token} (`offsets`); Spark keeps them in its checkpoint and plans the same ranges
again after a crash, so that a batch which is run again has the same rows in the same order, as long
as the messages are kept. With a `consumer` they are kept until Spark has done with them, which it
says when it plans the next batch. Rows of one key that are in one queue are in the order of their
tokens within a task, and in tasks that follow each other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.runtime import CursorTooOld, MillstreamError
from millstream.streams import QueueId, Token
from millstream.streams.rewinding.item_columns import quoted
from millstream.streams.rewinding.outside import QueueReads, Range
from millstream.streams.rewinding.target import Extent, ReadPage

from .background import background
from .columns import PLAIN, Columns, cut
from .offsets import advance, ends, firsts, losses, parsed, ranges, texts
from .read_options import ReadOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "Source", "StreamReader", "told_schema"]

log = logging.getLogger("millstream.spark")

ROWS_MAX = 10_000
"""About so many rows make an Arrow batch."""
T = TypeVar("T")


@dataclass
class QueueRange(InputPartition):
    """What one task reads."""

    queue: str
    start: Token
    end: Token
    value: None = None  # Spark's own, which we do not use


OF_MESSAGE = {"_key": "string", "_token": "string", "_time": "timestamp"}
"""Columns beside those of items whose fields the cluster knows."""


def told_schema(options: ReadOptions) -> str:
    """The columns of a namespace's items, as the cluster knows them; empty: it does not.

    Raises ConfigError (the provider cannot be read again), SiloUnavailable after `patience_s`.
    """
    found = {one.name: one.kind for one in background().run(asked(options, QueueReads.columns))}
    if not found:
        return ""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in {**OF_MESSAGE, **found}.items())


async def asked(options: ReadOptions, ask: Callable[[QueueReads], Awaitable[T]]) -> T:
    """What the cluster answers."""
    provider, namespace = options.provider, options.namespace
    async with background().client(options) as client:
        return await ask(
            QueueReads(client.gateway, provider, namespace, patience_s=options.patience_s)
        )


class Source:
    """A namespace in a cluster, as driver and tasks ask of it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def extents(self, known: Sequence[QueueId] = ()) -> list[Extent]:
        """How far the queues go that are read now, and those that are known."""
        return background().run(asked(self.options, lambda reads: reads.extents(known)))

    def begin(self) -> dict[QueueId, Token]:
        """Where a query without a checkpoint begins. Raises StreamError: times are not known."""
        wanted = self.options.starting_offsets
        if isinstance(wanted, Mapping):
            return dict(wanted)
        extents = self.extents()
        if isinstance(wanted, float):
            found = background().run(asked(self.options, lambda reads: reads.seek(wanted)))
            return {**ends(extents), **{q: token for q, token in found.items() if token}}
        return firsts(extents) if wanted == "earliest" else ends(extents)

    def kept(
        self, start: Mapping[QueueId, Token], extents: Sequence[Extent]
    ) -> dict[QueueId, Token]:
        """The start, behind what is gone. Raises CursorTooOld, if `fail_on_data_loss`."""
        gone = losses(start, extents)
        for queue, first in gone.items():
            self._lost(queue, start[queue], first)
        return {**start, **gone}

    def _lost(self, queue: QueueId, position: Token, first: Token) -> None:
        text = f"queue {queue}: messages from {position} on are gone, {first} is the first"
        if self.options.fail_on_data_loss:
            raise CursorTooOld(
                f"{text}: give queries a consumer, keep messages for longer (retention_s of the "
                "ledger), or let the query go on: option('fail_on_data_loss', 'false')",
                first=first,
            )
        log.warning("%s: the query goes on there", text)

    def retain(self, positions: Mapping[QueueId, Token | None]) -> None:
        """Let the cluster keep what is behind these positions; None: all that is there now."""
        name = self.options.consumer
        if name and positions:
            background().run(asked(self.options, lambda reads: reads.retain(name, positions)))

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The rows of a task; the one that Spark makes where nothing was planned has none."""
        if partition.value is None and not isinstance(partition, QueueRange):
            return iter(())
        assert isinstance(partition, QueueRange), partition
        return self.rows(partition)

    def rows(self, part: QueueRange) -> Iterator[RecordBatch]:
        """The rows of a range; while a page is taken the next one is fetched."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        columns = Columns(schema, is_plain=schema.names == PLAIN)
        for page in self._pages(Range(part.queue, part.start, part.end)):
            for messages in cut(page.messages, ROWS_MAX):
                yield columns.batch(messages)

    def _pages(self, part: Range) -> Iterator[ReadPage]:
        position = part.start
        coming: Future[ReadPage] | None = self._fetch(part, position)
        try:
            while coming is not None:
                page = coming.result()
                coming = None
                if page.gone is not None:
                    self._lost(part.queue, position, page.gone)
                position = page.next if page.gone is None else page.gone
                if position < part.end:
                    coming = self._fetch(part, position)
                yield page
        finally:
            if coming is not None:
                coming.cancel()

    def _fetch(self, part: Range, position: Token) -> Future[ReadPage]:
        return background().start(asked(self.options, lambda reads: reads.page(part, position)))


class BatchReader(DataSourceReader):
    """The reader of `spark.read`: everything from the start to what was accepted last."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        source = self._source
        begun = source.begin()
        extents = source.extents(list(begun))
        start = source.kept({**firsts(extents), **begun}, extents)
        found = ranges(start, ends(extents), source.options.split_messages)
        return [QueueRange(one.queue, one.start, one.end) for one in found]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """One task."""
        return self._source.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`; Spark keeps one, in a process of its own, for planning."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._retained: set[QueueId] = set()  # queues of which something is kept for this query
        self._begun: dict[str, str] | None = None
        self._target: dict[QueueId, Token] | None = None
        self._newest: dict[str, str] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """`max_messages_per_batch`."""
        return ReadMaxRows(self._source.options.max_messages_per_batch)

    def initialOffset(self) -> dict[str, str]:
        """Where a query without a checkpoint begins; asked again, the same."""
        if self._begun is None:
            if self._source.options.consumer:  # before it is asked what there is
                self._retain({}, [one.queue for one in self._source.extents()])
            begun = self._source.begin()
            self._source.retain(begun)
            self._begun = texts(begun)
        return self._begun

    def _retain(self, start: Mapping[QueueId, Token], queues: Sequence[QueueId]) -> None:
        """Keep what is not done, in queues that this process has not seen before."""
        fresh = {queue: start.get(queue) for queue in queues if queue not in self._retained}
        self._source.retain(fresh)
        self._retained.update(fresh)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is read, and no more."""
        self._target = ends(self._source.extents())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:
        """How far the next batch goes."""
        begun = parsed(start)
        extents = self._source.extents(list(begun))
        self._retain(begun, [one.queue for one in extents])
        self._newest = texts(ends(extents))
        most = self._source.options.max_messages_per_batch
        if isinstance(limit, ReadMaxRows):
            most = max(1, limit.max_rows)
        elif isinstance(limit, ReadAllAvailable):
            most = 1 << 62
        return texts(advance(self._source.kept(begun, extents), extents, most, self._target))

    def reportLatestOffset(self) -> dict[str, str] | None:
        """How far the queues went when that was asked last, for the query's progress."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        split = self._source.options.split_messages
        found = ranges(parsed(start), parsed(end), split)
        return [QueueRange(one.queue, one.start, one.end) for one in found]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """One task."""
        return self._source.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is done; said when the next batch was planned.

        What cannot be said now is said with the next batch, or when the query starts again.
        """
        try:
            self._source.retain(parsed(end))
        except MillstreamError as error:
            log.warning(
                "consumer %s: what is done is not let go: %s", self._source.options.consumer, error
            )
