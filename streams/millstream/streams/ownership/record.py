"""The row of one queue: who owns it, in which epoch, and how far it is done.

Owns: `QueueRecord`, and where it is stored. Not: what is written when (`decision`). Invariants: it
changes only by compare-and-set, and by nothing but `OwnershipStore`; it is never deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

import msgspec

from millstream.runtime import Etag, Row, StateStore, StorageError
from millstream.runtime.extending import SiloAddress
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.token import Token

__all__ = [
    "Handoff",
    "OwnershipStore",
    "QueueRecord",
    "QueueState",
    "StoredRecord",
    "with_checkpoint",
]

READS_MAX = 64  # records that are read at once
NO_FENCE = 0  # the record is fenced by its own epoch and etag


class QueueState(Enum):
    """What the record says about its owner."""

    FREE = "free"
    OWNED = "owned"
    PAUSING = "pausing"


class Handoff(msgspec.Struct, frozen=True):
    """How the last owner left.

    `clean`: all that it had read was done, so nothing after the checkpoint was ever delivered.
    `in_flight`: deliveries that were still out.
    """

    clean: bool
    in_flight: int


class QueueRecord(msgspec.Struct, frozen=True):
    """The row of one queue. Owner "" while free. It is never deleted: the epoch must survive.

    `drain_by_s`: while pausing, the owner has drained at most so many seconds after the write.
    `lease_s`: the owner writes again within so many seconds; 0: it has no lease.
    `checkpoint`: everything up to here is done; for providers that keep no position themselves.
    `handoff`: set by the owner that let go, cleared by the next one.
    """

    owner: SiloAddress
    epoch: int
    state: QueueState
    drain_by_s: float = 0.0
    checkpoint: Token | None = None
    handoff: Handoff | None = None
    lease_s: float = 0.0


def with_checkpoint(record: QueueRecord, checkpoint: Token | None) -> QueueRecord:
    """The record with this checkpoint, unless it already has a later one."""
    if checkpoint is None or (record.checkpoint is not None and checkpoint <= record.checkpoint):
        return record
    return msgspec.structs.replace(record, checkpoint=checkpoint)


class StoredRecord(msgspec.Struct, frozen=True):
    """A record with the etag that its next write must expect."""

    record: QueueRecord
    etag: Etag


class OwnershipStore:
    """Reads and writes queue records in a provider's state store; nothing else writes them."""

    __slots__ = ("_decoder", "_encoder", "_prefix", "_store")

    def __init__(self, store: StateStore, provider: str) -> None:
        self._store = store
        self._prefix = f"queue/{provider}/"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(QueueRecord)

    async def read(self, queue: QueueId) -> StoredRecord | None:
        """The record, or None if the queue never had an owner. Raises StorageError."""
        row = await self._store.read(self._prefix + queue)
        return None if row is None else self._stored(queue, row)

    async def read_all(self, queues: Sequence[QueueId]) -> dict[QueueId, StoredRecord]:
        """The records of those queues that ever had an owner. Raises StorageError."""
        found: dict[QueueId, StoredRecord] = {}
        for start in range(0, len(queues), READS_MAX):
            some = queues[start : start + READS_MAX]
            records = await asyncio.gather(*map(self.read, some))
            found |= {q: record for q, record in zip(some, records, strict=True) if record}
        return found

    def _stored(self, queue: QueueId, row: Row) -> StoredRecord:
        try:
            return StoredRecord(self._decoder.decode(row.data), row.etag)
        except msgspec.DecodeError as error:
            raise StorageError(f"{self._prefix}{queue} is not a queue record: {error}") from None

    async def write(self, queue: QueueId, record: QueueRecord, expect_etag: Etag | None) -> Etag:
        """Replace the version `expect_etag` (None: no row yet); returns the new etag.

        Raises Conflict (read and decide again), StorageUnavailable (the outcome is unknown: read).
        """
        assert (record.owner == "") == (record.state is QueueState.FREE), f"{record}"
        data = self._encoder.encode(record)
        return await self._store.write(self._prefix + queue, data, expect_etag, NO_FENCE)
