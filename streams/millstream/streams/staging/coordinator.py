"""Which batches of one writer are decided, and what becomes of what was staged for them. Pure.

Owns: `Coordinator`. Not: its row, the chunks, enqueueing them (who drives it). It reads no clock:
`now_s` is the driver's loop, and nothing that is stored has a time in it; an attempt that was
stored before counts from when the coordinator was opened.
How it is driven: after a method that has set `is_changed`, the state is stored by compare-and-set;
only then is the answer given, or anything done that follows from it. If that fails, the coordinator
is thrown away and another one opened from what is stored.
Invariants:
- a batch is decided once; a batch at or below `last` never again; batches are decided upwards;
- one decided batch at most is not delivered: the next is decided after it, so sequences leave in
  their order;
- every attempt is open, or in the batch that is being delivered, or to be swept: never forgotten
  before its chunks are deleted, and none is deleted that may still be delivered;
- an answer of a coordinator that another one has replaced, without knowing it, is true, or does no
  harm: what gives a right, a lease, is stored first;
- a chunk may be stored for an attempt until `LEASE_S` after the last lease that was given for it:
  what is dropped is swept later than that.
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
"""How long after it asked a silo may store chunks of an attempt."""
SWEEP_AFTER_S = 90.0
"""What was dropped is swept after so long: its last lease is over then, and its last write."""
SILENT_S = 3600.0
"""An attempt of which nothing is heard for so long is dropped."""
ATTEMPTS_MAX = 10_000
STAGED_BYTES_MAX = 1 << 30


class OpenAttempt(msgspec.Struct, array_like=True):
    """An attempt that may be staged, and how many bytes it may have staged."""

    batch: int
    part: int
    bytes: int = 0


class Abandoned(msgspec.Struct, array_like=True, frozen=True):
    """A batch of which an operator has given up what queues refuse for good.

    Attributes: `published`, how many of its messages are in the queues; `refused`, how many are
    not, and never will be.
    """

    batch: int
    published: int
    refused: int


class WriterState(msgspec.Struct, array_like=True):
    """What is stored of a writer.

    Attributes: `last`, the highest batch that is decided; `messages`, how many it has; `next`, the
    next sequence of each lane; `open`, attempts by name; `delivering`, the decided batch until all
    of it is enqueued; `is_abandoned`: an operator has given up what queues refuse of that batch;
    `abandoned`, the last batch of which this is done; `dropped`, attempts whose chunks are to be
    deleted, with their bytes; `once`: nobody writes under this name again, so its row is removed in
    the end.
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
        """Is there something to be delivered, expired or swept?"""
        return bool(self.open or self.dropped or self.delivering is not None)


class Begun(msgspec.Struct, frozen=True):
    """The attempt is open.

    Attributes: `items_max`, `bytes_max`: of one message: its items, and their bytes with
    `VALUE_HEAD_BYTES` more for each, with headers and the key of its stream.
    """

    items_max: int = sys.maxsize
    bytes_max: int = sys.maxsize


class Leased(msgspec.Struct, frozen=True):
    """Chunks of so many bytes more may be stored, for so long since it was asked for."""

    bytes: int
    lease_s: float


class Full(msgspec.Struct, frozen=True):
    """No room: the same may be asked a little later."""

    what: str
    limit_name: str
    limit: int


class Gone(msgspec.Struct, frozen=True):
    """Of these attempts nothing is taken, and nothing kept: write the parts again, as others."""

    attempts: list[str]


class EnqueueBatch(msgspec.Struct, frozen=True):
    """This batch is decided: enqueue it, say `on_delivered`, and ask again."""

    batch: Batch


class Waiting(msgspec.Struct, frozen=True):
    """A batch is decided, and not all of it is accepted yet: ask again.

    `steps`: another number whenever something more was accepted.
    """

    steps: int


class Refused(msgspec.Struct, frozen=True):
    """A batch is decided, and a queue refuses a message of it for good: `why`.

    It stays decided, and is tried again; it is published once the queue accepts the message, or
    an operator abandons what is refused.
    """

    batch: int
    why: str


class Done(msgspec.Struct, frozen=True):
    """The batch is decided, and all of it enqueued.

    `messages`: how many it has; -1 if that is not known any more.
    """

    messages: int


Beginning: TypeAlias = Begun | Done | Full | Gone
Committing: TypeAlias = EnqueueBatch | Done | Gone


class Coordinator:
    """One writer's decisions, on the state that is stored."""

    def __init__(
        self, state: WriterState, now_s: float, staged_bytes_max: int = STAGED_BYTES_MAX
    ) -> None:
        self.state = state
        self.is_changed = False
        self._staged_bytes_max = staged_bytes_max
        self._heard_s = dict.fromkeys(state.open, now_s)
        self._dropped_s = dict.fromkeys(state.dropped, now_s)
        self._accepted: list[str] = []  # attempts that may be deleted now, and once more later
        self._used_s = now_s

    # -- staging

    def begin(
        self, attempt: str, batch: int, part: int, now_s: float, *, once: bool = False
    ) -> Beginning:
        """Open an attempt, under a name that no other one has. Done: there is nothing to write."""
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
        """Let chunks of so many bytes more be stored for an attempt."""
        found = self.state.open.get(attempt)
        if found is None or self._is_chosen(attempt):
            return Gone([attempt])
        self._heard_s[attempt] = now_s
        if size_bytes and self.staged_bytes + size_bytes > self._staged_bytes_max:
            limit = self._staged_bytes_max
            return Full("bytes that one writer has staged", "staged_bytes_max", limit)
        found.bytes += size_bytes
        self.is_changed = True  # also without bytes: one that was replaced must not give leases
        return Leased(size_bytes, LEASE_S)

    @property
    def staged_bytes(self) -> int:
        """What may be stored, until it is swept."""
        state = self.state
        return sum(one.bytes for one in state.open.values()) + sum(state.dropped.values())

    # -- deciding

    def commit(self, batch: int, manifests: Sequence[Manifest], now_s: float) -> Committing:
        """Decide a batch, or say what was decided. Raises ValueError for odd manifests.

        Deliver may name an earlier batch, which comes first.
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
        """A batch at or below the last one that is decided; what was given up is counted, too."""
        return Done(self.state.messages if batch == self.state.last else -1)

    def abandon(self, batch: int) -> EnqueueBatch | Abandoned | None:
        """Give up what queues refuse of a decided batch; the rest of it is delivered.

        None: the batch does not wait, and was not abandoned last.
        """
        state = self.state
        if state.delivering is not None and state.delivering.number == batch:
            if not state.is_abandoned:
                state.is_abandoned = self.is_changed = True
            return EnqueueBatch(state.delivering)
        return state.abandoned if state.abandoned and state.abandoned.batch == batch else None

    def on_delivered(self, batch: int, now_s: float, refused: int = 0) -> None:
        """All messages of the batch are accepted, but for those that were given up, since queues
        refuse them. Again is harmless."""
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
        """Drop what is open of a batch, and of those before it; what is decided stays so."""
        open_ = self.state.open.items()
        self._drop([a for a, one in open_ if one.batch <= batch and not self._is_chosen(a)], now_s)

    def _is_chosen(self, attempt: str) -> bool:
        found = self.state.delivering
        return found is not None and any(one.attempt == attempt for one in found.manifests)

    # -- what is dropped

    def expire(self, now_s: float) -> None:
        """Drop attempts of which nothing was heard for `SILENT_S`."""
        silent = [a for a, heard_s in self._heard_s.items() if now_s - heard_s >= SILENT_S]
        self._drop([a for a in silent if a in self.state.open and not self._is_chosen(a)], now_s)

    def _drop(self, attempts: Sequence[str], now_s: float) -> None:
        for attempt in attempts:
            self.state.dropped[attempt] = self.state.open.pop(attempt).bytes
            self._heard_s.pop(attempt, None)
            self._dropped_s[attempt] = now_s
            self.is_changed = True

    def to_sweep(self, now_s: float) -> list[str]:
        """Attempts whose chunks are to be deleted now, oldest first."""
        return [a for a, since_s in self._dropped_s.items() if now_s - since_s >= SWEEP_AFTER_S]

    def to_free(self) -> list[str]:
        """Attempts whose chunks are to be deleted for their room: nobody needs them any more.

        They are swept later all the same: a chunk that was sent twice may be stored late.
        """
        return list(self._accepted)

    def on_freed(self, attempts: Sequence[str]) -> None:
        """Their chunks are deleted, but for what is stored late."""
        self._accepted = [attempt for attempt in self._accepted if attempt not in attempts]
        for attempt in attempts:
            if attempt in self.state.dropped:
                self.state.dropped[attempt] = 0
                self.is_changed = True

    def on_swept(self, attempt: str) -> None:
        """No chunk of it is stored any more."""
        if attempt in self.state.dropped:
            del self.state.dropped[attempt], self._dropped_s[attempt]
            self.is_changed = True

    def next_due_s(self) -> float | None:
        """When there is something to expire, to sweep or to be over; None: never, as it is."""
        times = [heard_s + SILENT_S for heard_s in self._heard_s.values()]
        times += [since_s + SWEEP_AFTER_S for since_s in self._dropped_s.values()]
        if self.state.once and not self.state.has_staged:
            times.append(self._used_s + SILENT_S)
        return min(times, default=None)

    def is_over(self, now_s: float) -> bool:
        """May its row be removed? Nobody comes again, nothing is left, and nobody asked of late."""
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
