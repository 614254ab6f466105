"""Appending to a topic: which appends are sent, how long they wait, and when the ledger changes.

Owns: `TopicWriter`. Not: sending to a ledger and changing it (`current_ledger`), the content of an
entry (`outbox`). Invariants: appends are sent in the order of their calls. Each caller gets a
result in bounded time. All work between two awaits is one step: no other task sees an entry that is
numbered and not in `outbox.sent`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import Future
from collections.abc import Callable, Sequence

from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.topic.form import (
    FRAME_BYTES,
    MESSAGE_BYTES,
    TopicMessage,
    size_of,
)
from millstream.providers.ledger.topic.ledgers import Ledgers
from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.owned import OwnedTopic
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
from .current_ledger import CurrentLedger
from .outbox import Append, Batch, Numbers, Outbox

__all__ = ["TopicWriter"]

log = logging.getLogger("millstream.ledger")

BETWEEN_MOVES = Backoff(first_s=0.02, ceiling_s=1.0)
MAY_BE_STORED = "the messages may be stored, now or later"


class TopicWriter:
    """Appends to one topic in one epoch.

    Args:
        confirmed: called with each confirmed entry, in order, and the ledger that has it.
        ended: called once, with the reason, when nothing more can be appended.
        why_full: returns why the backlog has no room for so many bytes; "": it has.
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
        self._what = f"topic {show_text(owned.name)}"
        self._outbox = outbox
        self._options = options
        self._clock = clock
        self._tasks = tasks
        self._confirmed = confirmed
        self._on_end = ended
        self._why_full = why_full
        self._waiting = AppendQueue(self._what, options)
        self._ledger = CurrentLedger(
            ledgers,
            owned,
            outbox,
            clock,
            tasks,
            confirmed=self._on_confirmed,
            failed=self._move,
        )
        self._moving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lines = LineBudget(lines_max=1)
        self._end: StreamError | None = None
        self._is_closing = False
        self._attempts = 0  # to change the ledger, since an entry was confirmed
        self._why = "a ledger is being created"  # why there is no ledger
        self._full = ""  # why the next append finds no room

    @property
    def ended(self) -> StreamError | None:
        """Why nothing more can be appended, or None while messages can be appended."""
        return self._end

    def append(self, messages: Sequence[TopicMessage]) -> Future[Numbers]:
        """See `Topic.append`."""
        if self._is_closing:
            raise QueueUnavailable(f"{self._what} is closed in this process")
        if self._end is not None:
            raise type(self._end)(*self._end.args)
        size, is_marked = measure(self._what, messages, self._options.entry_bytes_max)
        self._waiting.refuse_flood(size)
        done: Future[Numbers] = asyncio.get_running_loop().create_future()
        deadline_s = self._clock.now() + self._options.enqueue_wait_s
        self._waiting.add(Append(messages, size, is_marked, deadline_s, done))
        self.pump()
        return done

    def pump(self) -> None:
        """Send waiting appends, as far as there is room."""
        waiting = self._waiting.appends
        while waiting and self._end is None:
            append = waiting[0]
            if append.done.done():
                self._waiting.drop_given_up()
            elif self._moving is not None or not self._ledger.is_open or not self._has_room(append):
                break
            else:
                self._send(self._waiting.take())
        if (waiting or self._outbox.sent) and not self._ledger.is_open:
            self._move()
        self._arm()

    def _is_open(self) -> bool:
        return self._moving is None and self._ledger.is_open

    def _has_room(self, append: Append) -> bool:
        sent = self._outbox.sent_bytes
        fits = not sent or sent + append.size_bytes <= self._options.in_flight_bytes_max
        self._full = self._why_full(append.size_bytes) if fits else "in_flight_bytes_max is reached"
        return not self._full

    def _send(self, append: Append) -> None:
        append.deadline_s = self._clock.now() + self._options.enqueue_wait_s
        snapshot = self._outbox.snapshot_due()
        if snapshot is not None:
            self._ledger.send(snapshot)
        for batch in self._outbox.admit(append, int(self._clock.wall_s() * 1000)):
            self._ledger.send(batch)
        if self._ledger.is_full:
            self._move()

    def _on_confirmed(self, batch: Batch, ledger: int) -> None:
        self._attempts = 0
        self._confirmed(batch, ledger)
        self.pump()

    def tend(self) -> None:
        """Change a ledger that is too old, or for which a new one would have more replicas."""
        if self._is_open() and self._ledger.is_outdated:
            self._move()

    def _move(self) -> None:
        """Start the change to another ledger, if one is needed."""
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
            await self._ledger.seal(self._options.enqueue_wait_s)
            if self._waiting.appends or self._outbox.sent:
                await self._ledger.begin()
            else:
                await self._ledger.list_end()
        except (LedgerError, StorageError, QueueFull) as error:
            self._why = f"{type(error).__name__}: {error}"
            left_out = self._lines.take(self._clock.now())
            if left_out is not None:
                log.warning("%s: no ledger to append to: %s%s", self._what, self._why, left_out)
            return False
        return True

    def _doubt(self) -> None:
        """Fail the callers of entries in flight, because there was no ledger for too long.

        The outcome of these entries is unknown.
        """
        text = f"{self._what}: no writable ledger for {self._options.enqueue_wait_s} s: {self._why}"
        self._outbox.give_up(PublishUnknown(f"{text}; {MAY_BE_STORED}"))

    def _arm(self) -> None:
        """Set a timer for the first deadline."""
        if self._timer is None and (self._waiting.appends or self._outbox.sent):
            head_s = self._waiting.head.deadline_s if self._waiting.appends else math.inf
            next_s = min(head_s, self._outbox.next_deadline_s())
            if next_s < math.inf:
                self._timer = self._tasks.call_at(next_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s, wait_s = self._clock.now(), self._options.enqueue_wait_s
        self._waiting.expire(now_s, self._late())
        text = f"{self._what}: the bookies did not answer within {wait_s} s"
        if self._ledger.trouble:
            text += f": {self._ledger.trouble}"
        self._outbox.give_up(PublishUnknown(f"{text}; {MAY_BE_STORED}"), now_s)
        self._arm()

    def _late(self) -> StreamError:
        waited = f"{self._what}: the append was not sent within {self._options.enqueue_wait_s} s"
        if self._is_open():
            return QueueFull(f"{waited}: {self._full}")
        return QueueUnavailable(f"{waited}: there is no ledger to append to: {self._why}")

    def stop(self, error: StreamError) -> None:
        """Append nothing more. Entries in flight may or may not be stored."""
        if self._end is not None:
            return
        self._end = error
        self._ledger.stop_draining()
        self._outbox.give_up(PublishUnknown(f"{self._what}: {MAY_BE_STORED}: {error}"))
        self._waiting.fail_all(error)
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(error)

    async def close(self) -> None:
        """Refuse new appends, wait until sent entries are confirmed, and close the ledger.

        This takes at most twice `enqueue_wait_s`. Then the ledger may stay open, and the next owner
        recovers it.
        """
        self._is_closing = True
        closed = QueueUnavailable(f"{self._what} is closed in this process")
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
            await self._ledger.seal(self._options.enqueue_wait_s)
            await self._ledger.list_end()
        except (LedgerError, StorageError, QueueFenced) as error:
            log.info(
                "%s: the ledger stays open for the next owner: %s: %s",
                self._what,
                type(error).__name__,
                error,
            )

    async def let_go(self) -> None:
        """End like a crash: ledgers stay open."""
        moving, self._moving = self._moving, None
        if moving is not None:
            moving.cancel()
            await asyncio.wait([moving])
        await self._ledger.let_go()


def measure(topic: str, messages: Sequence[TopicMessage], entry_bytes_max: int) -> tuple[int, bool]:
    """Return the largest size of all messages in entries, and whether any message has a producer.

    Raises ValueError for a message that is larger than an entry.
    """
    limit, total, is_marked = entry_bytes_max - FRAME_BYTES, 0, False
    for message in messages:
        payload, producer, _ = message
        size = len(payload) + MESSAGE_BYTES  # computed here, without a call, since this runs often
        if producer:
            is_marked, size = True, size_of(message)
        if size > limit:
            text = f"a message of {len(payload)} bytes takes {size} in an entry"
            raise ValueError(f"{topic}: {text}; entry_bytes_max leaves {limit}: split the message")
        total += size
    return total, is_marked
