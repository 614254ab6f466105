"""Subscriptions that were told to begin at a token which their stream has not come to.

Owns: `Starts`, of one stream; for providers that cannot be read again, where nobody can ask how far
the queue is (`lagging.behind` has the others). Pure.
Invariant: who begins at a token that is stored already begins there; who begins at one that lies
ahead of the queue begins with the first message that was stored after it asked.
"""

from __future__ import annotations

from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

__all__ = ["Starts", "last_token"]


def last_token(message: QueueMessage) -> Token:
    """The token of a message's last item."""
    era, seq, first = message.token
    return Token(era, seq, first + max(0, len(message.items) - 1))


class Starts:
    """Who waits for which token, and since when (wall clock)."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Token, float]] = {}

    def wait(self, subscription: str, start: Token, newest: Token | None, at_s: float) -> None:
        """A subscription is to begin at `start`; `newest`: how far its stream has come."""
        self.forget(subscription)
        if newest is None or newest < start:
            self._waiting[subscription] = (start, at_s)

    def forget(self, subscription: str) -> None:
        """It goes elsewhere, or ended."""
        self._waiting.pop(subscription, None)

    def came(self, message: QueueMessage) -> list[tuple[str, Token]]:
        """A message came: which subscriptions wait for a token that lies ahead of the queue.

        A token is stored before anyone can name it. So what was stored later and is before it shows
        that it was never given; a provider that tells no time is taken to have stored it later.
        """
        ahead: list[tuple[str, Token]] = []
        for subscription, (start, since_s) in list(self._waiting.items()):
            if last_token(message) >= start:
                del self._waiting[subscription]
            elif not message.enqueued_s or message.enqueued_s >= since_s:
                del self._waiting[subscription]
                ahead.append((subscription, start))
        return ahead
