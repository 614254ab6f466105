"""Calls whose silo may have died while they were out: which did, is known only later.

Owns: `Deaths`. Not: what follows for a delivery (`delivery`), or what became of a silo (`Fates`).
Pure. Invariants: a call is blamed once, and only while its delivery is where it was and has heard
nothing since; a silo that stopped in order is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Protocol

from millstream.streams.contracts.token import Token

from .delivery import Delivery
from .steps import Died, Event, Unreachable
from .subscriber import Subscriber

__all__ = ["Deaths", "Fate", "Fates"]


class Fate(Enum):
    """What is known of a silo."""

    LIVES = "lives"  # or nobody knows yet
    DIED = "died"
    LEFT = "left"  # it stopped in order


class Fates(Protocol):
    """The members of the cluster."""

    def fate(self, silo: str, /) -> Fate: ...


class Lost(NamedTuple):
    """A call that told nothing."""

    subscriber: Subscriber
    at: Token | None  # where its delivery was
    died: Died  # what it would mean


class Deaths:
    """The lost calls of one agent."""

    def __init__(self, fates: Fates) -> None:
        self._fates = fates
        self._lost: dict[str, dict[Delivery, Lost]] = {}

    def may_have_died(self, event: Event) -> bool:
        """Has a call ended with its silo's connection, and the silo not said that it stops?"""
        if not isinstance(event, Unreachable) or not event.silo:
            return False
        return self._fates.fate(event.silo) is not Fate.LEFT

    def lost(self, silo: str, subscriber: Subscriber, delivery: Delivery, died: Died) -> None:
        """The connection to a silo broke while a call was out; it may have died of that."""
        if self._fates.fate(silo) is not Fate.LEFT:
            self._lost.setdefault(silo, {})[delivery] = Lost(subscriber, delivery.next_token, died)

    def judged(self) -> Iterator[tuple[Subscriber, Delivery, Died]]:
        """Those whose silo has died; they are forgotten, and so are those that go on."""
        for silo in list(self._lost):
            fate = self._fates.fate(silo)
            waiting = {
                delivery: one
                for delivery, one in self._lost.pop(silo).items()
                if delivery.is_lost and delivery.next_token == one.at
            }
            if fate is Fate.LIVES and waiting:
                self._lost[silo] = waiting
            elif fate is Fate.DIED:
                for delivery, one in waiting.items():
                    yield one.subscriber, delivery, one.died
