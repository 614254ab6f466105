"""The missing copies of a ledger, the time when they are due, and the changes that copying
makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from millstream.providers.ledger import Quorum, RecoveryOptions
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState, bookies_of
from millstream.providers.ledger.protocol.record import Claim, Fragment
from millstream.providers.ledger.recovery.agenda import RETRY_FIRST_S, Agenda
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding, BookieStandings
from millstream.providers.ledger.recovery.changes import (
    ClaimLost,
    claim,
    mark_checked,
    move,
    release,
    widen,
)
from millstream.providers.ledger.recovery.copier import add_to
from millstream.providers.ledger.recovery.copy_rate import CopyRate
from millstream.providers.ledger.recovery.needs import (
    FragmentSpan,
    Needs,
    Vacancy,
    needs_of,
    spans_of,
    stripe,
)
from millstream.providers.ledger.recovery.report import BookieReport

THREE = Quorum(3, 3, 2)
ABC, ABD = ("a", "b", "c"), ("a", "b", "d")
OPTIONS = RecoveryOptions(open_fragment_after_s=30.0)


def record(
    *fragments: tuple[int, tuple[str, ...]],
    last: int = -1,
    is_closed: bool = True,
    quorum: Quorum = THREE,
    complete: int | None = None,
    wanted: Quorum | None = None,
) -> LedgerRecord:
    return LedgerRecord(
        7,
        LedgerState.CLOSED if is_closed else LedgerState.OPEN,
        quorum,
        2,
        tuple(Fragment(*one) for one in fragments),
        last=last,
        complete=last if complete is None else complete,
        wanted=wanted,
    )


def standing(**others: BookieStanding) -> Callable[[str], BookieStanding]:
    return lambda name: others.get(name, BookieStanding.HERE)


# --- available bookies


def test_a_bookie_is_lost_after_its_time_and_here_at_once() -> None:
    standings = BookieStandings(60.0)
    assert standings.see(0.0, {"a"}, {"a", "b"}, ())
    assert (standings.of("a"), standings.of("b")) == (BookieStanding.HERE, BookieStanding.AWAY)
    assert not standings.see(59.9, {"a"}, {"a", "b"}, ())
    assert standings.see(60.0, {"a"}, {"a", "b"}, ())
    assert standings.of("b") is BookieStanding.LOST
    assert standings.see(61.0, {"a", "b"}, {"a", "b"}, {"b"})
    assert standings.of("b") is BookieStanding.LEAVING
    assert standings.see(62.0, {"a"}, {"a", "b"}, {"b"})
    assert not standings.see(121.9, {"a"}, {"a", "b"}, {"b"}), "it is counted anew"
    assert standings.see(122.0, {"a"}, {"a", "b"}, {"b"})
    assert standings.of("b") is BookieStanding.LOST


def test_a_bookie_without_a_row_has_its_time_too() -> None:
    standings = BookieStandings(60.0)
    standings.see(100.0, {"a"}, {"a"}, ())
    assert standings.of("x") is BookieStanding.AWAY
    standings.see(159.0, {"a"}, {"a"}, ())
    assert standings.of("x") is BookieStanding.AWAY
    standings.see(160.0, {"a"}, {"a"}, ())
    assert standings.of("x") is BookieStanding.LOST


# --- missing copies of a ledger


def test_only_what_has_an_end_and_entries_can_be_copied() -> None:
    two = ((0, ABC), (5, ABD))
    assert spans_of(record(*two, last=8)) == [FragmentSpan(0, 4, ABC), FragmentSpan(5, 8, ABD)]
    assert spans_of(record(*two, last=4)) == [FragmentSpan(0, 4, ABC)]
    assert spans_of(record(*two, last=-1, is_closed=False)) == [FragmentSpan(0, 4, ABC)]
    assert spans_of(record((0, ABC), is_closed=False)) == []
    assert spans_of(record((0, ABC))) == []
    assert spans_of(record((0, ABC), last=0)) == [FragmentSpan(0, 0, ABC)]


def test_a_place_is_vacant_whose_bookie_is_lost_or_leaving_and_not_one_that_is_away() -> None:
    one = record((0, ABC), (5, ABD), last=8)
    needs = needs_of(
        one, standing(c=BookieStanding.LOST, b=BookieStanding.LEAVING, a=BookieStanding.AWAY), 9
    )
    assert [(v.span.first, v.place, v.bookie) for v in needs.vacancies] == [
        (0, 1, "b"),
        (0, 2, "c"),
        (5, 1, "b"),
    ]
    assert needs.copies == 1 and not needs.is_to_end and needs.unsure is None
    assert not needs_of(one, standing(a=BookieStanding.AWAY), 9)


@pytest.mark.parametrize("lost", [BookieStanding.LOST, BookieStanding.LEAVING])
def test_an_open_ledger_is_to_end_only_if_its_last_fragment_is_hurt(lost: BookieStanding) -> None:
    one = record((0, ABC), (5, ABD), is_closed=False)
    assert needs_of(one, standing(d=lost), 9).is_to_end
    assert not needs_of(one, standing(d=lost), 9).vacancies
    former = needs_of(one, standing(c=lost), 9)
    assert not former.is_to_end and len(former.vacancies) == 1
    assert not needs_of(one, standing(d=BookieStanding.AWAY), 9)


def test_what_a_writer_did_not_see_arrive_is_unsure_once_all_can_be_asked() -> None:
    one = record((0, ABC), (5, ABD), last=8, complete=5)
    assert needs_of(one, standing(), 9).unsure == 6
    assert needs_of(one, standing(c=BookieStanding.AWAY), 9).unsure == 6, "it has none of these"
    assert needs_of(one, standing(d=BookieStanding.AWAY), 9).unsure is None
    assert needs_of(one, standing(d=BookieStanding.LEAVING), 9).unsure == 6
    assert needs_of(msgspec.structs.replace(one, state=LedgerState.OPEN), standing(), 9) == Needs(
        7, copies=3
    )


def test_a_ledger_that_was_made_too_small_is_short_as_far_as_there_is_room() -> None:
    two, wanted = Quorum(2, 2, 2), Quorum(5, 4, 2)
    small = record((0, ("a", "b")), last=3, quorum=two, wanted=wanted)
    assert [needs_of(small, standing(), room).short for room in (0, 2, 3, 4, 5)] == [0, 0, 1, 2, 2]
    assert bool(needs_of(small, standing(), 3)) and not needs_of(small, standing(), 2)
    still = record((0, ("a", "b")), quorum=two, wanted=wanted, is_closed=False)
    assert needs_of(still, standing(), 3).is_to_end and not needs_of(still, standing(), 2)
    assert not needs_of(record((0, ABC), last=3, wanted=Quorum(5, 3, 2)), standing(), 9)


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2), (4, 2, 2), (1, 1, 1)])
def test_a_place_has_the_entries_whose_write_sets_it_is_in(shape: tuple[int, int, int]) -> None:
    quorum = Quorum(*shape)
    for place in range(quorum.ensemble):
        for most in (1, 2, 7):
            runs = list(stripe(quorum, place, 3, 40, most))
            found = [entry for run in runs for entry in run]
            assert found == [n for n in range(3, 41) if place in quorum.write_set(n)]
            assert all(0 < len(run) <= most for run in runs)


# --- due work


def looked(agenda: Agenda, now_s: float, *needs: Needs) -> Sequence[tuple[int, bool]]:
    agenda.begin()
    for one in needs:
        agenda.look(msgspec.structs.replace(OPEN, ledger=one.ledger), one, now_s)
    return [(job.ledger, job.may_end) for job in agenda.jobs()]


OPEN = record((0, ABC), is_closed=False)
VACANT = (Vacancy(FragmentSpan(0, 3, ABC), 1),)


def test_fewest_copies_come_first() -> None:
    some = [Needs(5, VACANT, copies=2), Needs(9, VACANT, copies=1), Needs(3, VACANT, copies=2)]
    assert looked(Agenda(OPTIONS), 0.0, *some) == [(9, False), (3, False), (5, False)]


def test_a_writer_has_its_time_at_each_fragment_and_former_ones_need_not_wait() -> None:
    agenda, hurt = Agenda(OPTIONS), Needs(7, is_to_end=True, copies=2)
    assert looked(agenda, 100.0, hurt) == [] and agenda.next_s == 130.0
    assert looked(agenda, 120.0, hurt._replace(vacancies=VACANT)) == [(7, False)]
    assert looked(agenda, 129.0, hurt) == []
    assert looked(agenda, 130.0, hurt) == [(7, True)]
    agenda.begin()
    agenda.look(record((0, ABC), (5, ABD), is_closed=False), hurt, 131.0)
    assert agenda.jobs() == [] and agenda.next_s == 161.0
    assert looked(agenda, 132.0, Needs(7, copies=3)) == []
    assert looked(agenda, 200.0, hurt) == [], "it was well in between"


def test_what_failed_waits_longer_each_time_unless_bookies_come_or_go() -> None:
    agenda, need = Agenda(OPTIONS), Needs(7, VACANT)
    error = RuntimeError("no answer")
    assert looked(agenda, 0.0, need) == [(7, False)]
    assert agenda.fail(7, error, 0.0) and not agenda.fail(7, error, 0.0)
    assert agenda.fail(7, RuntimeError("another"), 0.0)
    waits_s = agenda.next_s
    assert RETRY_FIRST_S < waits_s <= 4 * RETRY_FIRST_S
    assert looked(agenda, waits_s - 0.1, need) == [] and 7 in agenda.lacking
    agenda.anew()
    assert looked(agenda, waits_s - 0.1, need) == [(7, False)]
    agenda.on_done(7)
    assert not agenda.lacking and not agenda.failed
    for _ in range(40):
        agenda.fail(7, error, 0.0)
    assert 0.7 * OPTIONS.retry_after_s < agenda.next_s <= OPTIONS.retry_after_s
    assert looked(agenda, 0.0) == [] and not agenda.failed, "it was deleted"


# --- changes of the record by copying

CLOSED = record((0, ABC), (5, ABD), last=8)
FIRST = Vacancy(FragmentSpan(0, 4, ABC), 1)


def test_a_place_gets_its_bookie_under_the_claim_that_stands_alone() -> None:
    mine = claim(CLOSED, "mine", ["x"])
    assert mine.claim == Claim("mine", ("x",))
    done = move(mine, "mine", FIRST, "x")
    assert done.fragments == (Fragment(0, ("a", "x", "c")), Fragment(5, ABD))
    assert done.claim is None and done.term == CLOSED.term
    assert move(done, "mine", FIRST, "x") == done, "again is harmless"
    theirs = claim(mine, "theirs", ["x"])
    for found in (CLOSED, theirs):
        with pytest.raises(ClaimLost):
            move(found, "mine", FIRST, "x")
    other = msgspec.structs.replace(mine, fragments=(Fragment(0, ("x", "b", "c")),))
    with pytest.raises(ClaimLost, match="meanwhile"):
        move(other, "mine", FIRST, "x")


def test_a_claim_is_released_by_whose_it_is() -> None:
    mine = claim(CLOSED, "mine", ["x"])
    assert release(mine, "mine").claim is None
    assert release(mine, "theirs") is mine and release(CLOSED, "mine") is CLOSED


def test_a_small_ledger_gets_all_its_copies_in_one_step() -> None:
    wanted, two = Quorum(5, 3, 2), Quorum(2, 2, 2)
    small = record((0, ("a", "b")), (5, ("a", "c")), last=8, quorum=two, wanted=wanted)
    mine = claim(small, "mine", ["c", "d"])
    done = widen(mine, "mine", mine, {0: ["c"], 5: ["d"]})
    assert done.quorum == (3, 3, 2) and done.wanted is None and done.claim is None
    assert [one.bookies for one in done.fragments] == [("a", "b", "c"), ("a", "c", "d")]
    assert widen(done, "mine", mine, {0: ["c"], 5: ["d"]}) == done
    with pytest.raises(ClaimLost):
        widen(claim(mine, "theirs", []), "mine", mine, {0: ["c"], 5: ["d"]})
    more = msgspec.structs.replace(mine, wanted=Quorum(5, 4, 2))
    assert widen(more, "mine", more, {0: ["c"], 5: ["d"]}).wanted == (5, 4, 2)


def test_what_is_complete_only_grows() -> None:
    assert mark_checked(msgspec.structs.replace(CLOSED, complete=3), 8).complete == 8
    assert mark_checked(CLOSED, 3).complete == 8


def test_pages_keep_to_the_pace_together() -> None:
    pace = CopyRate(100.0)
    assert [pace.wait_s(0.0, 50), pace.wait_s(0.0, 50), pace.wait_s(0.25, 10)] == [0.0, 0.5, 0.75]
    assert pace.wait_s(5.0, 10) == 0.0, "what was not used is not owed"


def test_a_bookie_that_is_asked_for_before_the_first_look_has_its_time_from_the_start() -> None:
    standings = BookieStandings(60.0)
    assert standings.of("x") is BookieStanding.AWAY
    standings.see(59.9, (), (), ())
    assert standings.of("x") is BookieStanding.AWAY
    standings.see(60.0, (), (), ())
    assert standings.of("x") is BookieStanding.LOST


def test_a_bookie_has_nothing_of_an_empty_fragment_once_the_ledger_has_its_end() -> None:
    fragments = ((0, ABC), (5, ABD), (5, ("a", "e", "d")))
    assert bookies_of(record(*fragments, last=4)) == {"a", "b", "c"}
    assert bookies_of(record(*fragments, is_closed=False)) == {"a", "b", "c", "d", "e"}
    assert bookies_of(record((0, ABC))) == set()


def test_a_bookie_is_drained_that_shall_go_and_has_nothing() -> None:
    shown = [("leaving", 0), ("leaving", 3), ("here", 0), ("lost", 0)]
    assert [BookieReport("b", *one).is_drained for one in shown] == [True, False, False, False]


def test_only_bookies_that_should_have_what_is_unsure_are_waited_for() -> None:
    one = record((0, ABC), (5, ABD), last=8, complete=7)
    assert needs_of(one, standing(d=BookieStanding.AWAY), 9).unsure is None
    assert needs_of(one, standing(c=BookieStanding.AWAY), 9).unsure == 8


def test_a_ledger_with_more_copies_than_wanted_lacks_none() -> None:
    assert needs_of(record((0, ABC), last=3, wanted=Quorum(2, 2, 2)), standing(), 9).short == 0


def test_a_run_goes_on_to_the_last_entry() -> None:
    assert list(stripe(THREE, 0, 3, 12, 20)) == [range(3, 13)]


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_writer_that_was_well_or_gone_in_between_has_its_time_anew(is_listed: bool) -> None:
    agenda, hurt = Agenda(OPTIONS), Needs(7, is_to_end=True, copies=2)
    assert looked(agenda, 100.0, hurt) == []
    assert looked(agenda, 110.0, *([Needs(7, copies=3)] if is_listed else [])) == []
    assert looked(agenda, 135.0, hurt) == [] and agenda.next_s == 165.0


def test_who_failed_is_due_at_its_time_and_waits_as_at_first_when_bookies_came() -> None:
    agenda, need, error = Agenda(OPTIONS), Needs(7, VACANT), RuntimeError("no answer")
    agenda.fail(7, error, 0.0)
    first_s = agenda.next_s
    assert looked(agenda, first_s, need) == [(7, False)]
    for _ in range(9):
        agenda.fail(7, error, 0.0)
    assert agenda.next_s > first_s
    agenda.anew()
    agenda.fail(7, error, 0.0)
    assert agenda.next_s == first_s


def test_entries_that_are_lost_are_named_in_ranges() -> None:
    lost: list[range] = []
    for entry in (1, 3, 4, 5, 9):
        add_to(lost, entry)
    assert lost == [range(1, 2), range(3, 6), range(9, 10)]
