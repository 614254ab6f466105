"""What is gone of a queue, and which subscriptions are still to hear of it.

Owns: `Loss`, `Losses`. Pure. Not: finding out (`reading`), telling (`delivery`). Invariants: each
subscription of each stream that is met while the queue has this owner hears of what is gone, and as
a rule once; several losses become one that spans them, so that none is told too late.
"""

from __future__ import annotations

import msgspec

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = ["TOLD_MAX", "Loss", "Losses", "with_loss"]

TOLD_MAX = 100_000
"""Idle streams that are remembered as told; one beyond may hear of a loss again."""


class Loss(msgspec.Struct, frozen=True):
    """What was stored behind `after` and before `first` is gone; None: not known."""

    after: Token | None
    first: Token | None


def with_loss(known: Loss | None, new: Loss) -> Loss:
    """Both, as one that spans them. Pure."""
    if known is None:
        return new
    afters, firsts = (known.after, new.after), (known.first, new.first)
    return Loss(
        None if None in afters else min(filter(None, afters)),
        None if None in firsts else max(filter(None, firsts)),
    )


class Losses:
    """What is gone of a whole queue, for whichever streams it was of."""

    def __init__(self) -> None:
        self._all: Loss | None = None
        self._told: dict[StreamId, None] = {}  # of those that are not known any more

    def add(self, loss: Loss) -> None:
        """More is gone: everybody is to hear of it."""
        self._all = with_loss(self._all, loss)
        self._told.clear()

    def of(self, stream: StreamId) -> Loss | None:
        """What a stream that was just met is to hear of."""
        return None if self._all is None or stream in self._told else self._all

    def covers(self, loss: Loss | None) -> bool:
        """Would a stream that is forgotten, and met again, hear of it?"""
        return loss is None or (self._all is not None and with_loss(self._all, loss) == self._all)

    def forget(self, stream: StreamId, *, is_told: bool) -> None:
        """A stream is not known any more; if it was told, it is not told again."""
        if self._all is not None and is_told:
            self._told[stream] = None
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
