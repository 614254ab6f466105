"""The ledger that a topic writes, and the change to the next one.

Owns: `CurrentLedger`. Not: which appends are sent, and when the ledger changes (`topic_writer`);
the content of an entry (`outbox`); the form of the record (`record`). Invariants: nothing is sent
to a ledger before the topic lists it. Unconfirmed entries are sent again only after the former
ledger is closed. A ledger that was made and may be listed is never deleted here.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from millstream.providers.ledger.protocol.errors import LedgerError, LedgerFenced, LedgerGone
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.providers.ledger.topic.ledgers import Ledgers, TopicLedgerWriter, delete_unlisted
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.record import LedgerSpan, make_listed_and_gone
from millstream.runtime import QueueFull, QueueUnavailable
from millstream.runtime.extending import Clock, Tasks, show_text

from .outbox import Batch, Outbox

__all__ = ["CurrentLedger"]

LEDGERS_MAX = 10_000
"""The largest number of ledgers of one topic."""
AGE_SPREAD = 0.05  # part of a ledger's age, so that not all ledgers end at the same time


class CurrentLedger:
    """Sends the entries of one topic to one ledger at a time.

    To change the ledger, call `seal`, and then `begin`, or `list_end` if no other ledger is needed
    yet. Each may be repeated after an error.

    Args:
        confirmed: called with each confirmed entry, in order, and the ledger that has it.
        failed: called when the ledger accepts no more entries.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        owned: OwnedTopic,
        outbox: Outbox,
        clock: Clock,
        tasks: Tasks,
        confirmed: Callable[[Batch, int], None],
        failed: Callable[[], None],
    ) -> None:
        self._ledgers = ledgers
        self._owned = owned
        self._outbox = outbox
        self._clock = clock
        self._tasks = tasks
        self._on_confirmed = confirmed
        self._on_failed = failed
        self._writer: TopicLedgerWriter | None = None  # written, unless it is being sealed
        self._fresh: TopicLedgerWriter | None = None  # made, and perhaps listed
        self._sealed: LedgerSpan | None = None  # closed, which the list may not say yet
        self._ends_s = 0.0
        self._drained: Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a ledger that entries can be sent to."""
        return self._writer is not None and self._writer.failed is None

    @property
    def is_full(self) -> bool:
        """Whether the ledger is as large as the topic's settings allow."""
        settings, outbox = self._owned.record.settings, self._outbox
        return (
            outbox.ledger_bytes >= settings.ledger_bytes_max
            or outbox.entries >= settings.ledger_entries_max
        )

    @property
    def is_outdated(self) -> bool:
        """Whether the ledger is too old, or a new one would have more replicas."""
        if self._writer is None or not self._outbox.entries:
            return False
        return self._clock.now() >= self._ends_s or self._writer.is_short

    @property
    def trouble(self) -> str:
        """Why bookies of the ledger do not answer now, or "" if all of them answer."""
        return "" if self._writer is None else self._writer.trouble

    def send(self, batch: Batch) -> None:
        """Send an entry, which is in the outbox."""
        writer = self._writer
        assert writer is not None
        payload = self._outbox.stamp(batch)
        try:
            future = writer.append(payload)
        except LedgerError:
            return  # it stays in the outbox, and is sent to the next ledger
        future.add_done_callback(partial(self._on_appended, batch, writer))

    def _on_appended(self, batch: Batch, writer: TopicLedgerWriter, future: Future[int]) -> None:
        if writer is not self._writer:
            return
        if future.cancelled() or future.exception() is not None:
            self.stop_draining()
            self._on_failed()
        elif self._outbox.sent and self._outbox.sent[0] is batch:
            self._outbox.confirm(batch)
            if not self._outbox.sent:
                self.stop_draining()
            self._on_confirmed(batch, writer.ledger)

    async def seal(self, wait_s: float) -> None:
        """Close the ledger. The entries in it are then confirmed.

        Waits up to `wait_s` seconds for entries in flight. Raises LedgerError, StorageError,
        QueueFenced, Corrupt; QueueUnavailable: open the topic again.
        """
        writer, outbox = self._writer, self._outbox
        if writer is None:
            return
        if writer.failed is None and outbox.sent:
            self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=wait_s)
            self._drained = None
        end, ledger = await self._end_of(writer), writer.ledger
        if end.lost:
            text = (
                f"topic {show_text(self._owned.name)}: an operator closed ledger {ledger} at entry "
            )
            raise QueueUnavailable(f"{text}{end.last} and accepted a loss: open the topic again")
        while outbox.sent and 0 <= outbox.sent[0].entry <= end.last:
            batch = outbox.sent[0]
            outbox.confirm(batch)
            self._on_confirmed(batch, ledger)
        self._writer = None
        span = next(one for one in self._owned.record.spans if one.ledger == ledger)
        self._sealed = msgspec.structs.replace(
            outbox.fill_span(span), is_sealed=True, last=end.last, size_bytes=end.length
        )

    def stop_draining(self) -> None:
        """Wait no longer for entries in flight."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _end_of(self, writer: TopicLedgerWriter) -> LedgerRecord:
        """Return the record of the ledger after it was closed, by its writer or by a recovery."""
        if not isinstance(writer.failed, LedgerFenced):
            # the writer needs no bookie for this; a recovery does
            with suppress(LedgerError):
                return await writer.close()
        await self._owned.check()  # a new owner raises the epoch before it fences
        try:
            return await self._ledgers.recover(writer.ledger)
        except LedgerGone as error:
            await self._owned.check()
            raise make_listed_and_gone(self._owned.name, writer.ledger) from error

    async def begin(self) -> None:
        """Begin another ledger, list it, and send all entries in flight to it.

        Raises LedgerError, StorageError, QueueFenced, QueueFull (`LEDGERS_MAX`).
        """
        record = self._owned.record
        if len(record.spans) >= LEDGERS_MAX:
            text = f"the topic has {LEDGERS_MAX} ledgers (LEDGERS_MAX): acknowledge messages, or "
            text += "lower retention_s and retention_bytes"
            raise QueueFull(text)
        if self._fresh is None:
            self._fresh = await self._ledgers.create(
                record.settings.quorum,
                record.topic,
                first=self._outbox.confirmed + 1,
                owner=record.owner,
            )
        fresh, sealed = self._fresh, self._sealed
        ends = () if sealed is None else (sealed,)
        await self._owned.update(lambda record: record.seal(*ends).with_ledger(fresh.ledger))
        self._writer, self._fresh = fresh, None
        self._forget(sealed)
        age_s = self._owned.record.settings.ledger_age_s
        spread = self._clock.uniform(1 - AGE_SPREAD, 1 + AGE_SPREAD)
        self._ends_s = self._clock.now() + age_s * spread
        for batch in self._outbox.begin_ledger():
            self.send(batch)

    async def list_end(self) -> None:
        """Store in the list where the sealed ledger ends. Raises StorageError, QueueFenced."""
        sealed = self._sealed
        if sealed is not None:
            await self._owned.update(lambda record: record.seal(sealed))
            self._forget(sealed)

    def _forget(self, sealed: LedgerSpan | None) -> None:
        """Forget a sealed ledger, because the topic's list has its end. Delete the ledger if it has
        no messages, because the list does not name it any more."""
        self._sealed = None
        if sealed is not None and not sealed.count:
            self._tasks.start(delete_unlisted(self._ledgers, sealed.ledger))

    async def let_go(self) -> None:
        """End like a crash: ledgers stay open."""
        for writer in (self._writer, self._fresh):
            if writer is not None:
                await writer.aclose()
        self._writer = self._fresh = None
