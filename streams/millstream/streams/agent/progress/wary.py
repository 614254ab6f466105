"""How careful an agent is whose predecessors died, because an event may have killed them.

Owns: `Wary`: which event is noted in the queue record before it is sent, and how long that lasts.
Not: the record (`ownership`), sending (`delivery.dispatch`). Pure.
Invariants: while wary, nothing is sent that the record does not name as out, and nothing else is
out beside it; an event keeps its deaths until it is done; in normal operation nothing is noted.
"""

from __future__ import annotations

from msgspec import structs

from millstream.streams.agent.cache.positions import SubscriptionKey
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import QueueProgress, Suspect, lowest_of

__all__ = ["DEATHS_MIN", "SUSPECTS_MAX", "WARY_EVENTS_MAX", "Wary"]

DEATHS_MIN = 2  # owners in a row that died without progress, before the next one is wary
WARY_EVENTS_MAX = 1_000  # that one agent sends warily
SUSPECTS_MAX = 100  # events of one queue whose deaths are remembered


class Wary:
    """The caution of one agent.

    Args:
        progress: as the record said it when the queue was acquired.
        is_used: tokens are positions; else an event cannot be known again.
    """

    def __init__(self, progress: QueueProgress, *, is_used: bool) -> None:
        self._deaths = progress.deaths if is_used else 0
        self._began_at = lowest_of(progress)
        self._known: dict[tuple[SubscriptionKey, Token], int] = {}
        if is_used:
            for one in progress.suspects:
                self._known[(one.stream, one.subscription), one.token] = one.deaths
        self._out: tuple[SubscriptionKey, Token] | None = None  # to be noted
        self._noted: tuple[SubscriptionKey, Token] | None = None  # the record names it
        self._count = 0
        self.is_on = self._deaths >= DEATHS_MIN or bool(self._known)
        self.matters = self._deaths > 0 or self.is_on  # the record has something of it

    @property
    def is_waiting(self) -> bool:
        """Is an event held back until the record names it?"""
        return self._out is not None and self._out != self._noted

    def deaths_of(self, key: SubscriptionKey, token: Token) -> int:
        """How often an owner died while it had this event out."""
        return self._known.get((key, token), 0)

    def may_send(self, key: SubscriptionKey, token: Token, deaths: int) -> bool:
        """Does the record name the event as out? If not, it is to be written."""
        one = (key, token)
        if one == self._out:
            return one == self._noted
        if self._out is not None and not self._known.get(self._out):
            self._known.pop(self._out, None)  # nobody died of it
        self._out = one
        self._count += 1
        self._known[one] = deaths
        while len(self._known) > SUSPECTS_MAX:
            self._known.pop(next(iter(self._known)))
        return False

    def on_done(self, key: SubscriptionKey, token: Token) -> None:
        """The event is done, or was given up."""
        self._known.pop((key, token), None)
        if self._out == (key, token):
            self._out = None

    @property
    def is_tired(self) -> bool:
        """Has it lasted for long enough?"""
        return self._count >= WARY_EVENTS_MAX

    def end(self) -> None:
        """What the former owners may have had is done: be as quick as ever."""
        self.is_on = False
        self._deaths = 0
        self._known.clear()
        self._out = self._noted = None

    def note_in(self, progress: QueueProgress) -> QueueProgress:
        """The progress with what the record should say of deaths."""
        if not self.is_on and self._deaths:
            lowest = lowest_of(progress)
            if lowest is not None and (self._began_at is None or lowest > self._began_at):
                self._deaths = 0
        suspects = tuple(
            Suspect(
                *stream, subscription, token, deaths, ((stream, subscription), token) == self._out
            )
            for ((stream, subscription), token), deaths in self._known.items()
        )
        return structs.replace(progress, deaths=self._deaths, suspects=suspects)

    def on_stored(self, progress: QueueProgress) -> None:
        """The record says this now."""
        self._noted = None
        for one in progress.suspects:
            if one.is_out:
                self._noted = ((one.stream, one.subscription), one.token)
        self.matters = bool(progress.deaths or progress.suspects or self.is_on)
