"""The row of a topic: its epoch, its ledgers in order, its settings and cursors.

Owns: `TopicRecord`, `LedgerSpan`, and the allowed changes of a record, as functions from record to
record. Not: storing it (`metadata.rows`), the content of a ledger. As in Pulsar's managed ledger, a
topic is a list of ledgers.

Invariants:

- Epochs rise, and only the process with the present epoch changes the record.
- All spans but the last are sealed, and numbers are consecutive from span to span.
- A ledger leaves the list before it is deleted. It is listed before anything is sent to it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState
from millstream.runtime import Corrupt, QueueFenced
from millstream.runtime.extending import show_text

from .options import LedgerTopicSettings

__all__ = [
    "FIRST_NUMBER",
    "LedgerSpan",
    "TopicRecord",
    "contradiction",
    "make_listed_and_gone",
    "make_opening",
    "make_owned_change",
    "refuse_other",
    "topic_rows",
]

FIRST_NUMBER = 1
"""The number of a topic's first message."""


class LedgerSpan(msgspec.Struct, frozen=True, array_like=True):
    """One ledger of a topic: messages from `first` on. The other fields are set once it is sealed.

    `last`: its last entry. `size_bytes`: the size of all payloads. `first_ms`, `last_ms`: the times
    of its first and last readable entry. `left_out`: how many
    numbers at its end belong to lost messages, or to no message.
    """

    ledger: int
    first: int
    is_sealed: bool = False
    count: int = 0
    last: int = NOTHING
    size_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    left_out: int = 0

    @property
    def end(self) -> int:
        """The number after its last message, once it is sealed."""
        return self.first + self.count


class TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    """A topic as its row says.

    `next`: the number after all sealed ledgers. `trimmed`: the first number that is kept.
    `last_ms`: no later message has an earlier time. `cursors`: the names of the cursors, which keep
    messages. `holder`: the process that has the epoch. It may open the topic again in this epoch.
    `opening`: how often the topic was opened.
    """

    topic: str
    epoch: int = 0
    spans: tuple[LedgerSpan, ...] = ()
    settings: LedgerTopicSettings = LedgerTopicSettings()
    next: int = FIRST_NUMBER
    trimmed: int = FIRST_NUMBER
    last_ms: int = 0
    cursors: tuple[str, ...] = ()
    holder: str = ""
    opening: int = 0
    operation: str = ""

    @property
    def owner(self) -> tuple[int, int]:
        """The opening of an epoch that may change the record. Later ones are higher."""
        return self.epoch, self.opening

    def lists(self, ledger: int) -> bool:
        """Whether the ledger belongs to the topic."""
        return any(span.ledger == ledger for span in self.spans)

    def backlog(self, mark: int, end: int) -> int:
        """Return how many messages there may be after `mark` and before `end`."""
        left_out = sum(min(one.left_out, max(0, one.end - 1 - mark)) for one in self.spans)
        return max(0, end - 1 - mark - left_out)

    def seal(self, *spans: LedgerSpan) -> TopicRecord:
        """Return the record with the ends of these spans, and without sealed ledgers that have no
        messages."""
        ends = {span.ledger: span for span in spans}
        known = [ends.get(span.ledger, span) for span in self.spans]
        last = known[-1] if known else None
        return msgspec.structs.replace(
            self,
            spans=tuple(span for span in known if span.count or not span.is_sealed),
            next=last.end if last is not None and last.is_sealed else self.next,
            last_ms=max((self.last_ms, *(span.last_ms for span in known))),
        )

    def with_ledger(self, ledger: int) -> TopicRecord:
        """Return the record with this ledger as the last one. All other ledgers must be sealed."""
        if self.lists(ledger):
            return self
        assert all(span.is_sealed for span in self.spans), self
        return msgspec.structs.replace(self, spans=(*self.spans, LedgerSpan(ledger, self.next)))

    def without(self, spans: int) -> TopicRecord:
        """Return the record without its oldest ledgers; `spans` is their number."""
        gone, kept = self.spans[:spans], self.spans[spans:]
        if not gone:
            return self
        assert all(span.is_sealed for span in gone), self
        return msgspec.structs.replace(self, spans=kept, trimmed=gone[-1].end)


def make_opening(
    topic: str, epoch: int, holder: str, settings: LedgerTopicSettings | None
) -> Callable[[TopicRecord | None], TopicRecord]:
    """Return the change of a process that takes a topic over. A missing topic is made.

    Args:
        holder: the process. If it has the epoch already, its former topic is fenced.
        settings: apply from the next ledger on; None: they do not change.

    Raises QueueFenced: another process has this epoch, or there is a higher one.
    """

    def take(found: TopicRecord | None) -> TopicRecord:
        record = found or TopicRecord(topic)
        if record.epoch > epoch or (record.epoch == epoch and record.holder != holder):
            text = f"topic {topic}: the owner {record.holder} has epoch {record.epoch}"
            raise QueueFenced(f"{text}; {holder} cannot open the topic in epoch {epoch}")
        return msgspec.structs.replace(
            record,
            epoch=epoch,
            holder=holder,
            opening=record.opening + 1,
            settings=record.settings if settings is None else settings,
        )

    return take


def make_owned_change(
    own: TopicRecord, change: Callable[[TopicRecord], TopicRecord]
) -> Callable[[TopicRecord | None], TopicRecord]:
    """Return a change that only the owner that wrote `own` may make. Raises QueueFenced."""

    def check(found: TopicRecord | None) -> TopicRecord:
        if found is None:
            raise QueueFenced(f"the topic was deleted; its owner had epoch {own.epoch}")
        if found.owner != own.owner or found.holder != own.holder:
            text = (
                f"topic {found.topic}: the owner {found.holder} has epoch {found.epoch}, opening "
            )
            text += f"{found.opening}; this one has epoch {own.epoch}, opening {own.opening}"
            raise QueueFenced(text)
        return change(found)

    return check


def contradiction(topic: str, what: str) -> Corrupt:
    """Return the error for two rows of a topic, or a row and its ledger, that contradict each
    other."""
    text = (
        f"topic {show_text(topic)}: {what}; one of the two is damaged or older than before: stop "
    )
    return Corrupt(f"{text}all processes that use the store, and restore its newest backup")


def make_listed_and_gone(topic: str, ledger: int) -> Corrupt:
    """Return the error for a ledger that the topic lists and that has no row.

    This is damage: a ledger leaves the list before its row is deleted.
    """
    text = f"its row (topics/) lists ledger {ledger}, but the row of that ledger (ledgers/) is gone"
    return contradiction(topic, text)


def refuse_other(topic: str, span: LedgerSpan, record: LedgerRecord) -> None:
    """Raise Corrupt unless the row of a ledger agrees with the topic's list."""
    listed = f"its row (topics/) lists ledger {span.ledger}"
    if (record.topic, record.first) != (topic, span.first):
        text = f"{listed} from message {span.first} on, but the row of that ledger (ledgers/) has "
        text += f"topic {show_text(record.topic)}, from message {record.first} on"
        raise contradiction(topic, text)
    if not span.is_sealed:
        return
    if record.state is not LedgerState.CLOSED:
        text = f"{listed} with its end at entry {span.last}, but the row of that ledger (ledgers/) "
        raise contradiction(topic, f"{text}has no end: it is {record.state.value}")
    if (record.last, record.length) != (span.last, span.size_bytes):
        text = (
            f"{listed} with {span.size_bytes} bytes up to entry {span.last}, but the row of that "
        )
        text += f"ledger (ledgers/) has {record.length} bytes up to entry {record.last}"
        raise contradiction(topic, text)


def topic_rows(metadata: Metadata) -> RecordRows[str, TopicRecord]:
    """Return the records of topics, by name."""
    return RecordRows(metadata, "topics/", TopicRecord, key_part, is_witnessed=True)
