"""The range of the grain directory that one silo owns. Pure: no I/O, clock, chance or tasks.

`DirectoryRange` knows this silo's part of the ring, the locked segments in it, the entries, the
waiting questions, and the barrier. `directory` sends messages, and `partition` owns the rules of
entries. A lost range needs no hand-over, because its new owner asks the activations themselves
(docs/decisions/0002-directory-recovery.md).

    foreign ──ViewApplied──▶ gaining (locked) ──each survivor Told, gone or given up──▶ owned
                                   └─────────────ViewApplied──▶ lost ◀──ViewApplied───────┘

Invariants:

- A grain has at most one entry. The entry is in this silo's range or is about to be swept.
- No question about a locked range is answered. Each locked range becomes owned or lost.
- Each question is answered once, or withdrawn.
- An answer names no silo that is dead in this silo's view, and no such silo is stored.
- A registration older than the barrier is of no use to this silo's own activations (`is_current`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.runtime.backoff import Backoff
from millstream.runtime.cluster.ring import Ring, Segment, covers, find_gained, hash_of, within
from millstream.runtime.cluster.table import Status, TableView

from .events import (
    Action,
    Ask,
    EndDuplicate,
    Failed,
    GiveUp,
    Lookup,
    NotReached,
    QuestionReceived,
    Refresh,
    Register,
    Rows,
    SendAnswer,
    SurvivorsAsked,
    Sweep,
    Swept,
    Told,
    Unregister,
    ViewApplied,
    Withdrawn,
)
from .partition import Entry, Partition

__all__ = ["DirectoryRange", "point_of"]

Actions = list[Action]

RETRY = Backoff(first_s=0.01, factor=2.0, ceiling_s=1.0)
WRONG_ANSWERS_MAX = 20
SWEPT_ENTRIES_MAX = 1000  # entries in one step, which takes about a millisecond


class Recovery:
    """Segments that were gained together, and the silos that have not answered for them yet."""

    def __init__(self, view: TableView, segments: list[Segment]) -> None:
        self.round = view.version
        self.segments = segments
        asked = view.with_status(Status.ACTIVE, Status.STOPPING)
        self.tries = dict.fromkeys(asked, 0)
        self.wrong = dict.fromkeys(asked, 0)
        self.ended: set[Unregister] = set()  # survivors may still report these

    def asks(self, silo: str) -> Ask:
        """Return the action that asks a silo. The pause grows with the number of tries."""
        tries = self.tries[silo]
        pause_s = RETRY.whole_s(tries) if tries else 0.0
        return Ask(silo, self.round, tuple(self.segments), pause_s)

    def note_answer(self, silo: str) -> None:
        """Expect no more answers from a silo."""
        self.tries.pop(silo, None)

    @property
    def is_over(self) -> bool:
        """True if all silos have answered, or if this silo has lost all of the segments."""
        return not self.tries or not self.segments


class DirectoryRange:
    """The state machine of a range: `step(event)` returns the resulting actions in order.

    `is_alone` is True if this silo may register grains without asking.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self._ring = Ring([])
        self._live: frozenset[str] = frozenset()
        self._partition = Partition()
        self._recoveries: list[Recovery] = []
        self._waiting: dict[int, QuestionReceived] = {}
        self._unswept: list[tuple[str, list[str]]] = []
        self._replaced: Actions = []  # of the present step
        self.version = 0
        self.barrier = 0
        self.is_alone = False
        self._steps: dict[type[Any], Callable[[Any], Actions]] = {
            ViewApplied: self._apply,
            QuestionReceived: self._ask,
            Withdrawn: self._withdraw,
            NotReached: self._not_reached,
            Rows: self._merge,
            Told: self._on_told,
            Failed: self._on_failed,
            SurvivorsAsked: self._raise_barrier,
            Swept: self._sweep,
            Unregister: self._unregister,
        }

    def step(self, event: Any, /) -> Actions:
        """Process an event, and return the resulting actions in order."""
        actions = self._steps[type(event)](event)
        self.is_alone = self._is_alone()
        if self._replaced:
            actions, self._replaced = [*actions, *self._replaced], []
        return actions

    # -- questions of this silo itself

    @property
    def entry_count(self) -> int:
        """The entries in this range."""
        return len(self._partition)

    @property
    def is_locked(self) -> bool:
        """True while this silo is gaining a range."""
        return bool(self._recoveries)

    def _is_alone(self) -> bool:
        """Return True if this silo may register grains without asking.

        No other silo is here, not even a stopping one that still has grains. Nothing is being
        recovered, and no silo has asked with a newer view than this one.
        """
        is_only = self._ring.silos == (self._me,) and len(self._live) == 1
        return is_only and not self._recoveries and self.is_current(self.version)

    def owner_of(self, kind: str, key: str) -> str | None:
        """Return the silo to ask about a grain, or None if no silo is active."""
        return self._ring.owner(point_of(kind, key))

    def is_current(self, version: int) -> bool:
        """Return True if later owners will find a registration of this version."""
        return version >= self.barrier

    def register_here(self, kind: str, key: str, activation_id: int) -> int:
        """Register at once in a silo that is alone. Returns the version of the registration."""
        assert self.is_alone
        entry = Entry(self._me, activation_id, self.version)
        self._partition.register(kind, key, entry, self._is_dead)
        return self.version

    # -- views

    def _apply(self, event: ViewApplied) -> Actions:
        view = event.view
        if view.version <= self.version:
            return []
        ring = Ring(view.with_status(Status.ACTIVE))
        live = frozenset(row.silo for row in view.rows if row.status is not Status.DEAD)
        is_next = view.version == self.version + 1
        fresh = find_gained(self._ring if is_next else Ring([]), ring, self._me)
        has_lost = ring.silos != self._ring.silos or not self._live <= live
        self._ring, self._live, self.version = ring, live, view.version
        self._narrow(is_next)
        actions = self._gain(fresh, view) if fresh else []
        if has_lost:
            actions += self._begin_sweep()
        return actions + self._settle()

    def _narrow(self, is_next: bool) -> None:
        """Drop lost segments from recoveries, and expect no answers from dead silos.

        If a view was skipped, all segments of this silo are gained again, so older recoveries end.
        """
        owned = find_gained(Ring([]), self._ring, self._me) if is_next else []
        for recovery in self._recoveries:
            recovery.segments = within(recovery.segments, owned)
            for silo in [silo for silo in recovery.tries if self._is_dead(silo)]:
                recovery.note_answer(silo)

    def _gain(self, segments: list[Segment], view: TableView) -> Actions:
        recovery = Recovery(view, segments)
        self._recoveries.append(recovery)
        return [recovery.asks(silo) for silo in recovery.tries]

    def _is_dead(self, silo: str) -> bool:
        return silo not in self._live

    # -- recovery

    def _of_round(self, silo: str, number: int) -> Recovery | None:
        """Return the recovery of this round that still waits for an answer of the silo, or None."""
        for recovery in self._recoveries:
            if recovery.round == number and silo in recovery.tries:
                return recovery
        return None

    def _merge(self, event: Rows) -> Actions:
        recovery = self._of_round(event.silo, event.round)
        actions: Actions = []
        for kind, key, activation_id, version in event.rows if recovery else ():
            assert recovery is not None
            ended = Unregister(kind, key, event.silo, activation_id)
            if ended in recovery.ended or not covers(recovery.segments, point_of(kind, key)):
                continue
            entry = Entry(event.silo, activation_id, version)
            loser = self._partition.recover(kind, key, entry)
            if loser is not None and not self._is_dead(loser.silo):
                actions.append(EndDuplicate(kind, key, loser))
        return actions

    def _on_told(self, event: Told) -> Actions:
        recovery = self._of_round(event.silo, event.round)
        if recovery is None:
            return []
        recovery.note_answer(event.silo)
        return self._settle()

    def _on_failed(self, event: Failed) -> Actions:
        recovery = self._of_round(event.silo, event.round)
        if recovery is None:
            return []
        recovery.tries[event.silo] += 1
        recovery.wrong[event.silo] += event.is_wrong
        if recovery.wrong[event.silo] < WRONG_ANSWERS_MAX:
            return [recovery.asks(event.silo)]
        recovery.note_answer(event.silo)
        return [GiveUp(event.silo, event.round), *self._settle()]

    def _raise_barrier(self, event: SurvivorsAsked) -> Actions:
        self.barrier = max(self.barrier, event.version)
        return []

    def _settle(self) -> Actions:
        """Unlock recovered and lost segments, and answer the questions that waited for them."""
        self._recoveries = [one for one in self._recoveries if not one.is_over]
        replies = [(asked, self._answer(asked)) for asked in self._waiting.values()]
        for asked, reply in replies:
            if reply is not None:
                del self._waiting[asked.ticket]
        return [reply for _, reply in replies if reply is not None]

    # -- questions

    def _ask(self, event: QuestionReceived) -> Actions:
        reply = self._answer(event)
        if reply is not None:
            return [reply]
        self._waiting[event.ticket] = event
        return [Refresh(event.version)] if event.version > self.version else []

    def _answer(self, asked: QuestionReceived) -> SendAnswer | None:
        """Return the answer to a question, or None if there is none yet."""
        question = asked.question
        point = point_of(question.kind, question.key)
        if asked.version > self.version:
            return None
        if self._ring.owner(point) != self._me:
            return self._refusal(asked)
        if any(covers(recovery.segments, point) for recovery in self._recoveries):
            return None
        if isinstance(question, Lookup):
            found = self._partition.lookup(question.kind, question.key)
            is_known = found is not None and not self._is_dead(found.silo)
            return SendAnswer(asked.ticket, found if is_known else None)
        if self._is_dead(question.silo):
            return self._refusal(asked)  # it reads in the table that it is dead
        return SendAnswer(asked.ticket, self._register(question))

    def _register(self, question: Register) -> Entry | None:
        """Register by compare-and-set. A former gateway is told that its client has moved."""
        kind, key = question.kind, question.key
        entry = Entry(question.silo, question.activation_id, self.version)
        if question.former_silo:
            former = (question.former_silo, question.former_id)
            stored = self._partition.replace(kind, key, entry, former)
            return None if stored is None or self._is_dead(stored.silo) else stored
        found = self._partition.lookup(kind, key)
        stored = self._partition.register(kind, key, entry, self._is_dead)
        if found is not None and found.silo != stored.silo and not self._is_dead(found.silo):
            self._replaced.append(EndDuplicate(kind, key, found))
        return stored

    def _refusal(self, asked: QuestionReceived) -> SendAnswer:
        return SendAnswer(asked.ticket, Entry("", 0, self.version))

    def _withdraw(self, event: Withdrawn) -> Actions:
        self._waiting.pop(event.ticket, None)
        return []

    def _not_reached(self, event: NotReached) -> Actions:
        """Refuse the questions that wait for a view which does not arrive.

        Their askers try again, possibly at another silo.
        """
        late = [
            asked
            for asked in self._waiting.values()
            if self.version < asked.version <= event.version
        ]
        for asked in late:
            del self._waiting[asked.ticket]
        return [self._refusal(asked) for asked in late]

    def _unregister(self, event: Unregister) -> Actions:
        self._partition.unregister(event.kind, event.key, event.silo, event.activation_id)
        for recovery in self._recoveries:
            recovery.ended.add(event)
        return []

    # -- sweeping

    def _begin_sweep(self) -> Actions:
        was_sweeping = bool(self._unswept)
        self._unswept = self._partition.keys()
        return [Sweep()] if self._unswept and not was_sweeping else []

    def _sweep(self, event: Swept) -> Actions:
        """Drop some entries that are no longer in this range, or whose silo is dead."""
        if not self._unswept:
            return []
        kind, keys = self._unswept[-1]
        self._partition.drop(kind, keys[-SWEPT_ENTRIES_MAX:], self._is_foreign)
        del keys[-SWEPT_ENTRIES_MAX:]
        if not keys:
            self._unswept.pop()
        return [Sweep()] if self._unswept else []

    def _is_foreign(self, kind: str, key: str, entry: Entry) -> bool:
        return self._is_dead(entry.silo) or self._ring.owner(point_of(kind, key)) != self._me

    # -- checks

    def check(self) -> None:
        """Assert the invariants."""
        for recovery in self._recoveries:
            assert recovery.tries and recovery.segments, "a recovery without silos or segments"
            assert not any(map(self._is_dead, recovery.tries)), "a recovery waits for a dead silo"
        for asked in self._waiting.values():
            assert self._answer_is_due(asked) is False, f"{asked} could be answered"

    def _answer_is_due(self, asked: QuestionReceived) -> bool:
        point = point_of(asked.question.kind, asked.question.key)
        is_locked = any(covers(recovery.segments, point) for recovery in self._recoveries)
        return asked.version <= self.version and not is_locked


def point_of(kind: str, key: str) -> int:
    """Return the point of a grain on the ring."""
    return hash_of(f"{kind}/{key}")
