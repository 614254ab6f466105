"""Calls whose silo may have died while they were out: only later is known which silos did.

Owns: `Deaths`. Not: what follows for a delivery (`delivery`), or finding out what became of a silo.
Pure. Invariants: a call is blamed once, and only while its delivery is where it was and has heard
nothing since; a silo that stopped in order is nobody's fault.
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

    LIVES = "lives"  # or nobody knows yet
    DIED = "died"
    LEFT = "left"  # it stopped in order


class LostCall(NamedTuple):
    """A call that told nothing."""

    subscriber: Subscriber
    at: Token | None  # where its delivery was
    died: Died  # what it would mean


class Deaths:
    """The lost calls of one agent; `fate`: what is known of a silo."""

    def __init__(self, fate: Callable[[str], Fate]) -> None:
        self._fate = fate
        self._lost: dict[str, dict[Delivery, LostCall]] = {}

    def may_have_died(self, silo: str) -> bool:
        """Is there a silo, and has it not said that it stops?"""
        return silo != "" and self._fate(silo) is not Fate.LEFT

    def on_lost(self, silo: str, subscriber: Subscriber, delivery: Delivery, died: Died) -> None:
        """The connection to a silo broke while a call was out; it may have died of that."""
        lost = LostCall(subscriber, delivery.cursor.next_token, died)
        self._lost.setdefault(silo, {})[delivery] = lost

    def iter_judged(self) -> Iterator[tuple[Subscriber, Delivery, Died]]:
        """The calls whose silo has died; these, and those whose delivery went on, are forgotten."""
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
