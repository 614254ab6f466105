"""Each change is drained once, also if it is the only change of its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.providers.priority.core.changes import (
    AnswerRow,
    Changes,
    Counters,
    Recorder,
    SessionRow,
    row_of,
)
from millstream.providers.priority.core.message import NO_TERMS, key_of, new_message

SESSION, ANSWER = SessionRow("s", 1, 5), AnswerRow("s", 3, "enqueue", None)

NOTES: list[tuple[Callable[[Recorder], None], Callable[[Changes], object], object]] = [
    (lambda notes: notes.session_used(*SESSION), lambda drained: drained.sessions, (SESSION,)),
    (lambda notes: notes.session_ended("s", ()), lambda drained: drained.sessions_ended, ("s",)),
    (lambda notes: notes.on_answered(ANSWER), lambda drained: drained.answers, (ANSWER,)),
    (
        lambda notes: notes.answer_ended("s", 3),
        lambda drained: drained.answers_ended,
        (("s", 3),),
    ),
]


@pytest.mark.parametrize(("note", "part", "wanted"), NOTES)
def test_a_note_that_is_the_only_one_is_counted_and_drained_once(
    note: Callable[[Recorder], None], part: Callable[[Changes], object], wanted: object
) -> None:
    notes = Recorder("q", keeps_rows=True, keeps_events=False)
    assert not notes.is_touched and notes.drain(Counters()) is None
    note(notes)
    assert notes.is_touched and notes.count() == 1
    drained = notes.drain(Counters(1, 2, 3, 4, 5))
    assert drained is not None and part(drained) == wanted and drained.counters == (1, 2, 3, 4, 5)
    assert not notes.is_touched and notes.count() == 0 and notes.drain(Counters()) is None


@pytest.mark.parametrize(("note", "part", "wanted"), NOTES)
def test_of_requests_nothing_is_noted_where_no_rows_are_kept(
    note: Callable[[Recorder], None], part: Callable[[Changes], object], wanted: object
) -> None:
    notes = Recorder("q", keeps_rows=False, keeps_events=True)
    note(notes)
    assert notes.count() == 0 and notes.drain(Counters()) is None


def test_the_row_of_a_message_that_was_never_leased_has_no_lease() -> None:
    row = row_of(new_message("m", b"", key_of(1, 1), (), None, 1, NO_TERMS, 0))
    assert (row.epoch, row.leased_version, row.worker, row.ended, row.reason) == (0, 0, "", "", "")
