"""What of a topic may be deleted, and how much its cursors have before them.

Owns: the decisions `ledgers_to_trim`, `unread_bytes`, `first_within`. Pure. Not: doing it
(`topic`). Idea: spec/ledger.md 7.30 to 7.34. Invariants: a ledger goes as a whole, oldest first,
and only if all of it was acknowledged by every named cursor; the newest ledger that has messages
stays, since it says which sequences of producers are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.providers.ledger.topic.options import LedgerTopicOptions
from millstream.providers.ledger.topic.record import LedgerSpan

__all__ = ["first_within", "ledgers_to_trim", "unread_bytes"]


def ledgers_to_trim(
    spans: Sequence[LedgerSpan], floor: int, now_ms: int, options: LedgerTopicOptions
) -> int:
    """How many of the oldest ledgers go.

    Args:
        spans: with what is confirmed in the last one.
        floor: the first message that a cursor has not acknowledged.
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
    """Is an acknowledged ledger too old, or are they too large together?"""
    limit_s, limit_bytes = options.retention_s, options.retention_bytes
    is_old = limit_s is not None and now_ms - span.last_ms >= limit_s * 1000
    return is_old or (limit_bytes is not None and kept_bytes > limit_bytes)


def unread_bytes(spans: Sequence[LedgerSpan], floor: int) -> int:
    """About so many bytes lie from a message on; within a ledger, as if all were of one size."""
    return sum(unread_of(span, floor) for span in spans)


def unread_of(span: LedgerSpan, floor: int) -> int:
    unread = min(max(span.end - floor, 0), span.count)
    return span.size_bytes * unread // span.count if unread else 0


def first_within(spans: Sequence[LedgerSpan], bytes_max: int) -> int:
    """The first message from which on, at ledgers' ends, there are `bytes_max` bytes at most; the
    end, if the last ledger alone has more."""
    first, behind = spans[-1].end if spans else 0, 0
    for span in reversed(spans):
        behind += unread_of(span, span.first)
        if behind > bytes_max:
            break
        first = span.first
    return first
