"""The core of one writer: its sent and confirmed entries, and when it needs other bookies."""

from __future__ import annotations

import pytest

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.append_core import (
    Action,
    AppendCore,
    Change,
    Confirm,
    FailAppends,
    PlaceState,
    Send,
)
from millstream.providers.ledger.protocol.entry import HEAD_BYTES, NOTHING, unpack
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced
from millstream.providers.ledger.protocol.record import Fragment

NAMES = ("a", "b", "c")
AWAY, FULL = PlaceState.AWAY, PlaceState.FULL


USUAL = Quorum(3, 3, 2)


def writer(quorum: Quorum = USUAL, owed_bytes_max: int = 10_000) -> AppendCore:
    fragments = (Fragment(0, NAMES[: quorum.ensemble]),)
    return AppendCore(LedgerRecord(7, LedgerState.OPEN, quorum, 1, fragments), owed_bytes_max)


def acked(core: AppendCore, place: int, *entries: int, change: int = 0) -> list[Action]:
    return core.on_acknowledged(place, change, entries)


def sends(actions: list[Action]) -> list[tuple[int, str, int, tuple[int, ...]]]:
    return [tuple(one) for one in actions if isinstance(one, Send)]  # type: ignore[misc]


def test_an_entry_goes_to_its_write_set_with_what_is_known_in_its_head() -> None:
    core = writer(Quorum(3, 2, 2))
    assert sends(core.append(b"one")) == [(0, "a", 0, (0,)), (1, "b", 0, (0,))]
    assert sends(core.append(b"2")) == [(1, "b", 0, (1,)), (2, "c", 0, (1,))]
    acked(core, 0, 0)
    acked(core, 1, 0)
    assert sends(core.append(b"three")) == [(2, "c", 0, (2,)), (0, "a", 0, (2,))]
    packed = core.find_packed(2)
    assert packed is not None
    head = unpack(packed, 7, 2).head
    assert (head.confirmed, head.complete, head.length, head.size_bytes) == (0, 0, 9, 5)
    assert core.next_entry == 3 and core.find_packed(0) is None and core.find_packed(3) is None


def test_an_entry_is_confirmed_once_by_enough_different_bookies() -> None:
    core = writer()
    core.append(b"x")
    assert acked(core, 1, 0) == []
    assert acked(core, 1, 0) == [], "the same one again is no other"
    assert acked(core, 0, 0) == [Confirm(0)]
    assert acked(core, 2, 0) == [] and core.confirmed == 0
    assert core.confirmed_length == 1


def test_entries_are_confirmed_in_order_also_if_the_later_one_is_acknowledged_first() -> None:
    core = writer()
    for _ in range(4):
        core.append(b"xy")
    for place in (0, 1):
        assert acked(core, place, 1, 2) == []
    assert acked(core, 2, 0) == []
    assert acked(core, 0, 0) == [Confirm(2)]
    assert (core.confirmed, core.confirmed_length) == (2, 6)


def test_what_is_complete_is_on_all_bookies_with_everything_before_it() -> None:
    core = writer()
    for _ in range(3):
        core.append(b"x")
    for place in (0, 1):
        acked(core, place, 0, 1, 2)
    assert (core.confirmed, core.complete) == (2, NOTHING)
    acked(core, 2, 1)
    assert core.complete == NOTHING
    acked(core, 2, 0)
    assert core.complete == 1
    core.on_unanswered(2, 0, AWAY)
    assert core.complete == 1, "entry 2 never got its third copy"
    core.on_returned(2)
    core.append(b"x")
    for place in range(3):
        acked(core, place, 3)
    assert (core.confirmed, core.complete) == (3, 1)


def test_an_earlier_entry_that_lacks_a_copy_is_not_complete_though_a_later_one_was_first() -> None:
    core = writer()
    core.append(b"x")
    core.append(b"x")
    acked(core, 0, 0, 1)
    acked(core, 1, 0)
    core.on_unanswered(1, 0, AWAY)
    acked(core, 2, 1)
    assert (core.confirmed, core.complete) == (1, NOTHING), "entry 1 lacks one for good"
    core.on_unanswered(2, 0, AWAY)
    assert core.complete == NOTHING, "entry 0, too"


@pytest.mark.parametrize("complete", [0, 1])
def test_an_end_does_not_make_complete_what_was_not(complete: int) -> None:
    core = writer()
    core.append(b"x")
    core.append(b"x")
    for place in (0, 1):
        acked(core, place, 0, 1)
    acked(core, 2, *range(complete + 1))
    (fail,) = core.close()
    assert isinstance(fail, FailAppends) and isinstance(fail.error, LedgerClosed)
    assert "ledger 7 was closed after entry 1" in str(fail.error)
    assert (core.confirmed, core.complete) == (1, complete)


def test_one_that_does_not_answer_is_done_without_and_gets_what_is_open_when_it_is_back() -> None:
    core = writer()
    core.append(b"x")
    assert core.on_unanswered(2, 0, AWAY) == [] and core.away() == [2]
    assert sorted(place for place, *_ in sends(core.append(b"x"))) == [0, 1]
    acked(core, 0, 0)
    acked(core, 1, 0)
    assert core.on_returned(2) == [Send(2, "c", 0, (1,))], "entry 0 is confirmed"
    assert core.away() == [] and core.on_returned(2) == []
    assert acked(core, 2, 1) == [] and acked(core, 0, 1) == [Confirm(1)]


def test_what_was_acknowledged_before_a_bookie_went_counts() -> None:
    core = writer()
    core.append(b"x")
    acked(core, 2, 0)
    core.on_unanswered(2, 0, AWAY)
    assert acked(core, 0, 0) == [Confirm(0)]


def test_others_are_wanted_when_some_write_set_has_no_ack_quorum() -> None:
    core = writer()
    core.append(b"x")
    assert core.on_unanswered(0, 0, AWAY) == []
    assert core.on_unanswered(2, 0, AWAY) == [Change(0, {0: "a", 2: "c"})]
    assert core.is_changing and core.try_change() == []
    striped = writer(Quorum(3, 2, 2))
    striped.append(b"x")
    assert striped.on_unanswered(2, 0, AWAY) == [Change(0, {2: "c"})], "other entries need it"


def test_a_full_one_is_replaced_though_the_rest_would_do() -> None:
    core = writer()
    core.append(b"x")
    assert core.on_unanswered(1, 0, FULL) == [Change(0, {1: "b"})]


def changed(core: AppendCore, instead: dict[int, str]) -> list[Action]:
    return core.on_changed(instead)


def test_nothing_is_confirmed_during_a_change_and_all_of_it_after() -> None:
    core = writer()
    for _ in range(3):
        core.append(b"x")
    core.on_unanswered(1, 0, FULL)
    for place in (0, 2):
        assert acked(core, place, 0, 1) == []
    assert core.confirmed == NOTHING
    actions = changed(core, {1: "d"})
    assert actions == [Send(1, "d", 1, (0, 1, 2)), Confirm(1)]
    assert core.bookies() == ("a", "d", "c") and not core.is_changing and core.away() == []


def test_what_a_replaced_one_acknowledged_does_not_count_any_more() -> None:
    core = writer(Quorum(3, 3, 3))
    core.append(b"x")
    acked(core, 0, 0)
    acked(core, 1, 0)
    core.on_unanswered(0, 0, AWAY)
    assert acked(core, 2, 0) == []
    assert changed(core, {0: "d"}) == [Send(0, "d", 1, (0,))], "three of other bookies are not"
    assert acked(core, 0, 0) == [], "the former one of the place, late"
    assert acked(core, 0, 0, change=1) == [Confirm(0)]
    assert core.on_unanswered(0, 0, AWAY) == [] and core.away() == []


def test_a_change_behind_what_is_confirmed_begins_there() -> None:
    core = writer()
    for _ in range(2):
        core.append(b"x")
    for place in (0, 1):
        acked(core, place, 0)
    core.on_unanswered(0, 0, AWAY)
    assert core.on_unanswered(1, 0, AWAY) == [Change(1, {0: "a", 1: "b"})]
    assert sends(changed(core, {0: "d", 1: "e"})) == [(0, "d", 1, (1,)), (1, "e", 1, (1,))]
    for place in (0, 1, 2):
        acked(core, place, 1, change=1)
    assert (core.confirmed, core.complete) == (1, NOTHING)
    acked(core, 2, 0)
    assert core.complete == 1, "the one that stayed had the first entry, too"


def test_an_entry_that_needs_no_replaced_one_is_confirmed_behind_the_change() -> None:
    core = writer(Quorum(3, 2, 2))
    core.append(b"x")
    acked(core, 0, 0)
    core.on_unanswered(2, 0, AWAY)
    assert acked(core, 1, 0) == []
    assert changed(core, {2: "d"}) == [Confirm(0)], "without sending it again"


def test_a_change_for_which_there_is_nobody_is_wanted_again_when_it_is_tried() -> None:
    core = writer()
    core.append(b"x")
    core.on_unanswered(0, 0, AWAY)
    core.on_unanswered(1, 0, AWAY)
    assert changed(core, {}) == [] and not core.is_changing
    assert core.try_change() == [Change(0, {0: "a", 1: "b"})]
    assert changed(core, {0: "d"}) == [Send(0, "d", 1, (0,))], "the first change that was one"
    assert core.away() == [1]


def test_more_that_fail_during_a_change_are_replaced_in_the_next_one() -> None:
    core = writer(Quorum(3, 3, 3))
    core.append(b"x")
    assert core.on_unanswered(0, 0, AWAY) == [Change(0, {0: "a"})]
    assert core.on_unanswered(1, 0, AWAY) == []
    assert changed(core, {0: "d"}) == [Send(0, "d", 1, (0,)), Change(0, {1: "b"})]
    assert core.is_changing and changed(core, {1: "e"}) == [Send(1, "e", 2, (0,))]


def test_it_knows_whether_all_bookies_do_what_is_asked() -> None:
    core = writer(Quorum(3, 3, 3))
    assert core.are_all_good
    core.append(b"x")
    core.on_unanswered(0, 0, AWAY)
    core.on_unanswered(1, 0, AWAY)
    assert not core.are_all_good
    core.on_returned(0)
    assert not core.are_all_good
    core.on_returned(1)
    assert core.are_all_good
    core.on_unanswered(2, 0, AWAY)
    changed(core, {0: "d"})
    assert not core.are_all_good and core.is_changing
    changed(core, {2: "e"})
    assert core.are_all_good


def test_one_that_is_back_during_a_change_and_replaced_all_the_same_owes_nothing_for_it() -> None:
    core = writer(Quorum(3, 3, 3))
    core.append(b"x")
    core.on_unanswered(0, 0, AWAY)
    assert core.on_returned(0) == [Send(0, "a", 0, (0,))]
    assert changed(core, {0: "d"}) == [Send(0, "d", 1, (0,))]


def test_one_that_is_back_is_not_sent_what_it_has() -> None:
    core = writer()
    for _ in range(3):
        core.append(b"x")
    acked(core, 2, 1)
    core.on_unanswered(2, 0, AWAY)
    assert core.on_returned(2) == [Send(2, "c", 0, (0, 2))]


@pytest.mark.parametrize(("over", "is_away"), [(0, False), (-1, True)])
def test_the_limit_of_what_is_owed_is_exact(over: int, is_away: bool) -> None:
    core = writer(owed_bytes_max=3 * (HEAD_BYTES + 10) + over)
    for _ in range(3):
        core.append(bytes(10))
    assert bool(core.away()) is is_away


def test_what_one_bookie_owes_is_bounded_and_then_it_has_failed() -> None:
    size = HEAD_BYTES + 10
    core = writer(owed_bytes_max=2 * size)
    for number in range(2):
        core.append(bytes(10))
        for place in (0, 1):
            acked(core, place, number)
    assert core.away() == []
    core.append(bytes(10))
    assert core.away() == [2]
    assert core.complete == NOTHING and core.find_packed(0) is None
    assert core.on_returned(2) == [Send(2, "c", 0, (2,))]
    for place in (0, 1, 2):
        acked(core, place, 2)
    core.append(bytes(10))
    core.append(bytes(10))
    assert core.away() == [], "it owes two of them again"


def test_a_bookie_that_is_sent_much_again_owes_that_too() -> None:
    size = HEAD_BYTES + 10
    core = writer(owed_bytes_max=2 * size)
    core.on_unanswered(2, 0, AWAY)
    core.append(bytes(10))
    core.append(bytes(10))
    assert core.on_returned(2) == [Send(2, "c", 0, (0, 1))]
    assert (2, "c", 0, (2,)) in sends(core.append(bytes(10)))
    assert core.away() == [0, 1, 2], "all of them owe too much"


def test_a_writer_that_stopped_does_nothing_more() -> None:
    core = writer()
    core.append(b"x")
    core.on_unanswered(0, 0, AWAY)
    core.on_unanswered(1, 0, AWAY)
    fenced = LedgerFenced("a higher term", 2)
    assert core.stop(fenced) == [FailAppends(fenced)] and core.failed is fenced
    assert core.stop(LedgerClosed("again")) == [] and core.failed is fenced
    assert changed(core, {0: "d"}) == [] and core.bookies() == NAMES
    assert acked(core, 2, 0) == [] and core.on_unanswered(2, 0, FULL) == []
    assert core.on_returned(0) == [] and core.try_change() == [] and core.find_packed(0) is None
    assert not core.is_changing
    with pytest.raises(AssertionError):
        core.append(b"late")


def test_a_recovery_goes_on_behind_what_needs_no_deciding() -> None:
    record = LedgerRecord(
        7,
        LedgerState.RECOVERING,
        Quorum(3, 3, 2),
        2,
        (Fragment(0, NAMES), Fragment(4, ("d", *NAMES[1:]))),
    )
    core = AppendCore(record, 10_000, confirmed=8, length=100)
    assert core.bookies() == ("d", "b", "c") and core.next_entry == 9
    assert [one[1] for one in sends(core.append_packed(bytes(HEAD_BYTES + 5), 105))] == [
        "d",
        "b",
        "c",
    ]
    acked(core, 0, 9)
    assert acked(core, 1, 9) == [Confirm(9)]
    assert core.confirmed_length == 105
