"""Rows of one sort: read, and changed by compare-and-set alone.

Owns: `Rows`. Invariants: a change is a function of what is stored, tried again on what is stored
then, so no update of another is lost; a write whose answer was lost is recognised by the token in
the row, and is not a failure (BookKeeper #1967). Should another have written on top of such a row
before it was read again, the change is made once more: changes are such that this does no harm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar, overload

import msgspec

from millstream.runtime import Conflict, Etag, Row, StorageError, StorageUnavailable
from millstream.runtime.extending import shown

from .metadata import Metadata

__all__ = ["ROWS_PER_SCAN", "ROW_TRIES_MAX", "Rows"]

ROW_TRIES_MAX = 16
"""Tries of one change; some 10 s together."""
ROWS_PER_SCAN = 500
NO_FENCE = 0  # records hold terms and epochs of their own


class Record(Protocol):
    """What a row holds: a struct with the token of the write that made it."""

    @property
    def operation(self) -> str: ...


K = TypeVar("K", contravariant=True)
T = TypeVar("T", bound=Record)


class Rows(Generic[K, T]):
    """The rows of one folder, by key.

    Args:
        kind: a msgspec struct with a field `operation`.
        folder: where the rows are, such as `ledgers/`.
        name_of: a key as the rest of the row's name.
    """

    __slots__ = ("_decoder", "_encoder", "_folder", "_metadata", "_name_of")

    def __init__(
        self, metadata: Metadata, folder: str, kind: type[T], name_of: Callable[[K], str]
    ) -> None:
        self._metadata = metadata
        self._folder = folder
        self._name_of = name_of
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(kind)

    async def read(self, key: K) -> T | None:
        """What is stored; None: there is no such row. Raises StorageError."""
        name = self._key(key)
        row = await self._metadata.store.read(name)
        return None if row is None else self._decoded(name, row)

    async def create(self, key: K, record: T) -> T:
        """Store a record where there is none; as stored. Raises Conflict (there is one),
        StorageUnavailable (it may be stored)."""
        operation = self._metadata.new_operation()
        made = await self._run(key, lambda found: found or record, operation)
        if made is None or made.operation != operation:
            raise Conflict(f"{self._key(key)} is there already")
        return made

    @overload
    async def update(self, key: K, change: Callable[[T | None], T]) -> T: ...
    @overload
    async def update(self, key: K, change: Callable[[T | None], T | None]) -> T | None: ...
    async def update(self, key: K, change: Callable[[T | None], T | None]) -> T | None:
        """Change a row; as stored then.

        Args:
            change: what is stored (None: no row) → what shall be (None: no row). The same, or an
                equal record: nothing is written. It is pure: it runs once for each try.

        Raises what `change` raises, which is no StorageError; Conflict: others came first
        `ROW_TRIES_MAX` times; StorageUnavailable: whether it happened is unknown.
        """
        return await self._run(key, change, self._metadata.new_operation())

    async def delete(self, key: K) -> None:
        """Leave no such row; again is harmless. Raises StorageUnavailable."""
        await self._run(key, lambda _: None, self._metadata.new_operation())

    async def scan(self, within: str = "") -> AsyncIterator[T]:
        """All records in the order of keys, read in pages; of those whose name begins so.

        Of what changes meanwhile, what was or what is then. Raises StorageError.
        """
        folder, after = self._metadata.key(self._folder + within), ""
        while True:
            page = await self._metadata.store.scan(folder, after, ROWS_PER_SCAN)
            for name, row in page:
                yield self._decoded(name, row)
            if len(page) < ROWS_PER_SCAN:
                return
            after = page[-1][0]

    async def _run(
        self, key: K, change: Callable[[T | None], T | None], operation: str
    ) -> T | None:
        name, is_in_doubt, attempt = self._key(key), False, 1
        while True:
            try:
                return await self._try(name, change, operation)
            except StorageUnavailable:
                is_in_doubt = True
                if attempt == ROW_TRIES_MAX:
                    raise
            except Conflict as error:
                if attempt == ROW_TRIES_MAX and is_in_doubt:
                    text = f"{shown(name)}: whether it was written is unknown"
                    raise StorageUnavailable(f"{text}, after {ROW_TRIES_MAX} tries") from error
                if attempt == ROW_TRIES_MAX:
                    raise
            await self._metadata.wait_after(attempt)
            attempt += 1

    async def _try(
        self, name: str, change: Callable[[T | None], T | None], operation: str
    ) -> T | None:
        row = await self._metadata.store.read(name)
        found = None if row is None else self._decoded(name, row)
        if found is not None and found.operation == operation:
            return found  # by an earlier try, whose answer was lost
        new = change(found)
        if new == found:
            return found
        if new is not None:
            return await self._write(name, new, None if row is None else row.etag, operation)
        assert row is not None
        await self._metadata.store.clear(name, row.etag, NO_FENCE)
        return None

    async def _write(self, name: str, new: T, etag: Etag | None, operation: str) -> T:
        signed = msgspec.structs.replace(new, operation=operation)  # type: ignore[type-var]
        await self._metadata.store.write(name, self._encoder.encode(signed), etag, NO_FENCE)
        return signed

    def _key(self, key: K) -> str:
        return self._metadata.key(self._folder + self._name_of(key))

    def _decoded(self, name: str, row: Row) -> T:
        try:
            return self._decoder.decode(row.data)
        except msgspec.MsgspecError as error:
            text = f"{shown(name)} is not what this version writes: {error}"
            raise StorageError(f"{text}; restore the row, or read it with the newer one") from error
