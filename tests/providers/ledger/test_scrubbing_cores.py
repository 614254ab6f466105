"""The entries that a bookie must have, and the times of repairs: decisions without I/O."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.providers.ledger import Quorum, ScrubOptions
from millstream.providers.ledger.bookie.damage import suspects as suspects_module
from millstream.providers.ledger.bookie.damage.suspects import Suspects
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.record import Fragment
from millstream.providers.ledger.scrubbing import docket as docket_module
from millstream.providers.ledger.scrubbing.docket import RETRY_FIRST_S, Docket, Failure
from millstream.providers.ledger.scrubbing.scrubber import is_busy
from millstream.providers.ledger.scrubbing.wanted import judge, missing_from, runs_of

RECORD = LedgerRecord(
    ledger=3,
    state=LedgerState.OPEN,
    quorum=Quorum(3, 2, 2),
    term=1,
    fragments=(Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "d", "c"))),
)
CLOSED = msgspec.structs.replace(RECORD, state=LedgerState.CLOSED, last=19)


def test_only_entries_that_belong_to_a_bookie_are_wanted() -> None:
    assert judge(CLOSED, "b", range(30), -1).now == (0, 1, 3, 4, 6, 7, 9)
    assert judge(CLOSED, "d", range(30), -1).now == (10, 12, 13, 15, 16, 18, 19)
    assert judge(CLOSED, "e", range(30), 99) == ((), ())


def test_entries_of_an_open_fragment_wait_until_they_are_confirmed() -> None:
    assert judge(RECORD, "d", range(9, 17), 12) == ((10, 12), (13, 15, 16))
    assert judge(RECORD, "b", range(12), -1).now == (0, 1, 3, 4, 6, 7, 9)


def test_entries_that_were_given_up_are_left_alone() -> None:
    lost = msgspec.structs.replace(CLOSED, lost=((3, 6), (18, 2**62)))
    assert judge(lost, "b", range(30), 99).now == (0, 1, 7, 9)
    assert [*missing_from(lost, "d", lambda _: False)] == [[10], [12, 13], [15, 16], []]


def test_what_is_missing_is_what_belongs_to_a_bookie_and_is_not_there() -> None:
    found = [one for part in missing_from(CLOSED, "d", {10, 13, 18}.__contains__) for one in part]
    assert found == [12, 15, 16, 19]
    assert [*missing_from(RECORD, "d", lambda _: False)] == [], "it has no end yet"


@settings(max_examples=examples(200))
@given(st.sets(st.integers(0, 40)))
def test_runs_are_the_same_entries(entries: set[int]) -> None:
    runs = runs_of(entries)
    assert [entry for run in runs for entry in run] == sorted(entries)
    assert all(one.stop < other.start for one, other in itertools.pairwise(runs))


def test_a_ledger_that_failed_waits_longer_each_time() -> None:
    docket, now_s, waits = Docket(300.0), 0.0, []
    docket.put(1, [4, 5])
    for _ in range(12):
        ((ledger, entries),) = docket.due(now_s)
        assert (ledger, entries) == (1, [4, 5])
        docket.settle(1, entries, {4: Failure("away"), 5: Failure("away")}, now_s)
        docket.put(1, [4])  # already known
        before_s = now_s
        while not docket.due(now_s):
            now_s += 1.0
        waits.append(now_s - before_s)
    assert waits[0] <= RETRY_FIRST_S < waits[3] < waits[-1] <= 300.0
    docket.put(1, [6])
    assert docket.due(now_s - 1.0) == [(1, [4, 5, 6])], "a new entry is tried at once"


def test_what_is_repaired_leaves_and_what_is_lost_is_told_once() -> None:
    docket = Docket(300.0)
    docket.put(1, [1, 2, 3])
    gone, away = Failure("gone", is_lost=True), Failure("away")
    assert docket.settle(1, [1, 2, 3], {2: gone, 3: away}, 0.0) == [2]
    assert [*docket.failures()] == [(1, 2, gone), (1, 3, away)] and len(docket) == 2
    assert docket.settle(1, [2, 3], {2: gone, 3: gone}, 9.0) == [3]
    assert docket.settle(1, [2, 3], {}, 99.0) == []
    assert len(docket) == 0 and docket.due(1e9) == [] and docket.list_failed(1) == {}


def test_a_full_docket_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docket_module, "SUSPECTS_MAX", 3)
    docket = Docket(300.0)
    docket.put(1, [1, 2])
    docket.put(1, [1, 2])
    assert not docket.has_overflowed
    exact = Docket(300.0)
    exact.put(1, [1, 2, 3])
    assert not exact.has_overflowed and len(exact) == 3
    docket.put(2, [1, 2])
    assert docket.has_overflowed and docket.due(0.0) == [(1, [1, 2]), (2, [1])]
    docket.put(3, [1])
    assert len(docket) == 3 and 3 not in dict(docket.due(0.0))


def test_a_full_list_of_suspects_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects_module, "SUSPECTS_MAX", 2)
    suspects = Suspects()
    for entry in (1, 1, 2, 2):
        suspects.put(7, entry)
    assert len(suspects) == 2 and not suspects.has_overflowed
    suspects.put(8, 1)
    assert suspects.has_overflowed and suspects.take() == {7: {1, 2}}
    assert len(suspects) == 0 and suspects.take() == {}


@pytest.mark.parametrize(
    ("waiting", "busy"), [((100, 3), False), ((101, 0), True), ((0, 4), True), ((0, 0), False)]
)
def test_a_bookie_is_busy_beyond_its_limits(waiting: tuple[int, int], busy: bool) -> None:
    assert is_busy(waiting, ScrubOptions(busy_unsynced_bytes=100, busy_reads=3)) is busy
