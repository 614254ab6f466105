"""Queues in ledgers, as a stream provider.

Owns: `LedgerQueues`, `LedgerAdapter`. Not: what it stands on (`node`), topics (`topic`). Invariant:
what is accepted is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream.runtime import EnqueueFailed, StreamError
from millstream.runtime.extending import check_kind
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


class LedgerQueues:
    """Durable queues: `PersistentStreams(LedgerQueues("data/ledger"), ...)`.

    What is published is on disk before it is accepted, and is kept until it is acknowledged.
    `"data/ledger"` is one directory for all silos of a machine: whichever has its lock writes it,
    and when that process dies another one goes on. `"data/ledger/{silo}"` is one for each silo, by
    its name, and what is published is on several of them before it is accepted: it survives the
    loss of a silo with its disk. Rows of ledgers are in a state store that silos share, such as
    SQLite.

    Args:
        directory: where entries are kept; made if it is missing. A relative one is taken from the
            working directory of this moment, and stays there. All silos say the same.
        options: limits, retention, times, copies.

    Raises ConfigError.
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
        home = self._directories.home(host.silo, host.silo_name)
        node = LedgerNode(host, home, self._directories.quorum, self._options)
        try:
            await node.start()
            return LedgerAdapter(host, node, self._options, await host.era())
        except BaseException:
            await node.aclose()
            raise


class LedgerAdapter:
    """The ledger provider in one silo."""

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
        """The provider's target in this silo: opened twice, both have the same topics."""
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
        """Store messages where the queue is written; returns once they are on disk."""
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
        """A reader that stands beside the owner, in any silo."""
        return LedgerQueueReader(self._desk, queue, self._node.reader(queue), self._era)

    async def retain(self, queue: QueueId, reader: str, position: Token | None, /) -> None:
        """Keep what is there from `position` on: a cursor of the queue's topic."""
        await self._writers.retain(queue, reader, None if position is None else position.seq)

    async def let_go(self, queue: QueueId, reader: str, /) -> None:
        """Keep nothing for this reader."""
        await self._writers.let_go(queue, reader)

    async def list_retained(self, queue: QueueId, /) -> Mapping[str, Token]:
        """Readers for which messages are kept, and from where on."""
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
