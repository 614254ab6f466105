"""The stored rows of staged writes: one for each writer, one for each chunk, and one for the
given-up messages of a chunk.

Owns the keys and forms of these rows. `desk` decides when they are written.

Invariants:

- A stored chunk never changes, so storing it again is harmless.
- A writer's row changes only by compare-and-set.
- All rows are sealed with checksums. A damaged row is not used, so the state behind it does not
  change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from millstream.runtime import Conflict, Corrupt, Etag, StateStore, StorageUnavailable
from millstream.runtime.extending import DamageLog, open_row, seal_content
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage, ProducerMark

from .coordinator import WriterState

__all__ = [
    "CHUNK_BYTES_MAX",
    "NAME",
    "REASONS_MAX",
    "REASON_CHARS_MAX",
    "Chunk",
    "RefusedMessage",
    "StagedMessage",
    "StagedRows",
    "StoredChunk",
    "out_messages",
]

log = logging.getLogger("millstream.staging")

T = TypeVar("T")

CHUNK_BYTES_MAX = 1 << 20
REASONS_MAX = 100
"""The number of refusals of one chunk that are kept with their reasons."""
REASON_CHARS_MAX = 500
SWEPT_AT_ONCE = 16
"""The number of chunks in each page that is read for deletion."""
NO_FENCE = 0
NAME = re.compile(r"[0-9a-zA-Z-]{1,64}")


class StagedMessage(msgspec.Struct, array_like=True, frozen=True):
    """Items of one stream. `lane` is the index of its lane in the chunk."""

    lane: int
    key: str
    items: list[bytes]
    headers: dict[str, str] | None = None


class RefusedMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message of a decided batch that its queue refused for good, and that was given up.

    Attributes:
        part: number of its part in the batch, from 0.
        chunk: number of its chunk in the part, from 0.
        place: its place in the chunk, from 0.
        key: key of its stream.
        items: number of its items.
        size_bytes: bytes of its items.
        why: the answer of the queue. Empty: the reasons of 100 messages of the chunk are kept
            already.
    """

    part: int
    chunk: int
    place: int
    key: str
    items: int
    size_bytes: int
    why: str = ""


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """Messages of one namespace, in their order."""

    namespace: str
    lanes: list[str]
    messages: list[StagedMessage]

    def counts(self) -> list[int]:
        """Return the number of messages in each lane."""
        found = [0] * len(self.lanes)
        for message in self.messages:
            found[message.lane] += 1
        return found


_encode = msgspec.msgpack.Encoder().encode
CHUNK = msgspec.msgpack.Decoder(Chunk)
REFUSED = msgspec.msgpack.Decoder(list[RefusedMessage])
STATE = msgspec.msgpack.Decoder(WriterState)


class StoredChunk:
    """An encoded chunk. Raises ValueError if it is too large."""

    __slots__ = ("chunk", "data")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.data = _encode(chunk)
        size, limit = len(self.data), CHUNK_BYTES_MAX
        if size > limit and len(chunk.messages) > 1:
            raise ValueError(f"the chunk has {size} bytes; CHUNK_BYTES_MAX is {limit}")


def is_same(one: Chunk, other: Chunk) -> bool:
    """Say whether two chunks have the same messages; the lanes of a stream may differ."""
    return one.namespace == other.namespace and [
        (m.key, m.items, m.headers) for m in one.messages
    ] == [(m.key, m.items, m.headers) for m in other.messages]


def out_messages(chunk: Chunk, writer: str, first: dict[str, int]) -> list[OutMessage]:
    """Return the messages of a chunk for the queues. `first` has the first sequence of each
    lane."""
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
        self._refused = f"staged/{provider}/refused/"
        self._damage = DamageLog(log)

    async def read(self, writer: str) -> tuple[WriterState, Etag | None]:
        """Return a writer's state; a new one if nothing is stored. Raises Corrupt, StorageError."""
        key = f"{self._writers}{writer}"
        row = await self._store.read(key)
        return (
            (WriterState(), None)
            if row is None
            else (open_row(key, row.data, STATE.decode), row.etag)
        )

    async def write(self, writer: str, state: WriterState, expect: Etag | None) -> Etag:
        """Store a writer's state. Raises Conflict (another desk has written), StorageError."""
        key = f"{self._writers}{writer}"
        return await self._store.write(key, seal_content(key, _encode(state)), expect, NO_FENCE)

    async def remove(self, writer: str, expect: Etag) -> None:
        """Delete a writer's row. Raises Conflict (another desk has written), StorageError."""
        await self._store.clear(f"{self._writers}{writer}", expect, NO_FENCE)

    async def writers(self, after: str, limit: int) -> Sequence[tuple[str, WriterState]]:
        """Return the writers after a name, in order: `limit` of them, or all that are left. Damaged
        rows are left out, and the log names them. Raises StorageError."""
        found: list[tuple[str, WriterState]] = []
        last = f"{self._writers}{after}"
        while len(found) < limit:
            count = limit - len(found)
            rows = await self._store.scan(self._writers, last, count)
            for last, row in rows:
                state = self._whole(last, row.data, STATE)
                found += () if state is None else ((last.removeprefix(self._writers), state),)
            if len(rows) < count:
                break
        return found

    def _whole(self, key: str, data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
        """Return the content of a row. None: the row is damaged, and the log names it."""
        try:
            found = open_row(key, data, decoder.decode)
        except Corrupt as error:
            self._damage.tell(key, error)
            return None
        self._damage.is_whole(key)
        return found

    def _chunk_key(self, attempt: str, index: int) -> str:
        if not NAME.fullmatch(attempt):
            raise ValueError(f"attempt {attempt!r}: write up to 64 letters, digits and hyphens")
        return f"{self._chunks}{attempt}/{index:05}"

    async def put(self, attempt: str, index: int, chunk: StoredChunk) -> Chunk:
        """Store a chunk, and return the stored chunk; a repeated call is harmless.

        Raises ValueError (other messages are stored there), Corrupt (the stored chunk is damaged),
        StorageError.
        """
        key = self._chunk_key(attempt, index)
        try:
            await self._store.write(key, seal_content(key, chunk.data), None, NO_FENCE)
        except Conflict:
            row = await self._store.read(key)
            if row is None:
                raise StorageUnavailable(f"row {key} was deleted while it was read") from None
            found = open_row(key, row.data, CHUNK.decode)
            if not is_same(found, chunk.chunk):
                raise ValueError(f"row {key} is already stored with other messages") from None
            return found
        return chunk.chunk

    async def get(self, attempt: str, index: int) -> Chunk | None:
        """Return a chunk; None if it was swept. Raises Corrupt, StorageError."""
        key = self._chunk_key(attempt, index)
        row = await self._store.read(key)
        return None if row is None else open_row(key, row.data, CHUNK.decode)

    async def sweep(self, attempt: str) -> None:
        """Delete every chunk of an attempt. Raises StorageError."""
        prefix = f"{self._chunks}{attempt}/"
        while rows := await self._store.scan(prefix, "", SWEPT_AT_ONCE):
            for key, row in rows:
                await self._clear(key, row.etag)

    # -- messages that were given up

    def _make_refused_prefix(self, writer: str, batch: int | None = None) -> str:
        """Return a prefix of keys. Names of writers may contain `/`, so they are quoted."""
        prefix = f"{self._refused}{quote(writer, safe='')}/"
        return prefix if batch is None else f"{prefix}{batch:020}/"

    async def read_refused(
        self, writer: str, batch: int, part: int, chunk: int
    ) -> tuple[list[RefusedMessage], Etag | None]:
        """Return the given-up messages of a chunk. Raises Corrupt, StorageError."""
        key = f"{self._make_refused_prefix(writer, batch)}{part:020}/{chunk:05}"
        row = await self._store.read(key)
        return ([], None) if row is None else (open_row(key, row.data, REFUSED.decode), row.etag)

    async def put_refused(
        self, writer: str, batch: int, messages: Sequence[RefusedMessage], expect: Etag | None
    ) -> Etag:
        """Store the given-up messages of a chunk, at least one. Raises Conflict, StorageError."""
        name = f"{messages[0].part:020}/{messages[0].chunk:05}"
        key = f"{self._make_refused_prefix(writer, batch)}{name}"
        return await self._store.write(key, seal_content(key, _encode(messages)), expect, NO_FENCE)

    async def next_refused(
        self, writer: str, batch: int, part: int, chunk: int
    ) -> list[RefusedMessage]:
        """Return the given-up messages of the next chunk that has any; [] at the end. A damaged row
        is skipped, and the log names it. Raises StorageError."""
        prefix = self._make_refused_prefix(writer, batch)
        after = f"{prefix}{part:020}/{chunk:05}" if chunk >= 0 else ""
        while rows := await self._store.scan(prefix, after, 1):
            ((after, row),) = rows
            found = self._whole(after, row.data, REFUSED)
            if found:
                return found
        return []

    async def forget_refused(self, writer: str, but: int | None = None) -> None:
        """Delete the given-up messages of a writer's batches, except for the batch `but`. Raises
        StorageError."""
        prefix, after = self._make_refused_prefix(writer), ""
        kept = "" if but is None else self._make_refused_prefix(writer, but)
        while rows := await self._store.scan(prefix, after, SWEPT_AT_ONCE):
            for key, row in rows:
                after = key
                if not (kept and key.startswith(kept)):
                    await self._clear(key, row.etag)

    async def _clear(self, key: str, etag: Etag) -> None:
        try:
            await self._store.clear(key, etag, NO_FENCE)
        except Conflict:
            return  # another desk was faster
