"""The contract between group commit and a store, for one owner of one queue. Owns `Hold`."""

from __future__ import annotations

from typing import Protocol

from millstream.providers.priority.core.changes import Changes

__all__ = ["TAKEN_OVER", "Hold"]

TAKEN_OVER = "another owner has taken it over"


class Hold(Protocol):
    """The target of an owner's commits. Every method that stores checks the epoch in the store."""

    @property
    def queue(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    def is_held(self) -> bool | None:
        """Whether no other owner can have answered yet; None if only a commit can tell.

        It must be cheap, because it is called for every answer.
        """
        ...

    def check_room(self) -> None:
        """Raise Overloaded if the outbox is full."""
        ...

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        """Store the changes as a whole, or only check the epoch if there are none.

        Raises `OwnerLost` (not stored) or StorageError (perhaps stored).
        """
        ...

    async def delete(self) -> None:
        """Delete the queue, but keep its counters and epoch. Raises the errors of `commit`."""
        ...
