"""The turn rule compared with a model of plain lists after each random event, and the choice among
stateless workers with a model of its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.call_count import calls_of
from tests.examples import examples

from millstream.runtime import DeactivationReason, Overloaded
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.turns.activation import Activation, ActivationState
from millstream.runtime.turns.mailbox import WaitingBytes
from millstream.runtime.turns.request import Request
from millstream.runtime.turns.workers import QUIET_LOOKS, WorkerActivation, WorkerTable


class Entry:
    """A waiting entry that records its events."""

    def __init__(self, machine: RuleBesideModel, name: int, kind: str) -> None:
        spec: Any = SimpleNamespace(label=kind, is_read_only=kind == "read")
        self.request = Request(None, None, None, spec, 0.0, 1)
        self.request.is_read = kind == "read"
        self.request.is_interleaving = kind == "interleave"
        self.is_withdrawn = False
        self.size_bytes = self.held_bytes = name % 3
        self.machine, self.name, self.kind = machine, name, kind
        self.takes = True

    def grant(self) -> bool:
        self.machine.granted.append(self.name)
        return self.takes

    def on_moved(self, silo: str) -> None:
        self.machine.moved.append(self.name)

    def fail(self, error: BaseException) -> None:
        raise AssertionError(f"{self.name}: {error}")


class RuleBesideModel(RuleBasedStateMachine):
    """An activation compared with lists of running and waiting entries."""

    running = Bundle("running")
    waiting = Bundle("waiting")
    LIMIT = 6

    @initialize()
    def begin(self) -> None:
        self.ended: list[DeactivationReason] = []
        owner: Any = SimpleNamespace(end=self._end)
        self.account = WaitingBytes(1000, 1000)
        self.kind: Any = SimpleNamespace(
            name="K", waiting_calls_max=self.LIMIT, waiting_bytes=self.account
        )
        kind: Any = self.kind
        kind.owner = owner
        self.activation = Activation(kind, "k", 1)
        self.granted: list[int] = []
        self.moved: list[int] = []
        self.count = 0
        self.model_running: list[Entry] = []
        self.model_waiting: list[Entry] = []
        self.is_valid = False
        self.is_stopping = False

    def _end(self, activation: Activation, reason: DeactivationReason) -> None:
        assert not self.model_running_now() and not self.ended
        self.ended.append(reason)
        activation.state = ActivationState.DEACTIVATING
        activation.is_gated = True

    def model_running_now(self) -> list[Entry]:
        return [entry for entry in self.model_running if not entry.request.done]

    def may_start(self, kind: str) -> bool:
        if not self.is_valid or self.is_stopping:
            return False
        kinds = [entry.kind for entry in self.model_running if entry.kind != "interleave"]
        if kind == "interleave" or not kinds:
            return True
        return kind == "read" and set(kinds) == {"read"}

    def model_admit(self) -> list[int]:
        """Return the entries that start now, in order. The scan skips those that may not start."""
        started = []
        for entry in list(self.model_waiting):
            if self.may_start(entry.kind):
                self.model_waiting.remove(entry)
                started.append(entry.name)
                if entry.takes:
                    self.model_running.append(entry)
        return started

    @precondition(lambda self: not self.is_valid and not self.ended)
    @rule()
    def becomes_valid(self) -> None:
        self.granted.clear()
        self.is_valid = True
        expected = self.model_admit()
        self.activation.go_on(ActivationState.VALID)
        assert self.granted == expected

    @rule(target=waiting, kind=st.sampled_from(["plain", "plain", "read", "interleave"]))
    def arrives(self, kind: str) -> Entry:
        self.count += 1
        entry = Entry(self, self.count, kind)
        if self.may_start(kind):
            assert self.activation.try_enter(entry.request)
            self.model_running.append(entry)
        elif len(self.model_waiting) >= self.LIMIT:
            assert not self.activation.try_enter(entry.request)
            with pytest.raises(Overloaded):
                self.activation.queue(entry)
            entry.is_withdrawn = True
        else:
            assert not self.activation.try_enter(entry.request)
            self.activation.queue(entry)
            self.model_waiting.append(entry)
        return entry

    @rule(entry=consumes(waiting))
    def ends_or_withdraws(self, entry: Entry) -> None:
        self.granted.clear()
        if entry in self.model_running:
            self.model_running.remove(entry)
            expected = self.model_admit()
            entry.request.done = True
            self.activation.leave(entry.request)
            assert self.granted == expected
        elif entry in self.model_waiting:
            self.model_waiting.remove(entry)
            self.activation.withdraw(entry)
        elif not entry.takes:
            # Its grant was refused in the meantime, but its task still wakes up and withdraws it.
            self.activation.withdraw(entry)

    @rule(entry=waiting)
    def caller_goes_away_without_a_word(self, entry: Entry) -> None:
        """The entry refuses its grant, as when its task is cancelled and has not run yet."""
        if entry in self.model_waiting:
            entry.takes = False

    @precondition(lambda self: not self.is_stopping)
    @rule()
    def stops(self) -> None:
        self.is_stopping = True
        self.activation.end_soon(DeactivationReason.IDLE)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "activation"):
            return
        activation = self.activation
        activation.check()
        assert self.account.used == sum(entry.held_bytes for entry in self.model_waiting)
        box = activation.mailbox
        live = [] if box is None else [e for e in box.waiting if not e.is_withdrawn]
        assert [e.name for e in live] == [e.name for e in self.model_waiting]  # type: ignore[attr-defined]
        plain = [e.request for e in self.model_running if e.kind == "plain"]
        assert ([activation.running] if activation.running else []) == plain
        readers = [] if box is None else box.readers
        assert readers == [e.request for e in self.model_running if e.kind == "read"]
        interleaved = 0 if box is None else len(box.interleaving)
        assert interleaved == sum(e.kind == "interleave" for e in self.model_running)
        if not activation.is_gated:
            assert self.may_start("plain") and not self.model_waiting
        idle = self.is_valid and self.is_stopping and not self.model_running
        assert bool(self.ended) == idle
        if box is not None:
            assert box.withdrawn == sum(entry.is_withdrawn for entry in box.waiting)
        if not self.model_running and not self.model_waiting and not self.is_stopping:
            assert self.is_valid is not activation.is_gated


class ExtendedBesideModel(RuleBesideModel):
    """The same with an extension, so that the mailbox stays."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.activation.ensure_mailbox().extensions["notes"] = object()


TestExtendedBesideModel = ExtendedBesideModel.TestCase
TestRuleBesideModel = RuleBesideModel.TestCase
TestRuleBesideModel.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestExtendedBesideModel.settings = settings(TestRuleBesideModel.settings, max_examples=examples(60))


def test_letting_one_in_does_not_look_at_all_ten_thousand_that_wait() -> None:
    machine = RuleBesideModel()
    machine.begin()
    machine.kind.waiting_calls_max, machine.kind.waiting_bytes = 10_000, None
    machine.becomes_valid()
    entries = [Entry(machine, i, "plain") for i in range(10_000)]
    for entry in entries:
        if not machine.activation.try_enter(entry.request):
            machine.activation.queue(entry)

    def leave() -> None:
        for entry in entries[:200]:
            entry.request.done = True
            machine.activation.leave(entry.request)

    calls = calls_of(leave)
    assert machine.granted == list(range(1, 201))
    assert calls < 200 * 50


def test_the_gate_is_closed_while_callers_wait_for_the_location() -> None:
    owner: Any = SimpleNamespace()
    kind: Any = SimpleNamespace(name="K", waiting_calls_max=6, waiting_bytes=None)
    kind.owner = owner
    activation = Activation(kind, "k", 1)
    activation.become(ActivationState.VALID)
    assert not activation.is_gated
    activation.await_callers(True)
    assert activation.is_gated
    activation.await_callers(False)
    assert not activation.is_gated and activation.mailbox is None
    activation.check()


def an_activation() -> Activation:
    owner: Any = SimpleNamespace()
    kind: Any = SimpleNamespace(name="K", waiting_calls_max=6, waiting_bytes=None)
    kind.owner = owner
    return Activation(kind, "k", 1)


def test_who_comes_after_the_end_is_sent_where_the_grain_went() -> None:
    machine: Any = SimpleNamespace(granted=[], moved=[])
    activation = an_activation()
    activation.ensure_mailbox().gone = "silo:1@1"
    activation.abandon()
    activation.queue(Entry(machine, 7, "work"))
    assert machine.moved == [7] and not activation.ensure_mailbox().waiting


def test_withdrawn_entries_are_counted_as_they_are_met() -> None:
    machine: Any = SimpleNamespace(granted=[], moved=[])
    box = an_activation().ensure_mailbox()
    entries = [Entry(machine, number, "work") for number in range(6)]
    for entry in entries:
        box.put(entry)
    box.withdraw(entries[0])
    box.withdraw(entries[1])
    assert box.withdrawn == 2
    assert [box.take_first() for _ in range(2)] == entries[:2]
    assert box.withdrawn == 0


# --- pools of stateless workers ------------------------------------------------------------------

KEYS = ["a", "b"]


async def method(self: object) -> None: ...


CALL = MethodSpec("K", "method", method, [])
TICK: Any = SimpleNamespace(label="tick")


class Waiting:
    """A waiting call or tick that records its events."""

    def __init__(self, spec: Any = CALL) -> None:
        self.request = Request(None, None, None, spec, 0.0, 1)
        self.is_withdrawn = False
        self.size_bytes = 3
        self.place: Any = None  # the worker of a tick
        self.grants = 0
        self.moves = 0
        self.takes = True

    def grant(self) -> bool:
        self.grants += 1
        return self.takes

    def on_moved(self, silo: str) -> None:
        self.moves += 1

    def fail(self, error: BaseException) -> None:
        raise AssertionError(error)


def make_kind(account: WaitingBytes, end: Any) -> Any:
    owner = SimpleNamespace(end=end)
    return SimpleNamespace(name="K", waiting_calls_max=1000, waiting_bytes=account, owner=owner)


class PoolsBesideModel(RuleBasedStateMachine):
    """The workers of two keys. The machine plays the catalog and the callers."""

    @initialize(most=st.integers(1, 4))
    def begin(self, most: int) -> None:
        self.most = most
        self.account = WaitingBytes(10**6, 10**6)
        self.kind = make_kind(self.account, self._end)
        self.table = WorkerTable(most)
        self.count = 0
        self.entries: list[Waiting] = []  # those that run or wait
        self.starting: list[Any] = []
        self.ending: list[Any] = []

    def _end(self, worker: Any, reason: DeactivationReason) -> None:
        assert worker.running is None
        worker.state = ActivationState.DEACTIVATING
        worker.is_gated = True
        self.ending.append(worker)

    def pool(self, key: str) -> list[Any]:
        return [worker for worker in self.table.all() if worker.key == key]

    def running(self) -> list[Waiting]:
        return [entry for entry in self.entries if entry.request.activation is not None]

    def waiting(self) -> list[Waiting]:
        return [entry for entry in self.entries if entry.request.activation is None]

    @rule(key=st.sampled_from(KEYS))
    def arrives(self, key: str) -> None:
        before = self.pool(key)
        idle = [worker for worker in before if not worker.is_gated]
        worker = self.table.get(key)
        if idle:
            assert worker is idle[0]
        elif len(before) < self.most:
            assert worker is None
            self.count += 1
            worker = self.table.add(self.kind, key, self.count)
            self.starting.append(worker)
        else:
            live = [one for one in before if not one.is_ending]
            fewest = min((self.waits_at(one) for one in live), default=None)
            assert worker in before
            assert fewest is None or (worker in live and self.waits_at(worker) == fewest)
        entry = Waiting()
        self.entries.append(entry)
        if not worker.try_enter(entry.request):
            worker.queue(entry)

    @rule(key=st.sampled_from(KEYS), at=st.integers(0, 3))
    def ticks(self, key: str, at: int) -> None:
        """A timer of one worker ticks."""
        pool = self.pool(key)
        if not pool or pool[at % len(pool)].is_ending:
            return
        worker, entry = pool[at % len(pool)], Waiting(TICK)
        entry.place = worker
        self.entries.append(entry)
        if not worker.try_enter(entry.request):
            worker.queue(entry)

    def waits_at(self, worker: Any, spec: Any = None) -> int:
        waiting = [entry for entry in worker.mailbox.waiting if not entry.is_withdrawn]
        return sum(spec is None or entry.request.spec is spec for entry in waiting)

    @precondition(lambda self: self.starting)
    @rule(at=st.integers(0, 9), fails=st.booleans())
    def starts(self, at: int, fails: bool) -> None:
        worker = self.starting.pop(at % len(self.starting))
        if fails:
            self.vanishes(worker)
        else:
            worker.go_on(ActivationState.VALID)
            self.drop_refused()

    @precondition(lambda self: self.ending)
    @rule(at=st.integers(0, 9))
    def ends(self, at: int) -> None:
        self.vanishes(self.ending.pop(at % len(self.ending)))

    def vanishes(self, worker: Any) -> None:
        self.table.remove(worker)
        for entry in worker.mailbox.take_all():
            assert entry.grants == 0
            self.entries.remove(entry)
        worker.abandon()

    @precondition(lambda self: self.running())
    @rule(at=st.integers(0, 9))
    def turn_ends(self, at: int) -> None:
        running = self.running()
        entry = running[at % len(running)]
        self.entries.remove(entry)
        entry.request.done = True
        entry.request.activation.leave(entry.request)
        self.drop_refused()

    def drop_refused(self) -> None:
        self.entries = [one for one in self.entries if one.takes or not one.grants]

    @precondition(lambda self: self.waiting())
    @rule(at=st.integers(0, 9), withdraws=st.booleans())
    def caller_goes(self, at: int, withdraws: bool) -> None:
        """A caller gives up: at once, or it is found gone when its turn is granted."""
        waiting = self.waiting()
        entry = waiting[at % len(waiting)]
        if not withdraws:
            entry.takes = False
            return
        self.entries.remove(entry)
        (place,) = [w for w in self.table.all() if entry in list(w.ensure_mailbox().waiting)]
        place.withdraw(entry)

    @rule(key=st.sampled_from(KEYS), at=st.integers(0, 3))
    def is_asked_to_end(self, key: str, at: int) -> None:
        pool = self.pool(key)
        if pool:
            pool[at % len(pool)].end_soon(DeactivationReason.IDLE)

    @invariant()
    def holds(self) -> None:
        for key in KEYS:
            pool = self.pool(key)
            assert len(pool) <= self.most
            assert (key in self.table) == bool(pool)
            assert not pool or self.table[key] is pool[0]
            for worker in pool:
                worker.check()
                is_free = not worker.is_gated
                assert not (is_free and any(self.waits_at(one, CALL) for one in pool)), "waits"
                assert not (is_free and self.waits_at(worker))
        crowded = {pool.workers[0].key for pool in self.table.list_crowded()}
        assert crowded == {key for key in KEYS if len(self.pool(key)) > 1}
        assert all(entry.grants <= 1 for entry in self.entries)
        places = [entry.request.activation for entry in self.entries if entry.place]
        expected = [entry.place for entry in self.entries if entry.place]
        assert all(place in (None, own) for place, own in zip(places, expected, strict=True))
        assert self.account.used == 3 * len(self.waiting())


PoolsBesideModel.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestPools = PoolsBesideModel.TestCase


# --- single cases of pools -----------------------------------------------------------------------


def make_pool(count: int) -> tuple[WorkerTable, list[WorkerActivation]]:
    """Return a table and valid, idle workers of the key "a"."""
    kind = make_kind(WaitingBytes(100, 100), lambda worker, reason: None)
    table = WorkerTable(count)
    workers = [table.add(kind, "a", number) for number in range(count)]
    for worker in workers:
        worker.go_on(ActivationState.VALID)
    return table, workers


def occupy(table: WorkerTable) -> Request:
    request = Request(None, None, None, CALL, 0.0, 1)
    assert table.get("a").try_enter(request)
    return request


def release(request: Request) -> None:
    request.done = True
    request.activation.leave(request)


def looks(table: WorkerTable, count: int) -> list[WorkerActivation | None]:
    (pool,) = table.list_crowded()
    return [pool.find_surplus(lambda worker: worker.is_idle) for _ in range(count)]


def test_a_tick_stays_with_its_worker_and_calls_behind_it_do_not() -> None:
    table, (one, two) = make_pool(2)
    running = [occupy(table), occupy(table)]
    tick, call = Waiting(TICK), Waiting()
    one.queue(tick)
    one.queue(call)
    release(running[1])
    assert (tick.grants, call.grants) == (0, 1) and call.request.activation is two
    release(running[0])
    assert tick.grants == 1 and tick.request.activation is one


def test_a_call_does_not_wait_behind_the_ticks_of_another_worker() -> None:
    table, (one, two, _) = make_pool(3)
    running = [occupy(table) for _ in range(3)]
    for _ in range(2):
        one.queue(Waiting(TICK))
    call = Waiting()
    two.queue(call)
    release(running[2])
    assert call.grants == 1


@pytest.mark.parametrize("longest", [0, 1])
def test_a_worker_that_becomes_free_relieves_the_longest_mailbox_first(longest: int) -> None:
    table, workers = make_pool(3)
    running = [occupy(table) for _ in range(3)]
    entries = [Waiting() for _ in range(4)]
    for place, entry in zip([1 - longest, longest, longest, longest], entries, strict=True):
        workers[place].queue(entry)
    release(running[2])
    assert [entry.grants for entry in entries] == [0, 1, 0, 0]
    assert entries[1].request.activation is workers[2]


def test_a_surplus_worker_is_found_after_quiet_looks_and_the_last_ones_go_first() -> None:
    table, workers = make_pool(3)
    found = looks(table, QUIET_LOOKS + 1)  # the first look still sees the growth of the pool
    assert found == [None] * QUIET_LOOKS + [workers[2]]
    table.remove(workers[2])
    assert looks(table, 1) == [workers[1]]
    table.remove(workers[1])
    assert table.list_crowded() == [] and table.get("a") is workers[0]


def test_workers_that_the_load_needs_between_looks_are_no_surplus() -> None:
    table, workers = make_pool(3)
    found: WorkerActivation | None = None
    for _ in range(3 * QUIET_LOOKS):
        one, two = occupy(table), occupy(table)
        release(one)
        release(two)
        (found,) = looks(table, 1)
        assert found in (None, workers[2])
    assert found is workers[2]
    table.remove(workers[2])
    for _ in range(2):
        one, two = occupy(table), occupy(table)
        release(one)
        release(two)
        assert looks(table, 1) == [None]
    one, two = occupy(table), occupy(table)
    assert looks(table, QUIET_LOOKS + 1) == [None] * (QUIET_LOOKS + 1)


def test_a_busy_worker_is_no_surplus_and_a_pool_ends_one_worker_at_a_time() -> None:
    table, workers = make_pool(3)
    running = [occupy(table) for _ in range(3)]
    release(running[0])
    release(running[1])
    assert looks(table, QUIET_LOOKS + 1)[-1] is workers[1]
    workers[1].end_soon(DeactivationReason.IDLE)
    assert workers[1].is_ending
    assert looks(table, 3) == [None] * 3
    table.remove(workers[1])
    assert looks(table, 1) == [workers[0]]


def test_a_call_never_gets_a_worker_that_ends_unless_all_do() -> None:
    table, (one, two) = make_pool(2)
    running = [occupy(table), occupy(table)]
    one.end_soon(DeactivationReason.IDLE)
    assert table.get("a") is two
    two.end_soon(DeactivationReason.IDLE)
    assert table.get("a") is one
    assert len(running) == 2


@pytest.mark.parametrize("most", [1, 3])
def test_a_pool_grows_by_one_worker_for_each_call_that_finds_none_idle(most: int) -> None:
    kind = make_kind(WaitingBytes(100, 100), lambda worker, reason: None)
    table = WorkerTable(most)
    for number in range(most):
        assert table.get("a") is None
        table.add(kind, "a", number).go_on(ActivationState.VALID)
        occupy(table)
    assert table.get("a") is table["a"]
    with pytest.raises(AssertionError, match="too many workers"):
        table.add(kind, "a", 99)
