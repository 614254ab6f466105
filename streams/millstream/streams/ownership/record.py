"""The row of one queue: its owner, its epoch, and its progress.

`decision` decides about writes, and `store` writes. Invariant: `upto` and `listed` describe one
moment. Each subscription has done everything up to `upto`, or is listed.
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

FORM: Final = 2  # the form of rows that this version writes


class QueueState(Enum):
    """The state of ownership in the record."""

    FREE = "free"
    OWNED = "owned"
    PAUSING = "pausing"


class ListedSubscription(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that has not done everything up to `upto` of its queue.

    - `subscription`: if empty, each subscription of the stream that has no entry of its own.
    - `mark`: the first item that is not done.
    - `sent_upto`: items from `mark` to this token were delivered; None: none were.
    - `is_rewound`: the subscription was moved back, and its consumer does not know that yet.
    """

    namespace: str
    key: str
    subscription: str
    mark: Token
    sent_upto: Token | None = None
    is_rewound: bool = False

    @property
    def stream(self) -> StreamId:
        """The stream of the subscription."""
        return StreamId(self.namespace, self.key)


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """An event that may have crashed owners of its queue.

    `deaths` counts the owners that crashed while the event was in flight. `is_out` says that it is
    in flight, or was when the owner crashed.
    """

    namespace: str
    key: str
    subscription: str
    token: Token
    deaths: int = 0
    is_out: bool = False

    @property
    def stream(self) -> StreamId:
        """The stream of the event."""
        return StreamId(self.namespace, self.key)


class LostRanges(msgspec.Struct, frozen=True, array_like=True):
    """Ranges of events that owners of a queue found missing: after the first token, before the
    second.

    A token is None if it is unknown. `found_s` is the wall-clock time when the last range was
    found.
    """

    found_s: float
    parts: tuple[tuple[Token | None, Token | None], ...]


class QueueProgress(msgspec.Struct, frozen=True):
    """The progress of a queue's owner, at one moment.

    - `upto`: a subscription that is not in `listed` has done everything up to this token.
    - `floor`: the listed subscriptions, too, have done everything up to this token; None: unknown.
    - `is_told`: `listed` says which of the unfinished events were delivered. Only at a hand-over.
    - `deaths`, `suspects`, `lost`: see `QueueRecord`.

    If the queue can be read again, the next owner reads from `upto`, and rereads from the marks of
    the listed subscriptions. Otherwise it reads from `floor`.
    """

    upto: Token | None = None
    listed: tuple[ListedSubscription, ...] = ()
    floor: Token | None = None
    deaths: int = 0
    suspects: tuple[Suspect, ...] = ()
    lost: LostRanges | None = None
    is_told: bool = False


class Handoff(msgspec.Struct, frozen=True):
    """How the last owner gave the queue up.

    `clean`: everything that it read is done. `in_flight`: deliveries that had no reply yet.
    `is_told`: see `QueueProgress`.
    """

    clean: bool
    in_flight: int
    is_told: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the next owner knows which of the unfinished events were delivered."""
        return self.clean or self.is_told


class QueueRecord(msgspec.Struct, frozen=True):
    """The row of one queue. It is never deleted, because the epoch must survive.

    - `owner`: "" while the queue is free.
    - `drain_by_s`: while pausing, the owner drains at most this many seconds after the write.
    - `handoff`: set by an owner that frees the queue, cleared by the next one.
    - `lease_s`: the owner writes again within this many seconds; 0: no lease.
    - `upto`, `listed`, `floor`: see `QueueProgress`; only if tokens are positions.
    - `deaths`: the number of owners in a row that crashed, of which only the first may have made
      progress. It returns to 0 when the present owner makes progress.
    - `suspects`: events that were in flight when owners crashed, if they were noted.
    - `is_held`: an operator paused the queue (`queue_pauses`).
    - `lost`: missing events; subscriptions may still need a report of them.
    - `rival`: a live silo that lost the queue by force, and may still deliver from it.
    - `form`: the form of this row. Its stored name is that of a field with another type in form 1,
      so silos of older versions refuse the row.
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
        """The progress from which the next owner continues."""
        return QueueProgress(
            self.upto,
            self.listed,
            self.floor,
            self.deaths,
            self.suspects,
            self.lost,
        )


def with_progress(record: QueueRecord, progress: QueueProgress | None) -> QueueRecord:
    """Return the record with this progress. Return the same record if the progress is None, has a
    lower `upto`, or is already in the record."""
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
    """Say whether the record has this progress."""
    return record.progress == msgspec.structs.replace(progress, is_told=False)


def lowest_of(progress: QueueProgress) -> Token | None:
    """Return the token up to which all subscriptions are done, listed ones too, or None if it is
    unknown.

    The marks may come from a former owner, so `floor` can be above them.
    """
    if progress.upto is None:
        return progress.floor
    lowest = min((progress.upto, *(one.mark for one in progress.listed)))
    return lowest if progress.floor is None else max(lowest, progress.floor)


def after_death(record: QueueRecord) -> QueueRecord:
    """Return the record after a crash of its owner: an event in flight may be the cause."""
    suspects = tuple(
        msgspec.structs.replace(one, deaths=one.deaths + 1, is_out=False) if one.is_out else one
        for one in record.suspects
    )
    return msgspec.structs.replace(record, deaths=record.deaths + 1, suspects=suspects)


def hand_over(
    record: QueueRecord, progress: QueueProgress | None, *, is_acked: bool
) -> QueueRecord:
    """Return the record of a queue that its owner frees, with all that the owner knows.

    If `is_acked` is False, the provider does not know of all finished events that they are
    finished. It delivers the unknown ones again, unless the record covers them.
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
    """Form 1 of the row; this version only reads it."""

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
        """Convert the row to its present form.

        Finished messages above the frontier are delivered again, as `redelivered`.
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
        """Return the record. Raises msgspec.MsgspecError."""
        if self._form.decode(data).form == FORM:
            return self._present.decode(data)
        return self._former.decode(data).upgrade()


class StoredRecord(msgspec.Struct, frozen=True):
    """A record with the etag that its next write must expect."""

    record: QueueRecord
    etag: Etag
