"""What group commit asks of a store for one owner of one queue. Owns: `Hold`."""

from __future__ import annotations

from typing import Protocol

from millstream.providers.priority.core.changes import Changes

__all__ = ["TAKEN_OVER", "Hold"]

TAKEN_OVER = "another owner has taken it over"


class Hold(Protocol):
    """What an owner's commits go to. Every method that stores checks the epoch in the store."""

    @property
    def queue(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def is_held(self) -> bool | None:
        """Nobody else can have answered for the queue yet; None: only a commit can tell. Cheap:
        asked for every answer."""
        ...

    def check_room(self) -> None:
        """Raise Overloaded if its outbox is full."""
        ...

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        """Store it whole, or only check the epoch if there is nothing to store. Raises `OwnerLost`
        (not stored), StorageError (perhaps stored)."""
        ...

    async def delete(self) -> None:
        """Delete the queue, but not its counters and epoch. Raises as `commit`."""
        ...
