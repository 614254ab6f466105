"""The objects that Spark calls to read: progress, the end of a batch, the rows of a range.

Offsets are positions by queue, with their source (`offsets`). Spark keeps them in its checkpoint
and plans the same ranges again after a crash. So a repeated batch has the same rows in the same
order, as long as the messages are kept. Every question to the cluster names the incarnation that
gave its positions, so positions never refer to messages of another one. With a `consumer`, the
cluster keeps messages until Spark has processed them. Spark reports this when it plans the next
batch. Rows of one key in one queue are in the order of their tokens within a task, and from one
task to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.runtime import ConfigError, CursorTooOld, MillstreamError
from millstream.streams import QueueId, Token
from millstream.streams.rewinding.item_columns import quote
from millstream.streams.rewinding.outside import QueueReads, Range
from millstream.streams.rewinding.target import Extent, ReadPage

from .background import background
from .columns import PLAIN, PLAIN_SCHEMA, Columns, cut
from .consumer_claim import ConsumerClaim
from .offsets import (
    Loss,
    Offset,
    ReadSource,
    StoredOffset,
    advance,
    ends,
    firsts,
    losses,
    make_stored,
    ranges,
    restore,
)
from .questions import ask_cluster
from .read_options import ReadOptions, StatedOffset, parse_read

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "NamespaceSource", "StreamReader", "ask_schema", "ask_source"]

log = logging.getLogger("millstream.spark")

ROWS_MAX = 10_000
"""The approximate number of rows in an Arrow batch."""


@dataclass
class QueueRange(InputPartition):
    """The messages that one task reads."""

    queue: str
    start: Token
    end: Token
    incarnation: str
    value: None = None  # used only by Spark


OF_MESSAGE = {"_key": "string", "_token": "string", "_time": "timestamp"}
"""Columns in addition to those of items whose fields the cluster knows."""


def ask_schema(options: ReadOptions) -> str:
    """Return the columns of a namespace's items; empty if the cluster does not know them.

    Raises ConfigError (the provider cannot be read again, or a field has no type in Spark),
    SiloUnavailable after `patience_s`.
    """
    columns = background().run(ask_cluster(options, QueueReads.columns))
    if not columns:
        return ""
    unsaid = [f"field {one.name!r}: {one.unsaid}" for one in columns if not one.kind]
    if unsaid:
        raise ConfigError(
            f"Spark has no columns for items of namespace {options.namespace!r}: "
            f"{'; '.join(unsaid)}. Give the fields to read in schema('...'), or read the encoded "
            f"items with schema({PLAIN_SCHEMA!r})"
        )
    found = {one.name: one.kind for one in columns}
    return ", ".join(f"{quote(name)} {kind}" for name, kind in {**OF_MESSAGE, **found}.items())


def ask_source(given: Mapping[str, str]) -> str:
    """Return the source that these options read: cluster, provider, namespace, incarnation.

    Raises ValueError for an option that is not valid; else as `ask_schema` does.
    """
    from pyspark.sql.types import StructType

    own, _ = NamespaceSource(parse_read(given, is_stream=True), StructType()).look()
    return str(own)


def check_corrupt(name: str, schema: StructType) -> None:
    """Raise ValueError if the column for malformed items can hold neither a reason nor an item."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name == name and kind not in ("string", "binary"):
            raise ValueError(
                f"column {name!r} is {kind}, but it is the column for malformed items: make it "
                "string (for the reason) or binary (for the item), or name another column in "
                "'column_name_of_corrupt_record'"
            )


class NamespaceSource:
    """A namespace in a cluster, for the driver and the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_corrupt(options.column_name_of_corrupt_record, schema)
        self.options = options
        self.schema = schema

    def look(
        self, reached: Offset | None = None, of: ReadSource | None = None
    ) -> tuple[ReadSource, list[Extent]]:
        """Return the present source of positions, and the extents of the queues that are read.

        Args:
            reached: Positions that a query has reached. Their queues are in the answer too.
            of: The source of these positions. None: the answering cluster.
        """
        options, incarnation = self.options, of.incarnation if of is not None else ""
        found = background().run(
            ask_cluster(
                options,
                lambda reads: reads.extents_from(reached or {}),
                incarnation=incarnation,
            )
        )
        own = ReadSource(options.cluster, options.provider, options.namespace, found.incarnation)
        return own, found.queues

    def begin(self) -> StoredOffset:
        """Return the start of a query without a checkpoint.

        Raises StreamError if times are not known, ConfigError if a given offset belongs to another
        source.
        """
        wanted = self.options.starting_offsets
        if isinstance(wanted, StatedOffset):
            return self._read_stated(wanted)
        source, extents = self.look()
        if isinstance(wanted, float):
            found = background().run(
                ask_cluster(
                    self.options,
                    lambda reads: reads.seek(wanted),
                )
            )
            known = {queue: token for queue, token in found.items() if token}
            return StoredOffset(source, {**ends(extents), **known})
        return StoredOffset(source, firsts(extents) if wanted == "earliest" else ends(extents))

    def _read_stated(self, wanted: StatedOffset) -> StoredOffset:
        source, extents = self.look(wanted.positions, wanted.source)
        if wanted.source not in (None, source):
            self.begin_anew(wanted.source, source)
            return StoredOffset(source, firsts(extents))
        for one in extents:
            if one.queue in wanted.positions and not one.is_open and one.last is None:
                known = ", ".join(sorted(other.queue for other in extents if other.is_open))
                raise ConfigError(
                    f"option 'starting_offsets' names queue {one.queue!r}, which {source} does not "
                    f"have: its queues are {known}"
                )
        return StoredOffset(source, wanted.positions)

    def begin_anew(self, before: ReadSource | None, own: ReadSource) -> None:
        """Handle positions of another source. Raises ConfigError with `fail_on_data_loss`."""
        text = f"this query reads {own}, but its offset is of {before}"
        if self.options.fail_on_data_loss:
            raise ConfigError(
                f"{text}: a position means another message there. To read the present messages "
                "from the first one on, give the query a new checkpoint, or "
                "option('fail_on_data_loss', 'false')"
            )
        log.warning("%s: the query starts again at the first message of each queue", text)

    def list_kept(self, start: Offset, extents: Sequence[Extent]) -> dict[QueueId, Token]:
        """Return the start, with the first stored message in queues where messages were lost.

        Raises CursorTooOld with `fail_on_data_loss`.
        """
        found = losses(start, extents)
        for loss in found:
            self._on_lost(loss)
        return {**start, **{loss.queue: loss.first for loss in found}}

    def _on_lost(self, loss: Loss) -> None:
        if loss.end is None:
            text = (
                f"messages from {loss.position} on were dropped, {loss.first} is the first one left"
            )
            advice = (
                "set option 'consumer', keep messages for longer (retention_s of the ledger), or "
                "let the query skip them"
            )
        else:
            text = f"it ends before {loss.end}, but the query has read up to {loss.position}"
            advice = (
                "the cluster lost messages, or its state was restored from an older copy: give the "
                "query a new checkpoint, or let it read the queue again from the first message"
            )
        text = f"queue {loss.queue}: {text}"
        if self.options.fail_on_data_loss:
            raise CursorTooOld(
                f"{text}: {advice} with option('fail_on_data_loss', 'false')", first=loss.first
            )
        log.warning("%s: the query continues at the first stored message", text)

    def retain(self, positions: Mapping[QueueId, Token | None], incarnation: str, run: str) -> None:
        """Let the cluster keep the messages after these positions; None: all present messages."""
        name = self.options.consumer
        if name and positions:
            background().run(
                ask_cluster(
                    self.options,
                    lambda reads: reads.retain(name, positions, run=run),
                    incarnation=incarnation,
                )
            )

    def within_bytes(self, source: ReadSource, start: Offset, end: Offset) -> Offset:
        """Return the end of a batch within `max_bytes_per_batch`, if there is such a limit."""
        most = self.options.max_bytes_per_batch
        if most is None:
            return end
        return background().run(
            ask_cluster(
                self.options,
                lambda reads: reads.within_bytes(start, end, most),
                incarnation=source.incarnation,
            )
        )

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Return the rows of a task. Spark makes an empty partition if no task was planned."""
        if partition.value is None and not isinstance(partition, QueueRange):
            return iter(())
        assert isinstance(partition, QueueRange), partition
        return self.rows(partition)

    def rows(self, part: QueueRange) -> Iterator[RecordBatch]:
        """Yield the rows of a range; the next page is fetched during the use of one."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        options = self.options
        columns = Columns(
            schema,
            is_plain=schema.names == PLAIN,
            mode=options.mode,
            corrupt=options.column_name_of_corrupt_record,
        )
        for page in self._pages(Range(part.queue, part.start, part.end), part.incarnation):
            for messages in cut(page.messages, ROWS_MAX):
                yield columns.batch(messages)
        if columns.dropped:
            log.warning("queue %s: %d malformed items were skipped", part.queue, columns.dropped)

    def _pages(self, part: Range, incarnation: str) -> Iterator[ReadPage]:
        position = part.start
        coming: Future[ReadPage] | None = self._fetch(part, position, incarnation)
        try:
            while coming is not None:
                page = coming.result()
                coming = None
                if page.gone is not None:
                    self._on_lost(Loss(part.queue, position, page.gone, None))
                position = page.next if page.gone is None else page.gone
                if position < part.end:
                    coming = self._fetch(part, position, incarnation)
                yield page
        finally:
            if coming is not None:
                coming.cancel()

    def _fetch(self, part: Range, position: Token, incarnation: str) -> Future[ReadPage]:
        return background().start(
            ask_cluster(
                self.options, lambda reads: reads.page(part, position), incarnation=incarnation
            )
        )


def plan(source: ReadSource, start: Offset, end: Offset, split: int) -> list[QueueRange]:
    """Return the tasks of a batch."""
    found = ranges(start, end, split)
    return [QueueRange(one.queue, one.start, one.end, source.incarnation) for one in found]


class BatchReader(DataSourceReader):
    """The reader of `spark.read`: all messages from the start to the last accepted one."""

    def __init__(self, source: NamespaceSource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        source = self._source
        begun = source.begin()
        own, extents = source.look(begun.positions, begun.source)
        if own != begun.source:
            source.begin_anew(begun.source, own)
            begun = StoredOffset(own, {})
        start = source.list_kept({**firsts(extents), **begun.positions}, extents)
        return plan(own, start, ends(extents), source.options.split_messages)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Read the rows of one task."""
        return self._source.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`; Spark keeps one for planning, in a separate process."""

    def __init__(self, source: NamespaceSource) -> None:
        self._source = source
        self._claim: ConsumerClaim | None = None
        self._retained: set[QueueId] = set()  # queues whose messages are kept for this query
        self._begun: dict[str, Any] | None = None
        self._target: dict[QueueId, Token] | None = None
        self._newest: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_claim": None}  # tasks claim nothing

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `max_messages_per_batch`."""
        return ReadMaxRows(self._source.options.max_messages_per_batch)

    def _hold(self) -> str:
        """Hold the `consumer` before its use; returns the run that has it. Raises ConfigError."""
        if self._claim is None:
            self._claim = ConsumerClaim(self._source.options)
        self._claim.hold()
        return self._claim.run

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint; later calls return the same."""
        if self._begun is None:
            run = self._hold()
            if self._source.options.consumer:  # before the extents are read for the start
                own, extents = self._source.look()
                self._retain(own, {}, [one.queue for one in extents])
            begun = self._source.begin()
            self._source.retain(begun.positions, begun.source.incarnation, run)
            self._begun = make_stored(*begun)
        return self._begun

    def _retain(self, source: ReadSource, start: Offset, queues: Sequence[QueueId]) -> None:
        """Keep unprocessed messages, in queues that are new to this process."""
        fresh = {queue: start.get(queue) for queue in queues if queue not in self._retained}
        self._source.retain(fresh, source.incarnation, self._hold() if fresh else "")
        self._retained.update(fresh)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the messages that exist now."""
        self._target = ends(self._source.look()[1])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        begun = restore(start)
        self._hold()
        own, extents = self._source.look(begun.positions, begun.source)
        self._newest = make_stored(own, ends(extents))
        if own != begun.source:
            self._source.begin_anew(begun.source, own)
            return make_stored(own, firsts(extents))
        kept = self._source.list_kept(begun.positions, extents)
        self._retain(own, kept, [one.queue for one in extents])
        if any(kept[queue] < position for queue, position in begun.positions.items()):
            return make_stored(own, kept)  # an empty batch, after which queues are read again
        end = advance(kept, extents, self._most(limit), self._target)
        return make_stored(own, self._source.within_bytes(own, kept, end))

    def _most(self, limit: ReadLimit) -> int:
        """Return the most messages of a batch."""
        if isinstance(limit, ReadMaxRows):
            return max(1, limit.max_rows)
        if isinstance(limit, ReadAllAvailable):
            return 1 << 62
        return self._source.options.max_messages_per_batch

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known end of the queues, for the query's progress."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        begun, stop = restore(start), restore(end)
        if begun.source != stop.source:
            return []  # the query began again
        split = self._source.options.split_messages
        return plan(stop.source, begun.positions, stop.positions, split)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Read the rows of one task."""
        return self._source.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Report that everything before `end` is processed; Spark calls it at the next plan.

        A report that fails is repeated with the next batch, or when the query starts again. Raises
        ConfigError if another query has the `consumer`, or if `end` belongs to another source.
        """
        done = restore(end)
        name = self._source.options.consumer
        if not name:
            return
        try:
            self._source.retain(done.positions, done.source.incarnation, self._hold())
        except MillstreamError as error:
            if isinstance(error, ConfigError) and self._source.options.fail_on_data_loss:
                raise
            log.warning("consumer %s: the progress could not be reported: %s", name, error)

    def stop(self) -> None:
        """Release the consumer, because the query ends."""
        if self._claim is not None:
            self._claim.release()
