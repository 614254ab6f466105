"""Queues in ledgers, as a stream provider.

Owns: `LedgerQueues`, `LedgerAdapter`. Not: the parts of one silo (`node`), topics (`topic`).
Invariant: an accepted message is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.runtime import EnqueueFailed, MemoryStateStore, StreamError
from millstream.runtime.extending import RealDisk, check_kind
from millstream.streams import AdapterHost, Capability, OutMessage, QueueId, Token

from .desk import Desk
from .directories import Directories
from .form import in_topic
from .node import LedgerNode
from .options import LedgerOptions
from .receiver import LedgerQueueReader, LedgerReceiver
from .target import READER, LedgerTarget
from .writers import Writers

__all__ = ["LedgerAdapter", "LedgerQueues"]


log = logging.getLogger("millstream.ledger")


class LedgerQueues:
    """Durable queues for a stream provider: `PersistentStreams(LedgerQueues("data/ledger"), ...)`.

    A published event is written and synced to disk before it is accepted. It survives the end of
    every process and a power failure, and it is kept until it is acknowledged.
    `PersistentStreams("ledger:directory")` makes the same queues by name.

    The directory decides about replication:

    - `"data/ledger"` is one directory for all silos of a machine. The silo that holds its lock runs
      the bookie, and the other silos call that silo. When its process ends, another silo takes the
      lock and reads the last segment (64 MiB at most by default). Publishers wait in the meantime.
    - `"data/ledger/{silo}"` gives each silo, by its name, a directory and a bookie of its own. By
      default each event is sent to three bookies and accepted when two of them have it on disk. It
      survives the loss of a silo together with its disk.

    The rows of ledgers, topics and positions are in a state store that all silos share. Give it one
    that is as durable as the queues, such as SQLite. Without those rows the directories cannot be
    read.

    Ownership and publishing:

    - Only the owner of a queue writes it. Publishers in other silos send their events to the owner,
      and follow it when the queue moves. A queue without an owner is written by the silo that
      publishes first.
    - A repeated sequence of a producer is dropped, also after a crash. Each queue remembers 10,000
      producers (`LedgerTopicOptions.producers_max`).

    Deleting:

    - Acknowledged events are deleted a whole ledger at a time. `retention_s` and `retention_bytes`
      keep them longer, for streams that are read again. Named readers outside of the cluster
      (`Retains`) keep them, too.

    Failures:

    - A nearly full disk (`BookieOptions.reserve_bytes`) takes no more events, but still takes the
      writes of a hand-over. Publishers wait, and then get `QueueUnavailable`.
    - A failed sync stops the bookie, since its outcome is unknown. The bookie does not try the sync
      again.
    - A directory that belongs to another cluster or to a newer version, that is damaged, or that
      lacks files is refused. The error names the file, the offset and a remedy. A bookie with an
      older copy of its directory does not deny entries that it may have stored before.
    - An empty or missing directory is created, with the mode 0700. The log then names the bookies
      whose entries are missing.

    Capabilities: `DURABLE`, `WAKEUP`, `ORDERED`, `STABLE_TOKENS`, `REWIND`, `OWN_POSITION`,
    `FENCED`, `DEDUP`.

    Args:
        directory: the directory for entries, which is made if it is missing. It may contain
            `{silo}` once. A relative path is resolved against the working directory when the object
            is made. All silos must give the same kind of directory.
        options: limits, retention, times and replication; None: the defaults of `LedgerOptions`.

    Raises:
        ConfigError: `directory` is not a path or has other braces, `options` has another type, or
            its quorum needs more than the one bookie of a shared directory.
    """

    capabilities = frozenset(
        {
            Capability.DURABLE,
            Capability.WAKEUP,
            Capability.ORDERED,
            Capability.STABLE_TOKENS,
            Capability.REWIND,
            Capability.OWN_POSITION,
            Capability.FENCED,
            Capability.DEDUP,
        }
    )

    has_bookie = True

    def __init__(self, directory: str | Path, options: LedgerOptions | None = None) -> None:
        self._directories = Directories(directory)
        self._options = LedgerOptions() if options is None else options
        check_kind("LedgerQueues(options)", self._options, LedgerOptions)
        self._directories.check(self._options.settings.quorum)
        self.agreement = {"directory": self._directories.agreement}

    async def open(self, provider: str, host: AdapterHost, /) -> LedgerAdapter:
        """Open the queues in a silo; the stream provider calls it.

        Args:
            provider: the name of the stream provider.
            host: the silo, as adapters see it.

        Raises:
            ConfigError: the directory is refused, or the silo has no name that fits into the path.
            StorageError: rows cannot be read, or the disk fails.
        """
        home = self._directories.home(host.silo, host.silo_name)
        warn_of_lost_rows(host, home.path)
        node = LedgerNode(host, home, self._directories.quorum, self._options)
        try:
            await node.start()
            return LedgerAdapter(host, node, self._options, await host.era())
        except BaseException:
            await node.aclose()
            raise


def warn_of_lost_rows(host: AdapterHost, directory: str) -> None:
    """Log a warning if the rows of ledgers end with the process, and the directory does not."""
    if isinstance(host.disk, RealDisk) and isinstance(host.store(), MemoryStateStore):
        log.warning(
            "the directory %s keeps the events of provider %s, but the state store is in memory: "
            "when this process ends, no silo can read the events any more",
            directory,
            host.provider,
        )


class LedgerAdapter:
    """The adapter of a ledger provider in one silo."""

    capabilities = LedgerQueues.capabilities

    def __init__(
        self, host: AdapterHost, node: LedgerNode, options: LedgerOptions, era: int
    ) -> None:
        self.message_limits = options.message_limits
        self._node = node
        self._era = era
        self._target = self._share(host, node)
        self._desk = self._target.desk
        wait_s, unowned_after_s = options.publish_wait_s, options.unowned_after_s
        self._writers = Writers(host, self._desk, wait_s, unowned_after_s)

    def _share(self, host: AdapterHost, node: LedgerNode) -> LedgerTarget:
        """Return the provider's system target in this silo. Adapters that are opened twice share
        one, and so have the same topics."""
        name = f"{LedgerTarget.target_name}/{host.provider}"
        target = host.targets.find(name)
        if not isinstance(target, LedgerTarget) or not target.adapters:
            target = LedgerTarget(Desk(node, host.tasks))
            host.targets.add(target, host.provider)
        target.adapters += 1
        return target

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages through the writer of the queue; return once they are on disk."""
        try:
            numbers = await self._writers.append(queue, [in_topic(one) for one in messages])
        except StreamError as error:
            raise EnqueueFailed((), error) from None
        except ValueError as error:  # a message that is too large
            raise EnqueueFailed((), StreamError(f"{queue}: {error}; nothing is stored")) from None
        return [None if number is None else Token(self._era, number) for number in numbers]

    def receiver(self, queue: QueueId, epoch: int, /) -> LedgerReceiver:
        return LedgerReceiver(self._desk, queue, epoch, self._era)

    def reader(self, queue: QueueId, /) -> LedgerQueueReader:
        """Return a reader that works in any silo, independently of the owner."""
        return LedgerQueueReader(self._desk, queue, self._node.reader(queue), self._era)

    async def retain(self, queue: QueueId, reader: str, position: Token | None, /) -> None:
        """Keep messages from `position` on for a reader, by a cursor of the queue's topic."""
        await self._writers.retain(queue, reader, None if position is None else position.seq)

    async def let_go(self, queue: QueueId, reader: str, /) -> None:
        """Keep nothing more for this reader."""
        await self._writers.let_go(queue, reader)

    async def list_retained(self, queue: QueueId, /) -> Mapping[str, Token]:
        """Return the readers for which messages are kept, each with its first token."""
        marks = await self._node.marks(queue)
        return {
            name.removeprefix(READER): Token(self._era, mark + 1)
            for name, mark in marks.items()
            if name.startswith(READER)
        }

    async def aclose(self) -> None:
        self._target.adapters -= 1
        if self._target.adapters == 0:
            await self._desk.aclose()
        await self._node.aclose()
