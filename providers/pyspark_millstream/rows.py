"""Arrow batches to messages: rows cut into chunks and grouped by key, in order. Pure.

An item is a map {column: value}. Nulls, and NaN in float columns, become nil; timestamps become
MessagePack timestamps (without a zone: ISO text), dates and decimals text.
Invariants: a chunk has `chunk_rows` rows, the last one fewer, whatever batches the rows came in;
rows of one key keep their order, keys stand in the order of their first row.
Cost: about 0.5 µs per row of four plain columns, 0.3 µs more per timestamp column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .tokens import Numbering
from .values import values_of

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

__all__ = ["CallCutter", "Chunk", "Chunker", "encode_chunk", "encode_items"]

CALL_BYTES = 512 * 1024
"""Of the messages of one staged call; it is stored as a chunk of at most 1 MiB."""

Chunk = dict[str, list[dict[str, Any]]]
"""Items by stream key."""

_encode = msgspec.msgpack.Encoder().encode


class Chunker:
    """Cuts the rows of a partition into chunks."""

    __slots__ = ("_chunk_rows", "_items", "_key_column", "_keys", "_rows", "_value_columns")

    def __init__(self, key_column: str, value_columns: Sequence[str], chunk_rows: int) -> None:
        self._key_column = key_column
        self._value_columns = tuple(value_columns)
        self._chunk_rows = chunk_rows
        self._keys: list[str] = []
        self._items: list[dict[str, Any]] = []
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._rows

    def feed(self, batch: RecordBatch) -> Iterator[Chunk]:
        """Take a batch; give the chunks that are now full. Raises ValueError for a null key."""
        self._keys += _keys_of(batch.column(self._key_column), self._key_column, self._rows)
        self._items += _items_of(batch, self._value_columns)
        self._rows += batch.num_rows
        while len(self._keys) >= self._chunk_rows:
            yield from self._cut_full()

    def all(self, first: RecordBatch, rest: Iterator[RecordBatch]) -> Iterator[Chunk]:
        """Take every batch; give every chunk. Raises ValueError for a null key."""
        yield from self.feed(first)
        for batch in rest:
            yield from self.feed(batch)
        yield from self.rest()

    def rest(self) -> Iterator[Chunk]:
        """The last chunk, if rows are left."""
        if self._keys:
            yield _grouped(self._keys, self._items)
            self._keys, self._items = [], []

    def check(self) -> None:
        """Assert that keys and items belong together and are taken once."""
        assert len(self._keys) == len(self._items) <= self._rows

    def _cut_full(self) -> Iterator[Chunk]:
        size, keys, items = self._chunk_rows, self._keys, self._items
        full = len(keys) - len(keys) % size
        self._keys, self._items = keys[full:], items[full:]
        for start in range(0, full, size):
            yield _grouped(keys[start : start + size], items[start : start + size])


def _grouped(keys: list[str], items: list[dict[str, Any]]) -> Chunk:
    chunk: Chunk = {}
    for key, item in zip(keys, items, strict=True):
        if key in chunk:
            chunk[key].append(item)
        else:
            chunk[key] = [item]
    return chunk


def _keys_of(column: Array, name: str, rows_before: int) -> list[str]:
    if column.null_count:
        at = rows_before + column.is_null().to_pylist().index(True)
        raise ValueError(
            f"key_column {name!r} is null in {column.null_count} rows, first in row {at} of the "
            f"partition: filter them out before writing"
        )
    keys: list[Any] = column.to_pylist()
    return keys if not keys or isinstance(keys[0], str) else [str(key) for key in keys]


def _items_of(batch: RecordBatch, names: tuple[str, ...]) -> list[dict[str, Any]]:
    columns = [_values_of(batch.column(name), name) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values_of(column: Array, name: str) -> list[Any]:
    try:
        return values_of(column)
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}") from None


def encode_chunk(chunk: Chunk, numbering: Numbering) -> bytes:
    """The messages of a chunk, encoded: [[key, seq, [item, ...]], ...]."""
    return _encode([(key, numbering.take(), items) for key, items in chunk.items()])


def encode_items(key: str, items: list[dict[str, Any]]) -> bytes:
    """A message without a sequence, encoded: [key, 0, [item, ...]]."""
    return _encode((key, 0, items))


class CallCutter:
    """Puts encoded messages together to calls of `CALL_BYTES`, in order; one may be larger."""

    __slots__ = ("_messages", "_size", "calls", "messages")

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._size = 0
        self.messages = 0
        self.calls = 0

    def add(self, message: bytes) -> bytes:
        """Take a message; the call that is full without it, or nothing."""
        full = b""
        if self._messages and self._size + len(message) > CALL_BYTES:
            full = self.rest()
        self._messages.append(message)
        self._size += len(message)
        self.messages += 1
        return full

    def rest(self) -> bytes:
        """What was taken and not given, as a list of messages; nothing if there is none."""
        messages, self._messages, self._size = self._messages, [], 0
        if not messages:
            return b""
        self.calls += 1
        return b"\xdd" + len(messages).to_bytes(4, "big") + b"".join(messages)
