"""What others may see of a delivery: where it is, and how often its item was tried.

Owns: `SeenDelivery`; `Tries`, which are values. Not: what changes them (`delivery`). Pure.
Invariant: an item is not given up for deaths alone, unless one of them was while it ran alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.lagging.behind import BehindCursor
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .held_cursor import HeldCursor
from .steps import DeliveryState, Died, Failure, FailureKind

__all__ = ["DEATHS_FEARED", "FATE_WAIT_S", "UNTRIED", "SeenDelivery", "Tries"]

FATE_WAIT_S = 30.0  # for it to be known whether a silo died, before an event's last try
DEATHS_FEARED = 2  # an item that had so many runs alone in its queue


class Tries(msgspec.Struct, frozen=True):
    """The tries of one item, as far as they were seen here.

    `failures`: of its handler; `deaths`: of silos that had it; `died_alone`: one of them while
    nothing else of its queue was out; `error`: the last of both.
    """

    failures: int = 0
    deaths: int = 0
    died_alone: bool = False
    error: Failure | None = None

    def failed(self, error: Failure) -> Tries:
        """Its handler did."""
        return msgspec.structs.replace(self, failures=self.failures + 1, error=error)

    def died(self, event: Died) -> Tries:
        """A silo did that had it."""
        deaths = self.deaths + event.times
        text = f"SiloUnavailable: the silo of its handler died {deaths} times while it ran"
        is_alone = self.died_alone or event.is_alone
        return Tries(self.failures, deaths, is_alone, Failure(FailureKind.DEATH, text))

    def is_hopeless(self, tried: int, retries: int) -> bool:
        """Is it to be given up? `tried`: all that are known of, here and elsewhere."""
        if self.error is None:
            return False
        if self.error.is_final:
            return True
        is_known = self.died_alone or self.error.kind is not FailureKind.DEATH
        return is_known and tried > retries

    def is_feared(self, more: int, tried: int, retries: int) -> bool:
        """Is it to run alone, if so many more deaths are counted for it than are known?"""
        deaths = self.deaths + more
        return deaths >= DEATHS_FEARED or (deaths > 0 and tried > retries)


UNTRIED = Tries()


class SeenDelivery:
    """The state of a delivery, to be looked at."""

    __slots__ = ("_cursor", "_losses", "_out", "_sent_s", "_tries", "_trouble", "_when_s", "state")

    _cursor: Cursor | BehindCursor | HeldCursor
    _losses: int  # calls in a row that told nothing
    _out: Sequence[Item]
    _sent_s: float  # when the call was made that is out
    _tries: Tries  # of the item at the cursor
    _trouble: str
    _when_s: float  # when what backs off is tried again
    state: DeliveryState

    @property
    def index(self) -> int | None:
        """The absolute index of the first message that is not done; None at the end."""
        return self._cursor.index

    @property
    def is_out(self) -> bool:
        """Has its consumer, or the failure handler, something of it now?"""
        return self.state in (DeliveryState.IN_FLIGHT, DeliveryState.GIVING_UP)

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
    def due_s(self) -> float:
        """When it is tried again, while it backs off, by the loop's clock."""
        return self._when_s

    @property
    def place(self) -> tuple[Token | None, Token | None]:
        """Where it holds and where it sends: what changes when it goes on."""
        return self._cursor.token, self._cursor.next_token

    @property
    def last_out(self) -> int:
        """The last message of which something is out; -1: none, or it is behind."""
        if isinstance(self._cursor, HeldCursor):
            return sys.maxsize  # what was delivered before is out until it is acknowledged
        if not self.is_out or not isinstance(self._cursor, Cursor):
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
