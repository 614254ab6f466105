"""A writer's coordinator under crashes, late writes and repeats: each batch arrives whole, once, in
order.

The model has the parts that the coordinator relies on: a row that is written by compare-and-set,
chunks that a silo may store during its lease and a little longer, and queues that drop repeats by
sequence and refuse a gap.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.streams.staging import coordinator as coordinator_module
from millstream.streams.staging.batch import (
    CHUNKS_MAX,
    Batch,
    Manifest,
    check_manifests,
    iter_placed,
)
from millstream.streams.staging.coordinator import (
    LEASE_S,
    SILENT_S,
    SWEEP_AFTER_S,
    Begun,
    Coordinator,
    Done,
    EnqueueBatch,
    Full,
    Gone,
    Leased,
    WriterState,
)

LANES = ["q0", "q1"]
PARTS = 2
WRITE_S = 30.0  # the longest duration of a write
ENDS = st.sampled_from(
    ["stored"] * 5 + ["stored, then crashed", "crashed", "by one that was replaced"]
)
Message = tuple[str, int]


class Attempt:
    """A task of Spark, and the silo that stores for it."""

    def __init__(self, name: str, batch: int, part: int) -> None:
        self.name, self.batch, self.part = name, batch, part
        self.chunks: list[list[Message]] = []
        self.lease_end_s = 0.0
        self.is_over = False

    def manifest(self) -> Manifest:
        counts = [[sum(lane == own for lane, _ in chunk) for own in LANES] for chunk in self.chunks]
        return Manifest(self.name, self.part, list(LANES), counts)


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_s = 0.0
        self.row = msgspec.msgpack.encode(WriterState())
        self.coordinator: Coordinator | None = None
        # a coordinator that does not know its replacement, and its row
        self.replaced: tuple[Coordinator, bytes] | None = None
        self.chunks: dict[str, dict[int, list[Message]]] = defaultdict(dict)
        self.late: list[tuple[float, str, int, list[Message]]] = []
        self.queues: dict[str, list[int]] = {lane: [] for lane in LANES}
        self.attempts: list[Attempt] = []
        self.expected: dict[str, list[int]] = {lane: [] for lane in LANES}
        self.decided: list[int] = []
        self.answered: dict[int, int] = {}
        self.position = 0  # of the delivery, lost in a crash
        self.names = 0
        self.messages = 0

    # -- the driver of the coordinator

    def opened(self) -> Coordinator:
        if self.coordinator is None:
            state = msgspec.msgpack.decode(self.row, type=WriterState)
            self.coordinator = Coordinator(state, self.now_s, staged_bytes_max=40)
            self.position = 0
        return self.coordinator

    def ask(self, end: str, method: str, *args: Any) -> Any:
        """Return the answer after the state is stored; None if there was no answer."""
        if end == "by one that was replaced":
            return self.ask_replaced(method, *args)
        coordinator = self.opened()
        answer = getattr(coordinator, method)(*args)
        coordinator.check()
        if coordinator.is_changed:
            if end == "crashed":
                self.coordinator = None
                return None
            coordinator.is_changed = False
            self.store(coordinator.state)
        if end != "stored":
            self.coordinator = None
            return None
        return answer

    def ask_replaced(self, method: str, *args: Any) -> Any:
        """Ask a replaced coordinator; it answers if it has nothing to store, or nobody has stored
        since."""
        if self.replaced is None:
            return None
        coordinator, row = self.replaced
        answer = getattr(coordinator, method)(*args)
        coordinator.check()
        if not coordinator.is_changed:
            return answer
        self.replaced = None
        if row != self.row:
            return None  # a conflict
        self.store(coordinator.state)
        self.coordinator = None
        return answer

    def store(self, state: WriterState) -> None:
        before = msgspec.msgpack.decode(self.row, type=WriterState)
        self.row = msgspec.msgpack.encode(state)
        if state.last != before.last:
            assert state.last > before.last and before.delivering is None
            self.note(state.delivering)

    def note(self, batch: Batch | None) -> None:
        """Note a stored decision: from now on all of its messages must arrive."""
        assert batch is not None
        self.decided.append(batch.number)
        names = {one.name: one for one in self.attempts}
        for manifest in batch.manifests:
            attempt = names[manifest.attempt]
            assert attempt.batch == batch.number
            for chunk in attempt.chunks[: len(manifest.chunks)]:
                for lane, message in chunk:
                    self.expected[lane].append(message)

    # -- actions of Spark

    def batch(self) -> int:
        return msgspec.msgpack.decode(self.row, type=WriterState).last + 1

    @rule(part=st.integers(0, PARTS - 1), back=st.sampled_from([0, 0, 0, 1]), end=ENDS)
    def start_attempt(self, part: int, back: int, end: str) -> None:
        self.names += 1
        attempt = Attempt(f"u{self.names}", max(0, self.batch() - back), part)
        answer = self.ask(end, "begin", attempt.name, attempt.batch, part, self.now_s)
        if isinstance(answer, Done):
            assert attempt.batch in self.decided
        elif answer is not None:
            assert isinstance(answer, Begun)
        self.attempts.append(attempt)

    @precondition(lambda self: self.attempts)
    @rule(
        at=st.integers(0, 7),
        lanes=st.lists(st.sampled_from(LANES), max_size=3),
        is_late=st.booleans(),
        end=ENDS,
    )
    def stage(self, at: int, lanes: list[str], is_late: bool, end: str) -> None:
        attempt = self.attempts[-1 - at % len(self.attempts)]
        if attempt.is_over:
            return
        answer = self.ask(end, "lease", attempt.name, 1, self.now_s)
        if isinstance(answer, Leased):
            attempt.lease_end_s = self.now_s + answer.lease_s
        elif isinstance(answer, Gone):
            attempt.is_over = True
            return
        if self.now_s >= attempt.lease_end_s:
            return
        chunk = []
        for lane in lanes:
            self.messages += 1
            chunk.append((lane, self.messages))
        index = len(attempt.chunks)
        if is_late:  # the task that waits for the answer has ended
            self.late.append((self.now_s + WRITE_S, attempt.name, index, chunk))
            attempt.is_over = True
        else:
            self.chunks[attempt.name][index] = chunk
            attempt.chunks.append(chunk)

    @precondition(lambda self: self.late)
    @rule()
    def a_late_write_lands(self) -> None:
        _, name, index, chunk = self.late.pop(0)
        self.chunks[name][index] = chunk

    @rule(
        back=st.sampled_from([0, 0, 0, 1]), end=ENDS, picks=st.tuples(*[st.integers(0, 9)] * PARTS)
    )
    def commit(self, back: int, end: str, picks: tuple[int, ...]) -> None:
        batch = max(0, self.batch() - back)
        chosen = []
        for part, pick in enumerate(picks):
            found = [a for a in self.attempts if (a.batch, a.part) == (batch, part)]
            if found:
                chosen.append(found[-1 - pick % len(found)])
        for attempt in chosen:
            attempt.is_over = True
        manifests = [attempt.manifest() for attempt in chosen]
        answer = self.ask(end, "commit", batch, manifests, self.now_s)
        if isinstance(answer, Done):
            assert batch in self.decided
            assert answer.messages == self.answered.setdefault(batch, answer.messages) or (
                answer.messages == -1
            )
        elif isinstance(answer, Gone):
            assert set(answer.attempts) <= {attempt.name for attempt in chosen}

    @rule(chunks=st.lists(st.sampled_from([["q0"], ["q1", "q0"], []]), max_size=3), end=ENDS)
    def write_a_batch(self, chunks: list[list[str]], end: str) -> None:
        """Write a batch without faults, up to the commit."""
        for part in range(PARTS):
            self.start_attempt(part, 0, "stored")
            for lanes in chunks:
                self.stage(0, lanes, False, "stored")
        self.commit(0, end, (0,) * PARTS)

    @rule(back=st.sampled_from([0, 1]), end=ENDS)
    def abort(self, back: int, end: str) -> None:
        self.ask(end, "abort", max(0, self.batch() - back), self.now_s)

    # -- delivering

    def delivering(self) -> Batch | None:
        return self.opened().state.delivering

    @precondition(lambda self: self.delivering() is not None)
    @rule(steps=st.integers(1, 4), end=ENDS)
    def deliver(self, steps: int, end: str) -> None:
        batch = self.delivering()
        assert batch is not None
        plan = list(iter_placed(batch))
        for place in plan[self.position : self.position + steps]:
            self.enqueue(place.first, self.chunks[place.attempt][place.index])
            self.position += 1
        if self.position >= len(plan):
            self.ask(end, "on_delivered", batch.number, self.now_s)
            self.position = 0
        elif end != "stored":
            self.coordinator = None

    def enqueue(self, first: dict[str, int], chunk: list[Message]) -> None:
        at = dict(first)
        for lane, message in chunk:
            seq, queue = at[lane], self.queues[lane]
            at[lane] += 1
            assert seq <= len(queue), f"{lane}: a hole before {seq}"
            if seq == len(queue):
                queue.append(message)
            assert queue[seq] == message, "another message had this sequence"

    # -- time

    @rule(seconds=st.sampled_from([1.0, 29.0, LEASE_S - 1, SWEEP_AFTER_S, SILENT_S / 2]))
    def time_passes(self, seconds: float) -> None:
        for write in [one for one in self.late if one[0] <= self.now_s + seconds]:
            self.late.remove(write)
            self.chunks[write[1]][write[2]] = write[3]
        self.now_s += seconds

    @rule(end=ENDS)
    def keep_house(self, end: str) -> None:
        self.ask(end, "expire", self.now_s)
        for name in self.opened().to_sweep(self.now_s):
            self.chunks.pop(name, None)
            self.ask(end, "on_swept", name)
            if end != "stored":
                return  # it was opened again

    @rule()
    def replace(self) -> None:
        """Cut a silo off: another one opens the coordinator, and both are asked."""
        if self.coordinator is not None and not self.coordinator.is_changed:
            self.replaced, self.coordinator = (self.coordinator, self.row), None

    @rule()
    def deliver_by_one_that_was_replaced(self) -> None:
        """Let a replaced coordinator deliver: its messages are in the queues already, or no longer
        stored."""
        if self.replaced is None or self.replaced[0].state.delivering is None:
            return
        for place in iter_placed(self.replaced[0].state.delivering):
            chunk = self.chunks[place.attempt].get(place.index)
            if chunk is None:
                return
            self.enqueue(place.first, chunk)

    @rule()
    def crash(self) -> None:
        self.coordinator = None

    # -- invariants

    @invariant()
    def queues_hold_the_decided_batches_in_order(self) -> None:
        for lane in LANES:
            queue, wanted = self.queues[lane], self.expected[lane]
            assert queue == wanted[: len(queue)]

    def teardown(self) -> None:
        if not hasattr(self, "row"):
            return
        while self.delivering() is not None:
            self.deliver(4, "stored")
        for lane in LANES:
            assert self.queues[lane] == self.expected[lane]
        for seconds in (SILENT_S, SWEEP_AFTER_S, SWEEP_AFTER_S):
            self.time_passes(seconds)
            self.keep_house("stored")
        state = self.opened().state
        assert not state.open and not state.dropped and self.opened().staged_bytes == 0
        assert not any(self.chunks.values()), "chunks that nobody will delete"
        assert self.opened().next_due_s() is None


TestCoordinator = Machine.TestCase
TestCoordinator.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def manifest(attempt: str, part: int, *chunks: list[int]) -> Manifest:
    return Manifest(attempt, part, LANES, list(chunks))


def test_sequences_go_on_over_chunks_parts_and_batches() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    for batch, (one, two) in enumerate([("a", "b"), ("c", "d")]):
        coordinator.begin(one, batch, 0, 0.0)
        coordinator.begin(two, batch, 1, 0.0)
        given = [manifest(two, 1, [0, 4]), manifest(one, 0, [2, 1], [3, 0])]
        answer = coordinator.commit(batch, given, 0.0)
        assert isinstance(answer, EnqueueBatch)
        base = {"q0": 5 * batch, "q1": 5 * batch}
        assert [(place.attempt, place.first) for place in iter_placed(answer.batch)] == [
            (one, {"q0": base["q0"], "q1": base["q1"]}),
            (one, {"q0": base["q0"] + 2, "q1": base["q1"] + 1}),
            (two, {"q0": base["q0"] + 5, "q1": base["q1"] + 1}),
        ]
        coordinator.on_delivered(batch, 0.0)
        assert coordinator.commit(batch, [], 0.0) == Done(10)
    assert coordinator.commit(0, [], 0.0) == Done(-1)


def test_a_batch_that_is_decided_is_not_staged_again() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    assert coordinator.commit(3, [], 0.0) == EnqueueBatch(Batch(3, [], {}))
    coordinator.on_delivered(3, 0.0)
    assert coordinator.begin("late", 3, 0, 0.0) == Done(0)
    assert coordinator.lease("late", 1, 0.0) == Gone(["late"])
    assert coordinator.begin("next", 4, 0, 0.0) == Begun()


def test_an_attempt_that_was_dropped_cannot_be_committed() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    coordinator.begin("a", 0, 0, 0.0)
    coordinator.begin("b", 0, 1, 0.0)
    coordinator.expire(SILENT_S - 1)
    assert set(coordinator.state.open) == {"a", "b"}
    coordinator.lease("b", 0, SILENT_S - 1)
    coordinator.expire(SILENT_S)
    given = [manifest("a", 0, [1, 0]), manifest("b", 1, [1, 0])]
    assert coordinator.commit(0, given, SILENT_S) == Gone(["a"])
    assert coordinator.begin("a", 0, 0, SILENT_S) == Gone(["a"])


def test_what_is_staged_has_a_limit_until_it_is_swept() -> None:
    coordinator = Coordinator(WriterState(), 0.0, staged_bytes_max=10)
    coordinator.begin("a", 0, 0, 0.0)
    coordinator.begin("b", 0, 1, 0.0)
    assert coordinator.lease("a", 8, 0.0) == Leased(8, LEASE_S)
    full = coordinator.lease("b", 3, 0.0)
    assert isinstance(full, Full) and (full.limit_name, full.limit) == ("staged_bytes_max", 10)
    assert coordinator.lease("b", 2, 0.0) == Leased(2, LEASE_S)
    coordinator.abort(0, 5.0)
    assert coordinator.to_sweep(5.0 + SWEEP_AFTER_S - 1) == []
    assert coordinator.staged_bytes == 10
    for attempt in coordinator.to_sweep(5.0 + SWEEP_AFTER_S):
        coordinator.on_swept(attempt)
    assert coordinator.staged_bytes == 0


def test_what_is_dropped_is_swept_after_its_last_lease_and_its_last_write() -> None:
    assert SWEEP_AFTER_S >= LEASE_S + WRITE_S
    coordinator = Coordinator(WriterState(), 0.0)
    coordinator.begin("a", 0, 0, 0.0)
    coordinator.abort(0, 1000.0)
    opened = Coordinator(coordinator.state, 1050.0)  # leases that were given before are not known
    assert opened.to_sweep(1050.0 + SWEEP_AFTER_S - 1) == []
    assert opened.to_sweep(1050.0 + SWEEP_AFTER_S) == ["a"]


def test_an_attempt_of_another_batch_or_part_is_not_taken() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    coordinator.begin("a", 0, 0, 0.0)
    assert coordinator.commit(1, [manifest("a", 0, [1, 0])], 0.0) == Gone(["a"])
    assert coordinator.commit(0, [manifest("a", 1, [1, 0])], 0.0) == Gone(["a"])
    assert coordinator.state.last == -1


def test_what_is_being_delivered_is_neither_dropped_nor_added_to() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    coordinator.begin("a", 0, 0, 0.0)
    decided = coordinator.commit(0, [manifest("a", 0, [1, 0])], 0.0)
    coordinator.expire(2 * SILENT_S)
    coordinator.abort(0, 2 * SILENT_S)
    assert coordinator.lease("a", 1, 0.0) == Gone(["a"])
    coordinator.on_delivered(7, 0.0)
    assert coordinator.commit(0, [], 0.0) == coordinator.commit(1, [], 0.0) == decided
    assert set(coordinator.state.open) == {"a"}


def test_every_right_and_every_change_is_to_be_stored() -> None:
    coordinator = Coordinator(WriterState(), 0.0)

    def changed() -> bool:
        was, coordinator.is_changed = coordinator.is_changed, False
        return was

    coordinator.begin("a", 0, 0, 0.0)
    assert changed()
    coordinator.begin("a", 0, 0, 0.0)
    assert not changed()
    coordinator.lease("a", 0, 0.0)
    assert changed()
    coordinator.commit(0, [manifest("a", 0)], 0.0)
    assert changed()
    coordinator.commit(0, [], 0.0)
    assert not changed()
    coordinator.on_delivered(0, 0.0)
    assert changed()
    coordinator.on_delivered(0, 0.0)
    assert not changed()
    coordinator.on_swept("a")
    assert changed()


@pytest.mark.parametrize(
    ("manifests", "text"),
    [
        ([Manifest("a", 0, ["q", "q"], [])], "names a lane twice"),
        ([Manifest("a", 0, ["q"], [[1, 2]])], "one count"),
        ([Manifest("a", 0, ["q"], [[-1]])], "one count"),
        ([manifest("a", 0), manifest("b", 0)], "a part appears twice"),
        ([manifest("a", 0), manifest("a", 1)], "an attempt appears twice"),
        ([Manifest("a", 0, [], [[]] * (CHUNKS_MAX + 1))], "CHUNKS_MAX is 10000"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(manifests: list[Manifest], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_manifests(manifests)


def test_odd_manifests_decide_nothing_and_as_many_chunks_as_the_limit_are_taken() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    coordinator.begin("a", 0, 0, 0.0)
    coordinator.is_changed = False
    with pytest.raises(ValueError, match="one count"):
        coordinator.commit(0, [Manifest("a", 0, ["q"], [[1, 2]])], 0.0)
    assert not coordinator.is_changed and coordinator.state.last == -1
    full = Manifest("a", 0, [], [[]] * CHUNKS_MAX)
    assert isinstance(coordinator.commit(0, [full], 0.0), EnqueueBatch)


def test_a_writer_has_so_many_attempts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "ATTEMPTS_MAX", 2)
    coordinator = Coordinator(WriterState(), 0.0)
    coordinator.begin("a", 0, 0, 0.0)
    coordinator.abort(0, 0.0)
    assert coordinator.begin("b", 0, 0, 0.0) == Begun()
    full = coordinator.begin("c", 0, 0, 0.0)
    assert isinstance(full, Full) and (full.limit_name, full.limit) == ("ATTEMPTS_MAX", 2)
    assert coordinator.begin("b", 0, 0, 0.0) == Begun()


def test_when_there_is_something_to_do_is_known() -> None:
    coordinator = Coordinator(WriterState(), 0.0)
    assert coordinator.next_due_s() is None
    coordinator.begin("a", 0, 0, 5.0)
    assert coordinator.next_due_s() == 5.0 + SILENT_S
    coordinator.abort(0, 7.0)
    assert coordinator.next_due_s() == 7.0 + SWEEP_AFTER_S
