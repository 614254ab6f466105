"""Suites `streams` and `calls` detect violations: each test plants one fault."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from tests.sim.suites import calls_suite
from tests.sim.suites.call_balance import check_even
from tests.sim.suites.call_moves import check_moves
from tests.sim.suites.calls_suite import Account, check_handled
from tests.sim.suites.run import record
from tests.sim.suites.run.record import current_run
from tests.sim.suites.runner import is_noticed, run_seed
from tests.sim.suites.streams import handlers
from tests.sim.suites.streams import suite as streams_suite
from tests.sim.suites.streams.log_queues import LogReceiver, LogService

from millstream.providers.priority.jobs import runner
from millstream.providers.priority.jobs.job import JobCalls
from millstream.providers.priority.jobs.row import JobOutcome, OutcomeKind
from millstream.providers.priority.jobs.runner import JobRunner
from millstream.providers.priority.owner import relative
from millstream.runtime import State
from millstream.runtime.client.observers import Observers
from millstream.runtime.cluster import rebalance
from millstream.runtime.cluster.directory.partition import Entry, Partition
from millstream.runtime.cluster.migrations import Migrations
from millstream.runtime.definition.state import MovedState
from millstream.runtime.definition.upgrades import StateUpgrades
from millstream.runtime.definition.versions import VERSION_MAX
from millstream.runtime.reminders.deliveries import Deliveries
from millstream.runtime.reminders.grain_reminders import Answer, GrainReminders
from millstream.runtime.testing import Activated, CallEnded, History, SimStateStore
from millstream.runtime.turns import deadlines
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.mailbox import Mailbox
from millstream.runtime.turns.result_buffer import ResultBuffer
from millstream.runtime.turns.results import RunningResults
from millstream.runtime.turns.timers import ActivationTimer, TickSpec, Timers
from millstream.runtime.turns.workers import WorkerTable
from millstream.streams import QueueMessage, Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.reading import reader
from millstream.streams.consumer import extension
from millstream.streams.consumer.by_hand import AcksByHand
from millstream.streams.ownership import decision

pytestmark = [
    pytest.mark.rotates,
    # a failing run is not cleaned up: its open work ends when nobody waits for it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Read = Callable[[Sequence[QueueMessage]], Sequence[QueueMessage]]


@pytest.fixture(autouse=True)
def all_violations_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "VIOLATIONS_SHOWN", record.VIOLATIONS_KEPT_MAX)


def plant_read(monkeypatch: pytest.MonkeyPatch, change: Read) -> None:
    """Let receivers return other messages than the log has."""
    read = LogReceiver.read

    async def changed(self: LogReceiver, *arguments: Any) -> Sequence[QueueMessage]:
        return change(await read(self, *arguments))

    monkeypatch.setattr(LogReceiver, "read", changed)


def plant_write(monkeypatch: pytest.MonkeyPatch, is_forgotten: Callable[[str, int], bool]) -> None:
    """Let the store confirm and forget some writes (by key and number)."""
    write, count = SimStateStore.write, 0

    async def forgets(self: SimStateStore, key: str, data: bytes, expect: Any, fence: int) -> str:
        nonlocal count
        count += 1
        if expect is not None and is_forgotten(key, count):
            return str(expect)
        return await write(self, key, data, expect, fence)

    monkeypatch.setattr(SimStateStore, "write", forgets)


def test_an_event_that_the_adapter_drops_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_read(monkeypatch, lambda found: [one for one in found if one.token.seq != 7])
    assert is_noticed("streams", "took effect", "never got it")


def test_events_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_read(monkeypatch, lambda found: [*found[1::-1], *found[2:]])
    monkeypatch.setattr(reader, "check_messages", lambda answer, *_, **__: list(answer))
    assert is_noticed("streams", "took effect")


def test_an_acknowledged_event_that_is_not_stored_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append, count = LogService.append, 0

    def forgets(self: LogService, queue: Any, message: Any) -> Token | None:
        nonlocal count
        count += 1
        if count % 50:
            return append(self, queue, message)
        return Token(1, len(self.log(queue).messages) + 1)

    monkeypatch.setattr(LogService, "append", forgets)
    assert is_noticed("streams", "accepted and not stored")


def test_a_store_that_forgets_state_and_position_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_write(monkeypatch, lambda key, count: "reader" in key and count > 100)
    assert is_noticed("streams", "took effect")


def test_a_position_that_is_not_stored_with_the_state_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forgets(self: State[Any], subscription: str, queue: str, cursor: Any) -> None:
        await self.write()

    monkeypatch.setattr(State, "commit", forgets)
    assert is_noticed("streams", "twice: ['")


def test_repeated_events_that_are_not_dropped_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "fresh_of", lambda items, last: range(len(items)))
    assert is_noticed("streams", "twice: ['")


def test_two_owners_of_an_epoch_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    acquired = decision._acquire

    def in_the_same_epoch(record: Any, *arguments: Any) -> Any:
        return msgspec.structs.replace(acquired(record, *arguments), epoch=1)

    monkeypatch.setattr(decision, "_acquire", in_the_same_epoch)
    assert is_noticed("streams", "is owned by")


def test_an_event_that_is_given_up_without_cause_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note = handlers.note

    async def fails(grain: Any, subscription: str, stream: str, event: Any) -> None:
        if event.item.endswith(":5"):
            raise ValueError("planted")
        await note(grain, subscription, stream, event)

    monkeypatch.setattr(handlers, "note", fails)
    assert is_noticed("streams", "was given up for")


def test_events_that_come_too_late_after_the_repair_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over_s: dict[int, float] = {}
    read = LogReceiver.read

    async def waits(self: LogReceiver, *arguments: Any) -> Any:
        run: Any = current_run()
        now_s = run.simulation.loop.time()
        late_s = streams_suite.RECOVERY_S + 5
        if run.is_over and now_s < over_s.setdefault(id(run), now_s) + late_s:
            return []
        return await read(self, *arguments)

    monkeypatch.setattr(LogReceiver, "read", waits)
    assert is_noticed("streams", "did not reach")


def test_an_acknowledged_write_that_is_not_stored_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_write(monkeypatch, lambda key, count: "account-3" in key and count > 100)
    assert is_noticed("calls", "and is not stored there")


def test_a_call_that_runs_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = State.write, 0

    async def twice(self: State[Any]) -> None:
        nonlocal count
        count += 1
        if count == 50:
            self.value.ops.append(self.value.ops[-1])
        await write(self)

    monkeypatch.setattr(State, "write", twice)
    assert is_noticed("calls", "is stored 2 times")


def test_turns_that_overlap_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = Activation.may_start

    def rash(self: Activation, request: Any) -> bool:
        running, self.running = self.running, None
        try:
            return may_start(self, request)
        finally:
            self.running = running

    monkeypatch.setattr(Activation, "may_start", rash)
    monkeypatch.setattr(Activation, "enter", enter_beside)
    assert is_noticed("calls", "overlaps")


def test_timers_that_do_not_start_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timers, "start_marked", lambda *_: None)
    assert is_noticed("calls", "no tick within")


def test_a_tick_that_comes_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = ActivationTimer._continue

    def late(self: ActivationTimer) -> None:
        self._first_s = 0.8
        go_on(self)

    monkeypatch.setattr(ActivationTimer, "_continue", late)
    assert is_noticed("calls", "a tick 0.1")


def test_a_period_that_begins_with_the_tick_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    start, again = ActivationTimer._start, set()

    def ticks_again(self: ActivationTimer, request: Any) -> None:
        start(self, request)
        if self not in again:  # else the ticks would double in number with each period
            again.add(self)
            self._tasks.call_later(0.01, self._tick)

    monkeypatch.setattr(ActivationTimer, "_start", ticks_again)
    assert is_noticed("calls", "a timer overlaps itself")


def test_a_tick_after_the_end_of_an_activation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = Activation.may_start

    def always(self: Activation, request: Any) -> bool:
        is_look = isinstance(request.spec, TickSpec) and request.is_interleaving
        return may_start(self, request) or (is_look and not self.is_gone)

    monkeypatch.setattr(Activation, "may_start", always)
    monkeypatch.setattr(Timers, "end", lambda *_: None)
    assert is_noticed("calls", "a tick after on_deactivate")


def enter_beside(self: Activation, request: Any) -> None:
    """Enter without a check for another exclusive turn."""
    request.activation = self
    self.running = request
    self.is_gated = True


def test_an_occurrence_that_is_never_delivered_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forgets(self: Deliveries, reminder: Any, *_: Any) -> Answer:
        return Answer.RAN

    monkeypatch.setattr(Deliveries, "_call", forgets)
    assert is_noticed("calls", "was never delivered")


def test_an_occurrence_after_its_cancellation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keeps(self: GrainReminders, name: str, expect: str) -> bool:
        return True

    monkeypatch.setattr(GrainReminders, "_remove", keeps)
    assert is_noticed("calls", "after its cancel")


def test_an_occurrence_that_is_repeated_without_a_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fire = GrainReminders.fire

    async def twice(self: GrainReminders, *arguments: Any) -> Answer:
        await fire(self, *arguments)
        self._ran.clear()
        return await fire(self, *arguments)

    monkeypatch.setattr(GrainReminders, "fire", twice)
    assert is_noticed("calls", "is repeated without a fault")


def test_a_moved_grain_that_replaces_any_entry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(self: Partition, kind: str, key: str, entry: Entry, former: object) -> Entry:
        self._types.setdefault(kind, {})[key] = entry
        return entry

    async def takes_again(self: Migrations, *arguments: Any) -> bool:
        repeating.append(asyncio.ensure_future(repeat(self, *arguments)))
        return await take(self, *arguments)

    async def repeat(self: Migrations, *arguments: Any) -> None:
        await asyncio.sleep(3.0)
        await take(self, *arguments)

    take, repeating = Migrations.take, list[asyncio.Future[None]]()
    monkeypatch.setattr(Migrations, "take", takes_again)
    assert not run_seed("calls", 1).failure  # a package that comes twice is dropped
    monkeypatch.setattr(Partition, "replace", replace)
    assert is_noticed("calls", "while live in")


@pytest.mark.parametrize(
    ("versions", "former", "found"),
    [
        ((1, 1, 1), "b", 0),
        ((1, 1, 1), "a", 1),
        ((1, 2, 1), "a", 0),  # `b` was registered in a view that the silos of the move do not know
        ((1, 2, 3), "a", 1),
    ],
)
def test_an_activation_that_continues_an_outdated_one_is_noticed(
    versions: tuple[int, int, int], former: str, found: int
) -> None:
    times = iter([1.0, 2.0, 3.0])
    history = History(lambda: next(times))
    for silo, version in zip("abc", versions, strict=True):
        history.record(Activated("account/k", silo, version, silo))
    assert len(check_moves(history, {("account/k", "c"): [(3.0, former)]})) == found


def test_a_state_that_is_older_after_a_move_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    dehydrate, first = State.dehydrate, dict[str, MovedState]()

    def stale(self: State[Any]) -> MovedState:
        return first.setdefault(self.key, dehydrate(self))

    monkeypatch.setattr(State, "dehydrate", stale)
    assert is_noticed("calls", "a state has changed on its way to another silo")


def test_an_item_of_a_streamed_result_that_is_lost_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = ResultBuffer.take

    def loses(self: ResultBuffer, number: int) -> list[bytes]:
        return take(self, number)[:3]

    monkeypatch.setattr(ResultBuffer, "take", loses)
    assert is_noticed("calls", "arrives in place of")


def test_a_streamed_result_that_ends_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningResults, "_end", lambda self: b"")
    assert is_noticed("calls", "the streamed result ends without")


def test_a_generator_that_nothing_holds_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResultBuffer, "has_room", lambda *_: True)
    assert is_noticed("calls", "items ahead of its consumer")


def test_a_generator_that_is_never_closed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningResults, "abort", lambda *_: None)
    assert is_noticed("calls", "the generator is still open")


def test_a_generator_that_outlives_its_activation_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RunningResults, "abort", lambda *_: None)
    monkeypatch.setattr(Mailbox, "end_tasks", AsyncMock(return_value=0))
    assert is_noticed("calls", "a generator runs after on_deactivate")


def test_a_job_that_is_completed_without_a_run_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forgets(self: JobRunner, *_: Any) -> None:
        return None

    monkeypatch.setattr(JobRunner, "_call", forgets)
    assert is_noticed("calls", "/job:", "never ran")


def test_a_job_that_is_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    message_at = relative.message_at

    def early(message: Any, now_ms: int) -> Any:
        return message_at(message, now_ms)._replace(invisible_ms=0)

    monkeypatch.setattr(relative, "message_at", early)
    assert is_noticed("calls", "job ", "s early")


def test_a_job_after_its_cancellation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keeps(self: JobCalls, id: str) -> bool:
        return True

    monkeypatch.setattr(JobCalls, "cancel", keeps)
    assert is_noticed("calls", "/job:", "after its cancel")


def test_a_result_of_no_run_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = JobOutcome(OutcomeKind.VALUE, msgspec.msgpack.encode("mine"))
    monkeypatch.setattr(runner, "outcome_of", lambda value, most: outcome)
    assert is_noticed("calls", "its result {'mine'} is of no run")


def test_a_job_that_runs_again_without_a_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = JobRunner._call

    async def twice(self: JobRunner, *arguments: Any) -> Any:
        await call(self, *arguments)
        return await call(self, *arguments)

    monkeypatch.setattr(JobRunner, "_call", twice)
    assert is_noticed("calls", "job calm:", "late or twice without a fault")


def test_calls_that_overtake_each_other_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Mailbox.put

    def in_front(self: Mailbox, *arguments: Any) -> None:
        put(self, *arguments)
        self.waiting.rotate(1)

    monkeypatch.setattr(Mailbox, "put", in_front)
    assert is_noticed("calls", "started after a later one")


def test_deadlines_that_nobody_watches_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "expire", lambda due: None)
    assert is_noticed("calls", "its limit is")


def test_silos_that_read_different_books_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = Account.ops
    read_from = calls_suite.read_from

    async def stale(cluster: Any, name: str) -> dict[str, list[str]]:
        books = await read_from(cluster, name)
        return books if name == "silo-0" else {key: ops[:-1] for key, ops in books.items()}

    assert ops is Account.ops
    monkeypatch.setattr(calls_suite, "read_from", stale)
    assert is_noticed("calls", "reads other books than silo-0")


@pytest.mark.parametrize("checker", ["check_one_activation", "check_views"])
def test_what_a_checker_finds_fails_the_calls(
    checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_suite, checker, lambda history: [f"{checker} found it"])
    assert f"{checker} found it" in run_seed("calls", 1).failure


def test_accounts_that_are_not_evened_out_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "pair_silos", lambda *arguments: [])
    found = [run_seed("calls", seed).failure for seed in (3, 6, 9)]
    assert any("the accounts are not evened out" in text for text in found)


def test_accounts_that_move_without_need_are_noticed() -> None:
    assert check_even([4, 4, 3], 0) == []
    assert check_even([5, 3], 0) == ["the accounts are not evened out: [5, 3]"]
    assert check_even([4, 4], 2) == ["2 accounts moved although they were even"]


def test_a_pool_with_too_many_workers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    init = WorkerTable.__init__
    monkeypatch.setattr(WorkerTable, "__init__", lambda self, most: init(self, most + 1))
    assert is_noticed("calls", "has too many workers of clerk/")


def test_a_call_of_a_worker_that_ran_twice_or_never_is_noticed() -> None:
    problems = check_handled(Counter({"a": 1, "b": 2}), ["a", "c"])
    assert problems == ["b ran 2 times", "c was acknowledged, and did not run"]


def test_a_call_that_never_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = CallEnded
    monkeypatch.setattr(calls_suite, "CallEnded", lambda call, error: ended(f"{call}?", error))
    assert is_noticed("calls", "did not end within")


def test_what_is_acknowledged_by_hand_and_comes_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AcksByHand, "upto", lambda self, queue: None)
    assert is_noticed("streams", "was acknowledged by hand, and came again")


def test_what_is_taken_for_acknowledged_by_hand_and_is_not_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle = Cursor.settle

    def generous(self: Cursor, upto: Token | None) -> None:
        settle(self, Token(1 << 31, 0))

    monkeypatch.setattr(Cursor, "settle", generous)
    assert is_noticed("streams", "was never acknowledged by hand")


def test_two_calls_of_an_observer_at_a_time_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Observers._make_kind

    def reentrant(self: Observers, cls: Any) -> Any:
        kind = make(self, cls)
        kind.is_reentrant = True
        return kind

    monkeypatch.setattr(Observers, "_make_kind", reentrant)
    assert is_noticed("calls", "two calls of an observer overlap")


def test_an_observer_that_is_called_after_its_context_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def remain(self: Observers, activation: Any) -> None:
        """Keep the observer."""

    monkeypatch.setattr(Observers, "_remove", remain)
    assert is_noticed("calls", "an observer is called after its context")


def test_a_call_of_a_later_version_that_runs_on_an_earlier_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = GrainKind.__init__

    def serves_all(self: GrainKind, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.version = VERSION_MAX

    monkeypatch.setattr(GrainKind, "__init__", serves_all)
    assert is_noticed("calls", "version 1 runs a call of 2", first=(3,))


def test_a_state_that_an_earlier_version_reads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateUpgrades, "check", lambda *_: None)
    assert is_noticed("calls", "version 1 reads a state of a later one", first=(3,))


def test_a_state_that_is_not_upgraded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Any, key: str, data: bytes, stored: int, codec: Any, runtime: Any) -> Any:
        return codec.decode(data, runtime)

    monkeypatch.setattr(StateUpgrades, "upgrade", forgets)
    assert is_noticed("calls", "version 2 reads a state of version 1", first=(3,))


def test_an_activation_that_never_leaves_for_a_later_version_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Catalog, "outgrow", lambda *_: False)
    assert is_noticed("calls", "a tome does not answer after the repair", first=(6, 9))
