"""What is gone of a queue, and which subscriptions are still to hear of it.

Owns: `Loss`, `Losses`. Pure. Not: finding out (`reading`), telling (`delivery`), when the record is
written (`ownership`). Invariants: each subscription of each stream that is met while the queue has
this owner, or for a while another one, hears of what is gone, and of one owner as a rule once;
losses are kept in order and apart, so that each is told before what follows it and
behind what does not; those that cannot be kept apart become one that spans them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import LostRanges, QueueProgress

__all__ = ["LOSSES_MAX", "LOST_KEPT_S", "TOLD_MAX", "Loss", "Losses", "spanning", "with_loss"]

LOST_KEPT_S = 3600.0
"""So long after the last loss the next owner of a queue tells of it, too (wall clock)."""

LOSSES_MAX = 8
"""Losses that are kept apart for one that is still to hear of them; the oldest become one."""

TOLD_MAX = 100_000
"""Idle streams that are remembered as told; one beyond may hear of a loss again."""


class Loss(msgspec.Struct, frozen=True):
    """What was stored behind `after` and before `first` is gone; None: not known."""

    after: Token | None
    first: Token | None

    @property
    def messages_max(self) -> int | None:
        """At most so many messages of the queue are gone, of whichever stream; None: not known."""
        after, first = self.after, self.first
        if after is None or first is None or after.era != first.era:
            return None
        return max(0, first.seq - after.seq - 1)

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
    spare = max(0, len(found) - LOSSES_MAX)
    return (spanning(found[: spare + 1]), *found[spare + 1 :])


class Losses:
    """What is gone of a whole queue, for whichever streams it was of.

    Args:
        lost: what former owners have found, as the record says it.
        is_noted: the record is to say it; else tokens are no positions.
    """

    def __init__(
        self, lost: LostRanges | None = None, wall_s: float = 0.0, *, is_noted: bool = False
    ) -> None:
        self._is_noted = is_noted
        self._stored = lost
        is_fresh = lost is not None and wall_s - lost.found_s < LOST_KEPT_S
        self._lost = lost if is_fresh else None  # as the record is to say it
        parts = () if self._lost is None else self._lost.parts
        self._all = self._found = tuple(Loss(*part) for part in parts)
        self._told: dict[StreamId, None] = {}  # of those that are not known any more

    def add(self, loss: Loss, wall_s: float) -> None:
        """More is gone: everybody is to hear of it."""
        self._all = with_loss(self._all, loss)
        self.note(loss, wall_s)
        self._told.clear()

    def note(self, loss: Loss, wall_s: float) -> None:
        """One that was behind needed this, and was told; the next owner tells whoever may have."""
        self._found = with_loss(self._found, loss)
        self._lost = LostRanges(wall_s, tuple((one.after, one.first) for one in self._found))

    # -- the queue's record

    @property
    def matters(self) -> bool:
        """Does the record say something else?"""
        return self._is_noted and self._stored != self._lost

    is_waiting = matters  # until it does, nothing behind a loss is acknowledged

    def note_in(self, progress: QueueProgress) -> QueueProgress:
        """The progress with what is gone."""
        return msgspec.structs.replace(progress, lost=self._lost)

    def on_stored(self, progress: QueueProgress) -> None:
        """The record says this now."""
        self._stored = progress.lost

    # -- who hears of it

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
