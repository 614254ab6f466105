"""The ownership of a queue in Redis by one owner.

Owns `RedisHold`.

Invariant: a commit compares the mark that this owner's previous commit wrote. Therefore a commit
that is repeated, late, or after a loss of data in the server stores nothing.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from millstream.providers.priority.core.changes import Changes
from millstream.providers.priority.core.errors import OwnerLost
from millstream.providers.priority.store.hold import TAKEN_OVER

from .keys import LaneKeys, QueueKeys
from .rows import commit_lists
from .scripts import COMMIT, CONFIRM, DELETE
from .server import Server

__all__ = ["RedisHold", "RedisLane", "mark_of"]

log = logging.getLogger("millstream.priority")


class RedisLane(Protocol):
    """The services of the queue's lane that an ownership needs."""

    @property
    def keys(self) -> LaneKeys: ...

    def check_room(self, queue: str) -> None:
        """Raise Overloaded if the outbox is full, as far as this store knows."""
        ...

    def has_events(self, count: int) -> None:
        """Record the number of events in the outbox."""
        ...


def mark_of(epoch: int, nonce: str, commits: int) -> str:
    return f"{epoch}:{nonce}:{commits}"


class RedisHold:
    """The implementation of `store.hold.Hold`.

    Args:
        nonce: Unique to this owner, because a server that lost an acquisition gives its epoch
            again.
        due_ms: The stored time of the next due work.
    """

    def __init__(
        self,
        server: Server,
        lane: RedisLane,
        queue: str,
        keys: QueueKeys,
        epoch: int,
        nonce: str,
        due_ms: int | None,
    ) -> None:
        self.queue = queue
        self.epoch = epoch
        self._server = server
        self._lane = lane
        self._keys = keys
        self._nonce = nonce
        self._commits = 0
        self._due_ms = due_ms

    def is_held(self) -> None:
        """None: only the server knows."""

    def check_room(self) -> None:
        self._lane.check_room(self.queue)

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        if changes is None and next_due_ms == self._due_ms:
            await self._run(CONFIRM, [self._keys.head], [self._mark()])
            return
        lane = self._lane.keys
        due_ms = "" if next_due_ms is None else next_due_ms
        args = [self._mark(), self._mark(1), self.queue, due_ms, *commit_lists(changes)]
        found = await self._run(COMMIT, [*self._keys, lane.lane, lane.due, lane.events], args)
        self._commits += 1
        self._due_ms = next_due_ms
        self._lane.has_events(found[1])

    async def delete(self) -> None:
        lane = self._lane.keys
        args = [self._mark(), self._mark(1), self.queue]
        await self._run(DELETE, [*self._keys, lane.names, lane.due], args)

    def _mark(self, ahead: int = 0) -> str:
        return mark_of(self.epoch, self._nonce, self._commits + ahead)

    async def _run(self, script: Any, keys: list[bytes], args: list[Any]) -> list[Any]:
        found = await self._server.run(script, keys, args)
        if found[0] != b"ok":
            raise self._make_lost_error(found[1].decode())
        return found

    def _make_lost_error(self, mark: str) -> OwnerLost:
        epoch = int(mark.partition(":")[0] or 0)
        if epoch <= self.epoch:
            what = "queue %r: %s lost acknowledged commits: its mark is %r, the owner has %r"
            log.error(what, self.queue, self._server.place, mark, self._mark())
        return OwnerLost(self.queue, TAKEN_OVER)
