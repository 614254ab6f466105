"""Rows of priority queues in PostgreSQL are read back as they were written."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.providers.priority.core.changes import (
    AnswerRow,
    ChangeEvent,
    Counters,
    MessageRow,
)
from millstream.providers.priority.core.message import State, Step
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.providers.priority.postgres.rows import (
    QueueHead,
    pack_answers,
    pack_event,
    pack_inserted,
    pack_settings,
    pack_updated,
    queue_head,
    unpack_answer,
    unpack_event,
    unpack_message,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
MAYBE = st.none() | NUMBERS
MESSAGES = st.builds(
    MessageRow,
    *(TEXTS, st.integers(1, 2**40), st.binary(max_size=5)),
    st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    *(NUMBERS, NUMBERS, MAYBE, MAYBE, MAYBE, MAYBE),
    *[NUMBERS] * 8,
    *(TEXTS, TEXTS, TEXTS, st.binary(max_size=5)),
)


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_new_messages_are_read_back(rows: list[MessageRow]) -> None:
    columns = zip(*pack_inserted(rows), strict=True)
    assert [unpack_message(one) for one in columns] == rows


@given(MESSAGES, MESSAGES)
def test_a_change_keeps_what_never_changes(row: MessageRow, other: MessageRow) -> None:
    [sequence], [body], [payload], _ = pack_inserted([row])
    [_], [state], [is_freed] = pack_updated([other])
    found = unpack_message((sequence, body, None if is_freed else payload, state))
    assert found[:2] == row[:2] and found[3:9] == row[3:9] and found[9:] == other[9:]
    assert found.payload == (b"" if other.freed else row.payload)


@given(TEXTS, NUMBERS, TEXTS)
def test_answers_and_events_are_read_back(session: str, number: int, text: str) -> None:
    row = AnswerRow(session, number, text, (1, None, (text, True)))
    [columns] = zip(*pack_answers([row]), strict=True)
    found = unpack_answer(columns)
    assert found[:3] == row[:3] and list(found.answer) == [1, None, [text, True]]  # type: ignore[arg-type]
    event = ChangeEvent(
        queue="q",
        id=text,
        version=3,
        from_state=None,
        to_state=State.PENDING,
        time_ms=number,
        step=Step.ENQUEUED,
        attempt=1,
        priority=-2,
        metadata=((text, ""),),
        worker="w",
        reason=text,
        due_ms=4,
        payload_bytes=5,
    )
    assert unpack_event(pack_event(event)) == event


def test_the_head_of_a_queue_has_its_columns() -> None:
    settings = QueueSettings(lease_ms=5)
    columns = (7, 3, 2, pack_settings(settings), 10, 11, 12, 13, -14, None)
    head = QueueHead(7, 3, SettingsRow(2, settings), Counters(10, 11, 12, 13, -14), None)
    assert queue_head(columns) == head
