"""The decision about the owner of a queue: the next step of one silo for its record. Pure.

The record itself is described in `record`. A balancer decides which queues a silo wants. The
manager pauses and drains deliveries.

Invariants:

- Every write is a compare-and-set on the version that the decision used.
- Each acquisition raises the epoch by 1, so an epoch has one owner.
- `upto` never decreases, except at a hand-over whose list is too long for a record.
- Clocks of different silos are never compared. A record holds durations, and an observer counts
  them from when it first saw that version of the row. The owner counts its own lease from just
  before its write.

    free ──Acquire──▶ owned ──Pause──▶ pausing ──Free──▶ free        (owned ──Free──▶ free: idle)
                        ▲  ◀──Renew──┘       pausing, owned ──Acquire of another silo──▶ owned

If another silo takes over, the former owner decides `OwnershipLost`, at the latest after its next
write, which fails.
"""

from __future__ import annotations

import math
from collections.abc import Set

import msgspec

from millstream.runtime import Etag
from millstream.runtime.extending import SiloAddress
from millstream.streams.contracts.identity import QueueId

from .options import OwnershipOptions
from .record import (
    Handoff,
    QueueProgress,
    QueueRecord,
    QueueState,
    StoredRecord,
    after_death,
    says,
    with_progress,
)

__all__ = [
    "Acquire",
    "Decision",
    "FirstSeen",
    "Free",
    "Keep",
    "Left",
    "Local",
    "Owned",
    "OwnershipLost",
    "Pause",
    "Pausing",
    "Renew",
    "Situation",
    "Unowned",
    "Wait",
    "decide",
    "is_stored",
]


class Unowned(msgspec.Struct, frozen=True):
    """This silo does not read the queue."""


class Owned(msgspec.Struct, frozen=True):
    """This silo reads the queue in this epoch."""

    epoch: int


class Pausing(msgspec.Struct, frozen=True):
    """This silo no longer reads the queue, and drains until `deadline_s` of its own clock."""

    epoch: int
    deadline_s: float


class Left(msgspec.Struct, frozen=True):
    """This silo's agent of this epoch has stopped in order; the record does not say so yet."""

    epoch: int
    freed: QueueRecord


Local = Unowned | Owned | Pausing | Left


class Situation(msgspec.Struct, frozen=True):
    """The input of a decision.

    `live` is every silo that is not dead, including stopping ones. Its view is read *after* the
    record; otherwise a new owner would look dead. `FirstSeen` explains `seen_s`.

    The other fields describe this silo's agent, if the silo owns the queue:

    - `progress`: the progress to store.
    - `in_flight`: deliveries that have no reply yet.
    - `unacked`: subscriptions that still have to acknowledge delivered events; a pause waits for
      them.
    - `undone`: the approximate number of events that were read and are not done.
    - `is_urgent`: a caller waits until `progress` is stored.
    """

    record: QueueRecord | None
    seen_s: float
    now_s: float
    me: SiloAddress
    live: Set[SiloAddress]
    is_wanted: bool
    local: Local
    progress: QueueProgress | None = None
    in_flight: int = 0
    unacked: int = 0
    undone: int = 0
    is_urgent: bool = False


class Acquire(msgspec.Struct, frozen=True):
    """Write the record, then read the queue from `progress` in its epoch.

    If `is_forced`, the former owner did not free the queue, so its deliveries may still run. If
    `may_repeat`, a former owner may have delivered any of the unfinished events.
    """

    record: QueueRecord
    is_forced: bool
    may_repeat: bool = False
    progress: QueueProgress = QueueProgress()

    @property
    def has_rival(self) -> bool:
        """Whether a silo that lost the queue by force may still deliver from it."""
        return self.record.rival != ""


class Renew(msgspec.Struct, frozen=True):
    """Write the record: this silo still owns the queue in the same epoch.

    This renews a lease, stores progress, or cancels a pause.
    """

    record: QueueRecord


class Pause(msgspec.Struct, frozen=True):
    """Stop reading and starting deliveries, then write the record."""

    record: QueueRecord


class Free(msgspec.Struct, frozen=True):
    """Stop the reader, write the record, and tell the silo that wants the queue."""

    record: QueueRecord


class Keep(msgspec.Struct, frozen=True):
    """Do nothing until something changes; look at the record again at the next poll."""


class Wait(msgspec.Struct, frozen=True):
    """Do nothing before this time; then read the record and decide again."""

    until_s: float


class OwnershipLost(msgspec.Struct, frozen=True):
    """Another silo owns the queue, or owned it: stop at once and write nothing."""


Decision = Acquire | Renew | Pause | Free | Keep | Wait | OwnershipLost


def decide(situation: Situation, options: OwnershipOptions) -> Decision:
    """Return the next step of this silo for one queue. Pure: the driver writes, and asks again."""
    match situation.local:
        case Unowned():
            return _decide_unowned(situation, options)
        case Owned(epoch):
            return _decide_owned(situation, options, epoch)
        case Pausing(epoch, deadline_s):
            return _decide_pausing(situation, options, epoch, deadline_s)
        case Left(epoch, freed):
            return _decide_left(situation, options, epoch, freed)


def _decide_unowned(now: Situation, options: OwnershipOptions) -> Decision:
    record = now.record
    is_mine = record is not None and record.owner == now.me  # a write whose answer was lost
    if not now.is_wanted:
        # The agent is gone, so it is not known which deliveries were in flight when it ended.
        return Free(_free(record, now, is_known=False)) if record and is_mine else Keep()
    if record is None:
        return Acquire(_acquire(record, now, options), is_forced=False)
    if record.state is QueueState.FREE:
        return _take(record, _acquire(record, now, options))
    takeable_s = _takeable_s(record, now, options)
    if is_mine or now.now_s >= takeable_s:
        if not is_mine and record.owner not in now.live:
            record = after_death(record)
        return Acquire(_acquire(record, now, options), True, True, record.progress)
    return Wait(min(takeable_s, now.now_s + options.poll_s))


def _take(free: QueueRecord, new: QueueRecord) -> Acquire:
    """Acquire a queue that its last owner has freed."""
    last = free.handoff
    return Acquire(new, False, last is None or not last.is_known, free.progress)


def _takeable_s(record: QueueRecord, now: Situation, options: OwnershipOptions) -> float:
    """Return the time from which this silo may take the queue without the owner's consent."""
    if record.owner not in now.live:
        return -math.inf
    lease_end_s = _lease_end_s(record, now)
    if record.state is not QueueState.PAUSING:
        return lease_end_s
    return min(lease_end_s, now.seen_s + record.drain_by_s + options.force_after_s)


def _decide_owned(now: Situation, options: OwnershipOptions, epoch: int) -> Decision:
    record = _still_mine(now, epoch)
    if record is None:
        return OwnershipLost()
    if not now.is_wanted:
        return Pause(_pausing(record, now, options.max_handoff_s))
    is_paused = record.state is QueueState.PAUSING  # the pause was written, but the answer was lost
    has_moved = with_progress(record, now.progress) is not record
    is_due = has_moved and now.now_s >= now.seen_s + options.checkpoint_every_s
    is_due = is_due or (has_moved and now.is_urgent)
    if is_paused or is_due or now.now_s >= _renewal_s(record, now):
        return Renew(_extend(record, now))
    return Keep()


def _decide_pausing(
    now: Situation, options: OwnershipOptions, epoch: int, deadline_s: float
) -> Decision:
    record = _still_mine(now, epoch)
    if record is None:
        return OwnershipLost()
    if now.is_wanted:
        return Renew(_extend(record, now))
    is_drained = now.in_flight == 0 and now.unacked == 0
    if is_drained or now.now_s >= deadline_s:
        return Free(_free(record, now))
    renewal_s = _renewal_s(record, now)
    if record.state is QueueState.OWNED or now.now_s >= renewal_s:
        return Pause(_pausing(record, now, deadline_s - now.now_s))
    return Wait(min(deadline_s, renewal_s, now.now_s + options.poll_s))


def _decide_left(
    now: Situation, options: OwnershipOptions, epoch: int, freed: QueueRecord
) -> Decision:
    if _still_mine(now, epoch) is None:
        return OwnershipLost()  # or the write that freed it succeeded, but its answer was lost
    return _take(freed, _acquire(freed, now, options)) if now.is_wanted else Free(freed)


def _still_mine(now: Situation, epoch: int) -> QueueRecord | None:
    """Return the record if this silo owns the queue in this epoch and its lease is valid."""
    record = now.record
    if record is None or record.state is QueueState.FREE:
        return None
    if record.owner != now.me or record.epoch != epoch:
        return None
    return None if now.now_s >= _lease_end_s(record, now) else record


def _lease_end_s(record: QueueRecord, now: Situation) -> float:
    return now.seen_s + record.lease_s if record.lease_s else math.inf


def _renewal_s(record: QueueRecord, now: Situation) -> float:
    return now.seen_s + record.lease_s / 3 if record.lease_s else math.inf


def _acquire(record: QueueRecord | None, now: Situation, options: OwnershipOptions) -> QueueRecord:
    return QueueRecord(
        owner=now.me,
        epoch=1 if record is None else record.epoch + 1,
        state=QueueState.OWNED,
        lease_s=options.lease_s,
        upto=None if record is None else record.upto,
        listed=() if record is None else record.listed,
        floor=None if record is None else record.floor,
        deaths=0 if record is None else record.deaths,
        suspects=() if record is None else record.suspects,
        lost=None if record is None else record.lost,
        rival=_rival(record, now),
    )


def _rival(record: QueueRecord | None, now: Situation) -> SiloAddress:
    """Return the silo that may still deliver from the queue when this silo acquires it, or ""."""
    if record is None:
        return ""
    is_taken = record.state is not QueueState.FREE and record.owner != now.me
    rival = record.owner if is_taken and record.owner in now.live else record.rival
    return rival if rival in now.live else ""


def _extend(record: QueueRecord, now: Situation) -> QueueRecord:
    return msgspec.structs.replace(
        with_progress(record, now.progress), state=QueueState.OWNED, drain_by_s=0.0
    )


def _pausing(record: QueueRecord, now: Situation, drain_by_s: float) -> QueueRecord:
    return msgspec.structs.replace(
        with_progress(record, now.progress), state=QueueState.PAUSING, drain_by_s=drain_by_s
    )


def _free(record: QueueRecord, now: Situation, *, is_known: bool = True) -> QueueRecord:
    is_clean = is_known and now.in_flight == 0 and not now.undone
    return msgspec.structs.replace(
        with_progress(record, now.progress),
        owner="",
        state=QueueState.FREE,
        drain_by_s=0.0,
        handoff=Handoff(clean=is_clean, in_flight=now.in_flight),
        lease_s=0.0,
    )


def is_stored(progress: QueueProgress, read: StoredRecord | None, decision: Decision) -> bool:
    """Say whether this progress is in the record that was read, or in the one that was written."""
    record = None if read is None else read.record
    if isinstance(decision, Renew | Pause):
        record = decision.record
    return record is not None and says(record, progress)


class FirstSeen:
    """Remembers when this silo first saw the present version of each row, on its own clock."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[QueueId, tuple[Etag | None, float]] = {}

    def saw(self, queue: QueueId, etag: Etag | None, now_s: float) -> float:
        """Record a version (None: no row), and return when this silo first saw it.

        For a version that this silo wrote, `now_s` is the time just before the write.
        """
        seen = self._seen.get(queue)
        if seen is None or seen[0] != etag:
            self._seen[queue] = seen = (etag, now_s)
        return seen[1]
