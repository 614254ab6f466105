"""The events that a queue has lost, and the subscriptions that still need a report. Pure.

Owns `Loss` and `Losses`. `reading` finds losses, `delivery` reports them, and `ownership` writes
the record.

Invariants:

- Each subscription that is known while the queue has this owner gets a report of each loss; for a
  while, the next owner reports too. One owner normally reports a loss once.
- Losses are kept in order and apart, so each is reported before the events that follow it and after
  the events before it. Losses that cannot be kept apart become one loss that spans them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import LostRanges, QueueProgress

__all__ = ["LOSSES_MAX", "LOST_KEPT_S", "TOLD_MAX", "Loss", "Losses", "spanning", "with_loss"]

LOST_KEPT_S = 3600.0
"""Seconds after the last loss (wall clock) in which the next owner of a queue reports it, too."""

LOSSES_MAX = 8
"""Limit of the losses that are kept apart for one receiver; the oldest ones are merged."""

TOLD_MAX = 100_000
"""Limit of the idle streams of which the agent remembers that they had all reports.

Other idle streams may get a report again.
"""


class Loss(msgspec.Struct, frozen=True):
    """Events after `after` and before `first` are missing. None means that a bound is unknown."""

    after: Token | None
    first: Token | None

    @property
    def messages_max(self) -> int | None:
        """The most messages of the queue that can be missing, of any stream, or None if that is
        unknown."""
        after, first = self.after, self.first
        if after is None or first is None or after.era != first.era:
            return None
        return max(0, first.seq - after.seq - 1)

    def is_before(self, token: Token) -> bool:
        """Say whether the event at a token follows this loss, as far as is known."""
        return self.after is None or token > self.after

    def is_apart(self, later: Loss) -> bool:
        """Say whether an event may lie between this loss and one that begins later."""
        if later.after is None:
            return False
        if self.first is not None:
            return self.first <= later.after
        return self.after is not None and self.after < later.after


def spanning(losses: Sequence[Loss]) -> Loss:
    """Return one loss that spans these; there must be at least one. Pure."""
    afters, firsts = [one.after for one in losses], [one.first for one in losses]
    return Loss(
        None if None in afters else min(filter(None, afters)),
        None if None in firsts else max(filter(None, firsts)),
    )


def with_loss(known: Sequence[Loss], new: Loss) -> tuple[Loss, ...]:
    """Return the known losses and a new one, in order and apart. Pure."""
    found: list[Loss] = []
    for loss in sorted((*known, new), key=lambda one: one.after or Token(0, 0)):
        while found and not found[-1].is_apart(loss):
            loss = spanning((found.pop(), loss))
        found.append(loss)
    spare = max(0, len(found) - LOSSES_MAX)
    return (spanning(found[: spare + 1]), *found[spare + 1 :])


class Losses:
    """The losses of a whole queue, for all its streams.

    Args:
        lost: the losses that former owners found, from the record.
        is_noted: whether the record must list losses; False if tokens are not positions.
    """

    def __init__(
        self, lost: LostRanges | None = None, wall_s: float = 0.0, *, is_noted: bool = False
    ) -> None:
        self._is_noted = is_noted
        self._stored = lost
        is_fresh = lost is not None and wall_s - lost.found_s < LOST_KEPT_S
        self._lost = lost if is_fresh else None  # as the record should list it
        parts = () if self._lost is None else self._lost.parts
        self._all = self._found = tuple(Loss(*part) for part in parts)
        self._told: dict[StreamId, None] = {}  # streams that had all reports and were forgotten

    def add(self, loss: Loss, wall_s: float) -> None:
        """Add a loss, which must be reported to all subscriptions."""
        self._all = with_loss(self._all, loss)
        self.note(loss, wall_s)
        self._told.clear()

    def note(self, loss: Loss, wall_s: float) -> None:
        """Record a loss that was reported to a lagging subscription; the next owner reports it
        again."""
        self._found = with_loss(self._found, loss)
        self._lost = LostRanges(wall_s, tuple((one.after, one.first) for one in self._found))

    # -- the queue's record

    @property
    def matters(self) -> bool:
        """Whether the record must be written, because it lists other losses."""
        return self._is_noted and self._stored != self._lost

    is_waiting = matters  # until the record lists a loss, nothing after it is acknowledged

    def note_in(self, progress: QueueProgress) -> QueueProgress:
        """Return the progress with these losses."""
        return msgspec.structs.replace(progress, lost=self._lost)

    def on_stored(self, progress: QueueProgress) -> None:
        """Remember that the queue record has this progress."""
        self._stored = progress.lost

    # -- reports to streams

    def of(self, stream: StreamId) -> Sequence[Loss]:
        """Return the losses to report to a newly known stream."""
        return () if stream in self._told else self._all

    def covers(self, losses: Sequence[Loss]) -> bool:
        """Say whether a stream that is forgotten and known again would get all these reports."""
        return all(with_loss(self._all, one) == self._all for one in losses)

    def forget(self, stream: StreamId, *, is_told: bool) -> None:
        """Record that a stream is forgotten; if it had all reports, it gets none again."""
        if self._all and is_told:
            self._told[stream] = None
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
