"""Suite `priority` detects work that is doubled, lost, confirmed too early, given to two workers,
or given to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from tests.sim.suites.priority.notes import PriorityRun
from tests.sim.suites.run import record
from tests.sim.suites.runner import is_noticed

from millstream.providers.priority import Enqueued
from millstream.providers.priority.core.index.grouped import Holds
from millstream.providers.priority.core.moves.entering import NONE_KNOWN, Entering
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import EnqueuedMany
from millstream.providers.priority.owner.polls import Polls
from millstream.providers.priority.store.committing import CommittingQueue
from millstream.providers.priority.store.memory import MemoryHold, Table
from millstream.providers.priority.surface.asking import RequestSession
from millstream.runtime.testing import Simulation, Step
from millstream.runtime.testing import run as simulate

pytestmark = [
    pytest.mark.rotates,
    # a failing run is not cleaned up: its open work ends when nobody waits for it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def all_violations_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "VIOLATIONS_SHOWN", record.VIOLATIONS_KEPT_MAX)


def test_answers_that_leave_before_they_are_stored_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = CommittingQueue._join

    async def joined(self: CommittingQueue, *args: Any) -> None:
        asyncio.ensure_future(join(self, *args)).add_done_callback(lambda task: task.exception())

    monkeypatch.setattr(CommittingQueue, "_join", joined)
    assert is_noticed("priority", "there is no such version")


def test_two_owners_at_a_time_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryHold, "is_held", lambda self: True)
    assert is_noticed("priority", "it was in version")


def test_values_that_are_held_twice_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holds, "is_blocked", lambda self, value: False)
    assert is_noticed("priority", "is held 2 times")


def test_an_answer_that_is_given_to_two_requests_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    following, calls = RequestSession.next, count(1)

    def again(self: RequestSession) -> Request:
        if next(calls) % 4 or not self.number or record.current_run().is_over:
            return following(self)
        return Request(self.name, self.number, self.number - 1)

    monkeypatch.setattr(RequestSession, "next", again)
    assert is_noticed("priority", "its token was given before")


def test_a_part_of_a_batch_that_is_answered_for_another_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the number of shards changes, one shard gets several parts of a batch."""
    many = Entering.many

    def by_place(
        self: Entering, news: Any, is_whole: bool, known: Mapping[str, Enqueued] = NONE_KNOWN
    ) -> EnqueuedMany:
        """Find earlier messages by their place in the part instead of their id."""
        placed = {new.id: one for new, one in zip(news, known.values(), strict=False)}
        return many(self, news, is_whole, placed)

    monkeypatch.setattr(Entering, "many", by_place)
    assert is_noticed("priority", "was answered as")


def test_messages_that_a_new_owner_does_not_know_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Table.rows

    def some(self: Table, settings: Any) -> Any:
        found = rows(self, settings)
        return found._replace(messages=list(found.messages)[1:])

    monkeypatch.setattr(Table, "rows", some)
    assert is_noticed("priority", "in the end")


def test_polls_that_nobody_wakes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Polls, "tell", lambda self: None)
    assert is_noticed("priority", "a poll that waited got 0 of 1 message")


def test_only_time_in_which_the_caller_is_not_paused_counts() -> None:
    """A caller begins a call 3 s before its host is paused for 20 s."""

    async def main(simulation: Simulation) -> None:
        run = PriorityRun(simulation)
        script = (Step(3.0, "pause", ("one",)), Step(5.0, "repair", ("one", "two")))
        run.note_pauses((*script, Step(23.0, "resume", ("one",))))
        start_s = run.now_s
        await asyncio.sleep(4.0)
        assert run.measure_pauses("one", start_s) == pytest.approx(1.0)
        await asyncio.sleep(30.0)
        assert run.measure_pauses("one", start_s) == pytest.approx(20.0)
        assert run.measure_pauses("one", start_s + 13.0) == pytest.approx(10.0)
        assert run.measure_pauses("two", start_s) == 0.0

    simulate(main, 1)
