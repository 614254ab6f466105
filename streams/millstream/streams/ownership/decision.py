"""Which silo reads a queue: what one silo does next about its record. Pure.

Owns: the decision (`decide`). Not: the record (`record`), which queues a silo wants (a balancer),
pausing and draining deliveries (the manager).
Invariants:
- every write is a compare-and-set on the version that was decided about;
- each acquisition is epoch + 1, so an epoch has one owner and epochs only rise;
- `upto` never goes back, except at a hand-over that has more to list than a record takes;
- nobody's clock is compared with another's: a record holds durations, and an observer counts them
  from when it first saw that version of the row (never earlier than it was written). The owner
  counts its own lease from just before its write.

    free ──Acquire──▶ owned ──Pause──▶ pausing ──Free──▶ free        (owned ──Free──▶ free: idle)
                        ▲  ◀──Renew──┘       pausing, owned ──Acquire of another silo──▶ owned

An owner that was overtaken learns it as `OwnershipLost`, at the latest after its next write, which
fails.
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
    """This silo reads no more, and drains until `deadline_s` of its own clock."""

    epoch: int
    deadline_s: float


class Left(msgspec.Struct, frozen=True):
    """This silo's agent of this epoch has ended in order; the record is still to say so."""

    epoch: int
    freed: QueueRecord


Local = Unowned | Owned | Pausing | Left


class Situation(msgspec.Struct, frozen=True):
    """All that a decision depends on.

    `live`: every silo that is not dead, stopping ones too, from a view read *after* the record:
    else a new owner looks dead. `seen_s`: see `FirstSeen`. Of this silo's agent, if it owns the
    queue: `progress`; `is_urgent`: somebody waits until that is stored; `in_flight`: deliveries
    that are out; `unacked`: subscriptions that are to acknowledge what they were delivered, for
    which a pause waits too; `undone`: events that were read and are not done, more or less.
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
    """Write the record; then read the queue from `progress` on, in its epoch.

    `is_forced`: the former owner did not let go, so its deliveries may still run. `may_repeat`:
    what is not done may have been delivered by a former owner, and it is not known what.
    """

    record: QueueRecord
    is_forced: bool
    may_repeat: bool = False
    progress: QueueProgress = QueueProgress()

    @property
    def has_rival(self) -> bool:
        """May a silo that lost the queue by force still deliver from it?"""
        return self.record.rival != ""


class Renew(msgspec.Struct, frozen=True):
    """Write the record: still owned in the same epoch.

    For a lease that is renewed, progress, a pause that is called off.
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


class OwnershipLost(msgspec.Struct, frozen=True):
    """Another silo has the queue, or had it: stop at once, write nothing."""


Decision = Acquire | Renew | Pause | Free | Keep | Wait | OwnershipLost


def decide(situation: Situation, options: OwnershipOptions) -> Decision:
    """What this silo does next about one queue. Pure; the driver writes, and asks again."""
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
        # its agent is gone: what was out when it ended is not known any more
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
    """The acquisition of a queue that its last owner has let go."""
    last = free.handoff
    return Acquire(new, False, last is None or not last.is_known, free.progress)


def _takeable_s(record: QueueRecord, now: Situation, options: OwnershipOptions) -> float:
    """From when on the queue may be taken without its owner's consent."""
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
    is_paused = record.state is QueueState.PAUSING  # a pause whose answer was lost
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
        return OwnershipLost()  # or the write that freed it came through, though its answer did not
    return _take(freed, _acquire(freed, now, options)) if now.is_wanted else Free(freed)


def _still_mine(now: Situation, epoch: int) -> QueueRecord | None:
    """The record if it says that this silo has the queue in this epoch, and the lease holds."""
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
    """The silo that may still deliver from a queue which this one takes; empty: none may."""
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
    """Is that progress in the record: in what was read, or in what was written then?"""
    record = None if read is None else read.record
    if isinstance(decision, Renew | Pause):
        record = decision.record
    return record is not None and says(record, progress)


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
