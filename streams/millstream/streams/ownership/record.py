"""The row of one queue: who owns it, in which epoch, and how far it is done.

Owns: `QueueRecord`, and where it is stored. Not: what is written when (`decision`). Invariants: it
changes only by compare-and-set, and by nothing but `OwnershipStore`; it is never deleted; frontier
and `behind` are of one instant, so that what the frontier has passed is done, or is behind; the row
is sealed, and of a damaged one nothing is believed: its queue is read by nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum

import msgspec

from millstream.runtime import Corrupt, Etag, Row, StateStore
from millstream.runtime.extending import DamageLog, SiloAddress, open_row, seal_content
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.token import Token

__all__ = [
    "BehindAt",
    "Handoff",
    "Lost",
    "OwnershipStore",
    "Progress",
    "QueueRecord",
    "QueueState",
    "SentAt",
    "StoredRecord",
    "Suspect",
    "TokenRange",
    "after_death",
    "handed_over",
    "lowest_of",
    "says",
    "with_progress",
]

log = logging.getLogger("millstream.manager")

ROWS_PER_SCAN = 1000
READS_MAX = 64  # records that are read at once
TokenRange = tuple[Token, Token]  # of messages, both ends included
NO_FENCE = 0  # the record is fenced by its own epoch and etag


class QueueState(Enum):
    """What the record says about its owner."""

    FREE = "free"
    OWNED = "owned"
    PAUSING = "pausing"


class BehindAt(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that is behind the frontier of its queue.

    `position`: the first item that is not done. `is_rewound`: it was moved back, and its consumer
    has not heard of that. `sent`: up to here what is not done was delivered; None: not known.
    """

    namespace: str
    key: str
    subscription: str
    position: Token
    is_rewound: bool = False
    sent: Token | None = None

    @property
    def stream(self) -> StreamId:
        """Whose events it gets."""
        return StreamId(self.namespace, self.key)


class SentAt(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that was delivered what is not done, or comes again to it: up to here."""

    namespace: str
    key: str
    subscription: str
    upto: Token

    @property
    def stream(self) -> StreamId:
        """Whose events it gets."""
        return StreamId(self.namespace, self.key)


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """An event that may have killed owners of its queue.

    `deaths`: so many died while it was out. `is_out`: it is under way, or was when the owner died.
    """

    namespace: str
    key: str
    subscription: str
    token: Token
    deaths: int = 0
    is_out: bool = False

    @property
    def stream(self) -> StreamId:
        """The stream that has it."""
        return StreamId(self.namespace, self.key)


class Lost(msgspec.Struct, frozen=True, array_like=True):
    """What owners of a queue have found to be gone of it: behind the first, before the second.

    `found_s`: when the last of it was found (wall clock). None: not known.
    """

    found_s: float
    parts: tuple[tuple[Token | None, Token | None], ...]


class Progress(msgspec.Struct, frozen=True):
    """How far the owner of a queue is, at one instant.

    `frontier`: up to here everything is done by every subscription that is not in `behind`.
    `done`: ranges of messages above the frontier that are done by all that are not in `behind`, in
    order. `floor`: up to here all are
    done by those behind too; it is not stored. `deaths`, `suspects`, `lost`: as `QueueRecord` has
    them. `sent`: as `Handoff` has it.
    """

    frontier: Token | None = None
    behind: tuple[BehindAt, ...] = ()
    done: tuple[TokenRange, ...] = ()
    floor: Token | None = None
    deaths: int = 0
    suspects: tuple[Suspect, ...] = ()
    sent: tuple[SentAt, ...] | None = None
    lost: Lost | None = None


class Handoff(msgspec.Struct, frozen=True):
    """How the last owner left.

    `clean`: nothing that was delivered is not done, so what comes is new to its handlers.
    `in_flight`: deliveries that were still out. `done`: see `Progress`. `sent`: what of that which
    comes again was delivered, and nothing else was; None: that is not known.
    """

    clean: bool
    in_flight: int
    done: tuple[TokenRange, ...] = ()
    sent: tuple[SentAt, ...] | None = None


class QueueRecord(msgspec.Struct, frozen=True):
    """The row of one queue. Owner "" while free. It is never deleted: the epoch must survive.

    `drain_by_s`: while pausing, the owner has drained at most so many seconds after the write.
    `lease_s`: the owner writes again within so many seconds; 0: it has no lease.
    `frontier`, `behind`: see `Progress`; where tokens are positions.
    `handoff`: set by the owner that let go, cleared by the next one.
    `deaths`: so many owners in a row died, of which the first may have made progress; 0 once the
    present one has. `suspects`: what was out when they did, if that was noted.
    `lost`: subscriptions may still have to hear of this.
    `rival`: a silo that was alive when the queue was taken from it by force, and may still deliver.
    `is_held`: nobody is to read it (`holding`).
    `checkpoint`: the frontier, in rows of older versions; only read.
    """

    owner: SiloAddress
    epoch: int
    state: QueueState
    drain_by_s: float = 0.0
    checkpoint: Token | None = None
    handoff: Handoff | None = None
    lease_s: float = 0.0
    frontier: Token | None = None
    behind: tuple[BehindAt, ...] = ()
    deaths: int = 0
    suspects: tuple[Suspect, ...] = ()
    is_held: bool = False
    lost: Lost | None = None
    rival: SiloAddress = ""

    @property
    def progress(self) -> Progress:
        """From where the next owner reads."""
        last = self.handoff or Handoff(clean=False, in_flight=0)
        return Progress(
            self.frontier,
            self.behind,
            last.done,
            deaths=self.deaths,
            suspects=self.suspects,
            sent=last.sent,
            lost=self.lost,
        )


def with_progress(record: QueueRecord, progress: Progress | None) -> QueueRecord:
    """The record with this progress, unless the frontier would go back."""
    if progress is None:
        return record
    known, new = record.frontier, progress.frontier
    if known is not None and (new is None or new < known):
        return record
    if says(record, progress):
        return record
    return msgspec.structs.replace(
        record,
        frontier=new,
        behind=progress.behind,
        deaths=progress.deaths,
        suspects=progress.suspects,
        lost=progress.lost,
    )


def says(record: QueueRecord, progress: Progress) -> bool:
    """Is that progress in the record?"""
    return (
        record.frontier == progress.frontier
        and record.behind == progress.behind
        and record.deaths == progress.deaths
        and record.suspects == progress.suspects
        and record.lost == progress.lost
    )


def lowest_of(progress: Progress) -> Token | None:
    """Up to here nothing is left to do, for those behind neither; None: not known."""
    known = [progress.frontier, *(one.position for one in progress.behind)]
    tokens = [one for one in known if one is not None]
    return min(tokens) if len(tokens) == len(known) else None


def after_death(record: QueueRecord) -> QueueRecord:
    """The record, after its owner has died: what was out may be the reason."""
    suspects = tuple(
        msgspec.structs.replace(one, deaths=one.deaths + 1, is_out=False) if one.is_out else one
        for one in record.suspects
    )
    return msgspec.structs.replace(record, deaths=record.deaths + 1, suspects=suspects)


def handed_over(record: QueueRecord, progress: Progress | None, *, is_acked: bool) -> QueueRecord:
    """The record of a queue that is let go, with all that its owner knows.

    `is_acked`: False: the provider was not told of all that is done, and gives it again where the
    record does not say so either.
    """
    assert record.handoff is not None, f"{record}"
    new = with_progress(record, progress)
    is_told = is_acked or new.frontier is not None
    handoff = msgspec.structs.replace(
        record.handoff,
        clean=record.handoff.clean and is_told,
        done=() if progress is None else progress.done,
        sent=progress.sent if progress is not None and is_told else None,
    )
    return msgspec.structs.replace(new, handoff=handoff)


def upgraded(record: QueueRecord) -> QueueRecord:
    """What an older version has written, as this one writes it."""
    if record.checkpoint is None:
        return record
    return msgspec.structs.replace(record, checkpoint=None, frontier=record.checkpoint)


class StoredRecord(msgspec.Struct, frozen=True):
    """A record with the etag that its next write must expect."""

    record: QueueRecord
    etag: Etag


class OwnershipStore:
    """Reads and writes queue records in a provider's state store; nothing else writes them."""

    __slots__ = ("_damage", "_decoder", "_encoder", "_prefix", "_store")

    def __init__(self, store: StateStore, provider: str) -> None:
        self._store = store
        self._prefix = f"queue/{provider}/"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(QueueRecord)
        self._damage = DamageLog(log)

    async def read(self, queue: QueueId) -> StoredRecord | None:
        """The record, or None if the queue never had an owner. Raises Corrupt, StorageError."""
        row = await self._store.read(self._prefix + queue)
        return None if row is None else self._stored(queue, row)

    async def read_all(self, queues: Sequence[QueueId]) -> dict[QueueId, StoredRecord]:
        """The records of those queues that ever had an owner; those that are damaged are left out,
        and the log names each once. Raises StorageError."""
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
        """The version of every record of the provider. Raises StorageError."""
        found: dict[QueueId, Etag] = {}
        after = ""
        while True:
            rows = await self._store.scan(self._prefix, after, ROWS_PER_SCAN)
            for after, row in rows:
                found[after.removeprefix(self._prefix)] = row.etag
            if len(rows) < ROWS_PER_SCAN:
                return found

    def _stored(self, queue: QueueId, row: Row) -> StoredRecord:
        record = open_row(self._prefix + queue, row.data, self._decoder)
        return StoredRecord(upgraded(record), row.etag)

    async def write(self, queue: QueueId, record: QueueRecord, expect_etag: Etag | None) -> Etag:
        """Replace the version `expect_etag` (None: no row yet); returns the new etag.

        Raises Conflict (read and decide again), StorageUnavailable (the outcome is unknown: read).
        """
        assert (record.owner == "") == (record.state is QueueState.FREE), f"{record}"
        key = self._prefix + queue
        data = seal_content(key, self._encoder.encode(record))
        return await self._store.write(key, data, expect_etag, NO_FENCE)
