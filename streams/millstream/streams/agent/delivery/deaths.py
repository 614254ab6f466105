"""Calls whose silo may have crashed while they were in flight; the fate of the silo is known later.
Pure.

`delivery` decides about the consequences. Invariants: a call counts at most once, and only if its
delivery has not moved and has had no reply since. A silo that stopped in order does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from millstream.streams.contracts.token import Token

from .delivery import Delivery
from .steps import Died
from .subscriber import Subscriber

__all__ = ["Deaths", "Fate"]


class Fate(Enum):
    """The fate of a silo, as far as it is known."""

    LIVES = "lives"  # or its fate is not known yet
    DIED = "died"
    LEFT = "left"  # it stopped in order


class LostCall(NamedTuple):
    """A call without a reply."""

    subscriber: Subscriber
    at: Token | None  # the place of its delivery
    died: Died  # the meaning of a crash of the silo


class Deaths:
    """The lost calls of one agent. `fate` returns the fate of a silo."""

    def __init__(self, fate: Callable[[str], Fate]) -> None:
        self._fate = fate
        self._lost: dict[str, dict[Delivery, LostCall]] = {}

    def may_have_died(self, silo: str) -> bool:
        """Say whether a silo is named and has not announced that it stops."""
        return silo != "" and self._fate(silo) is not Fate.LEFT

    def on_lost(self, silo: str, subscriber: Subscriber, delivery: Delivery, died: Died) -> None:
        """Record a call whose connection broke; the call may have crashed the silo."""
        lost = LostCall(subscriber, delivery.cursor.next_token, died)
        self._lost.setdefault(silo, {})[delivery] = lost

    def iter_judged(self) -> Iterator[tuple[Subscriber, Delivery, Died]]:
        """Yield and forget the calls whose silo crashed; forget those whose delivery has moved
        on."""
        for silo in list(self._lost):
            fate = self._fate(silo)
            waiting = {
                delivery: one
                for delivery, one in self._lost.pop(silo).items()
                if delivery.losses and delivery.cursor.next_token == one.at
            }
            if fate is Fate.LIVES and waiting:
                self._lost[silo] = waiting
            elif fate is Fate.DIED:
                for delivery, one in waiting.items():
                    yield one.subscriber, delivery, one.died
