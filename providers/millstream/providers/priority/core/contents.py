"""The messages of one queue with everything that finds them, and the only way to change a message.

Owns `Contents`: messages by id and by sequence, timers, held values, filters and counts. The rules
for requests, settings and sessions are in `core`.

Invariants:

- Every change of a message is made here, is in the table of transitions, raises the version by one,
  and is recorded.
- Indexes, timers, holds and counts are functions of the messages. `check` verifies this.
"""

from __future__ import annotations

from collections.abc import Iterable

from .body import Body
from .changes import Counters, Recorder
from .errors import RequestInvalid
from .index.available import Available
from .index.filters import SCAN_MAX, Filters, Readiness
from .index.grouped import Holds
from .index.timers import Timers
from .message import (
    COMPLETED,
    INVISIBLE,
    PENDING,
    RUNNING,
    TRANSITIONS,
    LastLease,
    LeaseToken,
    Message,
    Metadata,
    State,
    Step,
    key_of,
)
from .settings import SHAPES_MAX, QueueSettings

__all__ = ["Contents"]


class Contents:
    """All uncollected messages of one queue."""

    __slots__ = (
        "ahead_ms",
        "available",
        "by_id",
        "by_value",
        "counts",
        "due",
        "epoch",
        "filters",
        "finished",
        "holds",
        "layout",
        "messages",
        "now_ms",
        "payload_bytes",
        "queue",
        "recorder",
        "sequence",
        "settings",
    )

    def __init__(self, settings: QueueSettings, counters: Counters, recorder: Recorder) -> None:
        self.queue = recorder.queue
        self.settings = settings
        self.recorder = recorder
        self.sequence, self.epoch, self.layout, self.now_ms, self.ahead_ms = counters
        self.layout = max(self.layout, settings.layout)
        self.payload_bytes = 0  # of all messages whose payloads are not freed
        self.by_id: dict[str, Message] = {}
        self.messages: dict[int, Message] = {}  # by sequence, in its order
        self.due = Timers(self.messages, is_of_finished=False)
        self.finished = Timers(self.messages, is_of_finished=True)
        self.counts = [0] * len(State)
        self.available = Available()
        self._index()

    def _index(self) -> None:
        settings = self.settings
        is_exclusive = settings.exclusivity_key is not None
        self.holds = Holds(settings.limit) if is_exclusive else None
        self.by_value: dict[str, list[int]] = {}
        self.filters = Filters(self.messages, self.holds)
        self.filters.set_shapes(settings.shapes)

    def restore(self, messages: Iterable[Message]) -> None:
        """Add messages from rows to empty contents."""
        for message in sorted(messages, key=lambda one: one.sequence):
            self.by_id[message.id] = self.messages[message.sequence] = message
            self.payload_bytes += len(message.payload)
            if message.due_ms:
                self._timers(message).set(message, message.due_ms)
            if message.state is RUNNING and message.value is not None and self.holds is not None:
                self.holds.hold(message.value)
            self._count(message, None, message.state)
        for message in self.messages.values():  # after all holds are known
            if message.state is PENDING:
                self.filters.add(message)

    def is_ready_for(self, wanted: Metadata, *, is_count: bool = False) -> bool:
        """Whether messages with these pairs can be found (or counted) now.

        False means that the caller must ask again.

        Raises `RequestInvalid` if too many messages would be checked and no shape can be added.
        """
        filters = self.filters
        found = filters.prepare_counts(wanted) if is_count else filters.prepare(wanted)
        if found is Readiness.REFUSED:
            keys = ", ".join(key for key, _ in wanted)
            raise RequestInvalid(
                self.queue,
                "wanted",
                f"has the keys {keys}: the queue would check more than {SCAN_MAX} messages, and "
                f"already has {SHAPES_MAX} indexes for other keys, the maximum. Add these keys to "
                "the setting `shapes`, and remove others",
            )
        return found is Readiness.READY

    def apply(self, settings: QueueSettings) -> None:
        """Apply other settings.

        Another exclusivity key needs finished messages only, and costs O(n).
        """
        is_other_key = settings.exclusivity_key != self.settings.exclusivity_key
        self.settings = settings
        if is_other_key:
            self._reindex(settings.exclusivity_key)
        self.filters.set_shapes(settings.shapes)
        if self.holds is not None:
            self.holds.set_limit(settings.limit)

    def _reindex(self, key: str | None) -> None:
        assert self.is_all_finished, "values change only while all messages are finished"
        self._index()
        for message in self.messages.values():
            message.value = dict(message.metadata).get(key) if key is not None else None
            self._count_value(message, None, message.state)

    def begin(self, body: Body, attempts: int, invisible_ms: int, reason: str = "") -> Message:
        """Add a new message."""
        self.sequence += 1
        sequence, now_ms = self.sequence, self.now_ms
        id, payload, priority, metadata, value, terms = body
        key = key_of(priority, sequence)
        message = Message(
            id, payload, key, metadata, value, attempts, terms, now_ms, now_ms, attempts
        )
        message.version = 1
        self.payload_bytes += len(payload)
        self.by_id[id] = self.messages[sequence] = message
        if invisible_ms:
            message.state = INVISIBLE
            self.due.set(message, now_ms + invisible_ms)
        else:
            self.filters.add(message)
            if self.available.is_on:
                self.available.came(message)
        self.counts[message.state] += 1
        if metadata:
            self._count_metadata(message, None, message.state)
        self.recorder.on_begun(message, now_ms, reason)
        return message

    def lease(self, message: Message, worker: str, due_ms: int, is_held_later: bool) -> None:
        """Lease a pending message to one worker until `due_ms`."""
        self.epoch += 1
        message.version = version = message.version + 1
        message.attempts_left -= 1
        message.lease = LastLease(LeaseToken(self.epoch, version), worker)
        message.changed_ms = self.now_ms
        message.state = RUNNING
        if self.holds is not None and message.value is not None and not is_held_later:
            self.holds.hold(message.value)
        self.filters.remove(message.key, message)
        self.due.set(message, due_ms)
        self.counts[PENDING] -= 1
        self.counts[RUNNING] += 1
        if message.metadata:
            self._count_metadata(message, PENDING, RUNNING)
        if self.recorder.is_on:
            self.recorder.on_changed(message, PENDING, Step.DEQUEUED, self.now_ms)

    def move(
        self, message: Message, target: State, step: Step, due_ms: int = 0, reason: str = ""
    ) -> None:
        """Make any other change of state.

        `due_ms` is when the new state ends by itself; 0 if it does not.
        """
        source = message.state
        assert (source, target) in TRANSITIONS[step], f"{source} to {target} by {step}"
        if source is RUNNING:
            self._end_lease(message, step, reason)
        message.state = target
        message.version += 1
        message.changed_ms = self.now_ms
        if source is PENDING:
            self.filters.remove(message.key, message)
        else:
            self.due.clear(message)
        if target is COMPLETED:
            self.payload_bytes -= len(message.payload)
            message.free()
        if due_ms:
            (self.finished if target >= COMPLETED else self.due).set(message, due_ms)
        if target is PENDING:
            self.filters.add(message)
            if self.available.is_on:
                self.available.came(message)
        self.counts[source] -= 1
        self.counts[target] += 1
        if message.metadata:
            self._count_metadata(message, source, target)
        self.recorder.on_changed(message, source, step, self.now_ms, reason)

    def _end_lease(self, message: Message, step: Step, reason: str) -> None:
        assert message.lease is not None, f"message {message.id} runs without a lease"
        message.lease.ended = step
        message.lease.reason = reason
        if self.holds is not None and message.value is not None:
            self.holds.release(message.value)
            if self.available.is_on:
                self.available.on_freed(message.value)

    def extend(self, message: Message, due_ms: int) -> None:
        """Extend the lease."""
        self.due.clear(message)
        self.due.set(message, due_ms)
        self._touch(message, Step.EXTENDED)

    def prioritise(self, message: Message, priority: int) -> None:
        """Change the priority. The sequence, which orders equal priorities, stays."""
        if message.first_priority is None:
            message.first_priority = message.priority
        key, message.key = message.key, key_of(priority, message.sequence)
        if message.state is PENDING:
            self.filters.remove(key, message)
            self.filters.add(message)
        self._touch(message, Step.PRIORITY)

    def set_clock(self, now_ms: int) -> None:
        """Set the time, also backwards, and keep the remaining times of messages: O(n log n)."""
        forward_ms, self.now_ms = now_ms - self.now_ms, now_ms
        for message in self.messages.values():
            if message.state is not PENDING:
                timers, due_ms = self._timers(message), message.due_ms
                timers.clear(message)
                timers.set(message, max(due_ms + forward_ms, 1))
                self._touch(message, Step.CLOCK)

    def _timers(self, message: Message) -> Timers:
        return self.finished if message.is_finished else self.due

    def _touch(self, message: Message, step: Step) -> None:
        assert (message.state, message.state) in TRANSITIONS[step], f"{message.state} by {step}"
        message.version += 1
        message.changed_ms = self.now_ms
        self.recorder.on_changed(message, message.state, step, self.now_ms)

    def collect(self, message: Message) -> None:
        """Collect a finished message."""
        assert message.is_finished, f"message {message.id} is {message.state}"
        self.finished.clear(message)
        self.payload_bytes -= len(message.payload)
        message.version += 1
        del self.by_id[message.id], self.messages[message.sequence]
        self._count(message, message.state, None)
        self.recorder.on_ended(message, self.now_ms)

    def sweep(self, steps: int) -> int:
        """Collect finished messages that are due, and return their number."""
        done_count = 0
        while done_count < steps and (message := self.finished.due(self.now_ms)):
            self.collect(message)
            done_count += 1
        return done_count

    def _count(self, message: Message, source: State | None, target: State | None) -> None:
        if source is not None:
            self.counts[source] -= 1
        if target is not None:
            self.counts[target] += 1
        if message.metadata:
            self._count_metadata(message, source, target)

    def _count_metadata(self, message: Message, source: State | None, target: State | None) -> None:
        if message.value is not None:
            self._count_value(message, source, target)
        if self.filters.shapes:
            self.filters.count(message, source, target)

    def _count_value(self, message: Message, source: State | None, target: State | None) -> None:
        if message.value is None:
            return
        counts = self.by_value.setdefault(message.value, [0] * len(State))
        if source is not None:
            counts[source] -= 1
        if target is not None:
            counts[target] += 1
        elif not any(counts):
            del self.by_value[message.value]

    def has_unfinished(self, value: str) -> bool:
        """Whether an exclusivity value has unfinished messages."""
        return any(self.by_value.get(value, ())[:COMPLETED])

    @property
    def is_all_finished(self) -> bool:
        """Whether every message is finished."""
        return not any(self.counts[:COMPLETED])

    def counters(self) -> Counters:
        """The numbers that must not go back."""
        return Counters(self.sequence, self.epoch, self.layout, self.now_ms, self.ahead_ms)

    def check(self) -> None:
        """Assert the invariants: O(n)."""
        assert {id: one.sequence for id, one in self.by_id.items()} == {
            one.id: sequence for sequence, one in self.messages.items()
        }
        sizes = [len(message.payload) for message in self.messages.values()]
        assert self.payload_bytes == sum(sizes)
        states = [message.state for message in self.messages.values()]
        assert self.counts == [states.count(state) for state in State]
        assert self.filters.all.live == self.counts[PENDING]
        for part in (self.filters, self.due, self.finished):
            part.check()
        self._check_holds()
        for message in self.messages.values():
            self._check_message(message)

    def _check_holds(self) -> None:
        if self.holds is not None:
            for value, counts in self.by_value.items():
                assert self.holds.counts.get(value, 0) == counts[RUNNING]

    def _check_message(self, message: Message) -> None:
        assert 0 <= message.attempts_left <= message.attempts
        assert bool(message.freed) is (message.state is COMPLETED)
        assert bool(message.timer) is bool(message.due_ms) is (message.state is not PENDING)
        lease = message.lease
        assert (message.state is RUNNING) is (lease is not None and lease.ended is None)
