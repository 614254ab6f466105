"""The leases of messages that were read and not acknowledged: extended at half of their time. Pure.

`contained_receiver` makes the call. `reader` and `cache` handle messages whose lease is lost.
Invariant: a message is extended until it is acknowledged, returned or lost, each time by its full
lease time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from millstream.streams.contracts.answers import check_lost
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

from .steps import Extend

__all__ = ["Leases"]


class Leases:
    """The leases of one receiver."""

    __slots__ = ("_due_s", "_lease_s", "_next_s", "_out")

    def __init__(self) -> None:
        self._due_s: dict[Token, float] = {}  # when half of the lease is over
        self._lease_s = 0.0  # the longest lease time so far
        self._next_s = math.inf  # no lease is due earlier
        self._out: Sequence[Token] = ()

    def on_read(self, messages: Iterable[QueueMessage], now_s: float) -> None:
        """Record messages that were read at this time."""
        for message in messages:
            if message.lease_s > 0:
                self._lease_s = max(self._lease_s, message.lease_s)
                self._due_s[message.token] = due_s = now_s + message.lease_s / 2
                self._next_s = min(self._next_s, due_s)

    def on_done(self, tokens: Iterable[Token]) -> None:
        """Record messages that are acknowledged, or returned."""
        for token in tokens:
            self._due_s.pop(token, None)

    @property
    def next_s(self) -> float:
        """The time of the next question, at or before a lease is due. An exact time would cost a
        look at all leases for each finished message."""
        return self._next_s if self._due_s else math.inf

    def _look(self) -> None:
        self._next_s = min(self._due_s.values(), default=math.inf)

    def ask(self, now_s: float) -> Extend | None:
        """Return the call to make now, if any; it also extends leases that are due soon."""
        if now_s >= self._next_s:
            self._look()
        if now_s < self._next_s:
            return None
        soon_s = now_s + self._lease_s / 8
        self._out = [token for token, due_s in self._due_s.items() if due_s <= soon_s]
        return Extend(self._out, self._lease_s)

    def on_extended(self, answer: object, where: str, now_s: float) -> Sequence[Token]:
        """Handle the answer of the call; returns the tokens whose lease is lost. Raises
        AdapterFault."""
        lost = check_lost(answer, where)
        for token in self._out:
            if token in self._due_s:
                self._due_s[token] = now_s + self._lease_s / 2
        self.on_done(lost)
        self._look()
        return lost

    def on_failed(self, wait_s: float, now_s: float) -> None:
        """Handle an error of the call: it is repeated after `wait_s`."""
        for token in self._out:
            if token in self._due_s:
                self._due_s[token] = now_s + wait_s
        self._look()

    def clear(self) -> None:
        """Forget all leases, because the receiver is closed, which returns all messages."""
        self._due_s.clear()
        self._next_s = math.inf
