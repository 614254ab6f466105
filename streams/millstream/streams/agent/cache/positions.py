"""Positions just before and just after a token. Pure."""

from __future__ import annotations

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = ["BEGINNING", "LAST_INDEX", "SubscriptionKey", "before", "following", "past"]

BEGINNING = Token(0, 0, 0)
"""The beginning of the queue: the oldest message that is kept."""
LAST_INDEX = 2**32 - 1
"""The highest index of an item."""
SubscriptionKey = tuple[StreamId, str]


def following(token: Token) -> Token:
    """Return the beginning of the messages after this one."""
    return Token(token.era, token.seq + 1)


def before(token: Token) -> Token:
    """Return the position just before a token: in its message, or at the end of the previous
    message."""
    if token.index > 0:
        return Token(token.era, token.seq, token.index - 1)
    return Token(token.era, token.seq - 1, LAST_INDEX)


def past(token: Token) -> Token:
    """Return the position just after an item."""
    if token.index >= LAST_INDEX:
        return following(token)
    return Token(token.era, token.seq, token.index + 1)
