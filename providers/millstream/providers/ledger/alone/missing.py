"""The decision whether topics can be used without directories that cannot be opened now. Pure.

Owns: `unmet`. Not: which directories can be opened (`own`). Invariants: every acknowledged entry of
every ledger is in an open directory, and the open directories can prove which entries were
acknowledged. There are as many open directories as an acknowledgement needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.protocol.record import Fragment, LedgerRecord, LedgerState
from millstream.providers.ledger.topic.record import TopicRecord
from millstream.runtime.extending import show_text

__all__ = ["unmet"]


def unmet(
    ledgers: Iterable[LedgerRecord],
    topics: Iterable[TopicRecord],
    usual: Quorum,
    bookies: Collection[str],
) -> str:
    """Return the reason why these bookies do not suffice, or "" if they suffice.

    Args:
        usual: the quorum of a topic without one.
    """
    needed = [
        (one.settings.quorum or usual, f"topic {show_text(repr(one.topic))}") for one in topics
    ]
    for quorum, what in [*needed, (usual, "a new topic")]:
        if len(bookies) < quorum.ack:
            text = f"{what} needs {quorum.ack} directories (ack_quorum), but only {len(bookies)}"
            return f"{text} can be used"
    for record in ledgers:
        for fragment in record.fragments:
            if not is_known(record, fragment, bookies):
                text = f"ledger {record.ledger} of {record.topic or 'no topic'} is on bookies "
                text += ", ".join(fragment.bookies)
                return f"{text}, and cannot be read without the missing directories"
    return ""


def is_known(record: LedgerRecord, fragment: Fragment, bookies: Collection[str]) -> bool:
    """Whether these bookies have all entries of a fragment, and can prove its end."""
    quorum = record.quorum
    has_end = record.state is LedgerState.CLOSED and record.complete == record.last
    needed = 1 if has_end else quorum.denials
    return all(
        sum(fragment.bookies[place] in bookies for place in quorum.write_set(entry)) >= needed
        for entry in range(quorum.ensemble)
    )
