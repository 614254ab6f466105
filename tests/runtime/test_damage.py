"""Damaged rows in the log: once each, again after a repair, and not too many."""

from __future__ import annotations

import logging

import pytest

from millstream.runtime import Corrupt
from millstream.runtime.damage import TOLD_MAX
from millstream.runtime.extending import DamageLog


def test_a_row_is_named_once_and_again_after_it_was_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage = DamageLog(logging.getLogger("millstream.tests"))
    for _ in range(2):
        damage.tell("a", Corrupt("row a is damaged: restore it"))
    damage.tell("b", Corrupt("row b is damaged: restore it"))
    said = "; until then the content of the row is unknown, and nothing is deleted because of it"
    assert caplog.messages == [f"row {row} is damaged: restore it{said}" for row in "ab"]
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    damage.is_whole("b")
    damage.is_whole("c")
    for row in "ab":
        damage.tell(row, Corrupt("again"))
    assert caplog.messages[2:] == [f"again{said}"]


def test_of_very_many_rows_some_are_named(caplog: pytest.LogCaptureFixture) -> None:
    damage = DamageLog(logging.getLogger("millstream.tests"))
    for number in range(TOLD_MAX + 9):
        damage.tell(f"{number}", Corrupt(f"row {number} is damaged"))
    assert len(caplog.messages) == TOLD_MAX + 1
    assert caplog.messages[-2].startswith(f"row {TOLD_MAX - 1} is damaged")
    assert (
        caplog.messages[-1] == f"more than {TOLD_MAX} rows are damaged; the others are not logged"
    )
    damage.is_whole("0")
    damage.tell("new", Corrupt("row new is damaged"))
    assert caplog.messages[-1].startswith("more than")
