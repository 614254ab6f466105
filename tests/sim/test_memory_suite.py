"""Suite `memory` detects content that is lost, skipped, repeated or swapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from tests.sim.__main__ import main
from tests.sim.suites.memory.queues import Accepted, Era, Ledger
from tests.sim.suites.memory.suite import MemoryRun
from tests.sim.suites.run import record
from tests.sim.suites.run.record import Run
from tests.sim.suites.runner import is_noticed
from tests.sim.suites.streams.handlers import Heard

from millstream.providers.memory.partition import Partition
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.runtime.testing import (
    Activated,
    Deactivated,
    HostDown,
    SiloDeclaredDead,
    SiloEnded,
    Simulation,
    run,
)
from millstream.streams import Gap, ProducerMark, QueueMessage, StreamId, Token
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.consumer.run import HandlerRun

pytestmark = [
    pytest.mark.rotates,
    # a failing run is not cleaned up: its open work ends when nobody waits for it
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

T = TypeVar("T")
GRAIN = "millstream.MemoryQueue/default/q"
FIRST, SECOND = Era("q", 1), Era("q", 2)


@pytest.fixture(autouse=True)
def all_violations_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "VIOLATIONS_SHOWN", record.VIOLATIONS_KEPT_MAX)


def test_content_that_a_stop_does_not_store_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: MemoryQueue, reason: Any) -> None:
        self._adapter.logs.serves_no_more(self._queue, self._log)
        self._log.close("it forgets")

    monkeypatch.setattr(MemoryQueue, "on_deactivate", forget)
    assert is_noticed("memory", "never got it", first=(2,))


def test_messages_that_change_places_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read_at = Partition.read_at

    def swapped(self: Partition[Any], start: int, count: int) -> Sequence[Any]:
        first, second, *rest = [*read_at(self, start, count), None, None]
        found = [second, first, *rest] if second is not None else [first]
        return [message for message in found if message is not None]

    monkeypatch.setattr(Partition, "read_at", swapped)
    assert is_noticed("memory", "was loaded with", first=(4,))


def test_messages_that_are_acknowledged_too_early_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pull = Partition.pull

    def greedy(self: Partition[Any], group: str, count: int) -> Sequence[Any]:
        return pull(self, group, min(count + 1, self.depth(group)))

    monkeypatch.setattr(Partition, "pull", greedy)
    assert is_noticed("memory", "never got it")


def test_losses_that_are_not_told_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscriber, "lose", lambda self, loss: None)
    assert is_noticed("memory", "had not heard that", first=(3,))


def test_a_gap_that_is_overtaken_by_what_follows_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_items, tell = HandlerRun._run, HandlerRun._tell

    async def nothing(self: HandlerRun, is_again: bool) -> None: ...

    async def run_and_tell(self: HandlerRun, end: int, is_again: bool) -> None:
        await run_items(self, end, is_again)
        if self._gap is not None:
            await tell(self, is_again)

    monkeypatch.setattr(HandlerRun, "_tell", nothing)
    monkeypatch.setattr(HandlerRun, "_run", run_and_tell)
    assert is_noticed("memory", "had not heard that")


STREAM, WHO = "orders/k", "reader"


def heard(era: int, is_stray: bool = False) -> Heard:
    text = {1: "a", 2: "b"}[era]
    return Heard(STREAM, WHO, Token(era, 1), text, is_stray)


GAP = Heard(STREAM, WHO, Token(2, 1), Gap(StreamId("orders", "k"), WHO, None, Token(2, 1)))


@pytest.mark.parametrize(
    ("what", "is_violated"),
    [
        ([heard(2)], True),
        ([heard(2), GAP], True),
        ([GAP, heard(2)], False),
        ([heard(1), heard(2)], False),
        ([heard(1, is_stray=True), heard(2)], False),  # the handler ran, so the event is not lost
        ([heard(2, is_stray=True)], False),  # the sender is no longer the owner
    ],
    ids=["silent", "late", "told", "seen", "seen elsewhere", "sent by a former owner"],
)
def test_a_gap_is_told_before_what_follows_it_unless_nothing_is_missing(
    what: list[Heard], is_violated: bool
) -> None:
    async def driver(simulation: Simulation) -> list[str]:
        notes = MemoryRun(simulation)
        for era, text in ((FIRST, "a"), (SECOND, "b")):
            notes.ledger.on_opened(era, 0.0, 0, [])
            notes.ledger.on_accepted(era, 1, message(text))
        notes.heard = what
        return list(notes._check_told())

    assert bool(run(driver, 1).result) is is_violated


def message(text: str, seq: int = 0) -> Accepted:
    mark = ProducerMark("p", seq) if seq else None
    return Accepted(StreamId("orders", "k"), [b"\xa1" + text.encode()], mark)


def held(text: str) -> QueueMessage:
    return QueueMessage(StreamId("orders", "k"), Token(1, 1), message(text).items)


def with_ledger(act: Callable[[Run, Ledger], T]) -> T:
    """Run `act` inside of a simulation."""

    async def driver(simulation: Simulation) -> T:
        notes = Run(simulation)
        return act(notes, Ledger(notes))

    return run(driver, 1).result


@pytest.mark.parametrize(
    ("end", "is_lost"),
    [
        (HostDown("a"), True),
        (SiloDeclaredDead("a:1", 2), True),
        (SiloEnded("a:1"), True),
        (HostDown("b"), False),
        (SiloDeclaredDead("b:1", 2), False),
        (Deactivated(GRAIN, "a:1"), False),
    ],
    ids=str,
)
def test_an_era_may_be_lost_if_its_holder_ended_abruptly(end: Any, is_lost: bool) -> None:
    def act(notes: Run, ledger: Ledger) -> tuple[bool, list[str]]:
        notes.history.record(Activated(GRAIN, "a:1", 1, "a"))
        ledger.on_opened(FIRST, 0.0, 0, [])
        notes.history.record(end)
        ledger.on_opened(SECOND, 0.0, 0, [])
        lost = ledger.find_lost_eras()
        return lost[FIRST], list(ledger.check_eras(lost))

    found, violations = with_ledger(act)
    assert found is is_lost
    assert len(violations) == (0 if is_lost else 1)


def test_what_is_loaded_must_be_what_was_accepted() -> None:
    def act(notes: Run, ledger: Ledger) -> list[str]:
        ledger.on_opened(FIRST, 0.0, 0, [])
        for number, text in enumerate("abc", 1):
            ledger.on_accepted(FIRST, number, message(text))
        ledger.on_opened(FIRST, 0.0, 1, [held("b"), held("c")])
        assert notes.violations == []
        ledger.on_opened(FIRST, 0.0, 1, [held("c")])
        ledger.on_accepted(FIRST, 3, message("d"))
        ledger.on_accepted(FIRST, 4, message("a"))
        return [text.partition(": ")[2].partition(": [")[0] for text in notes.violations]

    assert with_ledger(act) == [
        "Era(queue='q', era=1) was loaded with 1 messages behind 1, 2 were accepted",
        "Era(queue='q', era=1): number 3 was given twice",
        "Era(queue='q', era=1): a was stored twice",
    ]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_sequence_is_stored_again_only_where_it_was_lost(is_lost: bool) -> None:
    def act(notes: Run, ledger: Ledger) -> list[str]:
        for era, text in ((FIRST, "a"), (SECOND, "b")):
            ledger.on_opened(era, 0.0, 0, [])
            ledger.on_accepted(era, 1, message(text, 7))
        return list(ledger.check_repeats({FIRST: is_lost, SECOND: False}))

    assert len(with_ledger(act)) == (0 if is_lost else 1)


@pytest.mark.parametrize(
    ("found", "is_lost", "wanted"),
    [
        ("abcd", False, "abcd"),
        ("abd", False, "abcd"),
        ("abd", True, "abd"),
        ("acd", True, "ad"),  # effects of a lost era have no gap
        ("d", True, "d"),
        ("ab", True, "abd"),  # an event that is not lost must have had its effect
    ],
)
def test_what_must_have_had_its_effect(found: str, is_lost: bool, wanted: str) -> None:
    async def driver(simulation: Simulation) -> str:
        notes = MemoryRun(simulation)
        notes.ledger.on_opened(FIRST, 0.0, 0, [])
        notes.ledger.on_opened(SECOND, 0.0, 0, [])
        for number, text in enumerate("abc", 1):
            notes.ledger.on_accepted(FIRST, number, message(text))
        notes.ledger.on_accepted(SECOND, 1, message("d"))
        lost = {FIRST: is_lost, SECOND: False}
        return "".join(notes._iter_owed("orders/k", list(found), lost))

    assert run(driver, 1).result == wanted


def test_the_command_runs_a_seed_of_the_suite_and_tells_what_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--suite", "memory", "--seed", "3", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert (report["suite"], report["failed"]) == ("memory", [])
    assert report["figures"]["published"] > 100 and report["figures"]["eras"] > 0
