"""Which messages were in entries that are lost.

Owns: `LostNumbers`. Not: which entries are (`handle.loss`), giving them up. Invariant: it is what
rows and the entries beside them say; what they do not say is not guessed.
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
    """Numbers of messages by entries, as the rows of topics say."""

    def __init__(self, topics: RecordRows[str, TopicRecord]) -> None:
        self._topics = topics

    async def of(self, record: LedgerRecord, gaps: Sequence[Gap]) -> list[tuple[int, int]]:
        """For each gap the first message, and the one behind the last; 0: nobody knows. Raises
        StorageError."""
        topic = await self._topics.read(record.topic) if record.topic else None
        spans = [one for one in topic.spans if one.ledger == record.ledger] if topic else []
        return [between(gap, spans[0] if spans else None) for gap in gaps]


def between(gap: Gap, span: LedgerSpan | None) -> tuple[int, int]:
    """The messages of one gap."""
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
    """What stands before an entry's messages, if it is a topic's."""
    try:
        return head_of(edge)
    except EntryDamaged:
        return None
