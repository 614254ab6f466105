"""The leases of messages that were read and are not acknowledged: extended at half of their time.

Owns: `Leases`. Not: the call (`contained_receiver`), or what becomes of messages whose lease is
lost (`reader`, `cache`). Pure.
Invariant: a message is extended as long as it is neither acknowledged, given back nor lost, and by
as much as it was leased for.
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
        self._due_s: dict[Token, float] = {}  # half of its lease is over then
        self._lease_s = 0.0  # the longest that was given
        self._next_s = math.inf  # none is due before
        self._out: Sequence[Token] = ()

    def on_read(self, messages: Iterable[QueueMessage], now_s: float) -> None:
        """These were read now."""
        for message in messages:
            if message.lease_s > 0:
                self._lease_s = max(self._lease_s, message.lease_s)
                self._due_s[message.token] = due_s = now_s + message.lease_s / 2
                self._next_s = min(self._next_s, due_s)

    def on_done(self, tokens: Iterable[Token]) -> None:
        """These are acknowledged, or given back."""
        for token in tokens:
            self._due_s.pop(token, None)

    @property
    def next_s(self) -> float:
        """When to ask next, at or before the time at which a lease is due: to know the very time,
        each message that is done would cost a look at all leases."""
        return self._next_s if self._due_s else math.inf

    def _look(self) -> None:
        self._next_s = min(self._due_s.values(), default=math.inf)

    def ask(self, now_s: float) -> Extend | None:
        """The call to be made now, if any; it extends the leases that are due soon, too."""
        if now_s >= self._next_s:
            self._look()
        if now_s < self._next_s:
            return None
        soon_s = now_s + self._lease_s / 8
        self._out = [token for token, due_s in self._due_s.items() if due_s <= soon_s]
        return Extend(self._out, self._lease_s)

    def on_extended(self, answer: object, where: str, now_s: float) -> Sequence[Token]:
        """The call has returned `answer`: the tokens whose lease is lost. Raises AdapterFault."""
        lost = check_lost(answer, where)
        for token in self._out:
            if token in self._due_s:
                self._due_s[token] = now_s + self._lease_s / 2
        self.on_done(lost)
        self._look()
        return lost

    def on_failed(self, wait_s: float, now_s: float) -> None:
        """The call has raised: it is made again after `wait_s`."""
        for token in self._out:
            if token in self._due_s:
                self._due_s[token] = now_s + wait_s
        self._look()

    def clear(self) -> None:
        """The receiver is closed, and all is given back."""
        self._due_s.clear()
        self._next_s = math.inf
