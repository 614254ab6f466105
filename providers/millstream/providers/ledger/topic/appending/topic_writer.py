"""Appending to a topic: the one who sends, and moves from ledger to ledger.

Owns: `TopicWriter`. Not: what an entry has (`outbox`), the record's form (`record`). Idea:
spec/ledger.md 7.13, 7.14, 10.7.3. Invariants: nothing is sent to a ledger before the list has it;
what was not confirmed is sent again only after the ledger before has its end; a ledger that was
made and may be in the list is never deleted here. Everything between two awaits is one step: no
other task sees an entry that is numbered and not in `outbox.sent`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from millstream.providers.ledger.protocol.errors import (
    LedgerError,
    LedgerFenced,
    LedgerGone,
)
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.providers.ledger.topic.form import (
    FRAME_BYTES,
    MESSAGE_BYTES,
    TopicMessage,
    size_of,
)
from millstream.providers.ledger.topic.ledgers import (
    Ledgers,
    TopicLedgerWriter,
    delete_unlisted,
)
from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.record import LedgerSpan, make_listed_and_gone
from millstream.runtime import (
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StorageError,
    StreamError,
)
from millstream.runtime.extending import Backoff, Clock, LineBudget, Tasks, show_text

from .append_queue import AppendQueue
from .outbox import Append, Batch, Numbers, Outbox

__all__ = ["TopicWriter"]

log = logging.getLogger("millstream.ledger")

BETWEEN_MOVES = Backoff(first_s=0.02, ceiling_s=1.0)
LEDGERS_MAX = 10_000
"""Ledgers of one topic."""
AGE_SPREAD = 0.05  # of a ledger's age, so that not all end at once


class TopicWriter:
    """Appends to one topic in one epoch.

    Args:
        confirmed: called with each entry that is, in order, with the ledger that has it.
        ended: called once, when nothing can be appended any more, with the reason.
        why_full: why so many bytes may not be added to what cursors have not acknowledged.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        owned: OwnedTopic,
        outbox: Outbox,
        options: LedgerTopicOptions,
        clock: Clock,
        tasks: Tasks,
        confirmed: Callable[[Batch, int], None],
        ended: Callable[[StreamError], None],
        why_full: Callable[[int], str],
    ) -> None:
        self._ledgers = ledgers
        self._owned = owned
        self._outbox = outbox
        self._options = options
        self._clock = clock
        self._tasks = tasks
        self._confirmed = confirmed
        self._on_end = ended
        self._why_full = why_full
        self._waiting = AppendQueue(self._what, options)
        self._writer: TopicLedgerWriter | None = None  # given to, unless it is sealed now
        self._fresh: TopicLedgerWriter | None = None  # made, and perhaps in the list
        self._sealed: LedgerSpan | None = None  # has its end, which the list may not say yet
        self._begins: Batch | None = None  # the first entry of the present ledger
        self._ends_s = 0.0
        self._moving: asyncio.Task[None] | None = None
        self._drained: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lines = LineBudget(lines_max=1)
        self._end: StreamError | None = None
        self._is_closing = False
        self._attempts = 0  # to move, since an entry was confirmed
        self._why = "one is being made"  # there is no ledger
        self._full = ""  # why the one that waits first found no room

    @property
    def ended(self) -> StreamError | None:
        """Why nothing can be appended any more."""
        return self._end

    @property
    def ledger(self) -> int | None:
        """The ledger that is appended to; None: there is none at present."""
        return None if self._writer is None else self._writer.ledger

    def append(self, messages: Sequence[TopicMessage]) -> Future[Numbers]:
        """See `Topic.append`."""
        self._refuse()
        size, is_marked = self._measure(messages)
        self._waiting.refuse_flood(size)
        done: Future[Numbers] = asyncio.get_running_loop().create_future()
        deadline_s = self._clock.now() + self._options.enqueue_wait_s
        self._waiting.add(Append(messages, size, is_marked, deadline_s, done))
        self.pump()
        return done

    def _refuse(self) -> None:
        if self._is_closing:
            raise QueueUnavailable(f"{self._what} is closed here")
        if self._end is not None:
            raise type(self._end)(*self._end.args)

    def _measure(self, messages: Sequence[TopicMessage]) -> tuple[int, bool]:
        """Bytes in entries, at most, and whether some have a producer. Raises ValueError."""
        limit, total, is_marked = self._options.entry_bytes_max - FRAME_BYTES, 0, False
        for message in messages:
            payload, producer, _ = message
            size = len(payload) + MESSAGE_BYTES  # without a frame of its own: it is counted often
            if producer:
                is_marked, size = True, size_of(message)
            if size > limit:
                text = f"a message of {len(payload)} bytes takes {size} in an entry"
                raise ValueError(f"{self._what}: {text}; entry_bytes_max leaves {limit}: cut it up")
            total += size
        return total, is_marked

    @property
    def _what(self) -> str:
        return f"topic {show_text(self._owned.name)}"

    def pump(self) -> None:
        """Send what waits, as far as there is room."""
        waiting = self._waiting.appends
        while waiting and self._end is None:
            append = waiting[0]
            if append.done.done():
                self._waiting.drop_given_up()
            elif not self._is_open() or not self._has_room(append):
                break
            else:
                self._send(self._waiting.take())
        if (waiting or self._outbox.sent) and not self._is_open():
            self._move()
        self._arm()

    def _is_open(self) -> bool:
        return self._moving is None and self._writer is not None and self._writer.failed is None

    def _has_room(self, append: Append) -> bool:
        sent = self._outbox.sent_bytes
        fits = not sent or sent + append.size_bytes <= self._options.in_flight_bytes_max
        self._full = self._why_full(append.size_bytes) if fits else "in_flight_bytes_max is reached"
        return not self._full

    def _send(self, append: Append) -> None:
        append.deadline_s = self._clock.now() + self._options.enqueue_wait_s
        snapshot = self._outbox.snapshot_due()
        if snapshot is not None:
            self._give(snapshot)
        for batch in self._outbox.admit(append, int(self._clock.wall_s() * 1000)):
            self._give(batch)
        if self._is_full():
            self._move()

    def _give(self, batch: Batch) -> None:
        writer = self._writer
        assert writer is not None
        payload = self._outbox.stamp(batch)
        if batch.entry == 0:
            self._begins = batch
        try:
            future = writer.append(payload)
        except LedgerError:
            self._move()  # it stays in the outbox, and is sent to the next ledger
        else:
            future.add_done_callback(partial(self._on_appended, batch, writer))

    def _on_appended(self, batch: Batch, writer: TopicLedgerWriter, future: Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            if writer is self._writer:
                self._wake()
                self._move()
        elif writer is self._writer and self._outbox.sent and self._outbox.sent[0] is batch:
            self._confirm(batch, writer.ledger)
            if not self._outbox.sent:
                self._wake()
            self.pump()

    def _confirm(self, batch: Batch, ledger: int) -> None:
        self._attempts = 0
        self._outbox.confirm(batch)
        self._confirmed(batch, ledger)

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _is_full(self) -> bool:
        settings, outbox = self._owned.record.settings, self._outbox
        return (
            outbox.ledger_bytes >= settings.ledger_bytes_max
            or outbox.entries >= settings.ledger_entries_max
        )

    def tend(self) -> None:
        """End a ledger that is too old, or has fewer copies than it could have by now."""
        if self._is_open() and self._outbox.entries and self._writer is not None:
            if self._clock.now() >= self._ends_s or self._writer.is_short:
                self._move()

    def _move(self) -> None:
        """See to it that there is a ledger that can be appended to, if one is needed."""
        if self._moving is None and self._end is None:
            self._moving = self._tasks.start(self._keep_moving())

    async def _keep_moving(self) -> None:
        doubt = self._tasks.call_later(self._options.enqueue_wait_s, self._doubt)
        try:
            while not await self._try_to_move():
                pass
        except (QueueFenced, QueueUnavailable) as error:
            self.stop(error)
        except Exception as error:
            self.stop(QueueUnavailable(f"{self._what}: {type(error).__name__}: {error}"))
            raise
        finally:
            doubt.cancel()
            self._moving = None
        self.pump()

    async def _try_to_move(self) -> bool:
        if self._attempts:
            roll = self._clock.uniform(0.0, 1.0)
            await asyncio.sleep(BETWEEN_MOVES.delay_s(self._attempts, roll))
        self._attempts += 1
        try:
            await self._seal()
            if self._waiting.appends or self._outbox.sent:
                await self._begin()
            else:
                await self._tell()
        except (LedgerError, StorageError, QueueFull) as error:
            self._why = f"{type(error).__name__}: {error}"
            left_out = self._lines.take(self._clock.now())
            if left_out is not None:
                log.warning("%s: no ledger to append to: %s%s", self._what, self._why, left_out)
            return False
        return True

    async def _seal(self) -> None:
        """Give the present ledger its end; what is in it is confirmed."""
        writer = self._writer
        if writer is None:
            return
        await self._drain(writer)
        end = await self._end_of(writer)
        ledger, outbox = writer.ledger, self._outbox
        if end.lost:
            text = f"{self._what}: a person ended ledger {ledger} with loss at entry {end.last}"
            raise QueueUnavailable(f"{text}: open it again")
        while outbox.sent and 0 <= outbox.sent[0].entry <= end.last:
            self._confirm(outbox.sent[0], ledger)
        self._writer = None
        self._sealed = self._span_of(ledger, end.last, end.length)

    def _span_of(self, ledger: int, last: int, length: int) -> LedgerSpan:
        span = next(one for one in self._owned.record.spans if one.ledger == ledger)
        count = self._outbox.confirmed + 1 - span.first
        first_ms = self._begins.time_ms if self._begins is not None else 0
        return LedgerSpan(
            ledger,
            span.first,
            True,
            count,
            last,
            length,
            first_ms,
            last_ms=self._outbox.confirmed_ms,
        )

    async def _drain(self, writer: TopicLedgerWriter) -> None:
        """Wait for what is on its way, unless the writer can do nothing more."""
        if writer.failed is not None or not self._outbox.sent:
            return
        self._drained = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._drained], timeout=self._options.enqueue_wait_s)
        self._drained = None

    async def _end_of(self, writer: TopicLedgerWriter) -> LedgerRecord:
        """Its ledger, which is closed: by it, or by another one."""
        if not isinstance(writer.failed, LedgerFenced):
            # needs no bookie, if the writer can do it; else the ledger is recovered
            with suppress(LedgerError):
                return await writer.close()
        await self._owned.check()  # a successor raises the epoch before it fences
        try:
            return await self._ledgers.recover(writer.ledger)
        except LedgerGone as error:
            await self._owned.check()
            raise make_listed_and_gone(self._owned.name, writer.ledger) from error

    async def _begin(self) -> None:
        """Another ledger, in the list; what is on its way is sent to it."""
        if len(self._owned.record.spans) >= LEDGERS_MAX:
            text = f"it has {LEDGERS_MAX} ledgers: acknowledge, or keep what was for a shorter time"
            raise QueueFull(text)
        if self._fresh is None:
            record = self._owned.record
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
            self._give(batch)

    async def _tell(self) -> None:
        """The list says where the ledger ends; the next one is made when it is needed."""
        sealed = self._sealed
        if sealed is not None:
            await self._owned.update(lambda record: record.seal(sealed))
            self._forget(sealed)

    def _forget(self, sealed: LedgerSpan | None) -> None:
        """The list says it; a ledger without messages is no longer in it."""
        self._sealed = None
        if sealed is not None and not sealed.count:
            self._tasks.start(delete_unlisted(self._ledgers, sealed.ledger))

    def _doubt(self) -> None:
        """It takes too long: who waits for what was sent hears that its fate is unknown."""
        text = f"{self._what}: no ledger for {self._options.enqueue_wait_s} s: {self._why}"
        self._outbox.give_up(PublishUnknown(f"{text}; it may be stored, also later"))

    def _arm(self) -> None:
        """Look at who waits when the first one has waited long enough."""
        if self._timer is None and (self._waiting.appends or self._outbox.sent):
            head_s = self._waiting.head.deadline_s if self._waiting.appends else math.inf
            next_s = min(head_s, self._outbox.next_deadline_s())
            if next_s < math.inf:
                self._timer = self._tasks.call_at(next_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s, wait_s = self._clock.now(), self._options.enqueue_wait_s
        self._waiting.expire(now_s, self._late())
        text = f"{self._what}: its bookies have not answered within {wait_s} s"
        if self._writer is not None and self._writer.trouble:
            text += f": {self._writer.trouble}"
        self._outbox.give_up(PublishUnknown(f"{text}; it may be stored, also later"), now_s)
        self._arm()

    def _late(self) -> StreamError:
        waited = f"{self._what}: nothing was sent within {self._options.enqueue_wait_s} s"
        if self._is_open():
            return QueueFull(f"{waited}: {self._full}")
        return QueueUnavailable(f"{waited}: there is no ledger to append to: {self._why}")

    def stop(self, error: StreamError) -> None:
        """Nothing is appended any more; what is on its way may be stored, or not."""
        if self._end is not None:
            return
        self._end = error
        self._wake()
        self._outbox.give_up(PublishUnknown(f"{self._what}: it may be stored: {error}"))
        self._waiting.fail_all(error)
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(error)

    async def close(self) -> None:
        """Take no more, see what was sent confirmed, and give the ledger its end.

        What cannot be done in time is left to the next owner, which recovers.
        """
        self._is_closing = True
        closed = QueueUnavailable(f"{self._what} is closed here")
        self._waiting.fail_all(closed)
        try:
            async with asyncio.timeout(2 * self._options.enqueue_wait_s):
                while self._moving is not None:
                    await asyncio.wait([self._moving])
                if self._end is None:
                    self._moving = self._tasks.start(self._wait_finished())
                    await asyncio.wait([self._moving])
        except TimeoutError:
            pass
        self.stop(closed)
        await self.let_go()

    async def _wait_finished(self) -> None:
        try:
            await self._seal()
            await self._tell()
        except (LedgerError, StorageError, QueueFenced) as error:
            log.info("%s is left as it is: %s: %s", self._what, type(error).__name__, error)

    async def let_go(self) -> None:
        """End as a crash would: ledgers stay open."""
        moving, self._moving = self._moving, None
        if moving is not None:
            moving.cancel()
            await asyncio.wait([moving])
        for writer in (self._writer, self._fresh):
            if writer is not None:
                await writer.aclose()
        self._writer = self._fresh = None
