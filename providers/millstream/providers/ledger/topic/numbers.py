"""The messages that were in lost entries.

Owns: `LostNumbers`. Not: which entries are lost (`handle.loss`), giving them up. Invariant: the
answers come from rows, and from the entries before and after a gap. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.providers.ledger.handle.loss import Gap
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import EntryDamaged
from millstream.providers.ledger.protocol.record import LedgerRecord

from .form import EntryHead, head_of
from .record import LedgerSpan, TopicRecord

__all__ = ["LostNumbers"]


class LostNumbers:
    """Finds the numbers of the messages that were in lost entries.

    Args:
        topics: the rows of the topics.
    """

    def __init__(self, topics: RecordRows[str, TopicRecord]) -> None:
        self._topics = topics

    async def of(self, record: LedgerRecord, gaps: Sequence[Gap]) -> list[tuple[int, int]]:
        """Return, for each gap, its first message and the message after its last one.

        0 means that a number is unknown. Raises StorageError.
        """
        topic = await self._topics.read(record.topic) if record.topic else None
        spans = [one for one in topic.spans if one.ledger == record.ledger] if topic else []
        return [between(gap, spans[0] if spans else None) for gap in gaps]


def between(gap: Gap, span: LedgerSpan | None) -> tuple[int, int]:
    """Return the messages of one gap."""
    before, after = head_at(gap.before), head_at(gap.after)
    first = end = 0
    if before is not None:
        first = before.end
    elif span is not None and gap.first == 0:
        first = span.first
    if after is not None:
        end = after.first
    elif span is not None and span.is_sealed:
        end = span.end - span.left_out
    return first, end


def head_at(edge: bytes) -> EntryHead | None:
    """Return the head of an entry's payload, if the entry belongs to a topic."""
    try:
        return head_of(edge)
    except EntryDamaged:
        return None
