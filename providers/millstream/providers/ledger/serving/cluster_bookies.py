"""All bookies of a cluster, as one silo reaches them.

Owns: `ClusterBookies`, which implements `handle.Bookies`. Not: the bookie of this silo (`hosted`),
rows (`metadata`). Invariants: a bookie of this silo is called directly. Every other call ends
within `CALL_S`, plus the time that it asks to wait. Other bookies are known from their rows, which
are read again when a bookie does not answer, but at most once in `LOOK_AGAIN_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import unquote

from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.providers.ledger.protocol.found import Found
from millstream.runtime import CallError, ClusterError, StorageError
from millstream.runtime.extending import Clock, SystemTarget, Tasks

from .answers import Refusal
from .home import Home
from .target import BookieTarget

__all__ = ["CALL_S", "LOOK_AGAIN_S", "LOOK_S", "ClusterBookies", "SiloView"]

log = logging.getLogger("millstream.ledger")

T = TypeVar("T")
P = ParamSpec("P")

CALL_S = 5.0
LOOK_S = 1.0
LOOK_AGAIN_S = 0.1


class Liveness(Protocol):
    """The liveness of silos."""

    def is_live(self, silo: str, /) -> bool: ...


class Calls(Protocol):
    """The system targets of this silo, and calls to those of others."""

    def add(self, target: SystemTarget, instance: str = "") -> None: ...
    async def call(
        self,
        silo: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...


class SiloView(Protocol):
    """The part of a silo that `ClusterBookies` needs.

    An `AdapterHost` has this part, and so has a process without a silo.
    """

    @property
    def silo(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def members(self) -> Liveness: ...
    @property
    def targets(self) -> Calls: ...


class ClusterBookies:
    """Bookies by name, in any silo.

    Args:
        place: the directory group of this silo. New ledgers are spread over its bookies. Entries
            are read from bookies of all groups.
    """

    def __init__(
        self, silo: SiloView, rows: RecordRows[str, BookieRecord], place: str = ""
    ) -> None:
        self._silo = silo
        self._members, self._targets, self._clock = silo.members, silo.targets, silo.clock
        self._rows = rows
        self._place = place
        self._known: dict[str, BookieRecord] = {}
        self._unreadable: set[str] = set()
        self._here: dict[str, Bookie] = {}
        self._looked_s = -LOOK_S
        self._looking = asyncio.Lock()
        self._silent_s: dict[str, float] = {}  # bookies that did not answer, and when

    async def start(self) -> None:
        """Read the rows, and read them again regularly."""
        await self.look()
        self._silo.tasks.start(self._follow())

    def serve(self, bookie: Bookie) -> None:
        """Serve a bookie that runs in this silo from now on."""
        self._here[bookie.name] = bookie
        self._targets.add(BookieTarget(bookie), bookie.name)

    def leave(self, bookie: Bookie) -> None:
        """Remove a bookie that no longer runs in this silo."""
        self._here.pop(bookie.name, None)

    def here(self) -> list[str]:
        """Return the bookies that run in this silo."""
        return list(self._here)

    async def look(self) -> None:
        """Read the rows again, unless they were just read. Raises StorageError."""
        async with self._looking:
            if self._clock.now() - self._looked_s < LOOK_AGAIN_S:
                return
            scan = self._rows.scan()
            found = {record.bookie: record async for record in scan}
            self._unreadable = set(map(unquote, scan.damaged))
            # a damaged row counts as before: its bookie has not gone
            self._known = {b: r for b, r in self._known.items() if b in self._unreadable} | found
            self._looked_s = self._clock.now()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except StorageError as error:
                log.warning("the rows of bookies cannot be read: %s", error)

    # --- the contract ---

    def writable(self) -> Mapping[str, float]:
        here = {
            name: float(bookie.free_bytes)
            for name, bookie in self._here.items()
            if bookie.state is BookieState.WRITABLE and not self._is_draining(name)
        }
        others = {
            name: float(record.free_bytes)
            for name, record in self._known.items()
            if record.is_writable and name not in self._here and self._may_take(record)
        }
        return here | others

    def unwilling(self) -> Mapping[str, str]:
        here = {name: why for name, one in self._here.items() if (why := one.why_read_only())}
        others = {
            name: f"bookie {name} in {record.silo} accepts no entries: its disk is full"
            for name, record in self.list_known().items()
            if name not in self._here and not record.is_writable and self._is_live(record.silo)
        }
        return here | others

    def _may_take(self, record: BookieRecord) -> bool:
        """Whether a bookie is live, is not drained, and belongs to this silo's directory group."""
        is_ours = record.place == self._place and not record.is_draining
        return is_ours and self._is_live(record.silo)

    def _is_draining(self, bookie: str) -> bool:
        record = self._known.get(bookie)
        return record is not None and record.is_draining

    def list_known(self) -> Mapping[str, BookieRecord]:
        """Return the rows of the bookies of this directory group, as they were read last."""
        return {name: one for name, one in self._known.items() if one.place == self._place}

    def unreadable(self) -> Collection[str]:
        """Return the bookies with damaged rows, of any directory group."""
        return self._unreadable

    def away(self, owner: str) -> list[str]:
        """Return the bookies of an owner that have run, and that no live silo runs now.

        Args:
            owner: the name of a silo with directories of its own; "": silos share them.
        """
        return [
            name
            for name, record in self._known.items()
            if record.owner == owner and not self.runs(name)
        ]

    def runner(self, home: Home) -> str:
        """Return the live silo that runs the bookie of a directory, or "" if none is known."""
        for one in self._known.values():
            if (one.place, one.owner) == (home.place, home.owner) and self._is_live(one.silo):
                return one.silo
        return ""

    def is_first(self) -> bool:
        """Whether the first running bookie of this directory group, by name, is in this silo.

        That silo does the work for the whole group. For a moment, two silos may do it.
        """
        return min(filter(self.runs, self.list_known()), default="") in self._here

    def runs(self, bookie: str) -> bool:
        """Whether a live silo runs this bookie, as far as is known. The bookie must have a row."""
        return bookie in self._here or self._is_live(self._known[bookie].silo)

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        since_s = self._silent_s

        def is_late(bookie: str) -> tuple[bool, float]:
            return bookie not in self._here, since_s.get(bookie, 0.0)

        return sorted(bookies, key=is_late)

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        if (here := self._here.get(bookie)) is not None:
            return await here.add(term, entries)
        refusal = await self._ask(bookie, BookieTarget.add, CALL_S, term, list(entries))
        if refusal is not None:
            raise await self._on_refused(refusal)

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        if (here := self._here.get(bookie)) is not None:
            return await here.fence(ledger, term)
        answer = await self._ask(bookie, BookieTarget.fence, CALL_S, ledger, term)
        if answer.refusal is not None:
            raise await self._on_refused(answer.refusal)
        return answer.number

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        if (here := self._here.get(bookie)) is not None:
            return await here.read(ledger, first, entries_max, bytes_max, term)
        answer = await self._ask(
            bookie, BookieTarget.read, CALL_S, ledger, first, entries_max, bytes_max, term
        )
        if answer.refusal is not None:
            raise await self._on_refused(answer.refusal)
        return answer.found()

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        if (here := self._here.get(bookie)) is not None:
            return await here.watch(ledger, confirmed, wait_s)
        answer = await self._ask(
            bookie, BookieTarget.watch, CALL_S + wait_s, ledger, confirmed, wait_s
        )
        if answer.refusal is not None:
            raise await self._on_refused(answer.refusal)
        return answer.number

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        if (here := self._here.get(bookie)) is not None:
            return await here.tell(ledger, term, confirmed)
        refusal = await self._ask(bookie, BookieTarget.tell, CALL_S, ledger, term, confirmed)
        if refusal is not None:
            raise await self._on_refused(refusal)

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        if (here := self._here.get(bookie)) is not None:
            return here.suspect(ledger, entry)
        refusal = await self._ask(bookie, BookieTarget.suspect, CALL_S, ledger, entry)
        if refusal is not None:
            raise await self._on_refused(refusal)

    # --- calls ---

    def _is_live(self, silo: str) -> bool:
        return bool(silo) and self._members.is_live(silo)

    async def _ask(
        self,
        bookie: str,
        method: Callable[..., Coroutine[Any, Any, T]],
        limit_s: float,
        *args: object,
    ) -> T:
        """Call the bookie in the silo of its row, with the boot number of the row.

        Raises BookieAway.
        """
        record = self._known.get(bookie)
        if record is None or not self._is_live(record.silo):
            await self._look_quietly()
            record = self._known.get(bookie)
        if record is None or not self._is_live(record.silo):
            raise BookieAway(f"no live silo runs bookie {bookie}")
        target = f"{BookieTarget.target_name}/{bookie}"
        call: Callable[..., Coroutine[Any, Any, T]] = self._targets.call
        begin_s = self._clock.now()
        try:
            async with asyncio.timeout(limit_s):
                answer = await call(record.silo, target, method, record.boot, *args)
            self._silent_s.pop(bookie, None)
            return answer
        except asyncio.CancelledError:
            if method is not BookieTarget.watch:
                self._silent_s[bookie] = begin_s  # another bookie was faster
            raise
        except (CallError, ClusterError, TimeoutError) as error:
            self._silent_s[bookie] = begin_s
            await self._look_quietly()
            text = str(error) or f"no answer within {limit_s:g} s"
            raise BookieAway(f"bookie {bookie} in {record.silo}: {text}") from error

    async def _on_refused(self, refusal: Refusal) -> Exception:
        """Return the error of a refused call.

        If the bookie was restarted since its row was read, or is stopping, the rows are read again.
        """
        error = refusal.error()
        if isinstance(error, BookieAway):
            await self._look_quietly()
        return error

    async def _look_quietly(self) -> None:
        try:
            await self.look()
        except StorageError as error:
            log.debug("the rows of bookies cannot be read: %s", error)
