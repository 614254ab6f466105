"""One priority queue: its operations, and the rules for them.

Owns `PriorityCore`. Messages are found and changed in `contents`, requests are remembered in
`requests.sessions`, and a store writes the rows.

Every operation gets the time first, in Unix milliseconds; the time of a queue never goes back. An
operation first does the work that is due by then, at most `STEPS_INLINE_MAX` steps, so no delay of
the background is visible. Reads change nothing and need no time: they show the result of earlier
operations.

Invariants:

- A refused operation changes nothing, except for the work that was due anyway.
- A lease is over when `now >= deadline`.
- A change that is not drained is not stored. An answer may leave only when all changes before it
  are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

from .body import (
    PRIORITY_MAX,
    REASON_BYTES_MAX,
    New,
    Pairs,
    check_number,
    check_pairs,
    check_request_text,
)
from .changes import (
    AnswerRow,
    Changes,
    Counters,
    MessageRow,
    Recorder,
    SessionRow,
    message_of,
)
from .contents import Contents
from .errors import (
    RequestInvalid,
    SettingsConflict,
)
from .message import (
    CANCELED,
    COMPLETED,
    ERRORED,
    RUNNING,
    SEQUENCE_BITS,
    LeaseToken,
    Message,
    Metadata,
    State,
    Step,
)
from .moves.entering import Entering
from .moves.leasing import Leasing
from .moves.taking import STEPS_INLINE_MAX, Taking
from .reading import Reading, is_large
from .requests.answers import Answer, answer_of, find_taken, plain_of
from .requests.sessions import Request, SessionAnswers
from .results import Dequeued, Done, Enqueued, EnqueuedMany, PollStatus, Swept
from .settings import QueueSettings, SettingsRow
from .shards import change_settings, is_wish

__all__ = ["STEPS_INLINE_MAX", "PriorityCore", "QueueRows"]

COUNT_MAX = 1_000
"""Messages in one call."""

NOTHING_YET = Counters()
A = TypeVar("A", bound=Answer)


class QueueRows(NamedTuple):
    """All rows of one queue, from which it is opened."""

    settings: SettingsRow
    counters: Counters
    messages: Iterable[MessageRow] = ()
    sessions: Iterable[SessionRow] = ()
    answers: Iterable[AnswerRow] = ()


class PriorityCore:
    """One priority queue.

    `read` has the reads, and `recorder` the changes since the last drain.

    Args:
        queue: Its name, for errors and events.
        rows: Its rows. A new queue has its settings and, if the name was in use before, the
            counters of `Counters.of_next`.
        keeps_rows: Whether `drain` returns rows.
        keeps_events: Whether `drain` returns events.
    """

    def __init__(
        self, queue: str, rows: QueueRows, *, keeps_rows: bool = True, keeps_events: bool = True
    ) -> None:
        self.queue = queue
        self.settings_version, settings = rows.settings
        self.settings = settings
        self.recorder = Recorder(queue, keeps_rows, keeps_events)
        self._contents = Contents(settings, Counters(*rows.counters), self.recorder)
        key = settings.exclusivity_key
        self._contents.restore(message_of(row, key) for row in rows.messages)
        self.sessions = SessionAnswers(queue, self.recorder)
        self.sessions.restore(list(rows.sessions), list(rows.answers))
        self._entering = Entering(self._contents)
        self._leasing = Leasing(self._contents)
        self._taking = Taking(self._contents)
        self.read = Reading(queue, self._contents)

    @classmethod
    def create(
        cls,
        now_ms: int,
        queue: str,
        settings: QueueSettings,
        counters: Counters = NOTHING_YET,
        *,
        keeps_rows: bool = True,
        keeps_events: bool = True,
    ) -> PriorityCore:
        """Create a queue. Its settings are among the first changes."""
        row = SettingsRow(1, settings)
        rows = QueueRows(row, counters)
        core = cls(queue, rows, keeps_rows=keeps_rows, keeps_events=keeps_events)
        core._contents.now_ms = max(now_ms, counters.now_ms)
        core.recorder.settings_changed(row)
        return core

    def drain(self) -> Changes | None:
        """The changes since the last drain, to be stored in one transaction; None if there are
        none.
        """
        return self.recorder.drain(self._contents.counters())

    @property
    def now_ms(self) -> int:
        """The latest time that the queue has seen."""
        return self._contents.now_ms

    @property
    def ahead_ms(self) -> int:
        """How far the queue's time is ahead of the wall clock, as it was last set."""
        return self._contents.ahead_ms

    def set_ahead(self, ahead_ms: int) -> None:
        """Record how far the queue's time is ahead of the wall clock, for the next owner."""
        self._contents.ahead_ms = ahead_ms
        self.recorder.is_touched = True

    @property
    def is_drained(self) -> bool:
        """Whether nothing has changed since the last drain."""
        return not self.recorder.is_touched

    def count_undrained(self) -> tuple[int, int]:
        """The number of rows and events of the next drain, and the bytes of their payloads."""
        return self.recorder.count(), self.recorder.payload_bytes

    def counters(self) -> Counters:
        """The numbers that must not go back."""
        return self._contents.counters()

    def once(self, now_ms: int, request: Request, what: str, act: Callable[[], A]) -> A:
        """Carry out a request, or return its earlier answer if it was carried out before.

        Args:
            now_ms: The time of the operation.
            request: The request id.
            what: Name of the operation; a repeat under another name is refused.
            act: Carries out the operation, with the same `now_ms`.

        Raises:
            RequestStale: The answer was acknowledged.
            SessionFull: The session has too many unacknowledged answers.
            Overloaded: There are too many sessions.
            PriorityQueueError: The errors of `act`, which are not remembered.
        """
        now = self._at(now_ms)
        plain = self.sessions.find(now, request, what, self.settings)
        if plain is not None:
            return cast(A, answer_of(plain, self._contents.by_id))
        answer = act()
        if answer.is_changed:
            self.sessions.remember(now, request, what, plain_of(answer))
        return answer

    def _at(self, now_ms: int) -> int:
        """The time of an operation, after the work that is due by then."""
        contents = self._contents
        if now_ms > contents.now_ms:
            contents.now_ms = now_ms
        due = contents.due.heap
        if due and due[0] >> SEQUENCE_BITS <= contents.now_ms:
            self._leasing.sweep(STEPS_INLINE_MAX)
        return contents.now_ms

    # -- into the queue

    def enqueue(self, now_ms: int, new: New) -> Enqueued:
        """Store a message. The same body under the same id is stored once.

        Raises `RequestInvalid`, `ExclusivityMissing`, `EnqueueBlocked`, `MessageExists` or
        `PriorityQueueFull`.
        """
        self._at(now_ms)
        return self._entering.one(new)

    def enqueue_many(
        self, now_ms: int, news: Sequence[New], all_or_nothing: bool = False
    ) -> EnqueuedMany:
        """Store messages in order. A refused message does not stop the others.

        With `all_or_nothing`, the first refusal is raised and nothing changes.
        """
        self._at(now_ms)
        check_number(self.queue, "messages", len(news), 0, COUNT_MAX)
        return self._entering.many(news, all_or_nothing)

    def enqueue_many_once(
        self,
        now_ms: int,
        request: Request,
        what: str,
        news: Sequence[New],
        all_or_nothing: bool = False,
    ) -> EnqueuedMany:
        """Store messages under a request id, each of them once.

        A message that was stored under this id gets its earlier answer, even if the other messages
        differ, because messages may have moved between shards. Refused messages are tried again.
        Arguments and errors are those of `once` and `enqueue_many`.
        """
        now = self._at(now_ms)
        plain = self.sessions.find(now, request, what, self.settings)
        known = find_taken(plain)
        check_number(self.queue, "messages", len(news), 0, COUNT_MAX)
        found = self._entering.many(news, all_or_nothing, known)
        taken = known | {one.id: one for one in found.answers if one and one.is_changed}
        if len(taken) > len(known):
            kept = plain_of(EnqueuedMany(tuple(taken.values())))
            self.sessions.remember(now, request, what, kept)
        return found

    def requeue(self, now_ms: int, id: str, new_id: str | None = None) -> Enqueued:
        """Store a copy of an errored or canceled message, with all its attempts.

        Without `new_id`, the id is derived from the message, so a repeat adds no second copy.
        Raises the errors of `enqueue`, `MessageNotFound`, and `RequestInvalid` if the message is in
        another state.
        """
        self._at(now_ms)
        if new_id is not None:
            check_request_text(self.queue, "new_id", new_id)
        message = self._leasing.message(id)
        if message.state not in (CANCELED, ERRORED):
            what = f"{id!r} is {message.state.name.lower()}, not canceled or errored"
            raise RequestInvalid(self.queue, "id", what)
        return self._entering.again(message, new_id)

    # -- out of the queue

    def dequeue(
        self,
        now_ms: int,
        worker: str,
        count: int = 1,
        wanted: Pairs = (),
        *,
        lease_ms: int | None = None,
        same_value_ok: bool = False,
        not_above: int | None = None,
    ) -> Dequeued:
        """Lease the most urgent pending messages whose values are free, to one worker.

        The cost is O(log n) for each message that is leased, and for each blocked exclusivity value
        that is passed over. See `index.filters` for the cost of filters without a shape.

        Args:
            now_ms: The time of the operation.
            worker: Name of the worker.
            count: Maximum number of messages, 1 to 1,000.
            wanted: At most 4 metadata pairs that a message must have.
            lease_ms: Length of the leases; None uses the setting of the message or the queue.
            same_value_ok: Whether a value that is free at the start may be leased several times.
                All of these leases count until fewer than `limit` are left.
            not_above: Exclude messages whose priority is a higher number.

        Returns:
            The leases, the most urgent first; the reason why there are no more; and when there may
                be more. The message whose payload reaches `ANSWER_BYTES_MAX` is the last one.

        Raises:
            RequestInvalid: An argument is not valid.
        """
        now = self._at(now_ms)
        settings = self.settings
        check_request_text(self.queue, "worker", worker)
        if count != 1 or type(count) is not int:
            check_number(self.queue, "count", count, 1, COUNT_MAX)
        if lease_ms is not None:
            check_number(self.queue, "lease_ms", lease_ms, 1, settings.lease_ms_max)
        pairs = () if wanted == () else check_pairs(self.queue, "wanted", wanted)
        if settings.dequeue_blocked:
            return Dequeued((), PollStatus.BLOCKED)
        if pairs and not self._contents.is_ready_for(pairs):
            return Dequeued((), PollStatus.MORE)
        filters = self._contents.filters
        source = filters.source(pairs) if pairs else filters.all
        bound = PRIORITY_MAX if not_above is None else not_above
        leases = self._taking.take(source, worker, count, lease_ms, same_value_ok, bound)
        if len(leases) == count:
            return Dequeued(tuple(leases), PollStatus.FULL)
        if leases and is_large(leases):
            return Dequeued(tuple(leases), PollStatus.MORE)
        next_ms = self._contents.due.next_due_ms()
        return Dequeued(tuple(leases), self._taking.why_no_more(now, next_ms), next_ms)

    # -- leases

    def complete(self, now_ms: int, id: str, token: LeaseToken, reason: str = "") -> Done:
        """Complete the message. A repeat has the same result.

        Raises `MessageNotFound`, `LeaseLost`, `LeaseForeign` or `MessageFinished`.
        """
        return self._finish(now_ms, id, token, COMPLETED, Step.COMPLETED, reason)

    def fail(self, now_ms: int, id: str, token: LeaseToken, reason: str = "") -> Done:
        """Make the message errored, even if attempts are left. Raises the errors of `complete`."""
        return self._finish(now_ms, id, token, ERRORED, Step.FAILED, reason)

    def cancel(
        self,
        now_ms: int,
        id: str,
        token: LeaseToken | None = None,
        reason: str = "",
        *,
        unless_leased: bool = False,
    ) -> Done:
        """Cancel the message. Raises the errors of `complete`.

        `token` is that of the worker's lease. Without it, an operator cancels the message in any
        unfinished state. With `unless_leased`, a leased message does not change.
        """
        if token is not None:
            return self._finish(now_ms, id, token, CANCELED, Step.CANCELED, reason)
        now = self._at(now_ms)
        self._check_reason(reason)
        message = self._leasing.message(id)
        if message.state is CANCELED:
            return make_done(message, False)
        if message.is_finished:
            raise self._leasing.make_finished_error(message)
        if unless_leased and message.state is RUNNING:
            return make_done(message, False)
        due_ms = now + self.settings.retention_ms
        self._contents.move(message, CANCELED, Step.CANCELED, due_ms, reason)
        return make_done(message)

    def _finish(
        self, now_ms: int, id: str, token: LeaseToken, state: State, step: Step, reason: str = ""
    ) -> Done:
        now = self._at(now_ms)
        if reason != "":
            self._check_reason(reason)
        message = self._leasing.find_leased(id, token, step)
        if message.state is not RUNNING:
            return make_done(message, False)
        due_ms = now + self.settings.retention_ms
        self._contents.move(message, state, step, due_ms, reason)
        return Done(state, message.version, due_ms, True)

    def extend(self, now_ms: int, id: str, token: LeaseToken, lease_ms: int | None = None) -> Done:
        """Extend the lease to `lease_ms` from now. A lease is never shortened.

        Raises the errors of `complete`, and `RequestInvalid`.
        """
        now = self._at(now_ms)
        if lease_ms is not None:
            check_number(self.queue, "lease_ms", lease_ms, 1, self.settings.lease_ms_max)
        message = self._leasing.find_leased(id, token, None)
        if lease_ms is None:
            own_ms = message.terms.lease_ms
            lease_ms = self.settings.lease_ms if own_ms is None else own_ms
        if now + lease_ms <= message.due_ms:
            return make_done(message, False)
        self._contents.extend(message, now + lease_ms)
        return make_done(message)

    def release(
        self,
        now_ms: int,
        id: str,
        token: LeaseToken,
        delay_ms: int = 0,
        *,
        refund: bool = False,
        reason: str = "",
    ) -> Done:
        """Release the message: end its lease without a result.

        The message is then pending, or invisible for `delay_ms`, or errored if no attempts are
        left.

        A repeat has the same result until the message is leased again. With `refund`, the attempt
        does not count. Raises the errors of `complete`, and `RequestInvalid`.
        """
        now = self._at(now_ms)
        check_number(self.queue, "delay_ms", delay_ms, 0, self.settings.invisible_ms_max)
        self._check_reason(reason)
        message = self._leasing.find_leased(id, token, Step.RELEASED)
        if message.state is not RUNNING:
            return make_done(message, False)
        message.attempts_left += refund
        self._leasing.give_back(message, Step.RELEASED, now + delay_ms if delay_ms else 0, reason)
        return make_done(message)

    def _check_reason(self, reason: str) -> None:
        check_request_text(self.queue, "reason", reason, 0, REASON_BYTES_MAX)

    # -- the queue

    def prioritise(self, now_ms: int, id: str, priority: int) -> Done:
        """Change the priority of a message.

        For a leased message, it applies when the message comes back.

        Raises `MessageNotFound`, `MessageFinished` or `RequestInvalid`.
        """
        self._at(now_ms)
        check_number(self.queue, "priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
        message = self._leasing.message(id)
        if message.is_finished:
            raise self._leasing.make_finished_error(message)
        if message.priority == priority:
            return make_done(message, False)
        self._contents.prioritise(message, priority)
        return make_done(message)

    def configure(
        self, now_ms: int, settings: QueueSettings, version: int | None = None
    ) -> SettingsRow:
        """Change the settings.

        `version` is the version on which the change is based; None overwrites any version. Raises
        `SettingsConflict` if the settings have another version, or if unfinished messages prevent
        another `exclusivity_key`.
        """
        now = self._at(now_ms)
        is_numbered = self.settings.shards == 1 or self.settings.layout
        if is_numbered and is_wish(settings, self.settings):
            return SettingsRow(self.settings_version, self.settings)
        if version is not None and version != self.settings_version:
            what = f"its settings have version {self.settings_version}, not {version}"
            raise SettingsConflict(self.queue, what)
        is_other_key = settings.exclusivity_key != self.settings.exclusivity_key
        if is_other_key and not self._contents.is_all_finished:
            what = "exclusivity_key can change only while all messages are finished"
            raise SettingsConflict(self.queue, what)
        return self._set(
            change_settings(self.queue, self.settings, settings, self._next_layout(now))
        )

    def _next_layout(self, now_ms: int) -> int:
        """The number of the next layout.

        It is the time, so that it is above all layouts of a store that this one replaces. It is
        also above all layouts that the queue had, even if its clock was wrong.
        """
        return max(now_ms, self._contents.layout + 1)

    def _set(self, settings: QueueSettings) -> SettingsRow:
        self._contents.apply(settings)
        self._contents.layout = max(self._contents.layout, settings.layout)
        self.settings = settings
        self.settings_version += 1
        row = SettingsRow(self.settings_version, settings)
        self.recorder.settings_changed(row)
        return row

    # -- several shards

    def adopt(self, now_ms: int, settings: QueueSettings, floor: int = 0) -> SettingsRow:
        """As a shard, take over the settings of the queue if their layout is later.

        Later leases get numbers above `floor`.
        """
        self._at(now_ms)
        row, contents = SettingsRow(self.settings_version, self.settings), self._contents
        if floor > contents.epoch:
            contents.epoch = floor
            self.recorder.settings_changed(row)  # so that it is stored
        return self._set(settings) if settings.layout > self.settings.layout else row

    def settle(self, now_ms: int, layout: int) -> SettingsRow:
        """Record that no message of this layout is in a former shard."""
        now, settings = self._at(now_ms), self.settings
        if settings.layout != layout or not settings.shards_before:
            return SettingsRow(self.settings_version, settings)
        later = self._next_layout(now) if settings.shards > 1 else 0
        return self._set(replace(settings, shards_before=0, layout=later))

    # -- the clock

    def set_clock(self, now_ms: int) -> None:
        """Set the queue's time, also backwards: O(n log n).

        Leases, delays, retention and the answers of sessions keep their remaining time.
        """
        self.sessions.set_clock(now_ms - self._contents.now_ms)
        self._contents.set_clock(now_ms)
        self.set_ahead(0)

    # -- in the background

    def sweep(self, now_ms: int, steps: int = STEPS_INLINE_MAX) -> Swept:
        """Do due work in the background, at most this number of steps."""
        contents, settings = self._contents, self.settings
        contents.now_ms = now = max(now_ms, contents.now_ms)
        done_count = self._leasing.sweep(steps)
        done_count += contents.sweep(steps - done_count)
        kept_ms = settings.answers_kept_ms
        done_count += self.sessions.sweep(now, kept_ms, steps - done_count)
        done_count += contents.filters.build(steps - done_count)
        next_ms = self.next_due_ms()
        return Swept(done_count, next_ms is not None and next_ms <= now, next_ms)

    def next_due_ms(self) -> int | None:
        """When `sweep` has work next; None if nothing is due by itself."""
        contents = self._contents
        if contents.filters.shapes and contents.filters.is_building:
            return contents.now_ms
        found = contents.due.next_due_ms()
        for due_ms in (
            contents.finished.next_due_ms(),
            self.sessions.next_due_ms(self.settings.answers_kept_ms),
        ):
            if found is None or (due_ms is not None and due_ms < found):
                found = due_ms
        return found

    def take_available(self, wanted: Collection[Metadata]) -> Mapping[Metadata, int]:
        """The pairs of messages that became available since the last call, with their numbers.

        Only messages that help one of the `wanted` filters are sure to be included. Nothing is
        noted while nobody waits.
        """
        contents = self._contents
        return contents.available.take(contents.holds, contents.filters, wanted)

    def check(self) -> None:
        """Assert the invariants: O(n)."""
        self._contents.check()
        self.sessions.check()


def make_done(message: Message, is_changed: bool = True) -> Done:
    return Done(message.state, message.version, message.due_ms, is_changed)
