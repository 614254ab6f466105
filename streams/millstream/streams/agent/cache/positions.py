"""Positions just before and just behind a token. Pure."""

from __future__ import annotations

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = ["BEGINNING", "LAST_INDEX", "SubscriptionKey", "before", "following", "past"]

BEGINNING = Token(0, 0, 0)
"""The oldest message that is kept, whichever it is."""
LAST_INDEX = 2**32 - 1
"""The highest index that an item can have."""
SubscriptionKey = tuple[StreamId, str]


def following(token: Token) -> Token:
    """The beginning of the messages behind this one."""
    return Token(token.era, token.seq + 1)


def before(token: Token) -> Token:
    """The position just before a token, within its message or at the end of the one before."""
    if token.index > 0:
        return Token(token.era, token.seq, token.index - 1)
    return Token(token.era, token.seq - 1, LAST_INDEX)


def past(token: Token) -> Token:
    """The position just behind an item."""
    if token.index >= LAST_INDEX:
        return following(token)
    return Token(token.era, token.seq, token.index + 1)
