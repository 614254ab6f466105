"""What silos and clients ask of a part as a whole: the names of its queues."""

from __future__ import annotations

from millstream.providers.priority.store.contract import PriorityStore
from millstream.runtime import ConfigError
from millstream.runtime.extending import SystemTarget

__all__ = ["NAMES_MAX", "QueuesTarget"]

NAMES_MAX = 1_000
"""Names in one answer."""


class QueuesTarget(SystemTarget):
    """The queues of a part; in each silo that has it."""

    target_name = "$priority"
    open_to_clients = frozenset({"queues"})

    def __init__(self, store: PriorityStore) -> None:
        self._store = store

    async def queues(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names that begin so, in order, after one; at most `limit`. Raises ConfigError (the
        limit), StorageUnavailable."""
        if not 1 <= limit <= NAMES_MAX:
            raise ConfigError(f"limit is {limit}, not 1 to {NAMES_MAX}")
        return list(await self._store.queues(prefix, after, limit))
