"""The take-over of a topic: a new owner closes open ledgers and loads the producers.

Owns: `take_over`. Invariants: the epoch is raised before any ledger is fenced, so a fenced owner
finds it. Every ledger is closed before anything is appended. Ledgers without messages leave the
list first, and are then deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.entry import NOTHING, Entry
from millstream.providers.ledger.protocol.errors import (
    EntriesGivenUp,
    LedgerError,
    LedgerGone,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.providers.ledger.topic.form import (
    NO_SNAPSHOT,
    EntryHead,
    EntryKind,
    KnownProducer,
    head_of,
    messages_of,
    producers_of,
)
from millstream.providers.ledger.topic.ledgers import Ledgers, TopicLedgerReader
from millstream.providers.ledger.topic.options import LedgerTopicSettings
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.record import (
    LedgerSpan,
    TopicRecord,
    contradiction,
    make_opening,
    refuse_other,
)
from millstream.runtime import Corrupt, QueueUnavailable, StorageError
from millstream.runtime.extending import show_text

from .producers import Producers

__all__ = ["LEFT_OUT", "READ_BYTES", "Taken", "take_over"]

log = logging.getLogger("millstream.ledger")

LEFT_OUT = 2**32
"""How many numbers are skipped after a ledger with a lost end, which is more than a ledger of 20
GiB could have had."""
READ_BYTES = 4 * 2**20
READ_ENTRIES = 256


class Taken(NamedTuple):
    """A topic after its take-over. `empty`: ledgers that are no longer listed."""

    owned: OwnedTopic
    producers: Producers
    empty: list[int]


async def take_over(
    ledgers: Ledgers,
    rows: RecordRows[str, TopicRecord],
    name: str,
    epoch: int,
    holder: str,
    settings: LedgerTopicSettings | None,
    producers: Producers,
) -> Taken:
    """Take a topic over in an epoch, and fill `producers`.

    Raises QueueFenced (another process has this epoch, or a higher one), Corrupt (rows contradict
    each other, or a ledger), QueueUnavailable (ledgers or rows cannot be read now; the holder may
    try again).
    """
    try:
        owned = OwnedTopic(
            rows, await rows.update(name, make_opening(name, epoch, holder, settings))
        )
        try:
            return await settle(ledgers, owned, producers)
        except LedgerGone as error:
            await owned.check()  # a later owner may have deleted the ledger
            text = f"its row (topics/) lists a ledger whose row (ledgers/) is gone: {error}"
            raise contradiction(name, text) from error
    except Corrupt:
        raise
    except (LedgerError, StorageError) as error:
        text = f"topic {show_text(name)} cannot be taken over: {type(error).__name__}: {error}"
        raise QueueUnavailable(text) from error


async def settle(ledgers: Ledgers, owned: OwnedTopic, producers: Producers) -> Taken:
    """Close all ledgers, and load the producers. Raises LedgerGone, and the errors of
    `take_over`."""
    topic, spans = owned.name, owned.record.spans
    ends = [await end_of(ledgers, topic, span) for span in spans if not span.is_sealed]
    if ends:
        await owned.update(lambda record: record.seal(*ends))
    await remember(ledgers, owned.record, producers)
    return Taken(owned, producers, [span.ledger for span in ends if not span.count])


async def end_of(ledgers: Ledgers, topic: str, span: LedgerSpan) -> LedgerSpan:
    """Close a ledger, and return its span with its end."""
    record = await ledgers.recover(span.ledger)
    refuse_other(topic, span, record)
    first, last = await edges_of(ledgers, record)
    if first is not None and not record.lost and first.first != span.first:
        text = f"its row (topics/) lists ledger {span.ledger} from message {span.first} on; the "
        raise contradiction(topic, f"{text}first entry of that ledger is of message {first.first}")
    end, left_out = span.first if last is None else last.end, 0
    # consumers that handled lost messages must not mistake new ones for them
    if record.is_end_lost:
        left_out = LEFT_OUT
        log.warning(
            "%s: the messages of ledger %d from message %d on are lost; the next message is %d",
            show_text(record.topic),
            span.ledger,
            end,
            end + left_out,
        )
    return LedgerSpan(
        span.ledger,
        span.first,
        True,
        end + left_out - span.first,
        record.last,
        record.length,
        first_ms=first.time_ms if first else 0,
        last_ms=last.time_ms if last else 0,
        left_out=left_out,
    )


async def edges_of(
    ledgers: Ledgers, record: LedgerRecord
) -> tuple[EntryHead | None, EntryHead | None]:
    """Return the heads of the first and the last readable entry of a closed ledger, or None if no
    entry is readable."""
    kept = list(record.iter_kept(range(record.last + 1)))
    if not kept:
        return None, None
    reader = await ledgers.reader(record.ledger)
    try:
        first = await entry_at(reader, kept[0].start)
        last = await entry_at(reader, kept[-1].stop - 1)
    finally:
        await reader.aclose()
    return head_of(first.payload), head_of(last.payload)


async def remember(ledgers: Ledgers, topic: TopicRecord, producers: Producers) -> None:
    """Fill the table of producers from the last ledger: its newest snapshot, and the entries after
    it. If the snapshot is lost, the ledger before is needed, too."""
    needed: list[tuple[LedgerSpan, int]] = []
    for span in reversed(topic.spans):
        snapshot = await snapshot_in(ledgers, topic.topic, span)
        needed.append((span, snapshot or 0))
        if snapshot is not None:
            break
    for span, start in reversed(needed):
        reader = await reader_of(ledgers, topic.topic, span)
        try:
            async for entry in entries_of(reader, start, span.last):
                learn(entry.payload, producers)
        finally:
            await reader.aclose()


async def snapshot_in(ledgers: Ledgers, topic: str, span: LedgerSpan) -> int | None:
    """Return the entry of a ledger's newest snapshot, or the first entry if no snapshot was needed.

    None means that the snapshot is lost.
    """
    reader = await reader_of(ledgers, topic, span)
    try:
        last = await entry_upto(reader, span.last)
        if last is None:
            return None
        snapshot = head_of(last.payload).snapshot
        if snapshot == NO_SNAPSHOT:
            return 0
        found = await entry_upto(reader, snapshot)
        return snapshot if found is not None and found.head.entry == snapshot else None
    finally:
        await reader.aclose()


async def reader_of(ledgers: Ledgers, topic: str, span: LedgerSpan) -> TopicLedgerReader:
    """Return a reader of a listed ledger. Raises Corrupt: its row contradicts the list."""
    reader = await ledgers.reader(span.ledger)
    try:
        refuse_other(topic, span, reader.record)
    except Corrupt:
        await reader.aclose()
        raise
    return reader


def learn(payload: bytes, producers: Producers) -> None:
    """Take the producers of an entry into the table."""
    head = head_of(payload)
    if head.kind == EntryKind.SNAPSHOT:
        for known in producers_of(payload):
            producers.accept(known)
        return
    for number, message in enumerate(messages_of(payload), head.first):
        if message.producer:
            producers.accept(KnownProducer(message.producer, message.seq, number))


async def entry_at(reader: TopicLedgerReader, entry: int) -> Entry:
    """Return one entry of a closed ledger. Raises LedgerError."""
    found = await reader.read(entry, 1, 1)
    if not found:
        raise NotRecoverable(f"ledger {reader.record.ledger}: entry {entry} cannot be read")
    return found[0]


async def entry_upto(reader: TopicLedgerReader, entry: int) -> Entry | None:
    """Return this entry of a closed ledger, or the last earlier one that was not given up; None if
    all were."""
    while entry > NOTHING:
        try:
            return await entry_at(reader, entry)
        except EntriesGivenUp as lost:
            entry = lost.first - 1
    return None


async def entries_of(reader: TopicLedgerReader, first: int, last: int) -> AsyncIterator[Entry]:
    """Yield entries of a closed ledger, in order, except those that were given up. Raises
    LedgerError."""
    while first <= last:
        try:
            found = await reader.read(first, min(READ_ENTRIES, last + 1 - first), READ_BYTES)
        except EntriesGivenUp as lost:
            first = lost.last + 1
            continue
        if not found:
            raise NotRecoverable(f"ledger {reader.record.ledger}: entry {first} cannot be read")
        for entry in found:
            yield entry
        first += len(found)
        await asyncio.sleep(0)  # let other tasks run
