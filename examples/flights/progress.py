"""The progress of the job, from samples of the silos.

This module owns `Progress`, which combines the samples without I/O. Agents count delivered events.
When a queue moves, its new agent counts from zero, so the last counts of all agents are added. The
sums never fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.streams import QueueStats, SiloStats

__all__ = ["Progress", "lag_of"]

SMOOTHING = 0.3


@dataclass
class Progress:
    """The progress so far.

    `expected`: events of the whole job. `published`: the count of the source. `read`: events that
    agents read; more than were published if a queue moved and events were read again. `held`:
    publishers that wait for a kill. `still_max_s`: longest time without any movement.
    """

    expected: int
    published: int = 0
    held: int = 0
    still_max_s: float = 0.0
    read: int = 0
    delivered: int = 0
    delivered_per_s: float = 0.0
    silos: Sequence[SiloStats] = ()
    silo_rates: dict[str, float] = field(default_factory=dict)
    _delivered: dict[tuple[str, int], int] = field(default_factory=dict)
    _read: dict[tuple[str, int], int] = field(default_factory=dict)
    _by_silo: dict[str, int] = field(default_factory=dict)
    _first_s: float | None = None
    _sampled_s: float = 0.0
    _moved_s: float = 0.0

    def sample(self, silos: Sequence[SiloStats], now_s: float) -> None:
        """Add a sample of the silos at `now_s`."""
        before = self.delivered, self.read
        self.silos = silos
        for queue in (queue for silo in silos for queue in silo.queues):
            self._delivered[queue.queue, queue.epoch] = queue.delivered
            self._read[queue.queue, queue.epoch] = queue.read
        self.delivered = max(self.delivered, sum(self._delivered.values()))
        self.read = max(self.read, sum(self._read.values()))
        self._rate(now_s, self.delivered - before[0])
        self._note_moves(before, now_s)
        if self._first_s is None:
            self._first_s = now_s
        self._sampled_s = now_s

    def _note_moves(self, before: tuple[int, int], now_s: float) -> None:
        has_moved = before != (self.delivered, self.read)
        if has_moved and before != (0, 0):
            self.still_max_s = max(self.still_max_s, now_s - self._moved_s)
        if has_moved or self._first_s is None or (self.held and self.is_drained):
            self._moved_s = now_s

    def _rate(self, now_s: float, gained: int) -> None:
        took_s = 0.0 if self._first_s is None else now_s - self._sampled_s
        for silo in self.silos:
            done = sum(queue.delivered for queue in silo.queues)
            if took_s > 0:
                more = max(0, done - self._by_silo.get(silo.silo, 0)) / took_s
                self.silo_rates[silo.silo] = smooth(self.silo_rates.get(silo.silo), more)
            self._by_silo[silo.silo] = done
        if took_s > 0:
            self.delivered_per_s = smooth(self.delivered_per_s or None, gained / took_s)

    @property
    def has_begun(self) -> bool:
        """Has anything been published?"""
        return self.read > 0

    def find_stuck_s(self, now_s: float) -> float:
        """Return the seconds since an event was read from a queue or delivered."""
        return 0.0 if self._first_s is None else now_s - self._moved_s

    @property
    def is_drained(self) -> bool:
        """Are all events in the queues of the silos that answered delivered?"""
        return not any(lag_of(queue) for silo in self.silos for queue in silo.queues)

    @property
    def share(self) -> float:
        """The delivered part of the whole job, 0..1."""
        return min(1.0, self.delivered / self.expected) if self.expected else 1.0

    def eta_s(self, elapsed_s: float) -> float:
        """Return the seconds left at the present rate; infinite at the beginning."""
        return elapsed_s * (1 / self.share - 1) if self.share else float("inf")

    def lagging(self) -> str:
        """Return the queues that have undelivered events, for messages."""
        behind = [
            f"{queue.queue} of {silo.name} ({lag_of(queue):,} events, {queue.lag_s:.0f} s)"
            for silo in self.silos
            for queue in silo.queues
            if lag_of(queue)
        ]
        return ", ".join(behind) or "no events"


def lag_of(queue: QueueStats) -> int:
    """Return the undelivered events of a queue."""
    undone = max(0, queue.read - queue.delivered - queue.given_up - queue.unheard)
    return queue.backlog + undone


def smooth(old: float | None, new: float) -> float:
    """Return a moving mean, because samples are too short to be readable."""
    return new if old is None else old + SMOOTHING * (new - old)
