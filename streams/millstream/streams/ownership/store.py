"""The storage of queue records.

`record` describes a row, and `decision` decides about writes.

Invariants:

- A row changes only by compare-and-set, and only by `OwnershipStore`.
- A row is never deleted.
- A row is sealed with a checksum. No field of a damaged row is used, so no silo reads its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from millstream.runtime import Corrupt, Etag, Row, StateStore
from millstream.runtime.extending import DamageLog, open_row, seal_content
from millstream.streams.contracts.identity import QueueId

from .record import QueueRecord, QueueState, RecordDecoder, StoredRecord

__all__ = ["OwnershipStore"]

log = logging.getLogger("millstream.manager")

ROWS_PER_SCAN = 1000
READS_MAX = 64  # concurrent reads
NO_FENCE = 0  # the record is fenced by its own epoch and etag


class OwnershipStore:
    """Reads and writes queue records in a provider's state store; only this class writes them."""

    __slots__ = ("_damage", "_decoder", "_encoder", "_prefix", "_store")

    def __init__(self, store: StateStore, provider: str) -> None:
        self._store = store
        self._prefix = f"queue/{provider}/"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = RecordDecoder()
        self._damage = DamageLog(log)

    async def read(self, queue: QueueId) -> StoredRecord | None:
        """Return the record; None if the queue never had an owner. Raises Corrupt, StorageError."""
        row = await self._store.read(self._prefix + queue)
        return None if row is None else self._open(queue, row)

    async def read_all(self, queues: Sequence[QueueId]) -> dict[QueueId, StoredRecord]:
        """Return the records of those queues that ever had an owner. Damaged ones are left out, and
        the log names each once. Raises StorageError."""
        found: dict[QueueId, StoredRecord] = {}
        for start in range(0, len(queues), READS_MAX):
            some = queues[start : start + READS_MAX]
            records = await asyncio.gather(*map(self._read_whole, some))
            found |= {q: record for q, record in zip(some, records, strict=True) if record}
        return found

    async def _read_whole(self, queue: QueueId) -> StoredRecord | None:
        try:
            stored = await self.read(queue)
        except Corrupt as error:
            self._damage.tell(queue, error)
            return None
        self._damage.is_whole(queue)
        return stored

    async def etags(self) -> dict[QueueId, Etag]:
        """Return the version of every record of the provider. Raises StorageError."""
        found: dict[QueueId, Etag] = {}
        after = ""
        while True:
            rows = await self._store.scan(self._prefix, after, ROWS_PER_SCAN)
            for after, row in rows:
                found[after.removeprefix(self._prefix)] = row.etag
            if len(rows) < ROWS_PER_SCAN:
                return found

    def _open(self, queue: QueueId, row: Row) -> StoredRecord:
        record = open_row(self._prefix + queue, row.data, self._decoder.decode)
        return StoredRecord(record, row.etag)

    async def write(self, queue: QueueId, record: QueueRecord, expect_etag: Etag | None) -> Etag:
        """Replace the version `expect_etag` (None: no row yet), and return the new etag.

        Raises Conflict (read and decide again), StorageUnavailable (the outcome is unknown: read).
        """
        assert (record.owner == "") == (record.state is QueueState.FREE), f"{record}"
        key = self._prefix + queue
        data = seal_content(key, self._encoder.encode(record))
        return await self._store.write(key, data, expect_etag, NO_FENCE)
