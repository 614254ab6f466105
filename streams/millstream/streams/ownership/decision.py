"""Which silo reads a queue: the queue record, and what one silo does about it.

Owns: the record, its codec and its only writer (`OwnershipStore`); the decision (`decide`). Not:
which queues a silo wants (a balancer), pausing and draining deliveries (the manager).
Invariants:
- every write is a compare-and-set on the version that was decided about;
- each acquisition is epoch + 1, so an epoch has one owner and epochs only rise;
- the checkpoint never goes back, whoever writes it;
- nobody's clock is compared with another's: a record holds durations, and an observer counts them
  from when it first saw that version of the row (never earlier than it was written). The owner
  counts its own lease from just before its write.

    free ──Acquire──▶ owned ──Pause──▶ pausing ──Free──▶ free
                        ▲  ◀──Hold──┘        pausing, owned ──Acquire of another silo──▶ owned

An owner that was overtaken learns it as `Lost`, at the latest after its next write, which fails.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

import msgspec

from millstream.runtime import ConfigError, Etag, StateStore, StorageError
from millstream.runtime.extending import SiloAddress
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.token import Token

__all__ = [
    "Acquire",
    "Decision",
    "FirstSeen",
    "Free",
    "Handoff",
    "Hold",
    "Keep",
    "Local",
    "Lost",
    "Owned",
    "OwnershipOptions",
    "OwnershipStore",
    "Pause",
    "Pausing",
    "QueueRecord",
    "QueueState",
    "Situation",
    "StoredRecord",
    "Unowned",
    "Wait",
    "decide",
    "with_checkpoint",
]

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


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    """Times of taking and giving queues. Raises ConfigError.

    `max_handoff_s`: how long a giving owner drains. `poll_s`: how often a wanted queue's record is
    read. `force_after_s`: patience beyond the drain time. `lease_s`: 0, or at least three polls.
    `checkpoint_every_s`: how often an owner stores its position, for providers that keep none; what
    was delivered since is delivered again if the owner dies.
    """

    max_handoff_s: float = 3.0
    poll_s: float = 1.0
    force_after_s: float = 2.0
    lease_s: float = 0.0
    checkpoint_every_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_handoff_s", "force_after_s", "lease_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, not a finite number from 0")
        for name in ("poll_s", "checkpoint_every_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, not a finite number above 0")
        if 0 < self.lease_s < 3 * self.poll_s:
            raise ConfigError(f"lease_s is {self.lease_s}, below three times poll_s {self.poll_s}")


class Unowned(msgspec.Struct, frozen=True):
    """This silo does not read the queue."""


class Owned(msgspec.Struct, frozen=True):
    """This silo reads the queue in this epoch."""

    epoch: int


class Pausing(msgspec.Struct, frozen=True):
    """This silo reads no more, and drains until `deadline_s` of its own clock."""

    epoch: int
    deadline_s: float


Local = Unowned | Owned | Pausing


class Situation(msgspec.Struct, frozen=True):
    """All that a decision depends on.

    `live`: every silo that is not dead, stopping ones too, from a view read *after* the record:
    else a new owner looks dead. `seen_s`: see `FirstSeen`. `checkpoint` and `in_flight`: of this
    silo's agent, if it owns the queue; `undone`: events it has read that are not done.
    """

    record: QueueRecord | None
    seen_s: float
    now_s: float
    me: SiloAddress
    live: Set[SiloAddress]
    is_wanted: bool
    local: Local
    checkpoint: Token | None = None
    in_flight: int = 0
    undone: int = 0


class Acquire(msgspec.Struct, frozen=True):
    """Write the record; then read the queue from its checkpoint, in its epoch.

    `is_forced`: the former owner did not let go, so its deliveries may still run. `may_repeat`:
    events after the checkpoint may have been delivered by a former owner.
    """

    record: QueueRecord
    is_forced: bool
    may_repeat: bool = False


class Hold(msgspec.Struct, frozen=True):
    """Write the record: still owned in the same epoch.

    For a lease that is renewed, a checkpoint that moved, a pause that is called off.
    """

    record: QueueRecord


class Pause(msgspec.Struct, frozen=True):
    """Stop reading and starting deliveries, then write the record."""

    record: QueueRecord


class Free(msgspec.Struct, frozen=True):
    """Stop for good, then write the record and tell the silo that wants the queue."""

    record: QueueRecord


class Keep(msgspec.Struct, frozen=True):
    """Nothing to do until something changes; look at the record again at the next poll."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do before this time; then read the record and decide again."""

    until_s: float


class Lost(msgspec.Struct, frozen=True):
    """Another silo has the queue, or had it: stop at once, write nothing."""


Decision = Acquire | Hold | Pause | Free | Keep | Wait | Lost


def decide(situation: Situation, options: OwnershipOptions) -> Decision:
    """What this silo does next about one queue. Pure; the driver writes, and asks again."""
    match situation.local:
        case Unowned():
            return _decide_unowned(situation, options)
        case Owned(epoch):
            return _decide_owned(situation, options, epoch)
        case Pausing(epoch, deadline_s):
            return _decide_pausing(situation, options, epoch, deadline_s)


def _decide_unowned(now: Situation, options: OwnershipOptions) -> Decision:
    record = now.record
    is_mine = record is not None and record.owner == now.me  # a write whose answer was lost
    if not now.is_wanted:
        # its agent is gone: what was out when it ended is not known any more
        return Free(_freed(record, now, is_known=False)) if record and is_mine else Keep()
    if record is None or record.state is QueueState.FREE:
        is_clean = record is None or (record.handoff is not None and record.handoff.clean)
        return Acquire(_acquired(record, now, options), is_forced=False, may_repeat=not is_clean)
    takeable_s = _takeable_s(record, now, options)
    if is_mine or now.now_s >= takeable_s:
        return Acquire(_acquired(record, now, options), is_forced=True, may_repeat=True)
    return Wait(min(takeable_s, now.now_s + options.poll_s))


def _takeable_s(record: QueueRecord, now: Situation, options: OwnershipOptions) -> float:
    """From when on the queue may be taken without its owner's consent."""
    if record.owner not in now.live:
        return -math.inf
    lease_end_s = now.seen_s + record.lease_s if record.lease_s > 0 else math.inf
    if record.state is not QueueState.PAUSING:
        return lease_end_s
    return min(lease_end_s, now.seen_s + record.drain_by_s + options.force_after_s)


def _decide_owned(now: Situation, options: OwnershipOptions, epoch: int) -> Decision:
    record = _still_mine(now, epoch)
    if record is None:
        return Lost()
    if not now.is_wanted:
        return Pause(_pausing(record, now, options.max_handoff_s))
    is_paused = record.state is QueueState.PAUSING  # a pause whose answer was lost
    has_moved = with_checkpoint(record, now.checkpoint) is not record
    is_due = has_moved and now.now_s >= now.seen_s + options.checkpoint_every_s
    if is_paused or is_due or now.now_s >= _renewal_s(record, now):
        return Hold(_held(record, now))
    return Keep()


def _decide_pausing(
    now: Situation, options: OwnershipOptions, epoch: int, deadline_s: float
) -> Decision:
    record = _still_mine(now, epoch)
    if record is None:
        return Lost()
    if now.is_wanted:
        return Hold(_held(record, now))
    if now.in_flight == 0 or now.now_s >= deadline_s:
        return Free(_freed(record, now))
    renewal_s = _renewal_s(record, now)
    if now.now_s >= renewal_s:
        return Pause(_pausing(record, now, deadline_s - now.now_s))
    return Wait(min(deadline_s, renewal_s, now.now_s + options.poll_s))


def _still_mine(now: Situation, epoch: int) -> QueueRecord | None:
    """The record if it says that this silo has the queue in this epoch, and the lease holds."""
    record = now.record
    if record is None or record.state is QueueState.FREE:
        return None
    if record.owner != now.me or record.epoch != epoch:
        return None
    is_expired = record.lease_s > 0 and now.now_s >= now.seen_s + record.lease_s
    return None if is_expired else record


def _renewal_s(record: QueueRecord, now: Situation) -> float:
    return now.seen_s + record.lease_s / 3 if record.lease_s > 0 else math.inf


def _acquired(record: QueueRecord | None, now: Situation, options: OwnershipOptions) -> QueueRecord:
    return QueueRecord(
        owner=now.me,
        epoch=1 if record is None else record.epoch + 1,
        state=QueueState.OWNED,
        checkpoint=None if record is None else record.checkpoint,
        lease_s=options.lease_s,
    )


def _held(record: QueueRecord, now: Situation) -> QueueRecord:
    return msgspec.structs.replace(
        with_checkpoint(record, now.checkpoint), state=QueueState.OWNED, drain_by_s=0.0
    )


def _pausing(record: QueueRecord, now: Situation, drain_by_s: float) -> QueueRecord:
    return msgspec.structs.replace(
        with_checkpoint(record, now.checkpoint), state=QueueState.PAUSING, drain_by_s=drain_by_s
    )


def _freed(record: QueueRecord, now: Situation, *, is_known: bool = True) -> QueueRecord:
    is_clean = is_known and now.in_flight == now.undone == 0
    return msgspec.structs.replace(
        with_checkpoint(record, now.checkpoint),
        owner="",
        state=QueueState.FREE,
        drain_by_s=0.0,
        handoff=Handoff(clean=is_clean, in_flight=now.in_flight),
        lease_s=0.0,
    )


def with_checkpoint(record: QueueRecord, checkpoint: Token | None) -> QueueRecord:
    """The record with this checkpoint, unless it already has a later one."""
    if checkpoint is None or (record.checkpoint is not None and checkpoint <= record.checkpoint):
        return record
    return msgspec.structs.replace(record, checkpoint=checkpoint)


class FirstSeen:
    """When this silo first saw the present version of each queue's row, on its own clock."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[QueueId, tuple[Etag | None, float]] = {}

    def saw(self, queue: QueueId, etag: Etag | None, now_s: float) -> float:
        """Note a version (None: no row); returns when it was first seen.

        For a version that this silo wrote, `now_s` is the time just before the write.
        """
        seen = self._seen.get(queue)
        if seen is None or seen[0] != etag:
            self._seen[queue] = seen = (etag, now_s)
        return seen[1]

    def forget(self, queue: QueueId) -> None:
        """Drop what is known about a queue."""
        self._seen.pop(queue, None)


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
        if row is None:
            return None
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
