"""How far the job is: sampled from the silos.

Owns: `Progress`, one sample. Invariant: delivered events are counted by agents; when a queue moves,
its new agent counts from zero, so the sum over agents that were seen is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.streams import SiloStats

__all__ = ["Progress"]


@dataclass
class Progress:
    """What was seen so far. `expected` is the number of events of the whole job."""

    expected: int
    published: int = 0
    delivered: int = 0
    delivered_per_s: float = 0.0
    silos: Sequence[SiloStats] = ()
    silo_rates: dict[str, float] = field(default_factory=dict)
    _by_agent: dict[tuple[str, int], int] = field(default_factory=dict)
    _by_silo: dict[str, int] = field(default_factory=dict)
    _sampled_s: float = 0.0
    _moved_s: float = 0.0

    def sample(self, silos: Sequence[SiloStats], now_s: float) -> None:
        """Take in what the silos say at `now_s`."""
        took_s = max(1e-6, now_s - self._sampled_s) if self._sampled_s else 0.0
        before, self.silos = self.delivered, silos
        for silo in silos:
            for queue in silo.queues:
                self._by_agent[queue.queue, queue.epoch] = queue.delivered
            done = sum(queue.delivered for queue in silo.queues)
            if took_s:
                gained = max(0, done - self._by_silo.get(silo.silo, 0))
                self.silo_rates[silo.silo] = gained / took_s
            self._by_silo[silo.silo] = done
        self.delivered = max(before, sum(self._by_agent.values()))
        if took_s:
            self.delivered_per_s = (self.delivered - before) / took_s
        if self.delivered > before or not self._moved_s:
            self._moved_s = now_s
        self._sampled_s = now_s

    def stuck_s(self, now_s: float) -> float:
        """Seconds since something was delivered."""
        return now_s - self._moved_s if self._moved_s else 0.0

    @property
    def share(self) -> float:
        """Delivered part of the whole job, 0..1."""
        return min(1.0, self.delivered / self.expected) if self.expected else 1.0

    def eta_s(self, started_s: float, now_s: float) -> float:
        """Seconds left if it goes on as it did; infinite at the beginning."""
        return (now_s - started_s) * (1 / self.share - 1) if self.share else float("inf")

    def lagging(self) -> str:
        """The queues that have undelivered events, for messages."""
        behind = [
            f"{q.queue} ({q.cached} events)" for s in self.silos for q in s.queues if q.cached
        ]
        return ", ".join(behind) or "none of the queues has anything cached"
