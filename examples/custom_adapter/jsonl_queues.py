"""A queue adapter in about a hundred lines: one append-only file of JSON lines per queue.

The number of a message is the end of its line in the file. So numbers rise, never change, and need
no index. A crash may leave an incomplete line: readers stop before it, and the next writer removes
it. Threads access the files, one call at a time, so no event loop waits for a disk.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import itertools
import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from millstream.streams import (
    AdapterHost,
    Capability,
    OutMessage,
    QueueId,
    QueueMessage,
    QueueUnavailable,
    StreamId,
    Token,
)

ERA = 1  # raise it when files are deleted, because numbers then begin again
BLOCK_BYTES = 4096


class JsonLinesQueues:
    """Queues in a directory that all silos share; the runtime keeps the position."""

    capabilities = frozenset({Capability.DURABLE, Capability.ORDERED, Capability.STABLE_TOKENS})

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self, provider: str, host: AdapterHost) -> JsonLinesAdapter:
        place = self._directory / provider
        await asyncio.to_thread(place.mkdir, parents=True, exist_ok=True)
        return JsonLinesAdapter(place)


class JsonLinesAdapter:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._one_at_a_time = asyncio.Lock()

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        lines = [encode(message) for message in messages]
        try:
            async with self._one_at_a_time:
                ends = await asyncio.to_thread(append, self._directory / queue, lines)
        except OSError as error:  # nothing is stored
            raise QueueUnavailable(f"{queue}: {error}") from None
        return [Token(ERA, end) for end in ends]

    def receiver(self, queue: QueueId, epoch: int) -> JsonLinesReceiver:
        return JsonLinesReceiver(self._directory / queue)

    async def aclose(self) -> None: ...


class JsonLinesReceiver:
    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    async def start(self, after: Token | None) -> None:
        self._at = 0 if after is None else after.seq

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        found = await asyncio.to_thread(lines_from, self._path, self._at, max_events, max_bytes)
        if found:
            # after the await, so that a cancelled read takes nothing
            self._at = found[-1].token.seq
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None: ...

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None: ...


def encode(message: OutMessage) -> bytes:
    items = [base64.b64encode(item).decode() for item in message.items]
    return (json.dumps([*message.stream, items, dict(message.headers)]) + "\n").encode()


def decode(line: bytes, end: int) -> QueueMessage:
    namespace, key, items, headers = json.loads(line)
    bodies = [base64.b64decode(item) for item in items]
    return QueueMessage(StreamId(namespace, key), Token(ERA, end), bodies, headers)


def append(path: Path, lines: Sequence[bytes]) -> list[int]:
    """Store all lines or none; return where each ends. Silos take turns by a lock of the file."""
    data = b"".join(lines)
    with path.open("ab+", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        begin = file.truncate(end_of_lines(file))
        try:
            if file.write(data) < len(data):
                raise OSError("the disk is full; no message of the list is stored")
            os.fsync(file.fileno())  # an accepted message is on disk
        except OSError:
            file.truncate(begin)
            raise
    return list(itertools.accumulate(map(len, lines), initial=begin))[1:]


def end_of_lines(file: FileIO) -> int:
    """Return the end of the last complete line; bytes after it were never accepted."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0


def lines_from(path: Path, begin: int, max_events: int, max_bytes: int) -> list[QueueMessage]:
    """Return messages after a position, within the limits, but at least one if there is one."""
    found: list[QueueMessage] = []
    if not path.exists():
        return found
    with path.open("rb") as file:
        file.seek(begin)
        while (line := file.readline()).endswith(b"\n"):
            message = decode(line, file.tell())
            max_events -= len(message.items)
            max_bytes -= sum(map(len, message.items))
            if found and (max_events < 0 or max_bytes < 0):
                break
            found.append(message)
    return found
