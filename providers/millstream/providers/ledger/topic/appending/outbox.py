"""Messages on their way into a topic: their numbers and times, repeats, and the content of entries.

Owns: `Outbox`, `Append`, `Batch`. Pure, except for the futures in it. It neither sends nor waits
(`topic_writer`). Invariants: numbers are dense, in the order of appends, and do not change when an
entry is sent again to another ledger. A sequence that is stored or in flight is never sent again. A
snapshot covers exactly the entries before it in the log, so entries after it may still be lost.
"""

from __future__ import annotations

import math
from asyncio import Future
from collections import deque
from collections.abc import Sequence

import msgspec

from millstream.providers.ledger.topic.form import (
    FRAME_BYTES,
    NO_SNAPSHOT,
    EntryHead,
    EntryKind,
    KnownProducer,
    TopicMessage,
    pack,
    size_of,
)
from millstream.providers.ledger.topic.record import LedgerSpan

from .producers import Producers

__all__ = ["Append", "Batch", "Numbers", "Outbox"]

Numbers = list[int | None]


class Append:
    """One call: its messages, and its result.

    `numbers`: the numbers of its messages, in order; None: the message was stored before, and its
    number is forgotten. `is_marked`: some messages have a producer.
    """

    __slots__ = ("deadline_s", "done", "is_marked", "messages", "numbers", "size_bytes")

    def __init__(
        self,
        messages: Sequence[TopicMessage],
        size_bytes: int,
        is_marked: bool,
        deadline_s: float,
        done: Future[Numbers],
    ) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.is_marked = is_marked
        self.deadline_s = deadline_s
        self.done = done
        self.numbers: Numbers = []

    def succeed(self) -> None:
        """End the call with success, because all of its messages are stored."""
        if not self.done.done():
            self.done.set_result(self.numbers)

    def fail(self, error: Exception) -> None:
        """Fail the call, unless its caller has a result already."""
        if not self.done.done():
            self.done.set_exception(error)


class Batch:
    """One entry in flight.

    `appends`: the calls that succeed when it is confirmed. `known`: the highest sequences in it.
    """

    __slots__ = (
        *("appends", "entry", "first", "known", "messages", "payload_bytes", "size_bytes"),
        *("snapshot", "time_ms"),
    )

    def __init__(
        self,
        first: int,
        time_ms: int,
        messages: list[TopicMessage],
        size_bytes: int,
        known: dict[str, KnownProducer],
        snapshot: list[KnownProducer] | None = None,
    ) -> None:
        self.first = first
        self.time_ms = time_ms
        self.messages = messages
        self.size_bytes = size_bytes
        self.known = known
        self.snapshot = snapshot
        self.appends: list[Append] = []
        self.entry = -1  # in the ledger that it was sent to last
        self.payload_bytes = 0

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first + len(self.messages)


class Outbox:
    """The entries that a topic's owner has sent, and that are not confirmed.

    Args:
        producers: the sequences of all confirmed entries.
        next_number: the number of the next message.
        last_ms: no message has an earlier time.
        entry_bytes_max: a longer list of messages is split over several entries.
        snapshot_entries: the number of entries between snapshots of producers.

    Attributes: `sent`, in order; `sent_bytes`; `next_number`; `confirmed`, the last confirmed
    number, and `confirmed_ms`, its time. Of the present ledger: `entries`, `ledger_bytes`, and
    `confirmed_entry`, the last confirmed entry.
    """

    def __init__(
        self,
        producers: Producers,
        next_number: int,
        last_ms: int,
        entry_bytes_max: int,
        snapshot_entries: int,
    ) -> None:
        self._producers = producers
        self._on_way: dict[str, KnownProducer] = {}
        self._entry_bytes_max = entry_bytes_max
        self._snapshot_entries = snapshot_entries
        self.sent: deque[Batch] = deque()
        self.sent_bytes = 0
        self.next_number = next_number
        self.confirmed = next_number - 1
        self.confirmed_ms = last_ms
        self._last_ms = last_ms
        self._begin()

    def _begin(self) -> None:
        self.entries = self.ledger_bytes = 0
        self._first_ms = 0  # the time of its first entry
        self.confirmed_entry = -1
        self._snapshot = NO_SNAPSHOT
        self._since_snapshot = 0

    def snapshot_due(self) -> Batch | None:
        """Return a snapshot to send before the next entry, if one is due."""
        if self.entries and self._since_snapshot < self._snapshot_entries:
            return None
        known = self._producers.snapshot(self._on_way.values())
        if not known:
            return None
        batch = Batch(self.next_number, self._last_ms, [], 0, {}, known)
        self.sent.append(batch)
        return batch

    def admit(self, append: Append, wall_ms: int) -> list[Batch]:
        """Number the new messages of a call; return the entries to send for it, in order. If all
        messages are repeats of confirmed ones, the call succeeds at once."""
        self._last_ms = max(self._last_ms, wall_ms)
        waits_for = 0
        if append.is_marked:
            new, known, waits_for = self._new_of(append)
        else:
            first, new, known = self.next_number, list(append.messages), {}
            append.numbers.extend(range(first, first + len(new)))
        batches = self._cut(new, known, append.size_bytes) if new else []
        self.next_number += len(new)
        self.sent.extend(batches)
        self._attach(append, batches, waits_for)
        return batches

    def _new_of(self, append: Append) -> tuple[list[TopicMessage], dict[str, KnownProducer], int]:
        """Return the messages that were not sent before, the highest sequences in them, and the
        number that repeats wait for."""
        new: list[TopicMessage] = []
        touched: dict[str, KnownProducer] = {}
        on_way, number, waits_for = self._on_way, self.next_number, 0
        for message in append.messages:
            _, name, seq = message
            if name:
                known = on_way.get(name) or self._producers.find(name)
                if known is not None and seq <= known.seq:
                    append.numbers.append(known.number if seq == known.seq else None)
                    waits_for = max(waits_for, known.number)
                    continue
                on_way[name] = touched[name] = KnownProducer(name, seq, number)
            new.append(message)
            append.numbers.append(number)
            number += 1
        return new, touched, waits_for

    def _cut(
        self, new: list[TopicMessage], known: dict[str, KnownProducer], size_bytes: int
    ) -> list[Batch]:
        """Split new messages into entries; `size_bytes` is an upper bound of their size."""
        limit, number = self._entry_bytes_max - FRAME_BYTES, self.next_number
        if size_bytes <= limit:
            self.sent_bytes += size_bytes
            return [Batch(number, self._last_ms, new, size_bytes, known)]
        batches: list[Batch] = []
        for message in new:
            size = size_of(message)
            if not batches or batches[-1].size_bytes + size > limit:
                batches.append(Batch(number, self._last_ms, [], 0, {}))
            batch = batches[-1]
            batch.messages.append(message)
            batch.size_bytes += size
            self.sent_bytes += size
            if message.producer:
                name, seq = message.producer, message.seq
                batch.known[name] = KnownProducer(name, seq, number)
            number += 1
        return batches

    def _attach(self, append: Append, batches: list[Batch], waits_for: int) -> None:
        if batches:
            batches[-1].appends.append(append)
        elif waits_for <= self.confirmed:
            append.succeed()
        else:
            batch = next(one for one in self.sent if one.end > waits_for)
            batch.appends.append(append)

    def stamp(self, batch: Batch) -> bytes:
        """Return the payload for the present ledger's next entry."""
        batch.entry = self.entries
        if not self.entries:
            self._first_ms = batch.time_ms
        self.entries += 1
        self._since_snapshot += 1
        kind = EntryKind.MESSAGES
        if batch.snapshot is not None:
            kind, self._snapshot, self._since_snapshot = EntryKind.SNAPSHOT, batch.entry, 0
        count = len(batch.messages)
        head = EntryHead(batch.first, count, batch.time_ms, self._snapshot, kind)
        payload = pack(head, batch.messages if batch.snapshot is None else batch.snapshot)
        batch.payload_bytes = len(payload)
        self.ledger_bytes += len(payload)
        return payload

    def confirm(self, batch: Batch) -> None:
        """End the calls of an entry with success, because all entries up to it are stored."""
        assert self.sent and self.sent[0] is batch, (batch.first, batch.entry)
        self.sent.popleft()
        self.sent_bytes -= batch.size_bytes
        self.confirmed = batch.end - 1
        self.confirmed_entry = batch.entry
        self.confirmed_ms = batch.time_ms
        for name, known in batch.known.items():
            self._producers.accept(known)
            if self._on_way.get(name) == known:
                del self._on_way[name]
        for append in batch.appends:
            append.succeed()

    def begin_ledger(self) -> list[Batch]:
        """Begin another ledger, and return the entries to send first.

        No entry in flight is in the former ledger.
        """
        batches = [batch for batch in self.sent if batch.snapshot is None]
        self.sent = deque()
        self._begin()
        known = self._producers.snapshot()
        if known:
            first = batches[0].first if batches else self.next_number
            time_ms = batches[0].time_ms if batches else self._last_ms
            self.sent.append(Batch(first, time_ms, [], 0, {}, known))
        self.sent.extend(batches)
        return list(self.sent)

    def fill_spans(self, spans: Sequence[LedgerSpan]) -> list[LedgerSpan]:
        """Return a topic's ledgers, with the confirmed part of the present one."""
        return [one if one.is_sealed else self.fill_span(one) for one in spans]

    def fill_span(self, span: LedgerSpan) -> LedgerSpan:
        """Return the present ledger, with its confirmed part."""
        return msgspec.structs.replace(
            span,
            count=self.confirmed + 1 - span.first,
            size_bytes=self.ledger_bytes,
            first_ms=self._first_ms,
            last_ms=self.confirmed_ms,
        )

    def next_deadline_s(self) -> float:
        """Return when the first caller of an entry in flight has waited long enough."""
        deadlines = (append.deadline_s for batch in self.sent for append in batch.appends)
        return min(deadlines, default=math.inf)

    def give_up(self, error: Exception, until_s: float = math.inf) -> None:
        """Fail the callers of entries in flight whose deadline is `until_s` or before."""
        for batch in self.sent:
            for append in batch.appends:
                if append.deadline_s <= until_s:
                    append.fail(error)
            batch.appends = [one for one in batch.appends if one.deadline_s > until_s]
