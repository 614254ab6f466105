"""The writer of one ledger.

Owns: `LedgerWriter`. Invariants: a change of bookies is stored in the record before
acknowledgements of the new bookies count. The ledger ends after its last confirmed entry.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Mapping

from millstream.providers.ledger.protocol.append_core import AppendCore
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced, LedgerGone
from millstream.providers.ledger.protocol.record import LedgerRecord, close, with_ensemble

from .context import HandleContext, existing
from .ledger_sender import LedgerSender

__all__ = ["LedgerWriter"]


class LedgerWriter:
    """Writes one ledger, from its creation on. Implements `topic.ledgers.TopicLedgerWriter`."""

    def __init__(self, context: HandleContext, record: LedgerRecord) -> None:
        self._context = context
        self._record = record
        core = AppendCore(record, context.options.owed_bytes_max)
        self._sending = LedgerSender(context, core, record.term, self._store)
        self._closing = asyncio.Lock()
        self._end: LedgerRecord | None = None

    @property
    def ledger(self) -> int:
        return self._record.ledger

    @property
    def confirmed(self) -> int:
        return self._sending.core.confirmed

    @property
    def failed(self) -> Exception | None:
        return self._sending.core.failed

    @property
    def trouble(self) -> str:
        return self._sending.trouble

    @property
    def is_short(self) -> bool:
        wanted, writable = self._record.wanted, self._context.bookies.writable()
        if wanted is not None:
            return len(writable) > self._record.quorum.ensemble
        # the writer does without these bookies, and no other one replaced them
        away = self._sending.core.away()
        return bool(away) and len(writable) >= self._record.quorum.ensemble

    def append(self, payload: bytes, /) -> Future[int]:
        return self._sending.append(payload)

    async def close(self) -> LedgerRecord:
        async with self._closing:
            if self._end is None:
                self._end = await self._close()
            return self._end

    async def _close(self) -> LedgerRecord:
        core, record = self._sending.core, self._record
        if isinstance(core.failed, LedgerFenced | LedgerGone):
            raise core.failed
        last, length, complete = core.confirmed, core.confirmed_length, core.complete
        self._sending.do(core.close())
        end = await self._context.rows.update(
            record.ledger,
            lambda found: close(
                existing(record.ledger, found), record.term, last, length, complete=complete
            ),
        )
        self._sending.tell(last)  # waiting readers then look for the next ledger
        return end

    async def aclose(self) -> None:
        core = self._sending.core
        self._sending.do(core.stop(LedgerClosed(f"ledger {core.ledger}: the writer was closed")))

    async def _store(self, first: int, instead: Mapping[int, tuple[str, str]]) -> Mapping[int, str]:
        record = await self._context.rows.update(
            self.ledger,
            lambda found: with_ensemble(
                existing(self.ledger, found), self._record.term, first, instead
            ),
        )
        bookies = record.fragments[-1].bookies
        return {place: bookies[place] for place in instead}
