"""Some order of concurrent calls explains all answers. The search for that order refuses histories
that no queue has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.providers.priority.concurrent_calls import BEGIN_MS, MODEL, in_files, in_virtual_time
from tests.providers.priority.linearizable import (
    NEVER,
    UNKNOWN,
    Call,
    GiveBack,
    is_linearizable,
)

from millstream.providers.priority import LeaseToken
from millstream.providers.priority.core.commands import (
    Complete,
    Dequeue,
    Enqueue,
    Extend,
    Get,
)
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.store.committing import CommittingQueue

X = (("project", "x"),)
NOW = (BEGIN_MS,)
LATE = (BEGIN_MS + 60,)
PUT = Enqueue("a", b"x", 0, X)
TAKE, OTHER = Dequeue("v"), Dequeue("w")
TOKEN, LATER = LeaseToken(1, 2), LeaseToken(2, 4)
IN = ("a", "PENDING", 1, True)
DONE = ("COMPLETED", 3, BEGIN_MS + MODEL.retention, True)


def lease(token: LeaseToken = TOKEN, now: int = BEGIN_MS, attempt: int = 1) -> list[Any]:
    return [("a", b"x", 0, X, tuple(token), now + 60, attempt, 2 - attempt, True)]


def one_after_the_other(*calls: Step) -> list[Call]:
    return [
        Call(what, 2 * at, NEVER if answer is UNKNOWN else 2 * at + 1, times, answer)
        for at, (what, answer, times) in enumerate(calls)
    ]


def holds(calls: list[Call]) -> bool:
    assert len(calls) <= 30
    return is_linearizable(calls, MODEL, BEGIN_MS)


Step = tuple[Any, Any, tuple[int, ...]]
BEFORE: list[Step] = [(PUT, IN, NOW), (TAKE, lease(), NOW)]
RIGHT: dict[str, list[Step]] = {
    "completed": [*BEFORE, (Complete("a", TOKEN), DONE, NOW)],
    "given again when it is over": [*BEFORE, (OTHER, lease(LATER, LATE[0], 2), LATE)],
    "nothing is left": [*BEFORE, (OTHER, [], NOW)],
    "over, and nobody came": [*BEFORE, (Complete("a", TOKEN), "LeaseLost", LATE)],
    "perhaps in": [(PUT, UNKNOWN, NOW), (Get("a"), "MessageNotFound", NOW), (TAKE, lease(), NOW)],
    "given back": [
        *[(PUT, IN, NOW), (TAKE, UNKNOWN, NOW), (GiveBack("v"), UNKNOWN, NOW)],
        (OTHER, lease(LATER), NOW),
    ],
}
WRONG: dict[str, list[Step]] = {
    "leased twice": [*BEFORE, (OTHER, lease(LATER), NOW)],
    "leased twice under one token": [*BEFORE, (OTHER, lease(), NOW)],
    "a stale look": [(PUT, IN, NOW), (Get("a"), "MessageNotFound", NOW)],
    "a poll that misses what is there": [(PUT, IN, NOW), (TAKE, [], NOW)],
    "completed by another": [
        *BEFORE,
        (Complete("a", TOKEN), DONE, NOW),
        (Complete("a", LATER), ("COMPLETED", 3, DONE[2], True), NOW),
    ],
    "completed twice": [*BEFORE, *[(Complete("a", TOKEN), DONE, NOW)] * 2],
    "completed when it was over": [
        *BEFORE,
        (Complete("a", TOKEN), ("COMPLETED", 3, LATE[0] + MODEL.retention, True), LATE),
    ],
    "another time than its own": [
        *BEFORE,
        (Extend("a", TOKEN, 90), ("RUNNING", 3, 1_095, True), NOW),
    ],
    "seen, and gone": [
        *[(PUT, UNKNOWN, NOW), (TAKE, lease(), NOW)],
        (Get("a"), "MessageNotFound", NOW),
    ],
    "given back without its attempt": [
        *[(PUT, IN, NOW), (TAKE, UNKNOWN, NOW), (GiveBack("v"), UNKNOWN, NOW)],
        (OTHER, lease(LATER, attempt=2), NOW),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_a_queue_may_answer_is_found(name: str) -> None:
    assert holds(one_after_the_other(*RIGHT[name]))


@pytest.mark.parametrize("name", WRONG)
def test_what_no_queue_answers_is_refused(name: str) -> None:
    assert not holds(one_after_the_other(*WRONG[name]))


def test_calls_that_overlap_may_be_done_in_any_order() -> None:
    for begun, is_right in ((1, True), (3, False)):
        look = Call(Get("a"), begun, 4, NOW, "MessageNotFound")
        assert holds([Call(PUT, 0, 2, NOW, IN), look]) is is_right


def test_an_answer_that_was_lost_may_lack_what_is_over_only_if_it_was_asked_again() -> None:
    calls = [*one_after_the_other(*BEFORE[:1]), Call(TAKE, 5, 6, NOW, [])]
    assert not holds(calls)
    assert holds([calls[0], calls[1]._replace(may_lack=True)])


def test_a_dequeue_that_lacks_its_lease_may_have_had_it_though_it_began_with_none() -> None:
    calls = [
        Call(TAKE, 0, 9, (*NOW, *LATE), [], may_lack=True),
        Call(PUT, 1, 2, NOW, IN),
        Call(OTHER, 10, 11, LATE, lease(LATER, LATE[0], 2)),
    ]
    assert holds(calls)


# -- histories of programs


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(30))
def test_a_history_in_virtual_time_is_linearizable(seed: int, tmp_path: Path) -> None:
    calls = in_virtual_time(seed, tmp_path)
    assert holds(calls), calls


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(8))
async def test_a_history_over_files_is_linearizable(seed: int, tmp_path: Path) -> None:
    calls = await in_files(seed, tmp_path)
    assert holds(calls), calls


def test_histories_have_overlaps_leases_expiries_refusals_and_unknown_outcomes(
    tmp_path: Path,
) -> None:
    calls = [call for seed in range(10) for call in in_virtual_time(seed, tmp_path)]
    done = [call for call in calls if call.is_known]
    leases = [call for call in done if isinstance(call.what, Dequeue) and call.answer]
    assert sum(call.ended > call.begun + 1 for call in done) > 100
    assert len(leases) > 20 and any(one[6] == 2 for call in leases for one in call.answer)
    assert {"LeaseLost", "MessageFinished", "MessageNotFound"} <= {
        call.answer for call in done if isinstance(call.answer, str)
    }
    assert len(calls) - len(done) > 10 and any(call.may_lack for call in done)


# -- faults planted in the queue


def is_refused(tmp_path: Path) -> bool:
    return any(not holds(in_virtual_time(seed, tmp_path)) for seed in range(30))


def test_answers_that_leave_before_they_are_stored_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, storing = CommittingQueue._wait_stored, list[asyncio.Task[None]]()

    async def awaited(queue: CommittingQueue, core: PriorityCore) -> None:
        future = stored(queue, core)
        if future is not None:
            await future

    async def too_early(queue: CommittingQueue, core: PriorityCore) -> None:
        task = asyncio.create_task(awaited(queue, core))
        task.add_done_callback(lambda done: done.exception())
        storing.append(task)

    monkeypatch.setattr(CommittingQueue, "_wait_stored", too_early)
    assert is_refused(tmp_path)


def test_a_dequeue_ahead_of_the_clock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dequeue = PriorityCore.dequeue

    def ahead(core: PriorityCore, now_ms: int, *args: Any, **given: Any) -> Any:
        return dequeue(core, now_ms + 1, *args, **given)

    monkeypatch.setattr(PriorityCore, "dequeue", ahead)
    assert is_refused(tmp_path)
