"""What others may see of a delivery: where it is, and how it fares.

Owns: `SeenDelivery`. Not: what changes it (`delivery`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.lagging.behind import BehindCursor
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .held_cursor import HeldCursor
from .steps import DeliveryState
from .tries import Tries

__all__ = ["SeenDelivery"]


class SeenDelivery:
    """The state of a delivery, to be looked at."""

    __slots__ = ("_cursor", "_losses", "_out", "_sent_s", "_tries", "_trouble", "state")

    _cursor: Cursor | BehindCursor | HeldCursor
    _losses: int  # calls in a row that told nothing
    _out: Sequence[Item]
    _sent_s: float  # when the call was made that is out
    _tries: Tries  # of the item at the cursor
    _trouble: str
    state: DeliveryState

    @property
    def index(self) -> int | None:
        """The absolute index of the first message that is not done; None at the end."""
        return self._cursor.index

    @property
    def is_within(self) -> bool:
        """Is a part of its message done?"""
        token = self._cursor.token
        return token is not None and token.index > 0

    @property
    def may_repeat(self) -> bool:
        """Is it behind, and may what it gets have been delivered before?"""
        return self._cursor.may_repeat

    @property
    def attempts(self) -> int:
        """Failures of the item that is delivered next, or now, those that the queue counts too."""
        return self._tries.failures + self._tries.deaths + self._cursor.tried

    @property
    def deaths(self) -> int:
        """Of silos that had the item that is delivered next."""
        return self._tries.deaths

    @property
    def is_lost(self) -> bool:
        """Has the last call told nothing?"""
        return self._losses > 0

    @property
    def is_away(self) -> bool:
        """Is its next item to be read anew first?"""
        return self._cursor.is_away

    @property
    def has_failed(self) -> bool:
        """Has a failure of the item at the cursor been seen here?"""
        return self._tries.error is not None

    @property
    def trouble(self) -> str:
        """What went wrong last, while something is."""
        if self._tries.error is not None:
            return self._tries.error.text
        return self._trouble if self._losses else ""

    @property
    def last_out(self) -> int:
        """The last message of which something is out; -1: none, or it is behind."""
        if isinstance(self._cursor, HeldCursor):
            return sys.maxsize  # what was delivered before is out until it is acknowledged
        is_out = self.state in (DeliveryState.IN_FLIGHT, DeliveryState.GIVING_UP)
        if not is_out or not isinstance(self._cursor, Cursor):
            return -1
        return self._cursor.index_at(len(self._out) - 1)

    def out_s(self, now_s: float) -> float:
        """Since when a call is out; 0: none is."""
        return now_s - self._sent_s if self.state is DeliveryState.IN_FLIGHT else 0.0

    def lag(self) -> tuple[int, float]:
        """Events that are not done, and when the oldest was stored (wall clock).

        Cost: O(messages of the stream in the cache).
        """
        return self._cursor.lag()

    @property
    def next_token(self) -> Token | None:
        """The token of the item that is delivered next, or now; None at the end."""
        return self._cursor.next_token

    @property
    def next_index(self) -> int | None:
        """The absolute index of the message that is delivered next, or now; None at the end."""
        return self._cursor.next_index
