"""A queue adapter in about sixty lines: one append-only file of JSON lines per queue."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.streams import (
    AdapterHost,
    Capability,
    OutMessage,
    QueueId,
    QueueMessage,
    StreamId,
    Token,
)


class JsonLinesQueues:
    """Queues in a directory: durable, in order; the runtime keeps the position."""

    capabilities = frozenset({Capability.DURABLE, Capability.ORDERED, Capability.STABLE_TOKENS})

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self, provider: str, host: AdapterHost) -> JsonLinesAdapter:
        (self._directory / provider).mkdir(parents=True, exist_ok=True)
        return JsonLinesAdapter(self._directory / provider)


class JsonLinesAdapter:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        lines = [self._line(message) for message in messages]
        with (self._directory / queue).open("ab") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())  # accepted means: on the disk
        return [None] * len(lines)

    def _line(self, message: OutMessage) -> bytes:
        items = [base64.b64encode(item).decode() for item in message.items]
        return (json.dumps([*message.stream, items, dict(message.headers)]) + "\n").encode()

    def receiver(self, queue: QueueId, epoch: int) -> JsonLinesReceiver:
        return JsonLinesReceiver(self._directory / queue)

    async def aclose(self) -> None: ...


class JsonLinesReceiver:
    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._seq = path, 0, 0

    async def start(self, after: Token | None) -> None:
        self._path.touch()
        self._offset = self._seq = 0
        if after is not None:
            self._next(lambda found: found[-1].token.seq >= after.seq)

    def _next(self, is_enough: Callable[[list[QueueMessage]], bool]) -> list[QueueMessage]:
        found: list[QueueMessage] = []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while (line := file.readline()).endswith(b"\n"):
                namespace, key, items, headers = json.loads(line)
                bodies = [base64.b64decode(item) for item in items]
                self._offset, self._seq = file.tell(), self._seq + 1
                token = Token(1, self._seq)
                found.append(QueueMessage(StreamId(namespace, key), token, bodies, headers))
                if is_enough(found):
                    break
        return found

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        def is_enough(found: list[QueueMessage]) -> bool:
            size = sum(len(item) for message in found for item in message.items)
            longest = max(len(item) for message in found for item in message.items)
            return len(found) >= max_events or size + longest > max_bytes

        return self._next(is_enough)

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None: ...

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None: ...
