"""Reading the rows of a queue, page by page, to open it.

The epoch was raised before, so only yet another owner could change the rows. Each page therefore
also reads the owner's mark after its rows. If the mark is unchanged, all rows read so far belong
together.

Owns `QueueReader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.providers.priority.core.changes import MessageRow
from millstream.providers.priority.core.core import QueueRows
from millstream.providers.priority.core.errors import OwnerLost
from millstream.providers.priority.store.hold import TAKEN_OVER
from millstream.runtime import StorageError

from .keys import QueueKeys
from .options import RedisOptions
from .rows import Head, Value, answer_of, message_of, payload_bytes, session_of
from .server import Server

__all__ = ["QueueReader"]


class QueueReader:
    """Reads one queue for the owner with this mark."""

    def __init__(
        self, server: Server, options: RedisOptions, queue: str, keys: QueueKeys, mark: str
    ) -> None:
        self._server = server
        self._options = options
        self._queue = queue
        self._keys = keys
        self._mark = mark.encode()

    async def read(self, head: Head) -> tuple[QueueRows, int]:
        """Return all rows, and the number of messages.

        The rows are unpacked when they are taken, in the thread that takes them.

        Raises OwnerLost or StorageError.
        """
        states = await self._hash(self._keys.states)
        found = sorted((int(field), state) for field, state in states.items())
        del states
        bodies: list[bytes] = []
        for batch in self._batches(found):
            bodies += await self._bodies(batch)
        sessions = await self._hash(self._keys.sessions)
        answers = await self._hash(self._keys.answers)
        rows = QueueRows(
            head.settings,
            head.counters,
            unpack(found, bodies),
            [session_of(*one) for one in sessions.items()],
            [answer_of(*one) for one in answers.items()],
        )
        return rows, len(found)

    async def _hash(self, key: bytes) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            command = ("HSCAN", key, cursor, "COUNT", self._options.page_rows)
            cursor, page = await self._ask(command)
            found |= page
            if not cursor:
                return found

    def _batches(self, found: list[tuple[int, bytes]]) -> Iterator[list[int]]:
        """Groups of messages whose payloads fit into a page; each group has at least one
        message.
        """
        batch: list[int] = []
        size = 0
        for sequence, state in found:
            more = payload_bytes(state)
            is_full = len(batch) >= self._options.page_rows
            if batch and (is_full or size + more > self._options.page_bytes):
                yield batch
                batch, size = [], 0
            batch.append(sequence)
            size += more
        if batch:
            yield batch

    async def _bodies(self, batch: list[int]) -> list[bytes]:
        found: list[bytes | None] = await self._ask(("HMGET", self._keys.bodies, *batch))
        bodies = [body for body in found if body is not None]
        if len(bodies) < len(found):
            what = f"{len(found) - len(bodies)} messages have no body: another program removed it"
            raise StorageError(f"queue {self._queue!r} in {self._server.place}: {what}")
        return bodies

    async def _ask(self, command: tuple[Value, ...]) -> Any:
        found, mark = await self._server.ask([command, ("HGET", self._keys.head, "mark")])
        if mark != self._mark:
            raise OwnerLost(self._queue, TAKEN_OVER)
        return found


def unpack(found: list[tuple[int, bytes]], bodies: list[bytes]) -> Iterator[MessageRow]:
    for (sequence, state), body in zip(found, bodies, strict=True):
        yield message_of(sequence, state, body)
