"""Rows of one kind, read and changed by compare-and-set alone.

Owns: `RecordRows`. Not: the sealed form of a row (`millstream.runtime.sealed_rows`), the content of
a witness (`witness`).

Invariants:

- A change is a function of the stored value. It is repeated on the newest value, so no update of
  another process is lost.
- A write whose answer was lost is recognised by its token in the row, and is not a failure. If
  another process has overwritten the row before it was read again, the change is made once more.
  Changes are such that this does no harm.
- A row that is damaged, missing or older than its witness is never given out. A scan passes damaged
  rows over, and lists them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeVar, overload

import msgspec
from xxhash import xxh3_64_intdigest

from millstream.runtime import Conflict, Corrupt, Etag, Row, StorageUnavailable
from millstream.runtime.extending import Sealed, seal, seal_content, show_text, unseal

from .metadata import Metadata
from .witness import NO_BIRTH, Witness, refuse_older, witness_key

__all__ = ["ROWS_PER_SCAN", "ROW_TRIES_MAX", "RecordRows", "RecordScan"]

ROW_TRIES_MAX = 16
"""Attempts of one change, which take some 10 seconds together."""
ROWS_PER_SCAN = 500
NO_FENCE = 0  # records hold terms and epochs of their own
UNKNOWN = 0  # generation in a witness that demands none
WITNESS = msgspec.msgpack.Decoder(Witness)


class RowRecord(Protocol):
    """The content of a row: a struct with the token of the write that made it."""

    @property
    def operation(self) -> str: ...


K = TypeVar("K", contravariant=True)
T = TypeVar("T", bound=RowRecord)
C = TypeVar("C")


class StoredRecord(NamedTuple, Generic[C]):
    """The content of a row, with its seal and its etag."""

    value: C
    seal: Sealed
    etag: Etag


class Watching(NamedTuple):
    """The content of a witness, with its etag."""

    value: Witness
    etag: Etag


class RecordScan(Generic[C]):
    """The records of a folder, read in pages while they are iterated.

    Attributes: `damaged`: the damaged rows that were passed over until now, by their names in the
    folder. Their content is unknown. Code that deletes, counts or gives up entries because of a
    scan must look here, too. The log names each row once.
    """

    __slots__ = ("_decoder", "_folder", "_metadata", "damaged")

    def __init__(
        self, metadata: Metadata, folder: str, decoder: msgspec.msgpack.Decoder[C]
    ) -> None:
        self._metadata = metadata
        self._folder = folder
        self._decoder = decoder
        self.damaged: dict[str, Corrupt] = {}

    async def __aiter__(self) -> AsyncIterator[C]:
        after, damage = "", self._metadata.damage
        while True:
            page = await self._metadata.store.scan(self._folder, after, ROWS_PER_SCAN)
            for name, row in page:
                try:
                    found = open_record(name, row, self._decoder).value
                except Corrupt as error:
                    self.damaged[name.removeprefix(self._folder)] = error
                    damage.tell(name, error)
                    continue
                damage.is_whole(name)
                yield found
            if len(page) < ROWS_PER_SCAN:
                return
            after = page[-1][0]


class RecordRows(Generic[K, T]):
    """The rows of one folder, by key.

    Args:
        kind: a msgspec struct with a field `operation`.
        folder: where the rows are, such as `ledgers/`.
        name_of: returns the rest of the row's name for a key.
        is_witnessed: notice an older row in place of the newest one. Costs a second read for each
            read, and a second write for each pinned write.
    """

    __slots__ = ("_decoder", "_encoder", "_folder", "_is_witnessed", "_metadata", "_name_of")

    def __init__(
        self,
        metadata: Metadata,
        folder: str,
        kind: type[T],
        name_of: Callable[[K], str],
        is_witnessed: bool = False,
    ) -> None:
        self._metadata = metadata
        self._folder = folder
        self._name_of = name_of
        self._is_witnessed = is_witnessed
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(kind)

    @property
    def folder(self) -> str:
        """The folder of the rows, such as `ledgers/`."""
        return self._folder

    async def read(self, key: K) -> T | None:
        """Return the stored value, or None if there is no such row.

        Raises Corrupt, StorageError.
        """
        found, _ = await self._look(self._key(key))
        return None if found is None else found.value

    async def create(self, key: K, record: T) -> T:
        """Store a record where there is none; return it as it is stored. Raises Conflict (there is
        one), StorageUnavailable (it may be stored)."""
        operation = self._metadata.new_operation()
        made = await self._run(key, lambda found: found or record, operation)
        if made is None or made.operation != operation:
            raise Conflict(f"{self._key(key)} exists already")
        return made

    @overload
    async def update(self, key: K, change: Callable[[T | None], T], pins: bool = True) -> T: ...
    @overload
    async def update(
        self, key: K, change: Callable[[T | None], T | None], pins: bool = True
    ) -> T | None: ...
    async def update(
        self, key: K, change: Callable[[T | None], T | None], pins: bool = True
    ) -> T | None:
        """Change a row; return it as it is stored then.

        Args:
            change: maps the stored record (None: no row) to the new one (None: no row). An equal
                record is not written. It must be pure, since it runs once for each attempt.
            pins: the witness gets to know this version, so no reader accepts an older one. False:
                it does no harm if the row falls back to the last pinned version. The first version
                is always pinned.

        Raises: an error of `change`, which must not be a StorageError; Corrupt; Conflict: others
        came first `ROW_TRIES_MAX` times; StorageUnavailable: it is unknown whether the change
        happened.
        """
        return await self._run(key, change, self._metadata.new_operation(), pins)

    async def delete(self, key: K) -> None:
        """Delete a row, whatever its content. Repeating it does no harm. Raises
        StorageUnavailable."""
        name = self._key(key)
        await self._again(name, lambda: self._discard(name))

    async def end_deletion(self, key: K) -> None:
        """Complete a deletion that stopped halfway; any other row stays. `read` does not return
        such a row, but `scan` still yields it. Raises Corrupt, StorageError."""
        name = self._key(key)
        await self._again(name, lambda: self._end_if_begun(name))

    def scan(self) -> RecordScan[T]:
        """Return all records in the order of keys, for `async for`, and the damaged rows.

        A row that changes during the scan is given in its old or new version. Witnesses are not
        read, so a row that is too old is given, and so is a row whose deletion stopped halfway.
        Raises StorageError.
        """
        return RecordScan(self._metadata, self._metadata.key(self._folder), self._decoder)

    def tell(self, key: K, error: Corrupt) -> None:
        """Log, once, that a row is damaged and that its reader continues without it."""
        self._metadata.damage.tell(f"a read of {self._key(key)}", error)

    async def _run(
        self, key: K, change: Callable[[T | None], T | None], operation: str, pins: bool = True
    ) -> T | None:
        name = self._key(key)
        return await self._again(name, lambda: self._try(name, change, operation, pins))

    async def _again(self, name: str, act: Callable[[], Awaitable[C]]) -> C:
        """Repeat an action, up to `ROW_TRIES_MAX` times."""
        is_in_doubt, attempt = False, 1
        while True:
            try:
                return await act()
            except StorageUnavailable:
                is_in_doubt = True
                if attempt == ROW_TRIES_MAX:
                    raise
            except Conflict as error:
                if attempt == ROW_TRIES_MAX and is_in_doubt:
                    text = f"{show_text(name)}: it is unknown whether the row was written"
                    raise StorageUnavailable(f"{text}, after {ROW_TRIES_MAX} tries") from error
                if attempt == ROW_TRIES_MAX:
                    raise
            await self._metadata.wait_after(attempt)
            attempt += 1

    async def _try(
        self, name: str, change: Callable[[T | None], T | None], operation: str, pins: bool
    ) -> T | None:
        found, witness = await self._look(name)
        if witness is not None and witness.value.is_going:
            await self._end(name, witness)
            witness = None
        if found is None or found.value.operation != operation:  # else an earlier attempt wrote it
            known = None if found is None else found.value
            new = change(known)
            if new is None:
                await self._discard(name)
                return None
            if new != known:
                if found is None:
                    witness = await self._reserve(name, witness)
                found = await self._write(name, new, found, operation)
        assert found is not None
        if self._is_witnessed and (pins or found.seal.generation == 1):
            await self._pin(name, found.seal, witness)
        return found.value

    async def _write(
        self, name: str, new: T, before: StoredRecord[T] | None, operation: str
    ) -> StoredRecord[T]:
        signed = msgspec.structs.replace(new, operation=operation)  # type: ignore[type-var]
        content = self._encoder.encode(signed)
        if before is None:
            row, etag = Sealed(1, xxh3_64_intdigest(operation.encode()), content), None
        else:
            row, etag = before.seal._replace(content=content), before.etag
            row = row._replace(generation=row.generation + 1)
        stored = await self._metadata.store.write(name, seal(name, row), etag, NO_FENCE)
        return StoredRecord(signed, row, stored)

    async def _discard(self, name: str) -> None:
        """Delete a row. It counts as deleted once its witness says so. Any process that finds such
        a witness completes the deletion."""
        store, key = self._metadata.store, self._witness_key(name)
        row = await store.read(name)
        if not self._is_witnessed:
            if row is not None:
                await store.clear(name, row.etag, NO_FENCE)
            return
        witness = await store.read(key)
        if row is not None:
            going = Witness(name, UNKNOWN, birth_of(name, row), is_going=True)
            etag = await self._write_witness(going, None if witness is None else witness.etag)
            await store.clear(name, row.etag, NO_FENCE)
            await store.clear(key, etag, NO_FENCE)
        elif witness is not None:
            await store.clear(key, witness.etag, NO_FENCE)

    async def _end_if_begun(self, name: str) -> None:
        witness = await self._witness(name)
        if witness is not None and witness.value.is_going:
            await self._end(name, witness)

    async def _end(self, name: str, witness: Watching) -> None:
        """Complete a deletion; a row of a later creation stays."""
        row = await self._metadata.store.read(name)
        if row is not None and birth_of(name, row) == witness.value.birth:
            await self._metadata.store.clear(name, row.etag, NO_FENCE)
        await self._metadata.store.clear(self._witness_key(name), witness.etag, NO_FENCE)

    # --- witnesses ---

    async def _look(self, name: str) -> tuple[StoredRecord[T] | None, Watching | None]:
        """Return a row and its witness. Only a witness that did not change proves the row too old.

        Raises Corrupt; Conflict: others changed the row `ROW_TRIES_MAX` times in the meantime.
        """
        witness = await self._witness(name)
        for _ in range(ROW_TRIES_MAX):
            if witness is not None and witness.value.is_going:
                return None, witness
            found = await self._read_stored(name)
            if witness is None or witness.value.is_met_by(found and found.seal):
                return found, witness
            before, witness = witness, await self._witness(name)
            if witness is not None and witness.etag == before.etag:
                refuse_older(witness.value, self._witness_key(name), found and found.seal)
        text = f"{show_text(name)}: other processes changed the row {ROW_TRIES_MAX} times"
        raise Conflict(f"{text} during one read")

    async def _pin(self, name: str, row: Sealed, witness: Watching | None) -> None:
        """Let the witness know this version, or a later one, unless the row was deleted."""
        new = Witness(name, row.generation, row.birth)
        for _ in range(ROW_TRIES_MAX):
            try:
                if witness is None:
                    witness = await self._reserve(name, witness)
                    found = await self._read_stored(
                        name
                    )  # a deletion from now on sees the reservation
                    if found is None or found.seal.birth != row.birth:
                        return
                if witness is not None and not witness.value.knows(new):
                    await self._write_witness(new, witness.etag)
                return
            except Conflict:
                witness = await self._witness(name)
        text = f"{show_text(name)}: other processes changed the witness of the row"
        raise Conflict(f"{text} {ROW_TRIES_MAX} times during one write")

    async def _reserve(self, name: str, witness: Watching | None) -> Watching | None:
        """Return the witness of a row; make one that knows no version if there is none.

        So a witness that knows a version always replaces an earlier one, and a deletion sees it.
        """
        if not self._is_witnessed or witness is not None:
            return witness
        reserved = Witness(name, UNKNOWN, NO_BIRTH)
        return Watching(reserved, await self._write_witness(reserved, None))

    async def _write_witness(self, new: Witness, expect: Etag | None) -> Etag:
        key = self._witness_key(new.key)
        data = seal_content(key, msgspec.msgpack.encode(new))
        return await self._metadata.store.write(key, data, expect, NO_FENCE)

    async def _witness(self, name: str) -> Watching | None:
        if not self._is_witnessed:
            return None
        key = self._witness_key(name)
        row = await self._metadata.store.read(key)
        return None if row is None else Watching(open_record(key, row, WITNESS).value, row.etag)

    def _witness_key(self, name: str) -> str:
        return witness_key(self._metadata.prefix, name)

    async def _read_stored(self, name: str) -> StoredRecord[T] | None:
        row = await self._metadata.store.read(name)
        return None if row is None else open_record(name, row, self._decoder)

    def _key(self, key: K) -> str:
        return self._metadata.key(self._folder + self._name_of(key))


def open_record(name: str, row: Row, decoder: msgspec.msgpack.Decoder[C]) -> StoredRecord[C]:
    """Return the content of a row. Raises Corrupt."""
    sealed = unseal(name, row.data)
    try:
        return StoredRecord(decoder.decode(sealed.content), sealed, row.etag)
    except (msgspec.MsgspecError, ValueError) as error:
        text = f"row {show_text(name)} is intact, but this version cannot read it: {error}"
        raise Corrupt(f"{text}; use the newer version, or restore the row") from error


def birth_of(name: str, row: Row) -> int:
    """Return the birth of a row; `NO_BIRTH`: it is damaged."""
    try:
        return unseal(name, row.data).birth
    except Corrupt:
        return NO_BIRTH
