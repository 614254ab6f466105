"""The directories and rows of one process, and the topics on them.

Owns: `OwnLedgers`. Not: the open topics (`topics`). Invariants: a directory belongs to one process
at a time. The parts end in the order of their dependence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.ledgers import BookieLedgers
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.metadata.bookies import bookie_rows
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.errors import DirectoryInUse, LedgerError
from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.recovery.auditor import Auditor
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding
from millstream.providers.ledger.recovery.options import RecoveryOptions
from millstream.providers.ledger.scrubbing.options import ScrubOptions
from millstream.providers.ledger.scrubbing.scrubber import Scrubber
from millstream.providers.ledger.serving.census import Census
from millstream.providers.ledger.serving.cluster_bookies import ClusterBookies
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.serving.hosted import HostedBookie
from millstream.providers.ledger.topic.listed import ListedLedgers
from millstream.providers.ledger.topic.record import topic_rows
from millstream.providers.ledger.topic.topics import Topics
from millstream.runtime import (
    ConfigError,
    Env,
    QueueUnavailable,
    StateStore,
    StorageUnavailable,
)
from millstream.runtime.extending import Disk

from .missing import unmet
from .process import OneProcess
from .record import make_managed_rows

__all__ = ["OwnLedgers"]

log = logging.getLogger("millstream.ledger")

LOOK_FOR_LOCK_S = 0.25


class OwnLedgers:
    """The base of all topics of one process: bookies that the process runs itself.

    Args:
        homes: the directory of each bookie.
        scope: tells these rows from others in the store.
        recovery: how lost replicas are written again; None: they are not.
        scrub: how each bookie searches for damage.

    Attributes: `clock`, `context`, `ledgers`, `topics`, `managed`.
    """

    def __init__(
        self,
        homes: Sequence[Home],
        store: StateStore,
        scope: str,
        options: BookieOptions,
        env: Env,
        disk: Disk,
        recovery: RecoveryOptions | None = None,
        scrub: ScrubOptions | None = None,
    ) -> None:
        process = self._process = OneProcess(env)
        metadata = Metadata(store, scope, process.clock, process.silo)
        ids, ledgers, rows = LedgerIds(metadata), ledger_rows(metadata), bookie_rows(metadata)
        place = homes[0].place if homes else ""
        self._bookies = ClusterBookies(process, rows, place)
        census = Census(metadata, ids, ListedLedgers(metadata), scope, process.clock)
        self._places = {
            home.path: HostedBookie(
                process, disk, home, self._bookies, rows, census, options, LOOK_FOR_LOCK_S
            )
            for home in homes
        }
        self.clock = process.clock
        self.context = HandleContext(
            self._bookies, ledgers, process.clock, process.tasks, HandleOptions()
        )
        self.ledgers = BookieLedgers(self.context, ids)
        self.topics = Topics(self.ledgers, metadata, process.clock, process.tasks)
        self._auditor: Auditor | None = None
        if recovery is not None:
            self._auditor = Auditor(
                self.context, metadata, ledgers, self._bookies, recovery, place, process.silo
            )
        self._scrubbers = [
            Scrubber(
                self.context,
                metadata,
                ledgers,
                partial(bookie_of, hosted),
                self._standing,
                scrub or ScrubOptions(),
                recovery or RecoveryOptions(),
            )
            for hosted in self._places.values()
        ]
        self.managed = make_managed_rows(metadata)
        self._ledger_rows, self._topic_rows = ledgers, topic_rows(metadata)

    def _standing(self, bookie: str) -> BookieStanding:
        return self._auditor.standing(bookie) if self._auditor is not None else BookieStanding.AWAY

    @property
    def bookies(self) -> int:
        """The number of bookies."""
        return len(self._places)

    async def start(self, wait_s: float, usual: Quorum | None = None) -> None:
        """Open the directories, as soon as no other process has them.

        Args:
            wait_s: how long to wait for another process, in seconds.
            usual: the quorum of new topics. A directory that fails, or whose identity is
                refused, is left out until it can be used, if the other directories suffice for this
                quorum and for all existing ledgers. None: all directories are needed.

        Raises ConfigError (a needed directory is refused), QueueUnavailable (another process has
        one, even after `wait_s`), StorageError (the text names the missing directory).
        """
        until_s = self.clock.now() + wait_s
        await self._bookies.start()
        failed: dict[str, OSError | LedgerError] = {}
        for place, bookie in self._places.items():
            try:
                await bookie.start()
            except DirectoryInUse as error:
                raise ConfigError(str(error)) from error
            except (LedgerError, OSError) as error:
                failed[place] = error
        await self._wait_for_others(until_s, wait_s, failed)
        if failed:
            await self._do_without(failed, usual)
        self._process.tasks.start(self.topics.keep_swept(lambda: True))
        if self._auditor is not None:
            self._process.tasks.start(self._auditor.run())
        for scrubber in self._scrubbers:
            self._process.tasks.start(scrubber.run())

    async def _wait_for_others(
        self, until_s: float, wait_s: float, failed: Collection[str]
    ) -> None:
        """Wait for directories that other processes have. Raises QueueUnavailable."""
        places = {place: one for place, one in self._places.items() if place not in failed}
        while others := [place for place, one in places.items() if not one.runs_here]:
            left_s = until_s - self.clock.now()
            if left_s <= 0:
                text = f"{others[0]}: another process has this directory, still after {wait_s:g} s"
                raise QueueUnavailable(f"{text}: stop that process, or set a longer open_wait_s")
            await asyncio.sleep(min(left_s, LOOK_FOR_LOCK_S))

    async def _do_without(
        self, failed: Mapping[str, OSError | LedgerError], usual: Quorum | None
    ) -> None:
        """Check that the other directories suffice without those that cannot be used.

        Raises ConfigError (an operator must look at a refused directory), StorageError.
        """
        each = (f"{place} cannot be used: {type(e).__name__}: {e}" for place, e in failed.items())
        text, errors = "; ".join(each), list(failed.values())
        refused = next((one for one in errors if isinstance(one, LedgerError)), None)
        first = refused or errors[0]
        cls = StorageUnavailable if refused is None else ConfigError
        if usual is None or len(failed) == len(self._places):
            is_told = len(failed) == 1 and refused is not None  # a refusal names the file
            raise cls(str(first) if is_told else text) from first
        here = self._bookies.here()
        ledger_scan, topic_scan = self._ledger_rows.scan(), self._topic_rows.scan()
        ledgers = [record async for record in ledger_scan]
        topics = [record async for record in topic_scan]
        damaged = (str(e) for scan in (ledger_scan, topic_scan) for e in scan.damaged.values())
        lack = next(damaged, "") or unmet(ledgers, topics, usual, here)
        if lack:
            raise cls(f"{text}; {lack}: repair this first, then open again") from first
        log.error(
            "%s; until this is repaired, topics use the other %d directories", text, len(here)
        )
        for place in failed:
            self._places[place].keep_trying()

    async def aclose(self) -> None:
        """Stop the bookies, and release the directories."""
        for bookie in self._places.values():
            await bookie.aclose()
        await self._process.tasks.aclose()


def bookie_of(hosted: HostedBookie) -> Bookie | None:
    """Return the bookie of a directory, while this process runs it."""
    return hosted.bookie
