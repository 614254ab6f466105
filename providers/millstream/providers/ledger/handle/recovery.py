"""Closing a ledger, even if its writer lives: the driver of `RecoveryCore`.

Owns: `recover`. Invariants: each attempt has a term of its own, which is stored first. Kept entries
are on their ack quorums before the end is stored. A change of bookies during the attempt is stored
together with the end, not before.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Queue
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context

from millstream.providers.ledger.protocol.append_core import AppendCore
from millstream.providers.ledger.protocol.entry import NOTHING, EntryHeader, unpack
from millstream.providers.ledger.protocol.errors import (
    BookieError,
    EntryDamaged,
    LedgerClosed,
    LedgerFenced,
    NoCopyLeft,
    NotEnoughBookies,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import (
    Fragment,
    LedgerRecord,
    LedgerState,
    close,
    recovering,
)
from millstream.providers.ledger.protocol.recovery_core import (
    Abort,
    End,
    Fence,
    Keep,
    Read,
    RecoveryCore,
    Step,
)
from millstream.runtime.extending import Tasks

from .context import HandleContext, existing
from .hedging import first_answer
from .ledger_sender import LedgerSender

__all__ = ["recover"]

log = logging.getLogger("millstream.ledger")

TOLD_AFTER_S = 2.0
"""Failed attempts are logged after this time. When the silo with the bookie crashes, the next silo
runs the bookie within this time."""


async def recover(context: HandleContext, ledger: int) -> LedgerRecord:
    """Fence the ledger's writer and close the ledger; return the closed record.

    Failed attempts are repeated for `recover_max_s`. Raises NoCopyLeft (at once), NotRecoverable,
    NotEnoughBookies, LedgerGone, StorageError.
    """
    began_s, is_told, attempt = context.clock.now(), False, 0
    until_s = began_s + context.options.recover_max_s

    while True:
        attempt += 1
        try:
            record = await context.rows.update(
                ledger, lambda found: recovering(existing(ledger, found))
            )
            return await Attempt(context, record).run()
        except LedgerClosed:
            record = existing(ledger, await context.rows.read(ledger))
            if record.state is LedgerState.CLOSED:
                return record
        except NoCopyLeft:
            raise  # the same bookies would answer the same
        except (NotRecoverable, NotEnoughBookies, LedgerFenced) as error:
            pause_s = context.pause_s(attempt)
            if context.clock.now() + pause_s > until_s:
                if isinstance(error, LedgerFenced):
                    text = f"ledger {ledger}: other processes keep recovering it, now in term"
                    raise NotRecoverable(f"{text} {error.term}") from error
                raise
            if not is_told and context.clock.now() - began_s >= TOLD_AFTER_S:
                is_told = True
                log.warning("%s; retrying for up to %.0f s", error, context.options.recover_max_s)

            await asyncio.sleep(pause_s)


class Attempt:
    """One attempt, in the term of the record."""

    def __init__(self, context: HandleContext, record: LedgerRecord) -> None:
        self._record = record
        self._fragments = [record.fragments[-1]]  # and the fragments that replace it
        self._complete = NOTHING
        self._events: Queue[Callable[[], list[Step]]] = Queue()
        self._core = RecoveryCore(record)
        self._sending: LedgerSender | None = None
        self._kept: list[Future[int]] = []
        loop = asyncio.get_running_loop()
        # its tasks end with it, so a late answer is ignored
        self._tasks = Tasks(loop, Context)
        self._context = context._replace(tasks=self._tasks)

    async def run(self) -> LedgerRecord:
        """Carry the attempt out; raise the error that ends it."""
        try:
            steps = self._core.begin()
            while True:
                for step in steps:
                    match step:
                        case Abort(error):
                            raise error
                        case End(last):
                            return await self._finish(last)
                        case Keep():
                            await self._keep(step)
                        case Fence() | Read():
                            self._tasks.start(self._ask(step))
                steps = (await self._events.get())()
        finally:
            await self._tasks.aclose()

    async def _ask(self, step: Fence | Read) -> None:
        bookies, options = self._context.bookies, self._context.options
        ledger, term, place = self._record.ledger, self._record.term, step.place
        try:
            if isinstance(step, Fence):
                confirmed = await bookies.fence(step.bookie, ledger, term)
                self._events.put_nowait(lambda: self._core.on_fenced(place, confirmed))
                return
            entries, size = options.page_entries, options.page_bytes
            found = await bookies.read(step.bookie, ledger, step.first, entries, size, term)
            self._events.put_nowait(lambda: self._core.found(place, step.first, found))
        except LedgerFenced as error:
            fenced = error
            self._events.put_nowait(lambda: raise_(fenced))
        except BookieError:
            self._events.put_nowait(lambda: self._core.on_unanswered(place))

    async def _keep(self, step: Keep) -> None:
        self._kept.append((await self._writing()).append_packed(step.packed, step.length))

    async def _writing(self) -> LedgerSender:
        """Return the sender that writes entries back, after those that need no decision."""
        if self._sending is None:
            start = self._core.start
            head = await self._head_at(start) if start >= 0 else None
            if head is not None:
                self._complete = head.complete
            owed = self._context.options.owed_bytes_max
            core = AppendCore(self._record, owed, start, head.length if head else 0)
            self._sending = LedgerSender(self._context, core, self._record.term, self._change)
        return self._sending

    async def _change(
        self, first: int, instead: Mapping[int, tuple[str, str]]
    ) -> Mapping[int, str]:
        bookies = list(self._fragments[-1].bookies)
        for place, (_, new) in instead.items():
            bookies[place] = new
        if self._fragments[-1].first == first:
            self._fragments.pop()
        self._fragments.append(Fragment(first, tuple(bookies)))
        return {place: new for place, (_, new) in instead.items()}

    async def _head_at(self, entry: int) -> EntryHeader:
        """Return the head of a confirmed entry, for its length and its last complete entry."""
        bookies, ledger, term = self._context.bookies, self._record.ledger, self._record.term
        faults: dict[str, str] = {}

        async def ask(bookie: str) -> EntryHeader | None:
            with suppress(BookieError):
                found = await bookies.read(bookie, ledger, entry, 1, 1, term)
                faults[bookie] = found.fault or f"bookie {bookie} has no intact replica"
                with suppress(EntryDamaged):
                    return unpack(found.entries[0], ledger, entry).head if found.entries else None
            return None

        holders = bookies.likeliest(self._record.holders(entry))
        head = await first_answer(self._tasks, holders, ask)
        if head is not None:
            return head
        if len(faults) == len(holders):
            raise NoCopyLeft(ledger, entry, faults.values())
        text = f"ledger {self._record.ledger}: no bookie returned entry {entry}, which is confirmed"
        raise NotRecoverable(f"{text}; start bookie {' or '.join(self._record.holders(entry))}")

    async def _finish(self, last: int) -> LedgerRecord:
        sending = await self._writing()
        await asyncio.gather(*self._kept)
        record, length = self._record, sending.core.confirmed_length
        assert sending.core.confirmed == last, (sending.core.confirmed, last)

        def end(found: LedgerRecord | None) -> LedgerRecord:
            found = existing(record.ledger, found)
            # entries of former fragments may have been copied elsewhere in the meantime
            former = found.fragments[: len(record.fragments) - 1]
            fragments = (*former, *self._fragments)
            return close(found, record.term, last, length, fragments, self._complete)

        return await self._context.rows.update(record.ledger, end)


def raise_(error: Exception) -> list[Step]:
    """Raise an error, where a function is needed."""
    raise error
