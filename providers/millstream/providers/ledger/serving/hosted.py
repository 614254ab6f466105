"""The bookie of a directory, which runs in the silo with the lock of the directory.

Owns: `HostedBookie`. Not: the bookie (`bookie`), calls to it (`cluster_bookies`), the choice of the
directory (`home`). Invariants: a silo is named in the row after it has begun to serve the bookie,
and until it stops; after a crash the row still names the silo, so callers also check that the silo
is live. When its process ends, the lock is free. A silo that waits for it then opens the directory
and writes its name into the row. That is another silo of the machine, or the same silo once it is
started again. A refused directory stays refused until an operator has repaired it, and the log
repeats this regularly.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.bookie.options import BookieOptions, HighWater, Known
from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import (
    BookieReadOnly,
    DirectoryInUse,
    LedgerError,
)
from millstream.runtime import StorageError
from millstream.runtime.extending import Disk

from .census import Census, fresh_name
from .cluster_bookies import ClusterBookies, SiloView
from .home import Home

__all__ = ["SAY_EVERY_S", "HostedBookie"]

log = logging.getLogger("millstream.ledger")

SAY_EVERY_S = 1.0
AFTER_FAILURE_S = 5.0
COLLECT_FIRST_S = 2.0
"""Seconds from a start to the first collection. A silo that never runs for long leaves a segment
each time."""
COLLECT_EVERY_S = 60.0
COLLECT_FULL_S = 5.0
"""Seconds between collections while the disk is full, so that room is made soon."""
LOCKED_S = 10.0
TELL_EVERY_S = 60.0


class HostedBookie:
    """Runs the bookie of a directory in this silo, while no other process does.

    Args:
        look_for_lock_s: how often the lock is tried, in seconds.
    """

    def __init__(
        self,
        silo: SiloView,
        disk: Disk,
        home: Home,
        bookies: ClusterBookies,
        rows: RecordRows[str, BookieRecord],
        census: Census,
        options: BookieOptions,
        look_for_lock_s: float,
    ) -> None:
        self._silo = silo
        self._disk = disk
        self._home = home
        self._path = home.path
        self._bookies = bookies
        self._rows = rows
        self._census = census
        self._options = options
        self._look_for_lock_s = look_for_lock_s
        self._bookie: Bookie | None = None
        self._failure = ""  # the last logged failure, and when it is logged again
        self._tell_at_s = 0.0
        self._collect_at_s = 0.0
        self._was_full = False
        self._locked_s = 0.0  # how long the lock was held without a known runner
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Try to get the lock at once, and keep trying.

        Raises StorageError; DirectoryRefused; DirectoryInUse: a live silo of the same name has the
        directory of this silo.
        """
        await self._try()
        self._refuse_namesake()
        self.keep_trying()

    def keep_trying(self) -> None:
        """Keep trying to run the bookie after a failed start. Failures are logged."""
        self._running = self._silo.tasks.start(self._run())

    @property
    def bookie(self) -> Bookie | None:
        """The bookie, while this silo runs it."""
        return self._bookie

    @property
    def runs_here(self) -> bool:
        """Whether this silo runs the bookie."""
        return self._bookie is not None

    async def aclose(self) -> None:
        """Stop the bookie, if it runs here. Another silo may then take its directory."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._leave()

    async def _run(self) -> None:
        while True:
            pause_s = self._look_for_lock_s
            try:
                if self._bookie is None:
                    await self._try()
                else:
                    await self._watch(self._bookie)
                    pause_s = SAY_EVERY_S
            except (LedgerError, OSError, StorageError) as error:
                self._tell_failure(str(error))
                pause_s = AFTER_FAILURE_S
            await asyncio.sleep(pause_s)

    def _tell_failure(self, why: str) -> None:
        """Log why the bookie cannot run, and repeat an unchanged reason once a minute."""
        now_s = self._silo.clock.now()
        if why != self._failure or now_s >= self._tell_at_s:
            self._failure, self._tell_at_s = why, now_s + TELL_EVERY_S
            log.error("%s: the bookie cannot run: %s", self._path, why)

    async def _try(self) -> None:
        """Open the directory, unless another process has it."""
        try:
            bookie = await Bookie.open(
                self._disk,
                self._path,
                self._options,
                cluster=await self._census.cluster(),
                fresh=fresh_name(self._silo.clock),
                ask_known=self._find_known,
            )
        except DirectoryInUse:
            self._tell_of_holder()
            return
        await self._avoid_numbers(bookie)
        self._bookie, self._locked_s, self._failure = bookie, 0.0, ""
        self._collect_at_s = self._silo.clock.now() + COLLECT_FIRST_S
        text = (
            "%s: bookie %s runs here, boot number %d; its directory was read in %.0f ms (%d bytes)"
        )
        took_ms, size = bookie.opened_s * 1000, bookie.scanned.size_bytes
        log.info(text, self._path, bookie.name, bookie.boot, took_ms, size)
        self._bookies.serve(bookie)
        await self._say(bookie)
        await self._bookies.look()
        if bookie.boot == 1:
            self._tell_of_others()

    async def _avoid_numbers(self, bookie: Bookie) -> None:
        """Before the bookie serves, make sure that no new ledger gets a number that it knows."""
        try:
            await self._census.avoid(bookie, self._path)
        except BaseException:
            await bookie.aclose()
            raise

    def _tell_of_holder(self) -> None:
        """Log that another process has the lock, unless a live silo runs the bookie of a shared
        directory, which is normal."""
        if not self._home.owner and self._bookies.runner(self._home):
            self._locked_s = 0.0
            return
        before_s, self._locked_s = self._locked_s, self._locked_s + self._look_for_lock_s
        if before_s % TELL_EVERY_S < LOCKED_S <= self._locked_s % TELL_EVERY_S:
            log.error(
                "%s: another process has the lock of this directory, but no live silo runs its "
                "bookie: if that process hangs or is suspended, kill the process (kill -9)",
                self._path,
            )

    def _refuse_namesake(self) -> None:
        """Raise if a live silo has this silo's directory, since they have the same name."""
        other = self._bookies.runner(self._home)
        if self._bookie is None and self._home.owner and other:
            text = f"{self._path}: silo {other} uses this directory and is also named "
            text += f"{self._home.owner!r}: give each silo a unique name; if {other} is an earlier "
            raise DirectoryInUse(text + "process of this silo, end that process")

    def _tell_of_others(self) -> None:
        """For a new directory, log the other bookies of its owner that no silo runs. They have
        earlier entries."""
        if away := self._bookies.away(self._home.owner):
            log.error(
                "%s: this directory is new, but earlier entries are in the directory of bookie %s, "
                "which no silo runs: if that directory was moved, or its disk is not mounted, stop "
                "the silos and restore the directory",
                self._path,
                ", ".join(away),
            )

    async def _find_known(self, name: str) -> Known:
        record = await self._rows.read(name)
        number = await self._census.next_ledger()
        if record is None:
            return Known(HighWater(0, 0), number)
        return Known(HighWater(record.boot, record.high_water), number)

    async def _watch(self, bookie: Bookie) -> None:
        """Report the state of the bookie; leave a bookie that has stopped."""
        if bookie.state is BookieState.STOPPED:
            log.error(
                "%s: bookie %s has stopped: %s", self._path, bookie.name, bookie.figures().reason
            )
            await self._leave()
            return
        await self._say(bookie)
        now_s, is_full = self._silo.clock.now(), bookie.state is BookieState.READ_ONLY
        if is_full and not self._was_full:
            self._collect_at_s = now_s
        self._was_full = is_full
        if now_s >= self._collect_at_s:
            self._collect_at_s = now_s + (COLLECT_FULL_S if is_full else COLLECT_EVERY_S)
            await self._collect(bookie)

    async def _collect(self, bookie: Bookie) -> None:
        """Remove deleted entries. On a completely full disk nothing can be removed."""
        try:
            await self._census.collect(bookie)
        except BookieReadOnly:
            return
        except StorageError as error:
            text = "%s: bookie %s keeps deleted entries until the rows of ledgers can be read: %s"
            log.warning(text, self._path, bookie.name, error)

    async def _say(self, bookie: Bookie) -> None:
        """Write the row, if it has changed."""
        boot, sequence = bookie.high_water
        record = BookieRecord(
            bookie=bookie.name,
            silo=self._silo.silo,
            boot=boot,
            is_writable=bookie.state is BookieState.WRITABLE,
            free_bytes=bookie.free_bytes,
            high_water=sequence,
            said_s=self._silo.clock.wall_s(),
            place=self._home.place,
            owner=self._home.owner,
        )

        def say(found: BookieRecord | None) -> BookieRecord:
            if found is None:
                return record
            own = msgspec.structs.replace(record, is_draining=found.is_draining)
            same = msgspec.structs.replace(own, said_s=found.said_s, operation=found.operation)
            return found if found.boot > boot or same == found else own

        await self._rows.update(bookie.name, say)

    async def _leave(self) -> None:
        """Close the bookie, and remove this silo from its row."""
        bookie, self._bookie = self._bookie, None
        if bookie is None:
            return
        self._bookies.leave(bookie)
        await bookie.aclose()
        boot, sequence = bookie.high_water

        def left(found: BookieRecord | None) -> BookieRecord | None:
            if found is None or found.boot != boot:
                return found
            return msgspec.structs.replace(
                found, silo="", is_writable=False, high_water=max(found.high_water, sequence)
            )

        try:
            await self._rows.update(bookie.name, left)
        except StorageError as error:
            log.warning("%s: the row of the bookie still names this silo: %s", self._path, error)
