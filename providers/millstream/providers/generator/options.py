"""What is generated: which streams, how many events, in which order and how fast.

Owns: `GeneratorOptions`. Invariant: checked when it is made, so a silo never starts with options
that cannot work. Not: the items (`events`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["STREAMS_MAX", "GeneratorOptions"]

STREAMS_MAX = 100_000  # per namespace; every silo keeps one name for each
EVENTS_PER_S_MAX = 10_000_000
ERA_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """What one provider generates; give every silo the same. Raises ConfigError."""

    streams: int | Sequence[str] = field(default=8, metadata={"max": STREAMS_MAX})
    """Streams of each namespace: how many (`stream-0`, `stream-1`, ...), or their keys."""
    events_per_stream: int | None = field(default=100, metadata={"min": 0})
    """Events of each stream; None: without end."""
    seed: int = field(default=0, metadata={"min": -math.inf})
    """Decides the order of streams within a queue, and the values of default items."""
    events_per_s: float | None = field(default=None, metadata={"max": EVENTS_PER_S_MAX})
    """Events per second of all streams together; None: as fast as they are read."""
    batch_events_max: int = 1_000
    """Events that one read brings at most."""
    era: int = field(default=1, metadata={"min": 0, "max": ERA_MAX})
    """Raise it when other options change: positions of an older era begin at the first event."""

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_streams()

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
