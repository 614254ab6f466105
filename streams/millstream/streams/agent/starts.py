"""Subscriptions that should begin at a token that their stream has not reached. Pure.

Owns `Starts`, for one stream of a provider that cannot be read again. There, no silo can ask for
the end of the queue. For other providers, `cache.cursor` compares the token with the stored
messages.

Invariant: a subscription that asks for a stored token begins there. If the token lies after the end
of the queue, the subscription begins with the first message that is stored after its request.
"""

from __future__ import annotations

from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

__all__ = ["Starts", "last_token"]


def last_token(message: QueueMessage) -> Token:
    """Return the token of a message's last item."""
    era, seq, first = message.token
    return Token(era, seq, first + max(0, len(message.items) - 1))


class Starts:
    """The subscriptions that wait for a token, and since when (wall clock)."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Token, float]] = {}

    def wait(self, subscription: str, start: Token, newest: Token | None, at_s: float) -> None:
        """Let a subscription begin at `start`. `newest` is the last token of its stream."""
        self.forget(subscription)
        if newest is None or newest < start:
            self._waiting[subscription] = (start, at_s)

    def forget(self, subscription: str) -> None:
        """Forget a subscription that moved or ended."""
        self._waiting.pop(subscription, None)

    def came(self, message: QueueMessage) -> list[tuple[str, Token]]:
        """Record a message; returns the subscriptions that wait for a token after the end of the
        queue.

        A token is stored before anyone can name it. So a message that is stored later with a lower
        token shows that the wanted token does not exist yet. If the provider gives no time, the
        message counts as stored later.
        """
        ahead: list[tuple[str, Token]] = []
        for subscription, (start, since_s) in list(self._waiting.items()):
            if last_token(message) >= start:
                del self._waiting[subscription]
            elif not message.enqueued_s or message.enqueued_s >= since_s:
                del self._waiting[subscription]
                ahead.append((subscription, start))
        return ahead
