"""The options of the generator: which streams, how many events, in which order and how fast."""

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
    """The streams, counts, order and rate of generated events, the same in all silos.

    Attributes:
        streams: The number of streams of each namespace, from 1 to 100,000, with the keys
            `stream-0`, `stream-1`, and so on. Or a list of their keys.
        events_per_stream: The events of each stream, at least 0. None: no end.
        seed: Determines the order of streams within a queue, and the values of default items.
        events_per_s: Events per second of all streams together, above 0 and up to 10,000,000. None:
            as fast as they are read.
        batch_events_max: The most events of one read, at least 1.
        era: From 0 to 2**32-1. Raise it when you change the streams, the seed or the number of
            queues. Stored positions of an older era restart at the first event.

    Raises:
        ConfigError: A value has the wrong type or is outside its limits, or a key is repeated.
    """

    streams: int | Sequence[str] = field(default=8, metadata={"max": STREAMS_MAX})
    events_per_stream: int | None = field(default=100, metadata={"min": 0})
    seed: int = field(default=0, metadata={"min": -math.inf})
    events_per_s: float | None = field(default=None, metadata={"max": EVENTS_PER_S_MAX})
    batch_events_max: int = 1_000
    era: int = field(default=1, metadata={"min": 0, "max": ERA_MAX})

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
        """Return the keys of the streams of one namespace."""
        if isinstance(self.streams, int):
            return [f"stream-{number}" for number in range(self.streams)]
        return tuple(self.streams)
