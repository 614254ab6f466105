"""What is gone of a queue, and which subscriptions are still to hear of it.

Owns: `Loss`, `Losses`. Pure. Not: finding out (`reading`), telling (`delivery`). Invariants: each
subscription of each stream that is met while the queue has this owner hears of what is gone, and as
a rule once; losses are kept in order and apart, so that each is told before what follows it and
behind what does not; those that cannot be kept apart become one that spans them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = ["LOSSES_MAX", "TOLD_MAX", "Loss", "Losses", "spanning", "with_loss"]

LOSSES_MAX = 8
"""Losses that are kept apart for one that is still to hear of them; the oldest become one."""

TOLD_MAX = 100_000
"""Idle streams that are remembered as told; one beyond may hear of a loss again."""


class Loss(msgspec.Struct, frozen=True):
    """What was stored behind `after` and before `first` is gone; None: not known."""

    after: Token | None
    first: Token | None

    def is_before(self, token: Token) -> bool:
        """Does the event at a token follow it, as far as is known?"""
        return self.after is None or token > self.after

    def is_apart(self, later: Loss) -> bool:
        """May an event be between this one and one that begins later?"""
        if later.after is None:
            return False
        if self.first is not None:
            return self.first <= later.after
        return self.after is not None and self.after < later.after


def spanning(losses: Sequence[Loss]) -> Loss:
    """One that spans these; there is one at least. Pure."""
    if len(losses) == 1:
        return losses[0]
    afters, firsts = [one.after for one in losses], [one.first for one in losses]
    return Loss(
        None if None in afters else min(filter(None, afters)),
        None if None in firsts else max(filter(None, firsts)),
    )


def with_loss(known: Sequence[Loss], new: Loss) -> tuple[Loss, ...]:
    """What was known, and one more; in order, and apart. Pure."""
    found: list[Loss] = []
    for loss in sorted((*known, new), key=lambda one: one.after or Token(0, 0)):
        while found and not found[-1].is_apart(loss):
            loss = spanning((found.pop(), loss))
        found.append(loss)
    spare = len(found) - LOSSES_MAX
    return tuple(found if spare <= 0 else [spanning(found[: spare + 1]), *found[spare + 1 :]])


class Losses:
    """What is gone of a whole queue, for whichever streams it was of."""

    def __init__(self) -> None:
        self._all: tuple[Loss, ...] = ()
        self._told: dict[StreamId, None] = {}  # of those that are not known any more

    def add(self, loss: Loss) -> None:
        """More is gone: everybody is to hear of it."""
        self._all = with_loss(self._all, loss)
        self._told.clear()

    def of(self, stream: StreamId) -> Sequence[Loss]:
        """What a stream that was just met is to hear of."""
        return () if stream in self._told else self._all

    def covers(self, losses: Sequence[Loss]) -> bool:
        """Would a stream that is forgotten, and met again, hear of all these?"""
        return all(with_loss(self._all, one) == self._all for one in losses)

    def forget(self, stream: StreamId, *, is_told: bool) -> None:
        """A stream is not known any more; if it was told, it is not told again."""
        if self._all and is_told:
            self._told[stream] = None
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
