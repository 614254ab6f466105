"""The turn rule and its mailbox alone: one event, and all its effects."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.runtime import DeactivationReason, NotInCluster, Overloaded
from millstream.runtime.turns.activation import Activation, ActivationState
from millstream.runtime.turns.mailbox import Mailbox, WaitingBytes
from millstream.runtime.turns.request import Request

State = ActivationState
IDLE, REQUESTED = DeactivationReason.IDLE, DeactivationReason.REQUESTED
KINDS = ("plain", "read", "interleave")


def a_request(kind: str = "plain") -> Request:
    spec: Any = SimpleNamespace(label=kind)
    request = Request(None, None, None, spec, 0.0, 1)
    request.is_read, request.is_interleaving = kind == "read", kind == "interleave"
    return request


class Entry:
    """A waiting entry that records its notifications."""

    def __init__(self, kind: str = "plain", takes: bool = True) -> None:
        self.request = a_request(kind)
        self.is_withdrawn = False
        self.size_bytes = 0
        self.takes = takes
        self.told: list[object] = []

    def grant(self) -> bool:
        self.told.append("grant")
        return self.takes

    def on_moved(self, silo: str) -> None:
        self.told.append(silo)

    def fail(self, error: BaseException) -> None:
        self.told.append(error)


class Ended:
    """An owner that records the requested ends."""

    def __init__(self) -> None:
        self.ends: list[DeactivationReason] = []
        self.deactivations: list[DeactivationReason] = []
        self.is_running = True

    def end(self, activation: Activation, reason: DeactivationReason) -> None:
        self.ends.append(reason)

    def deactivate(self, activation: Activation, reason: DeactivationReason) -> None:
        self.deactivations.append(reason)

    def check_running(self) -> None:
        if not self.is_running:
            raise NotInCluster("the silo has ended")


def an_activation(state: State = State.VALID, limit: int = 9) -> Activation:
    kind: Any = SimpleNamespace(
        name="K", waiting_calls_max=limit, waiting_bytes=WaitingBytes(100, 1_000), silo="me:1@1"
    )
    owner: Any = Ended()
    kind.owner = owner
    activation = Activation(kind, "k", 1)
    if state is not State.CREATING:
        activation.become(state)
    return activation


def ends_of(activation: Activation) -> list[DeactivationReason]:
    owner: Any = activation.owner
    return list(owner.ends)


def running(kind: str, state: State = State.VALID) -> tuple[Activation, Request]:
    """Return an activation in which one turn runs."""
    activation, request = an_activation(state), a_request(kind)
    activation.enter(request)
    return activation, request


# --- the initial state, and questions ------------------------------------------------------------


def test_an_activation_begins_gated_and_used_and_lets_nobody_in() -> None:
    activation = an_activation(State.CREATING)
    assert activation.state is State.CREATING and activation.is_gated and activation.is_used
    assert activation.running is None and activation.mailbox is None and activation.grain is None
    assert activation.version == 0
    for kind in KINDS:
        assert not activation.try_enter(a_request(kind))
    activation.check()


def test_an_activation_without_turns_is_idle() -> None:
    activation = an_activation()
    assert activation.is_idle
    activation.ensure_mailbox()
    assert activation.is_idle


@pytest.mark.parametrize("kind", KINDS)
def test_an_activation_is_not_idle_while_a_turn_of_any_kind_runs(kind: str) -> None:
    activation, request = running(kind)
    assert not activation.is_idle and activation.turns() == [request]
    assert activation.blocking() == ([] if kind == "interleave" else [request])
    activation.ensure_mailbox()
    assert not activation.is_idle
    activation.leave(request)
    assert activation.is_idle and activation.turns() == [] == activation.blocking()


def test_an_activation_is_not_idle_while_somebody_waits() -> None:
    activation = an_activation(State.CREATING)
    activation.queue(Entry())
    assert not activation.is_idle


def test_turns_are_told_with_those_first_that_keep_others_waiting() -> None:
    activation, plain = running("plain")
    peek, read = a_request("interleave"), a_request("read")
    activation.enter(peek)
    assert activation.turns() == [plain, peek] and activation.blocking() == [plain]
    activation.leave(plain)
    activation.enter(read)
    assert activation.turns() == [read, peek] and activation.blocking() == [read]


@pytest.mark.parametrize("state", list(State))
def test_only_the_last_state_is_gone(state: State) -> None:
    activation = an_activation(state)
    assert activation.is_gone is (state is State.GONE)


# --- entering and leaving ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_who_enters_is_of_the_activation_and_uses_it(kind: str) -> None:
    activation, request = an_activation(), a_request(kind)
    activation.is_used = False
    assert activation.try_enter(request)
    assert request.activation is activation and activation.is_used and activation.is_gated
    activation.check()


@pytest.mark.parametrize("state", [State.CREATING, State.ACTIVATING, State.DEACTIVATING])
def test_a_hook_leaves_the_activation_gated(state: State) -> None:
    for extensions in ({}, {"kept": 1}):
        activation, hook = running("plain", state)
        activation.ensure_mailbox().extensions = extensions
        activation.leave(hook)
        assert activation.is_gated and activation.running is None
        assert not activation.try_enter(a_request())


def test_the_last_who_leaves_opens_the_gate_and_drops_the_mailbox() -> None:
    for kind in KINDS:
        activation, request = running(kind)
        activation.ensure_mailbox()
        activation.leave(request)
        assert not activation.is_gated and activation.mailbox is None


def test_who_refuses_the_turn_is_of_no_activation_and_the_next_gets_it() -> None:
    activation, first = running("plain")
    away, after = Entry(takes=False), Entry()
    activation.queue(away)
    activation.queue(after)
    activation.leave(first)
    assert away.told == after.told == ["grant"] and away.is_withdrawn
    assert away.request.activation is None and activation.running is after.request
    activation.check()


def test_who_refuses_as_several_are_let_in_is_of_no_activation() -> None:
    activation = an_activation(State.CREATING)
    entries = [Entry(takes=False), Entry("read"), Entry("read", takes=False)]
    for entry in (*entries, Entry("read")):
        activation.queue(entry)
    activation.go_on(State.VALID)
    assert [entry.request.activation for entry in entries] == [None, activation, None]
    assert [entry.is_withdrawn for entry in entries] == [True, False, True]
    assert len(activation.blocking()) == 2
    activation.check()


@pytest.mark.parametrize("takes", [True, False])
def test_where_nobody_exclusive_came_in_the_gate_is_open(takes: bool) -> None:
    activation = an_activation(State.CREATING)
    activation.queue(Entry("interleave", takes))
    activation.go_on(State.VALID)
    assert not activation.is_gated and (activation.mailbox is None) is not takes


@pytest.mark.parametrize("kind", ["read", "interleave"])
def test_who_leaves_is_the_one_that_left(kind: str) -> None:
    activation, first = running(kind)
    second = a_request(kind)
    activation.enter(second)
    activation.leave(first)
    assert activation.turns() == [second]


def test_a_turn_is_handed_over_in_one_step_where_exclusive_ones_wait() -> None:
    activation, first = running("plain")
    waiting = Entry()
    activation.queue(waiting)
    activation.is_used = False
    assert activation.hand_over(first) is waiting
    assert activation.running is waiting.request and waiting.request.activation is activation
    box = activation.mailbox
    assert activation.is_gated and box is not None and not box.waiting


@pytest.mark.parametrize("why", ["reader", "interleaving", "withdrawn", "stop", "nobody", "state"])
def test_where_something_else_is_to_be_asked_nothing_is_handed_over(why: str) -> None:
    activation, first = running("plain")
    if why != "nobody":
        activation.queue(Entry("read" if why == "reader" else "plain"))
    box = activation.ensure_mailbox()
    match why:
        case "interleaving":
            box.interleaving_waiting = 1
        case "withdrawn":
            box.waiting[0].is_withdrawn = True
        case "stop":
            activation.stop(IDLE)
        case "state":
            activation.state = State.ACTIVATING
    assert activation.hand_over(first) is None and activation.running is first


def test_the_limit_of_who_waits_does_not_count_those_that_gave_up() -> None:
    activation = an_activation(State.CREATING, limit=3)
    entries = [Entry() for _ in range(3)]
    for entry in entries:
        activation.queue(entry)
    with pytest.raises(Overloaded):
        activation.queue(Entry())
    activation.withdraw(entries[1])
    activation.queue(Entry())
    with pytest.raises(Overloaded):
        activation.queue(Entry())
    activation.check()


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_is_due_when_the_last_turn_has_left(kind: str) -> None:
    activation, request = running(kind)
    activation.end_soon(IDLE)
    assert activation.end_due is None and not ends_of(activation)
    activation.leave(request)
    assert activation.end_due is IDLE and ends_of(activation) == [IDLE]


def test_no_end_is_due_that_nobody_asked_for() -> None:
    activation = an_activation()
    activation.ensure_mailbox()
    assert activation.end_due is None


@pytest.mark.parametrize("state", [State.CREATING, State.REGISTERING, State.ACTIVATING])
def test_an_end_that_was_asked_for_too_early_is_due_when_the_activation_is_valid(
    state: State,
) -> None:
    activation = an_activation(state)
    activation.end_soon(IDLE)
    assert activation.end_due is None
    activation.go_on(State.VALID)
    assert ends_of(activation) == [IDLE]


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_enters_after_a_stop_was_asked_for(kind: str) -> None:
    activation, request = running("plain")
    activation.stop(IDLE)
    activation.leave(request)
    assert activation.is_gated and not activation.try_enter(a_request(kind))


def test_a_stop_gates_an_activation_in_which_only_interleaving_turns_run() -> None:
    activation, peek = running("interleave")
    plain = a_request()
    assert activation.try_enter(plain)
    activation.leave(plain)
    assert not activation.is_gated
    activation.end_soon(IDLE)
    assert activation.is_gated and not activation.try_enter(a_request())
    activation.leave(peek)
    assert ends_of(activation) == [IDLE]


def test_the_call_that_woke_an_activation_runs_though_it_asked_for_its_end_meanwhile() -> None:
    activation, waker = an_activation(State.ACTIVATING), Entry()
    activation.queue(waker)
    activation.await_callers(True)
    activation.end_soon(REQUESTED)
    activation.go_on(State.VALID)
    assert waker.told == ["grant"] and activation.end_due is None
    assert not activation.try_enter(a_request("plain"))
    activation.leave(waker.request)
    assert ends_of(activation) == [REQUESTED]


def test_an_activation_that_owes_a_turn_waits_for_callers_and_for_no_one_else() -> None:
    activation = an_activation(State.ACTIVATING)
    activation.stop(REQUESTED)
    activation.await_callers(True)
    activation.go_on(State.VALID)
    assert activation.end_due is None
    activation.hold(False)
    assert ends_of(activation) == [REQUESTED]


def test_a_hook_does_not_use_up_the_first_turn() -> None:
    activation, hook = running("plain", State.ACTIVATING)
    activation.stop(REQUESTED)
    activation.leave(hook)
    assert activation.ensure_mailbox().first_turn_due


@pytest.mark.parametrize("reason", [IDLE, DeactivationReason.STATE_CONFLICT])
def test_an_end_for_another_reason_lets_no_first_turn_run(reason: DeactivationReason) -> None:
    activation = an_activation(State.ACTIVATING)
    activation.stop(REQUESTED)
    activation.stop(reason)
    box = activation.ensure_mailbox()
    assert box.stop is reason and not box.first_turn_due
    activation.stop(REQUESTED)
    assert box.stop is reason and not box.first_turn_due


def test_a_valid_activation_that_asks_for_its_end_owes_no_turn() -> None:
    activation, _ = running("plain")
    activation.stop(REQUESTED)
    assert not activation.ensure_mailbox().first_turn_due


@pytest.mark.parametrize("state", [State.DEACTIVATING, State.GONE])
def test_a_stop_after_the_end_has_begun_changes_nothing(state: State) -> None:
    activation = an_activation(state)
    activation.stop(IDLE)
    assert activation.mailbox is None


def test_an_abandoned_activation_lets_nobody_in() -> None:
    activation = an_activation()
    activation.abandon()
    assert activation.is_gone and activation.is_gated
    assert not any(activation.try_enter(a_request(kind)) for kind in KINDS)


def test_callers_that_are_not_awaited_need_no_mailbox() -> None:
    activation = an_activation()
    activation.await_callers(False)
    assert activation.mailbox is None and not activation.is_gated


# --- the mailbox ---------------------------------------------------------------------------------


def fill(box: Mailbox, *kinds: str) -> list[Entry]:
    entries = [Entry(kind) for kind in kinds]
    for entry in entries:
        box.put(entry)
    return entries


NEEDED: dict[str, Callable[[Mailbox], object]] = {
    "waiting": lambda box: fill(box, "plain"),
    "readers": lambda box: box.readers.append(a_request("read")),
    "interleaving": lambda box: box.interleaving.update({a_request("interleave"): None}),
    "is_awaited": lambda box: setattr(box, "is_awaited", True),
    "keep_until": lambda box: setattr(box, "keep_until", 7.0),
    "stop": lambda box: setattr(box, "stop", IDLE),
    "tasks": lambda box: box.tasks.update({object(): None}),  # type: ignore[dict-item]
    "extensions": lambda box: box.extensions.update(x=1),
}


@pytest.mark.parametrize("what", NEEDED)
def test_a_mailbox_is_needed_while_anything_is_in_it(what: str) -> None:
    box = Mailbox()
    assert not box.is_needed
    NEEDED[what](box)
    assert box.is_needed


def test_a_mailbox_begins_empty() -> None:
    box = Mailbox()
    assert (box.gone, box.withdrawn, box.interleaving_waiting, box.keep_until) == ("", 0, 0, 0.0)
    assert not box.is_awaited and not box.first_turn_due and box.stop is None


def test_interleaving_entries_are_counted_however_they_come_and_go() -> None:
    box = Mailbox()
    peek, plain, second = fill(box, "interleave", "plain", "interleave")
    assert box.interleaving_waiting == 2
    taken = [box.take_first(), box.take_first()]
    assert taken == [peek, plain] and box.interleaving_waiting == 1
    box.put_back(taken)
    assert list(box.waiting) == [peek, plain, second] and box.interleaving_waiting == 2
    box.withdraw(peek)
    assert box.interleaving_waiting == 1
    assert list(box.take_all()) == [plain, second]
    assert box.interleaving_waiting == box.withdrawn == len(box.waiting) == 0


def test_who_gives_up_twice_counts_once_and_is_dropped_when_half_have_given_up() -> None:
    box = Mailbox()
    entries = fill(box, *["plain"] * 5)
    box.withdraw(entries[0])
    box.withdraw(entries[0])
    assert box.withdrawn == 1 and len(box.waiting) == 5
    box.withdraw(entries[1])
    assert box.withdrawn == 2 and len(box.waiting) == 5
    box.withdraw(entries[2])
    assert box.withdrawn == 0 and list(box.waiting) == entries[3:]


def waiting_for_bytes(*kinds: str) -> tuple[Activation, WaitingBytes, list[Entry]]:
    """Return an activation with a running turn and waiting calls of 40 bytes. The limit is 100
    bytes.
    """
    activation, _ = running("plain")
    account = activation.kind.waiting_bytes = WaitingBytes(100, 1_000)
    entries = [Entry(kind) for kind in kinds]
    for entry in entries:
        entry.size_bytes = 40
        activation.queue(entry)
    return activation, account, entries


def leave_running(activation: Activation, _: Entry) -> None:
    assert activation.running is not None
    activation.leave(activation.running)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("plain", leave_running),
        ("read", leave_running),
        ("plain", Activation.withdraw),
    ],
)
def test_a_call_that_waits_no_longer_makes_room_for_another_of_its_size(
    kind: str, ends: Callable[[Activation, Entry], None]
) -> None:
    activation, account, (first, _) = waiting_for_bytes(kind, "plain")
    with pytest.raises(Overloaded, match="80 bytes of calls wait, no room for 40 more"):
        queue_bytes(activation, 40)
    ends(activation, first)
    assert account.used == 40
    queue_bytes(activation, 60)
    assert account.used == 100
    with pytest.raises(Overloaded, match="100 bytes of calls wait, no room for 1 more"):
        queue_bytes(activation, 1)


def queue_bytes(activation: Activation, size_bytes: int) -> None:
    entry = Entry()
    entry.size_bytes = size_bytes
    activation.queue(entry)


def test_a_caller_that_gives_up_after_its_call_was_sent_on_gives_its_bytes_back_once() -> None:
    activation, account, entries = waiting_for_bytes("plain", "plain")
    box = activation.ensure_mailbox()
    assert list(box.take_all()) == entries and account.used == 0
    box.withdraw(entries[0])
    assert account.used == 0 == box.waiting_bytes


def test_half_that_gave_up_are_not_yet_more_than_half() -> None:
    box = Mailbox()
    entries = fill(box, "plain", "plain")
    box.withdraw(entries[0])
    assert len(box.waiting) == 2 and box.withdrawn == 1
    assert list(box.take_all()) == [entries[1]] and box.withdrawn == 0


@pytest.mark.parametrize("gone", ["", "silo:1@1", ValueError("could not start")])
def test_who_comes_too_late_is_sent_on_or_failed_as_those_before(gone: str | Exception) -> None:
    activation, late = an_activation(State.GONE), Entry()
    activation.ensure_mailbox().gone = gone
    activation.queue(late)
    assert late.told == [gone]


async def test_tasks_of_an_activation_are_told_to_end_and_counted_if_they_do_not() -> None:
    box, is_asked, may_end = Mailbox(), asyncio.Event(), asyncio.Event()

    async def obeys() -> None:
        await asyncio.Event().wait()

    async def refuses() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_asked.set()
            await may_end.wait()

    assert await box.end_tasks(1.0) == 0
    tasks = [asyncio.create_task(refuses()), asyncio.create_task(obeys())]
    for task in tasks:
        box.own(task)
    await asyncio.sleep(0)
    # with no wait, a task that has not run yet has not ended
    assert await box.end_tasks(0.0) in (1, 2)
    await is_asked.wait()
    await asyncio.sleep(0)
    assert list(box.tasks) == tasks[:1]
    may_end.set()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert not box.tasks


# --- the activation as its grain sees it ---------------------------------------------------------


def test_an_activation_tells_where_it_is_and_what_it_is_called() -> None:
    activation = an_activation()
    assert (activation.grain_id, activation.silo) == ("K/k", "me:1@1")
    assert not activation.headers().own and not activation.headers().flowing


def test_an_activation_is_ended_by_its_grain_or_by_a_write_that_was_refused() -> None:
    activation = an_activation()
    activation.end_when_idle()
    activation.on_conflict()
    owner: Any = activation.owner
    assert owner.deactivations == [REQUESTED, DeactivationReason.STATE_CONFLICT]


def test_nothing_is_written_after_the_end_of_the_activation_or_of_its_silo() -> None:
    activation = an_activation()
    activation.check_running()
    owner: Any = activation.owner
    owner.is_running = False
    with pytest.raises(NotInCluster, match="the silo has ended"):
        activation.check_running()
    activation.abandon()
    with pytest.raises(NotInCluster, match="so its state cannot be written"):
        activation.check_running()


async def test_a_grain_is_kept_alive_from_now_on() -> None:
    activation = an_activation()
    before = asyncio.get_running_loop().time()
    activation.keep_alive(100.0)
    kept = activation.ensure_mailbox().keep_until
    assert before + 100.0 <= kept <= asyncio.get_running_loop().time() + 100.0


@pytest.mark.parametrize("seconds", ["5", None, True, float("nan")])
def test_a_grain_is_kept_alive_for_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(TypeError, match="pass a number of seconds"):
        an_activation().keep_alive(seconds)


async def test_a_task_is_of_the_activation_until_it_ends_and_none_starts_afterwards() -> None:
    activation = an_activation()

    async def seven() -> int:
        return 7

    task = activation.start_task(seven())
    assert list(activation.ensure_mailbox().tasks) == [task]
    assert await task == 7
    await asyncio.sleep(0)
    assert not activation.ensure_mailbox().tasks
    with pytest.raises(TypeError, match="needs a coroutine"):
        activation.start_task(7)  # type: ignore[arg-type]
    activation.abandon()
    late = seven()
    with pytest.raises(NotInCluster, match="no task can start"):
        activation.start_task(late)
    # closed, so there is no warning that it never ran
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED


def test_nothing_is_taken_where_it_is_refused() -> None:
    account = WaitingBytes(each_max=100, all_max=150)
    account.take("here", 60, 0)
    with pytest.raises(Overloaded, match=r"here: 60 bytes of calls wait, no room for 41 more"):
        account.take("here", 41, 60)
    account.take("here", 40, 60)
    account.take("there", 50, 0)
    with pytest.raises(
        Overloaded, match=r"there: 150 bytes .* in this process, no room for 1 more"
    ):
        account.take("there", 1, 50)
    account.take("nowhere", 0, 1000)
    assert account.used == 150
    account.give_back(150)
    account.take("alone", 1000, 0)
