"""The decisions which ledgers of a topic may be deleted, and how large a backlog is.

Owns: the decisions `ledgers_to_trim`, `unread_bytes`, `first_within`. Pure. Not: carrying them out
(`trimmer`). As in Pulsar, a ledger is deleted as a whole. Invariants: the oldest ledger is deleted
first, and only if every named cursor has acknowledged all of it. The newest ledger with messages
stays, since it has the sequences of the producers.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.record import LedgerSpan

__all__ = ["first_within", "ledgers_to_trim", "unread_bytes"]


def ledgers_to_trim(
    spans: Sequence[LedgerSpan], floor: int, now_ms: int, options: LedgerTopicOptions
) -> int:
    """Return how many of the oldest ledgers are deleted.

    Args:
        spans: with the confirmed part of the last ledger.
        floor: the first message that some cursor has not acknowledged.
    """
    newest = max((at for at, span in enumerate(spans) if span.count), default=0)
    free = 0
    while free < newest and spans[free].is_sealed and spans[free].end <= floor:
        free += 1
    kept_bytes = sum(span.size_bytes for span in spans[:free])
    for at, span in enumerate(spans[:free]):
        if not is_over(span, kept_bytes, now_ms, options):
            return at
        kept_bytes -= span.size_bytes
    return free


def is_over(span: LedgerSpan, kept_bytes: int, now_ms: int, options: LedgerTopicOptions) -> bool:
    """Whether an acknowledged ledger is too old, or all of them together are too large."""
    limit_s, limit_bytes = options.retention_s, options.retention_bytes
    is_old = limit_s is not None and now_ms - span.last_ms >= limit_s * 1000
    return is_old or (limit_bytes is not None and kept_bytes > limit_bytes)


def unread_bytes(spans: Sequence[LedgerSpan], floor: int) -> int:
    """Estimate the bytes of the messages from `floor` on, as if all of a ledger had one size."""
    return sum(unread_of(span, floor) for span in spans)


def unread_of(span: LedgerSpan, floor: int) -> int:
    unread = min(max(span.end - floor, 0), span.count)
    return span.size_bytes * unread // span.count if unread else 0


def first_within(spans: Sequence[LedgerSpan], bytes_max: int) -> int:
    """Return the first message after which, counted in whole ledgers, at most `bytes_max` bytes
    follow; the end, if the last ledger alone is larger."""
    first, behind = spans[-1].end if spans else 0, 0
    for span in reversed(spans):
        behind += unread_of(span, span.first)
        if behind > bytes_max:
            break
        first = span.first
    return first
