"""The decisions about the batches of one writer and about their attempts. Pure.

The driver (`desk`) stores the row and the chunks, and enqueues them. The coordinator reads no
clock: `now_s` is the time of the driver's loop. The stored state contains no times. For an attempt
that was stored before, the time counts from the opening of the coordinator.

After a method that sets `is_changed`, the driver stores the state by compare-and-set. Only then
does it send the answer or act on it. If the write fails, the driver discards the coordinator and
opens another one from the stored state.

Invariants:

- A batch is decided once. Batches are decided in ascending order, and never at or below `last`.
- At most one decided batch is undelivered. The next one is decided after it, so sequences leave in
  order.
- Every attempt is open, in the batch that is being delivered, or dropped. It is forgotten only
  after its chunks are deleted. Chunks that may still be delivered are not deleted.
- A coordinator may have been replaced without knowing it. Its answers are still true or harmless,
  because a lease is stored before it is granted.
- A chunk may be stored for an attempt until `LEASE_S` after the attempt's last lease was requested.
  A dropped attempt is swept later than that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from .batch import Batch, Manifest, decide

__all__ = [
    "Abandoned",
    "Beginning",
    "Begun",
    "Coordinator",
    "Done",
    "EnqueueBatch",
    "Full",
    "Gone",
    "Leased",
    "OpenAttempt",
    "Refused",
    "Waiting",
    "WriterState",
]

LEASE_S = 60.0
"""Seconds in which a silo may store chunks of an attempt, from its request for a lease."""
SWEEP_AFTER_S = 90.0
"""A dropped attempt is swept after this time: its last lease and its last write are over then."""
SILENT_S = 3600.0
"""An attempt is dropped after this time without a call."""
ATTEMPTS_MAX = 10_000
STAGED_BYTES_MAX = 1 << 30


class OpenAttempt(msgspec.Struct, array_like=True):
    """An open attempt, and the bytes that it may have staged."""

    batch: int
    part: int
    bytes: int = 0


class Abandoned(msgspec.Struct, array_like=True, frozen=True):
    """A batch whose refused messages an operator has given up.

    `published` is the number of its messages in the queues. `refused` is the number of those that
    were given up.
    """

    batch: int
    published: int
    refused: int


class WriterState(msgspec.Struct, array_like=True):
    """The stored state of a writer.

    Attributes:
        last: the highest decided batch.
        messages: the number of its messages.
        next: the next sequence of each lane.
        open: the open attempts by name.
        delivering: the decided batch, until all of it is enqueued.
        is_abandoned: an operator has given up the refused messages of that batch.
        abandoned: the last batch with messages that were given up.
        dropped: attempts whose chunks must be deleted, with their bytes.
        once: the writer has only one batch, so its row is removed in the end.
    """

    last: int = -1
    messages: int = 0
    next: dict[str, int] = msgspec.field(default_factory=dict)
    open: dict[str, OpenAttempt] = msgspec.field(default_factory=dict)
    delivering: Batch | None = None
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    once: bool = False
    is_abandoned: bool = False
    abandoned: Abandoned | None = None

    @property
    def has_staged(self) -> bool:
        """Whether there is something to deliver, to expire or to sweep."""
        return bool(self.open or self.dropped or self.delivering is not None)


class Begun(msgspec.Struct, frozen=True):
    """The attempt is open.

    A message may have `items_max` items. `bytes_max` limits the bytes of its items, plus
    `VALUE_HEAD_BYTES` for each item, plus its headers and the key of its stream.
    """

    items_max: int = sys.maxsize
    bytes_max: int = sys.maxsize


class Leased(msgspec.Struct, frozen=True):
    """Chunks of this many more bytes may be stored within `lease_s` of the request."""

    bytes: int
    lease_s: float


class Full(msgspec.Struct, frozen=True):
    """A limit is reached: ask again later."""

    what: str
    limit_name: str
    limit: int


class Gone(msgspec.Struct, frozen=True):
    """These attempts were dropped: write their parts again as other attempts."""

    attempts: list[str]


class EnqueueBatch(msgspec.Struct, frozen=True):
    """This batch is decided: enqueue it, call `on_delivered`, and ask again."""

    batch: Batch


class Waiting(msgspec.Struct, frozen=True):
    """A batch is decided and not yet fully accepted by the queues: ask again.

    `steps` changes whenever a queue has accepted more.
    """

    steps: int


class Refused(msgspec.Struct, frozen=True):
    """A batch is decided, and a queue refuses one of its messages permanently, for the reason
    `why`.

    The batch stays decided, and its delivery is retried. It completes when the queue accepts the
    message, or when an operator abandons the refused messages.
    """

    batch: int
    why: str


class Done(msgspec.Struct, frozen=True):
    """The batch is decided, and all of it is enqueued.

    `messages` is the number of its messages; -1 if that is no longer known.
    """

    messages: int


Beginning: TypeAlias = Begun | Done | Full | Gone
Committing: TypeAlias = EnqueueBatch | Done | Gone


class Coordinator:
    """The decisions of one writer, on its stored state."""

    def __init__(
        self, state: WriterState, now_s: float, staged_bytes_max: int = STAGED_BYTES_MAX
    ) -> None:
        self.state = state
        self.is_changed = False
        self._staged_bytes_max = staged_bytes_max
        self._heard_s = dict.fromkeys(state.open, now_s)
        self._dropped_s = dict.fromkeys(state.dropped, now_s)
        self._accepted: list[str] = []  # attempts to delete now, and once more later
        self._used_s = now_s

    # -- staging

    def begin(
        self, attempt: str, batch: int, part: int, now_s: float, *, once: bool = False
    ) -> Beginning:
        """Open an attempt with a unique name. Done: the batch is decided, so there is nothing to
        write."""
        state, self._used_s = self.state, now_s
        if batch <= state.last:
            return self._make_done(batch)
        if attempt in state.dropped:
            return Gone([attempt])
        if attempt not in state.open:
            if len(state.open) + len(state.dropped) >= ATTEMPTS_MAX:
                return Full("attempts of one writer", "ATTEMPTS_MAX", ATTEMPTS_MAX)
            state.open[attempt], state.once = OpenAttempt(batch, part), once
            self.is_changed = True
        self._heard_s[attempt] = now_s
        return Begun()

    def lease(self, attempt: str, size_bytes: int, now_s: float) -> Leased | Full | Gone:
        """Permit the storage of chunks with this many more bytes for an attempt."""
        found = self.state.open.get(attempt)
        if found is None or self._is_chosen(attempt):
            return Gone([attempt])
        self._heard_s[attempt] = now_s
        if size_bytes and self.staged_bytes + size_bytes > self._staged_bytes_max:
            limit = self._staged_bytes_max
            return Full("bytes that one writer has staged", "staged_bytes_max", limit)
        found.bytes += size_bytes
        self.is_changed = True  # even for 0 bytes: a replaced coordinator must not grant leases
        return Leased(size_bytes, LEASE_S)

    @property
    def staged_bytes(self) -> int:
        """The bytes that may be stored and are not swept yet."""
        state = self.state
        return sum(one.bytes for one in state.open.values()) + sum(state.dropped.values())

    # -- deciding

    def commit(self, batch: int, manifests: Sequence[Manifest], now_s: float) -> Committing:
        """Decide a batch, or return the earlier decision. Raises ValueError for invalid manifests.

        The answer may be an earlier batch, which must be enqueued first.
        """
        state, self._used_s = self.state, now_s
        if state.delivering is not None:
            return EnqueueBatch(state.delivering)
        if batch <= state.last:
            return self._make_done(batch)
        gone = [one.attempt for one in manifests if not self._is_of(one, batch)]
        if gone:
            return Gone(gone)
        found = decide(batch, manifests, state.next)
        state.last, state.messages, state.delivering = batch, found.messages, found
        state.next |= found.next()
        self.is_changed = True
        chosen = {manifest.attempt for manifest in manifests}
        self._drop(
            [a for a, o in state.open.items() if o.batch <= batch and a not in chosen], now_s
        )
        return EnqueueBatch(found)

    def _is_of(self, manifest: Manifest, batch: int) -> bool:
        found = self.state.open.get(manifest.attempt)
        return found is not None and (found.batch, found.part) == (batch, manifest.part)

    def _make_done(self, batch: int) -> Done:
        """Return the answer for a batch at or below the last one; given-up messages count, too."""
        return Done(self.state.messages if batch == self.state.last else -1)

    def abandon(self, batch: int) -> EnqueueBatch | Abandoned | None:
        """Give up the refused messages of a decided batch; the rest of it is delivered.

        None: the batch does not wait for delivery, and was not the last one that was abandoned.
        """
        state = self.state
        if state.delivering is not None and state.delivering.number == batch:
            if not state.is_abandoned:
                state.is_abandoned = self.is_changed = True
            return EnqueueBatch(state.delivering)
        return state.abandoned if state.abandoned and state.abandoned.batch == batch else None

    def on_delivered(self, batch: int, now_s: float, refused: int = 0) -> None:
        """Record that the queues have accepted the batch, except for `refused` messages that were
        given up. A repeated call is harmless."""
        found, state = self.state.delivering, self.state
        if found is None or found.number != batch:
            return
        assert state.is_abandoned or not refused, "nobody has given them up"
        if state.is_abandoned:
            state.abandoned = Abandoned(batch, found.messages - refused, refused)
        state.delivering, state.is_abandoned = None, False
        self.is_changed = True
        chosen = [manifest.attempt for manifest in found.manifests]
        self._drop(chosen, now_s)
        self._accepted += chosen

    def abort(self, batch: int, now_s: float) -> None:
        """Drop the open attempts of a batch and of earlier ones; a decision stays."""
        open_ = self.state.open.items()
        self._drop([a for a, one in open_ if one.batch <= batch and not self._is_chosen(a)], now_s)

    def _is_chosen(self, attempt: str) -> bool:
        found = self.state.delivering
        return found is not None and any(one.attempt == attempt for one in found.manifests)

    # -- dropped attempts

    def expire(self, now_s: float) -> None:
        """Drop attempts that had no call for `SILENT_S`."""
        silent = [a for a, heard_s in self._heard_s.items() if now_s - heard_s >= SILENT_S]
        self._drop([a for a in silent if a in self.state.open and not self._is_chosen(a)], now_s)

    def _drop(self, attempts: Sequence[str], now_s: float) -> None:
        for attempt in attempts:
            self.state.dropped[attempt] = self.state.open.pop(attempt).bytes
            self._heard_s.pop(attempt, None)
            self._dropped_s[attempt] = now_s
            self.is_changed = True

    def to_sweep(self, now_s: float) -> list[str]:
        """Return the attempts whose chunks must be deleted now, oldest first."""
        return [a for a, since_s in self._dropped_s.items() if now_s - since_s >= SWEEP_AFTER_S]

    def to_free(self) -> list[str]:
        """Return the accepted attempts, whose chunks can be deleted early to free their space.

        They are swept later as well, because a chunk that was sent twice may be stored late.
        """
        return list(self._accepted)

    def on_freed(self, attempts: Sequence[str]) -> None:
        """Record that the chunks of these attempts are deleted, except for chunks that are stored
        late."""
        self._accepted = [attempt for attempt in self._accepted if attempt not in attempts]
        for attempt in attempts:
            if attempt in self.state.dropped:
                self.state.dropped[attempt] = 0
                self.is_changed = True

    def on_swept(self, attempt: str) -> None:
        """Record that no chunk of this attempt is stored any more."""
        if attempt in self.state.dropped:
            del self.state.dropped[attempt], self._dropped_s[attempt]
            self.is_changed = True

    def next_due_s(self) -> float | None:
        """Return the time at which an attempt expires, must be swept, or the writer ends, or None
        if that never happens."""
        times = [heard_s + SILENT_S for heard_s in self._heard_s.values()]
        times += [since_s + SWEEP_AFTER_S for since_s in self._dropped_s.values()]
        if self.state.once and not self.state.has_staged:
            times.append(self._used_s + SILENT_S)
        return min(times, default=None)

    def is_over(self, now_s: float) -> bool:
        """Say whether the row may be removed: nothing is left, and no call came for `SILENT_S`."""
        state = self.state
        return state.once and not state.has_staged and now_s - self._used_s >= SILENT_S

    def check(self) -> None:
        """Assert the invariants."""
        state = self.state
        assert not state.open.keys() & state.dropped.keys()
        assert self._heard_s.keys() == state.open.keys()
        assert self._dropped_s.keys() == state.dropped.keys()
        assert state.delivering is not None or not state.is_abandoned
        if state.delivering is not None:
            assert state.delivering.number == state.last
            assert {one.attempt for one in state.delivering.manifests} <= state.open.keys()
            assert state.next.items() >= state.delivering.next().items()
