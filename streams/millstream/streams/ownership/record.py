"""The row of one queue: who owns it, in which epoch, and how far it is done.

Owns: `QueueRecord` and its forms. Not: what is written when (`decision`), and where (`store`).
Invariants: `upto` and `listed` are of one instant, so that each subscription has done everything up
to `upto`, or is listed.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

import msgspec

from millstream.runtime import Etag
from millstream.runtime.extending import SiloAddress
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = [
    "Handoff",
    "ListedSubscription",
    "LostRanges",
    "QueueProgress",
    "QueueRecord",
    "QueueState",
    "RecordDecoder",
    "StoredRecord",
    "Suspect",
    "after_death",
    "hand_over",
    "lowest_of",
    "says",
    "with_progress",
]

FORM: Final = 2  # of the rows that this version writes


class QueueState(Enum):
    """What the record says about its owner."""

    FREE = "free"
    OWNED = "owned"
    PAUSING = "pausing"


class ListedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that has not done everything up to `upto` of its queue.

    `subscription`: empty: each subscription of the stream that is not listed by itself. `mark`: the
    first item that is not done. `sent_upto`: items from `mark` to here were delivered; None: none
    were. `is_rewound`: the subscription was moved back, and its consumer has not heard of that.
    """

    namespace: str
    key: str
    subscription: str
    mark: Token
    sent_upto: Token | None = None
    is_rewound: bool = False

    @property
    def stream(self) -> StreamId:
        """The stream that it subscribes to."""
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


class LostRanges(msgspec.Struct, frozen=True, array_like=True):
    """What owners of a queue have found to be gone of it: behind the first, before the second.

    `found_s`: when the last of it was found (wall clock). None: not known.
    """

    found_s: float
    parts: tuple[tuple[Token | None, Token | None], ...]


class QueueProgress(msgspec.Struct, frozen=True):
    """How far the owner of a queue is, at one instant.

    `upto`: a subscription that is not in `listed` has done everything up to here. `floor`: the
    listed subscriptions have done everything up to here, too; None: not known. A queue that can be
    read again is read from `upto` on, and from their marks for the listed subscriptions; another
    queue is read from `floor` on. `deaths`, `suspects`, `lost`: as `QueueRecord` has them.
    `is_told`: `listed` tells what was delivered of that which comes again; only at a hand-over.
    """

    upto: Token | None = None
    listed: tuple[ListedSubscription, ...] = ()
    floor: Token | None = None
    deaths: int = 0
    suspects: tuple[Suspect, ...] = ()
    lost: LostRanges | None = None
    is_told: bool = False


class Handoff(msgspec.Struct, frozen=True):
    """How the last owner left.

    `clean`: everything that it read is done. `in_flight`: deliveries that were still out.
    `is_told`: see `QueueProgress`.
    """

    clean: bool
    in_flight: int
    is_told: bool = False

    @property
    def is_known(self) -> bool:
        """Does the next owner know what was delivered of that which comes again?"""
        return self.clean or self.is_told


class QueueRecord(msgspec.Struct, frozen=True):
    """The row of one queue. Owner "" while free. It is never deleted: the epoch must survive.

    `drain_by_s`: while pausing, the owner has drained at most so many seconds after the write.
    `lease_s`: the owner writes again within so many seconds; 0: it has no lease.
    `upto`, `listed`, `floor`: see `QueueProgress`; where tokens are positions.
    `handoff`: set by the owner that let go, cleared by the next one.
    `deaths`: so many owners in a row died, of which the first may have made progress; 0 once the
    present one has. `suspects`: what was out when they did, if that was noted.
    `lost`: subscriptions may still have to hear of this.
    `rival`: a silo that was alive when the queue was taken from it by force, and may still deliver.
    `is_held`: nobody is to read it (`queue_pauses`).
    `form`: of this row. It has the name of a field that had another type in form 1, so that silos
    of older versions refuse the row.
    """

    owner: SiloAddress
    epoch: int
    state: QueueState
    drain_by_s: float = 0.0
    handoff: Handoff | None = None
    lease_s: float = 0.0
    upto: Token | None = None
    listed: tuple[ListedSubscription, ...] = ()
    floor: Token | None = None
    deaths: int = 0
    suspects: tuple[Suspect, ...] = ()
    is_held: bool = False
    lost: LostRanges | None = None
    rival: SiloAddress = ""
    form: Literal[2] = msgspec.field(default=FORM, name="behind")

    @property
    def progress(self) -> QueueProgress:
        """From where the next owner reads."""
        return QueueProgress(
            self.upto,
            self.listed,
            self.floor,
            self.deaths,
            self.suspects,
            self.lost,
        )


def with_progress(record: QueueRecord, progress: QueueProgress | None) -> QueueRecord:
    """The record with this progress, unless `upto` would go back."""
    if progress is None:
        return record
    known, new = record.upto, progress.upto
    if known is not None and (new is None or new < known):
        return record
    return record if says(record, progress) else _replace(record, progress)


def _replace(record: QueueRecord, progress: QueueProgress) -> QueueRecord:
    return msgspec.structs.replace(
        record,
        upto=progress.upto,
        listed=progress.listed,
        floor=progress.floor,
        deaths=progress.deaths,
        suspects=progress.suspects,
        lost=progress.lost,
    )


def says(record: QueueRecord, progress: QueueProgress) -> bool:
    """Is that progress in the record?"""
    return record.progress == msgspec.structs.replace(progress, is_told=False)


def lowest_of(progress: QueueProgress) -> Token | None:
    """Up to here nothing is left to do, for those listed neither; None: not known.

    The marks may be those of a former owner, so `floor` can be above them.
    """
    if progress.upto is None:
        return progress.floor
    lowest = min((progress.upto, *(one.mark for one in progress.listed)))
    return lowest if progress.floor is None else max(lowest, progress.floor)


def after_death(record: QueueRecord) -> QueueRecord:
    """The record, after its owner has died: what was out may be the reason."""
    suspects = tuple(
        msgspec.structs.replace(one, deaths=one.deaths + 1, is_out=False) if one.is_out else one
        for one in record.suspects
    )
    return msgspec.structs.replace(record, deaths=record.deaths + 1, suspects=suspects)


def hand_over(
    record: QueueRecord, progress: QueueProgress | None, *, is_acked: bool
) -> QueueRecord:
    """The record of a queue that is let go, with all that its owner knows.

    `is_acked`: False: the provider was not told of all that is done, and gives it again where the
    record does not say so either.
    """
    assert record.handoff is not None, f"{record}"
    new = record if progress is None else _replace(record, progress)
    is_told = is_acked or new.upto is not None
    handoff = msgspec.structs.replace(
        record.handoff,
        clean=record.handoff.clean and is_told,
        is_told=progress is not None and progress.is_told and is_told,
    )
    return msgspec.structs.replace(new, handoff=handoff)


class BehindAt(msgspec.Struct, frozen=True, array_like=True):
    """A listed subscription, in form 1."""

    namespace: str
    key: str
    subscription: str
    position: Token
    is_rewound: bool = False
    sent: Token | None = None


class FormerHandoff(msgspec.Struct, frozen=True):
    """How the last owner left, in form 1. Its ranges of single messages are not used."""

    clean: bool
    in_flight: int
    done: tuple[tuple[Token, Token], ...] = ()


class FormerRecord(msgspec.Struct, frozen=True):
    """Form 1 of the row; only read."""

    owner: SiloAddress
    epoch: int
    state: QueueState
    drain_by_s: float = 0.0
    checkpoint: Token | None = None
    handoff: FormerHandoff | None = None
    lease_s: float = 0.0
    frontier: Token | None = None
    behind: tuple[BehindAt, ...] = ()
    deaths: int = 0
    suspects: tuple[Suspect, ...] = ()
    is_held: bool = False
    lost: LostRanges | None = None
    rival: SiloAddress = ""

    def upgrade(self) -> QueueRecord:
        """The row in its present form.

        Messages above the frontier that were done come again: they are delivered as `redelivered`.
        """
        last, upto = self.handoff, self.checkpoint or self.frontier
        return QueueRecord(
            self.owner,
            self.epoch,
            self.state,
            self.drain_by_s,
            None if last is None else Handoff(last.clean and not last.done, last.in_flight),
            self.lease_s,
            upto,
            tuple(
                ListedSubscription(
                    one.namespace, one.key, one.subscription, one.position, one.sent, one.is_rewound
                )
                for one in self.behind
            ),
            None if self.behind else upto,
            self.deaths,
            self.suspects,
            self.is_held,
            self.lost,
            self.rival,
        )


class RowForm(msgspec.Struct, frozen=True):
    """The form of a row; only read."""

    form: object = msgspec.field(default=1, name="behind")


class RecordDecoder:
    """Reads both forms of the row."""

    __slots__ = ("_form", "_former", "_present")

    def __init__(self) -> None:
        self._form = msgspec.msgpack.Decoder(RowForm)
        self._present = msgspec.msgpack.Decoder(QueueRecord)
        self._former = msgspec.msgpack.Decoder(FormerRecord)

    def decode(self, data: bytes) -> QueueRecord:
        """The record. Raises msgspec.MsgspecError."""
        if self._form.decode(data).form == FORM:
            return self._present.decode(data)
        return self._former.decode(data).upgrade()


class StoredRecord(msgspec.Struct, frozen=True):
    """A record with the etag that its next write must expect."""

    record: QueueRecord
    etag: Etag
