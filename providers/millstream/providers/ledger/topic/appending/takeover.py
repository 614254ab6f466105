"""What a new owner does before it serves: ends what was open, and learns what is known.

Owns: `taken_over`. Idea: spec/ledger.md 7.12, 10.7.1. Invariants: the epoch is raised before any
ledger is fenced, so an owner that is fenced finds it; every ledger has its end before anything is
appended; ledgers without messages leave the list first, and are deleted then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from millstream.providers.ledger.metadata.rows import Rows
from millstream.providers.ledger.protocol.entry import NOTHING, Entry
from millstream.providers.ledger.protocol.errors import LedgerError, LedgerGone, NotRecoverable
from millstream.providers.ledger.topic.form import (
    NO_SNAPSHOT,
    Kind,
    KnownProducer,
    head_of,
    messages_of,
    producers_of,
)
from millstream.providers.ledger.topic.ledgers import Ledgers, Reader
from millstream.providers.ledger.topic.options import LedgerTopicSettings
from millstream.providers.ledger.topic.owned import OwnedTopic
from millstream.providers.ledger.topic.record import Span, TopicRecord, opened
from millstream.runtime import QueueUnavailable, StorageError
from millstream.runtime.extending import shown

from .producers import Producers

__all__ = ["READ_BYTES", "Taken", "taken_over"]

READ_BYTES = 4 * 2**20
READ_ENTRIES = 256


class Taken(NamedTuple):
    """A topic in its owner's hands. `empty`: ledgers that are no longer in its list."""

    owned: OwnedTopic
    producers: Producers
    empty: list[int]


async def taken_over(
    ledgers: Ledgers,
    rows: Rows[str, TopicRecord],
    name: str,
    epoch: int,
    holder: str,
    settings: LedgerTopicSettings | None,
    producers: Producers,
) -> Taken:
    """Take a topic over in an epoch; `producers` is filled.

    Raises QueueFenced (another one has this epoch, or a higher one), QueueUnavailable (ledgers or
    rows cannot be read now: the holder may try again).
    """
    try:
        owned = OwnedTopic(rows, await rows.update(name, opened(name, epoch, holder, settings)))
        ends = [await end_of(ledgers, span) for span in owned.record.spans if not span.is_sealed]
        if ends:
            await owned.update(lambda record: record.sealed(*ends))
        if owned.record.spans:
            await remember(ledgers, owned.record.spans[-1], producers)
    except (LedgerError, StorageError) as error:
        text = f"topic {shown(name)} cannot be taken over: {type(error).__name__}: {error}"
        raise QueueUnavailable(text) from error
    return Taken(owned, producers, [span.ledger for span in ends if not span.count])


async def end_of(ledgers: Ledgers, span: Span) -> Span:
    """The span of a ledger that nobody writes any more, with its end."""
    try:
        record = await ledgers.recover(span.ledger)
    except LedgerGone:  # it was taken for an orphan before it was in the list: nothing was sent
        return msgspec.structs.replace(span, is_sealed=True)
    if record.last == NOTHING:
        return msgspec.structs.replace(span, is_sealed=True)
    reader = await ledgers.reader(span.ledger)
    try:
        first = head_of((await entry_at(reader, 0)).payload)
        last = head_of((await entry_at(reader, record.last)).payload)
    finally:
        await reader.aclose()
    return Span(
        *(span.ledger, span.first, True, last.end - span.first, record.last, record.length),
        first_ms=first.time_ms,
        last_ms=last.time_ms,
    )


async def remember(ledgers: Ledgers, span: Span, producers: Producers) -> None:
    """Fill the table of producers from the last ledger: its newest snapshot, and what follows."""
    reader = await ledgers.reader(span.ledger)
    try:
        snapshot = head_of((await entry_at(reader, span.last)).payload).snapshot
        start = 0 if snapshot == NO_SNAPSHOT else snapshot
        async for entry in entries_of(reader, start, span.last):
            learn(entry.payload, producers)
    finally:
        await reader.aclose()


def learn(payload: bytes, producers: Producers) -> None:
    """What an entry says of producers."""
    head = head_of(payload)
    if head.kind == Kind.SNAPSHOT:
        for known in producers_of(payload):
            producers.accept(known)
        return
    for number, message in enumerate(messages_of(payload), head.first):
        if message.producer:
            producers.accept(KnownProducer(message.producer, message.seq, number))


async def entry_at(reader: Reader, entry: int) -> Entry:
    """One entry of a closed ledger. Raises LedgerError."""
    found = await reader.read(entry, 1, 1)
    if not found:
        raise NotRecoverable(f"entry {entry} of a closed ledger cannot be read")
    return found[0]


async def entries_of(reader: Reader, first: int, last: int) -> AsyncIterator[Entry]:
    """Entries of a closed ledger, in order. Raises LedgerError."""
    while first <= last:
        found = await reader.read(first, min(READ_ENTRIES, last + 1 - first), READ_BYTES)
        if not found:
            raise NotRecoverable(f"entry {first} of a closed ledger cannot be read")
        for entry in found:
            yield entry
        first += len(found)
        await asyncio.sleep(0)  # a long ledger lets others run
