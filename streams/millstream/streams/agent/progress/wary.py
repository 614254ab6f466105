"""The caution of an agent whose predecessors crashed, because an event may have crashed them. Pure.

Owns `Wary`: it chooses the event that the queue record must name before it is sent, and says how
long the caution lasts. `ownership` has the record, and `delivery.dispatch` sends.

Invariants: a wary agent sends only the event that the record names, and no other event at the same
time. An event keeps its count of crashes until it is done. In normal operation, the record names no
events.
"""

from __future__ import annotations

from msgspec import structs

from millstream.streams.agent.cache.positions import SubscriptionKey
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import QueueProgress, Suspect, lowest_of

__all__ = ["DEATHS_MIN", "SUSPECTS_MAX", "WARY_EVENTS_MAX", "Wary"]

DEATHS_MIN = 2  # owners in a row that crashed without progress; then the next one is wary
WARY_EVENTS_MAX = 1_000  # events that one agent sends warily
SUSPECTS_MAX = 100  # events of one queue whose crashes are remembered


class Wary:
    """The caution of one agent.

    Args:
        progress: the progress in the record when the queue was acquired.
        is_used: whether tokens are positions; otherwise an event cannot be recognised.
    """

    def __init__(self, progress: QueueProgress, *, is_used: bool) -> None:
        self._deaths = progress.deaths if is_used else 0
        self._began_at = lowest_of(progress)
        self._known: dict[tuple[SubscriptionKey, Token], int] = {}
        if is_used:
            for one in progress.suspects:
                self._known[(one.stream, one.subscription), one.token] = one.deaths
        self._out: tuple[SubscriptionKey, Token] | None = None  # must be named in the record
        self._noted: tuple[SubscriptionKey, Token] | None = None  # is named in the record
        self._count = 0
        self.is_on = self._deaths >= DEATHS_MIN or bool(self._known)
        self.matters = self._deaths > 0 or self.is_on  # the record has something of it

    @property
    def is_waiting(self) -> bool:
        """Whether an event waits until the record names it."""
        return self._out is not None and self._out != self._noted

    def deaths_of(self, key: SubscriptionKey, token: Token) -> int:
        """Return the number of owners that crashed while this event was in flight."""
        return self._known.get((key, token), 0)

    def may_send(self, key: SubscriptionKey, token: Token, deaths: int) -> bool:
        """Say whether the record names the event; if not, the record must be written first."""
        one = (key, token)
        if one == self._out:
            return one == self._noted
        if self._out is not None and not self._known.get(self._out):
            self._known.pop(self._out, None)  # no owner crashed because of it
        self._out = one
        self._count += 1
        self._known[one] = deaths
        while len(self._known) > SUSPECTS_MAX:
            self._known.pop(next(iter(self._known)))
        return False

    def on_done(self, key: SubscriptionKey, token: Token) -> None:
        """Record that the event is done, or was given up."""
        self._known.pop((key, token), None)
        if self._out == (key, token):
            self._out = None

    @property
    def is_tired(self) -> bool:
        """Whether the caution has lasted long enough."""
        return self._count >= WARY_EVENTS_MAX

    def end(self) -> None:
        """End the caution: events that former owners may have delivered are done."""
        self.is_on = False
        self._deaths = 0
        self._known.clear()
        self._out = self._noted = None

    def note_in(self, progress: QueueProgress) -> QueueProgress:
        """Return the progress with the crashes and suspects."""
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
        """Remember that the queue record has this progress."""
        self._noted = None
        for one in progress.suspects:
            if one.is_out:
                self._noted = ((one.stream, one.subscription), one.token)
        self.matters = bool(progress.deaths or progress.suspects or self.is_on)
