"""What is stored of staged writes: a row for each writer, and one for each chunk.

Owns: keys and forms of these rows. Not: when they are written (`desk`). Invariants: a chunk that is
stored never changes, so storing it again is harmless; a writer's row is written by compare-and-set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from millstream.runtime import Conflict, Etag, StateStore
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage, ProducerMark

from .coordinator import WriterState

__all__ = ["CHUNK_BYTES_MAX", "Chunk", "StagedMessage", "StagedRows", "out_messages"]

CHUNK_BYTES_MAX = 1 << 20
SWEPT_AT_ONCE = 100
NO_FENCE = 0
NAME = re.compile(r"[0-9a-zA-Z-]{1,64}")


class StagedMessage(msgspec.Struct, array_like=True, frozen=True):
    """Items of one stream; `lane`: the place of its lane in the chunk's."""

    lane: int
    key: str
    items: list[bytes]
    headers: dict[str, str] | None = None


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """Messages of one namespace, in their order."""

    namespace: str
    lanes: list[str]
    messages: list[StagedMessage]

    def counts(self) -> list[int]:
        """How many messages each lane has."""
        found = [0] * len(self.lanes)
        for message in self.messages:
            found[message.lane] += 1
        return found


_encode = msgspec.msgpack.Encoder().encode
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode
_decode_state = msgspec.msgpack.Decoder(WriterState).decode


def out_messages(chunk: Chunk, writer: str, first: dict[str, int]) -> list[OutMessage]:
    """The messages of a chunk as they are enqueued; `first`: the first sequence of each lane."""
    at = [first[lane] for lane in chunk.lanes]
    found: list[OutMessage] = []
    for message in chunk.messages:
        mark = ProducerMark(f"{writer}/{chunk.lanes[message.lane]}", at[message.lane])
        at[message.lane] += 1
        stream = StreamId(chunk.namespace, message.key)
        found.append(OutMessage(stream, message.items, message.headers or {}, mark))
    return found


class StagedRows:
    """The rows of one provider, in its state store."""

    def __init__(self, store: StateStore, provider: str) -> None:
        self._store = store
        self._writers = f"staged/{provider}/writer/"
        self._chunks = f"staged/{provider}/chunk/"

    async def read(self, writer: str) -> tuple[WriterState, Etag | None]:
        """A writer's state, fresh if there is none. Raises StorageError."""
        row = await self._store.read(f"{self._writers}{writer}")
        return (WriterState(), None) if row is None else (_decode_state(row.data), row.etag)

    async def write(self, writer: str, state: WriterState, expect: Etag | None) -> Etag:
        """Raises Conflict (somebody else has written), StorageError."""
        key = f"{self._writers}{writer}"
        return await self._store.write(key, _encode(state), expect, NO_FENCE)

    async def writers(self, after: str, limit: int) -> Sequence[tuple[str, WriterState]]:
        """Some writers behind a name, in order. Raises StorageError."""
        rows = await self._store.scan(self._writers, f"{self._writers}{after}", limit)
        return [(key.removeprefix(self._writers), _decode_state(row.data)) for key, row in rows]

    def _chunk_key(self, attempt: str, index: int) -> str:
        if not NAME.fullmatch(attempt):
            raise ValueError(f"attempt {attempt!r}: write up to 64 letters, digits and hyphens")
        return f"{self._chunks}{attempt}/{index:05}"

    async def put(self, attempt: str, index: int, chunk: Chunk) -> None:
        """Store a chunk; again is harmless. Raises ValueError (too large), StorageError."""
        key, data = self._chunk_key(attempt, index), _encode(chunk)
        if len(data) > CHUNK_BYTES_MAX and len(chunk.messages) > 1:
            limit = CHUNK_BYTES_MAX
            raise ValueError(f"a chunk of {len(data)} bytes; CHUNK_BYTES_MAX is {limit}")
        try:
            await self._store.write(key, data, None, NO_FENCE)
        except Conflict:
            row = await self._store.read(key)
            if row is not None and row.data != data:
                raise ValueError(f"{key} is stored, with other messages") from None

    async def get(self, attempt: str, index: int) -> Chunk | None:
        """A chunk, None: it was swept. Raises StorageError."""
        row = await self._store.read(self._chunk_key(attempt, index))
        return None if row is None else _decode_chunk(row.data)

    async def sweep(self, attempt: str) -> None:
        """Delete every chunk of an attempt. Raises StorageError."""
        prefix = f"{self._chunks}{attempt}/"
        while rows := await self._store.scan(prefix, "", SWEPT_AT_ONCE):
            for key, row in rows:
                await self._clear(key, row.etag)

    async def _clear(self, key: str, etag: Etag) -> None:
        try:
            await self._store.clear(key, etag, NO_FENCE)
        except Conflict:
            return  # another one was quicker
