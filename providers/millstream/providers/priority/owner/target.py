"""What silos and clients ask of a part as a whole: its queues, and how late its changes are."""

from __future__ import annotations

from millstream.providers.priority.core.shards import SHARD_MARK
from millstream.providers.priority.store.contract import PriorityStore
from millstream.runtime import ConfigError
from millstream.runtime.extending import Clock, Role, SystemTarget, open_to

__all__ = ["NAMES_MAX", "QueuesTarget"]

NAMES_MAX = 1_000
"""Names in one answer."""


class QueuesTarget(SystemTarget):
    """The queues of a part; in each silo that has it."""

    target_name = "$priority"

    def __init__(self, store: PriorityStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def is_durable(self) -> bool:
        """The store keeps what was answered."""
        return self._store.is_durable

    @open_to(Role.CLIENT)
    async def queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names that begin so, in order, after one; at most `limit`. Raises ConfigError (the
        limit), StorageUnavailable."""
        if not 1 <= limit <= NAMES_MAX:
            raise ConfigError(f"limit is {limit}, not 1 to {NAMES_MAX}")
        while found := await self._store.queues(prefix, after, limit):
            if names := [name for name in found if SHARD_MARK not in name]:
                return names
            after = found[-1]
        return []

    @open_to(Role.CLIENT)
    async def changes_lag_s(self) -> float:
        """How long the oldest change has waited to be relayed; 0 when none waits.

        Raises StorageUnavailable.
        """
        oldest = [await self._store.events(n, 0, 1) for n in range(self._store.outboxes)]
        times_s = [found[0].event.time_ms / 1000 for found in oldest if found]
        return max(0.0, self._clock.wall_s() - min(times_s)) if times_s else 0.0
