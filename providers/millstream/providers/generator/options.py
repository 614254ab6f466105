"""What is generated: which streams, how many events, in which order and how fast.

Owns: `GeneratorOptions`. Invariant: checked when it is made, so a silo never starts with options
that cannot work. Not: the items (`events`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.runtime import ConfigError

__all__ = ["STREAMS_MAX", "GeneratorOptions"]

STREAMS_MAX = 100_000  # per namespace; every silo keeps one name for each
EVENTS_PER_S_MAX = 10_000_000
ERA_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """What one provider generates; give every silo the same. Raises ConfigError."""

    streams: int | Sequence[str] = 8
    """Streams of each namespace: how many (`stream-0`, `stream-1`, ...), or their keys."""
    events_per_stream: int | None = 100
    """Events of each stream; None: without end."""
    seed: int = 0
    """Decides the order of streams within a queue, and the values of default items."""
    events_per_s: float | None = None
    """Events per second of all streams together; None: as fast as they are read."""
    batch_events_max: int = 1_000
    """Events that one read brings at most."""
    era: int = 1
    """Raise it when other options change: positions of an older era begin at the first event."""

    def __post_init__(self) -> None:
        self._check_streams()
        if self.events_per_stream is not None and self.events_per_stream < 0:
            raise ConfigError(f"events_per_stream is {self.events_per_stream}, not None or from 0")
        if self.events_per_s is not None and not 0 < self.events_per_s <= EVENTS_PER_S_MAX:
            raise ConfigError(
                f"events_per_s is {self.events_per_s}, not None or in 0..{EVENTS_PER_S_MAX}"
            )
        if self.batch_events_max < 1:
            raise ConfigError(f"batch_events_max is {self.batch_events_max}, not at least 1")
        if not 0 <= self.era <= ERA_MAX:
            raise ConfigError(f"era is {self.era}, not in 0..{ERA_MAX}")

    def _check_streams(self) -> None:
        if isinstance(self.streams, str):
            raise ConfigError(f"streams is {self.streams!r}: give a number, or a list of keys")
        count = self.streams if isinstance(self.streams, int) else len(self.streams)
        if not 1 <= count <= STREAMS_MAX:
            raise ConfigError(f"streams is {count}, not in 1..{STREAMS_MAX}")
        if len(set(self.keys())) < count:
            raise ConfigError(f"streams has {count - len(set(self.keys()))} repeated keys")

    def keys(self) -> Sequence[str]:
        """The keys of the streams of one namespace."""
        if isinstance(self.streams, int):
            return [f"stream-{number}" for number in range(self.streams)]
        return tuple(self.streams)
