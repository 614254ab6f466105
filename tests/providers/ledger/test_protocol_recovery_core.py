"""One attempt to close a ledger: its questions, its conclusions and its memory."""

from __future__ import annotations

import pickle

import pytest

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.entry import EntryHeader, pack
from millstream.providers.ledger.protocol.errors import NoCopyLeft
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.providers.ledger.protocol.record import Fragment
from millstream.providers.ledger.protocol.recovery_core import (
    Abort,
    End,
    Fence,
    Keep,
    Read,
    RecoveryCore,
)

QUORUM = Quorum(3, 3, 2)
NAMES = ("a", "b", "c")


def record(quorum: Quorum = QUORUM, first: int = 0) -> LedgerRecord:
    former = (Fragment(0, NAMES),) if first else ()
    fragments = (*former, Fragment(first, NAMES))
    return LedgerRecord(7, LedgerState.RECOVERING, quorum, 2, fragments)


def entries(first: int, count: int) -> tuple[bytes, ...]:
    return tuple(
        pack(EntryHeader(7, number, number - 1, -1, 8 * (number + 1), 8), b"payload%d" % number)
        for number in range(first, first + count)
    )


def reading(core: RecoveryCore) -> RecoveryCore:
    """Return a recovery with all places fenced and no known confirmed entry."""
    core.begin()
    for place in range(3):
        core.on_fenced(place, -1)
    return core


def test_it_fences_all_and_reads_as_soon_as_the_rest_is_no_ack_quorum() -> None:
    core = RecoveryCore(record())
    assert core.at == -1
    assert core.begin() == [Fence(0, "a"), Fence(1, "b"), Fence(2, "c")]
    assert core.on_fenced(1, 4) == []
    assert sorted(core.on_fenced(2, 3)) == [Read(0, "a", 5), Read(1, "b", 5), Read(2, "c", 5)]
    assert core.start == 4
    assert core.on_fenced(0, 9) == [] and core.start == 4, "what comes later is a hint too late"


def test_an_answer_that_comes_late_holds_no_bytes_of_what_was_kept() -> None:
    core = reading(RecoveryCore(record()))
    steps = core.found(0, 0, Found(entries(0, 5), Missing.ABSENT))
    assert [type(step) for step in steps] == [Keep] * 5
    core.found(1, 0, Found(entries(0, 5), Missing.ABSENT))
    assert b"payload" not in pickle.dumps(core)


def test_what_a_bookie_has_of_later_entries_is_used_when_they_are_due() -> None:
    core = reading(RecoveryCore(record()))
    assert core.found(0, 0, Found((), Missing.ABSENT)) == []
    steps = core.found(1, 0, Found(entries(0, 2), Missing.ABSENT))
    assert [step.entry for step in steps if isinstance(step, Keep)] == [0, 1]
    assert [step for step in steps if isinstance(step, Read)] == [Read(0, "a", 2)]
    assert core.found(0, 2, Found((), Missing.ABSENT)) == [End(1)]
    assert core.is_over and core.found(2, 0, Found(entries(0, 2), Missing.ABSENT)) == []


def test_enough_who_deny_are_the_end_without_waiting_for_the_rest() -> None:  # BookKeeper #1067
    core = reading(RecoveryCore(record()))
    assert core.found(2, 0, Found((), Missing.ABSENT)) == []
    assert core.found(0, 0, Found((), Missing.ABSENT)) == [End(-1)]


def test_a_page_without_entries_that_says_nothing_proves_nothing() -> None:
    core = reading(RecoveryCore(record(Quorum(3, 3, 3))))
    assert core.found(0, 0, Found((), Missing.LIMIT)) == []
    assert core.found(1, 0, Found((), Missing.UNKNOWN)) == []
    (abort,) = core.on_unanswered(2)
    assert isinstance(abort, Abort)
    for text in ("ledger 7", "whether entry 0 exists", "from a, b, c", "start the missing bookies"):
        assert text in str(abort.error)


def test_an_entry_that_nobody_can_read_ends_the_attempt_and_each_fault_is_told() -> None:
    core = reading(RecoveryCore(record(Quorum(3, 3, 3))))
    fault = "bookie a: entry 0 is damaged, entry.log at offset 9"
    assert core.found(0, 0, Found((), Missing.UNKNOWN, -1, fault)) == []
    assert core.found(2, 0, Found((), Missing.UNKNOWN)) == []
    (abort,) = core.found(1, 0, Found((), Missing.LIMIT))
    assert isinstance(abort, Abort) and isinstance(abort.error, NoCopyLeft)
    assert (abort.error.ledger, abort.error.entry) == (7, 0)
    others = [
        f"bookie {name} may have had the entry, but lost a part of its directory" for name in "bc"
    ]
    assert f"has no readable replica: {'; '.join([fault, *others])}. What" in str(abort.error)
    assert core.is_over and core.found(0, 0, Found(entries(0, 1), Missing.LIMIT)) == []


def test_too_few_that_can_be_fenced_end_the_attempt_and_are_named() -> None:
    core = RecoveryCore(record())
    core.begin()
    assert core.on_unanswered(0) == [] and core.on_fenced(2, -1) == []
    (abort,) = core.on_unanswered(1)
    assert isinstance(abort, Abort)
    for text in ("only 1 of its bookies could be fenced", "2 of each write set", "from a, b"):
        assert text in str(abort.error)
    assert core.is_over and core.on_fenced(0, 1) == []


def test_one_that_answers_late_is_asked_on_and_what_it_says_counts() -> None:
    core = RecoveryCore(record())
    core.begin()
    core.on_fenced(0, -1)
    core.on_fenced(1, -1)
    assert core.found(1, 0, Found((), Missing.ABSENT)) == []
    assert core.found(2, 0, Found(entries(0, 1), Missing.LIMIT)) == [
        Keep(0, entries(0, 1)[0], 8),
        Read(1, "b", 1),
        Read(2, "c", 1),
    ]
    core.on_unanswered(0)
    assert core.found(0, 0, Found(entries(0, 1), Missing.ABSENT)) == []
    assert core.found(1, 1, Found((), Missing.ABSENT)) == [End(0)]


def test_it_never_looks_before_the_last_fragment() -> None:  # BookKeeper #2615
    core = RecoveryCore(record(first=6))
    core.begin()
    core.on_fenced(0, -1)
    assert core.on_fenced(1, 2) == [Read(place, name, 6) for place, name in enumerate(NAMES)]
    assert core.start == 5


def test_a_damaged_copy_is_neither_the_entry_nor_a_denial() -> None:
    core = reading(RecoveryCore(record()))
    (good,) = entries(0, 1)
    bad = good[:-1] + b"?"
    assert core.found(0, 0, Found((bad,), Missing.LIMIT)) == []
    assert core.found(1, 0, Found((), Missing.ABSENT)) == []
    steps = core.found(2, 0, Found((good,), Missing.LIMIT))
    assert steps[0] == Keep(0, good, 8)


def test_with_striping_only_the_write_set_of_an_entry_is_asked() -> None:
    core = RecoveryCore(record(Quorum(3, 2, 2)))
    core.begin()
    core.on_fenced(0, -1)
    assert core.on_fenced(2, 0) == [Read(1, "b", 1), Read(2, "c", 1)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_who_did_not_answer_is_not_asked_again(place: int) -> None:
    core = RecoveryCore(record())
    core.begin()
    core.on_unanswered(place)
    others = [at for at in range(3) if at != place]
    core.on_fenced(others[0], -1)
    steps = core.on_fenced(others[1], -1)
    assert [step.place for step in steps if isinstance(step, Read)] == others
