"""The ledgers of one silo: rows, bookies and topics, put together.

Owns: `LedgerNode`. Invariant: the parts end in the order of their dependence: the topics first,
then the bookie, so that ledgers are closed.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.ledgers import BookieLedgers
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.metadata.bookies import bookie_rows
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.recovery.auditor import Auditor
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding
from millstream.providers.ledger.scrubbing.scrubber import Scrubber
from millstream.providers.ledger.serving.census import Census
from millstream.providers.ledger.serving.cluster_bookies import ClusterBookies
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.serving.hosted import HostedBookie
from millstream.providers.ledger.serving.repair_target import RepairTarget
from millstream.providers.ledger.topic.listed import ListedLedgers
from millstream.providers.ledger.topic.numbers import LostNumbers
from millstream.providers.ledger.topic.reading.reader import TopicReader
from millstream.providers.ledger.topic.record import topic_rows
from millstream.providers.ledger.topic.topic import Topic
from millstream.providers.ledger.topic.topics import Topics
from millstream.runtime import ConfigError, StorageUnavailable
from millstream.runtime.extending import Sample
from millstream.streams import AdapterHost, QueueId

from .damage import damage_is_unavailable
from .ledger_metrics import LEDGER_METRICS, read_bookie, read_recovery, read_scrubbing
from .options import LedgerOptions

__all__ = ["LedgerNode"]


class LedgerNode:
    """The ledgers of one provider in one silo.

    Args:
        usual: the quorum of ledgers, unless the settings have one.
    """

    def __init__(
        self, host: AdapterHost, home: Home, usual: Quorum, options: LedgerOptions
    ) -> None:
        self._provider = host.provider
        self._options = options
        metadata = Metadata(host.store(options.store), host.cluster, host.clock, host.silo)
        ids, rows = LedgerIds(metadata), bookie_rows(metadata)
        self._bookies = ClusterBookies(host, rows, home.place)
        self._hosted = HostedBookie(
            host,
            host.disk,
            home,
            self._bookies,
            rows,
            Census(metadata, ids, ListedLedgers(metadata), host.cluster, host.clock),
            options.bookie,
            options.look_for_lock_s,
        )
        records = ledger_rows(metadata)
        context = HandleContext(self._bookies, records, host.clock, host.tasks, HandleOptions())
        self._auditor: Auditor | None = None
        if home.owner and options.recovery.is_on:
            self._auditor = Auditor(
                context, metadata, records, self._bookies, options.recovery, home.place, host.silo
            )
        self._scrubber = Scrubber(
            context,
            metadata,
            records,
            lambda: self._hosted.bookie,
            self._standing,
            options.scrub,
            options.recovery,
        )
        mending = RepairTarget(context, LostNumbers(topic_rows(metadata)), self._is_lost)
        host.targets.add(mending, host.provider)
        ledgers = BookieLedgers(context, ids, usual)
        self._topics = Topics(ledgers, metadata, host.clock, host.tasks)
        self._tasks = host.tasks
        host.metrics.add(LEDGER_METRICS, self._read_metrics)

    def _read_metrics(self) -> Iterator[Sample]:
        """Yield the metrics of the parts that work in this silo."""
        bookie, auditor = self._hosted.bookie, self._auditor
        if bookie is not None:
            yield from read_bookie(self._provider, bookie.figures())
            yield from read_scrubbing(self._provider, self._scrubber.report())
        if auditor is not None and (report := auditor.report()).since_s:
            yield from read_recovery(self._provider, report)

    def _is_lost(self, bookie: str) -> bool:
        return self._auditor is not None and self._auditor.is_lost(bookie)

    def _standing(self, bookie: str) -> BookieStanding:
        return self._auditor.standing(bookie) if self._auditor is not None else BookieStanding.AWAY

    async def start(self) -> None:
        """Find the bookies, and run that of the directory if no other silo does. Raises
        ConfigError: the directory is refused; StorageError: rows cannot be read, or the disk
        fails."""
        await self._bookies.start()
        try:
            await self._hosted.start()
        except LedgerError as error:
            raise ConfigError(f"stream provider {self._provider!r}: {error}") from error
        except OSError as error:
            raise StorageUnavailable(f"stream provider {self._provider!r}: {error}") from error
        self._tasks.start(self._topics.keep_swept(self._bookies.is_first))
        if self._auditor is not None:
            self._tasks.start(self._auditor.run())
        self._tasks.start(self._scrubber.run())

    def _name(self, queue: QueueId) -> str:
        return f"{self._provider}/{queue}"

    async def open(self, queue: QueueId, epoch: int, /) -> Topic:
        """Open a queue's topic. Raises QueueFenced, QueueUnavailable."""
        options = self._options
        with damage_is_unavailable(queue):
            return await self._topics.open(
                self._name(queue), epoch, options.topic, options.settings
            )

    async def last_epoch(self, queue: QueueId, /) -> int:
        """Return the epoch in which a queue's topic was opened last. Raises QueueUnavailable."""
        with damage_is_unavailable(queue):
            return await self._topics.last_epoch(self._name(queue))

    async def marks(self, queue: QueueId) -> dict[str, int]:
        """Return the stored marks of the cursors of a queue's topic. Raises QueueUnavailable."""
        with damage_is_unavailable(queue):
            return await self._topics.marks(self._name(queue))

    def reader(self, queue: QueueId) -> TopicReader:
        """Return a reader of a queue's topic that works in any silo, independently of the owner."""
        return self._topics.reader(self._name(queue))

    async def aclose(self) -> None:
        """Stop the directory's bookie, if it runs here."""
        await self._hosted.aclose()
