"""Calls about a part as a whole: the names of its queues, and the lag of its changes."""

from __future__ import annotations

from millstream.providers.priority.core.shards import SHARD_MARK
from millstream.providers.priority.store.contract import PriorityStore
from millstream.runtime import ConfigError
from millstream.runtime.extending import Clock, Role, SystemTarget, open_to

__all__ = ["NAMES_MAX", "QueuesTarget"]

NAMES_MAX = 1_000
"""Names in one answer."""


class QueuesTarget(SystemTarget):
    """The queues of a part; each silo of the part has one."""

    target_name = "$priority"

    def __init__(self, store: PriorityStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def is_durable(self) -> bool:
        """Whether the store keeps answered operations after the end of every process."""
        return self._store.is_durable

    @open_to(Role.CLIENT)
    async def queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names of queues with a prefix, in order, after the name `after`; at most `limit`.

        Raises ConfigError for a wrong limit, or StorageUnavailable.
        """
        if not 1 <= limit <= NAMES_MAX:
            raise ConfigError(f"limit is {limit}, not 1 to {NAMES_MAX}")
        while found := await self._store.queues(prefix, after, limit):
            if names := [name for name in found if SHARD_MARK not in name]:
                return names
            after = found[-1]
        return []

    @open_to(Role.CLIENT)
    async def changes_lag_s(self) -> float:
        """How long the oldest change has waited for its relay, in seconds; 0 if none waits.

        Raises StorageUnavailable.
        """
        oldest = [await self._store.events(n, 0, 1) for n in range(self._store.outboxes)]
        times_s = [found[0].event.time_ms / 1000 for found in oldest if found]
        return max(0.0, self._clock.wall_s() - min(times_s)) if times_s else 0.0
