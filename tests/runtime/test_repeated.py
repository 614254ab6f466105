"""A warning that others can cause at any rate takes only a few lines of the log."""

from __future__ import annotations

import logging

import pytest

from millstream.runtime.repeated import SUBJECTS_MAX, Repeated

log = logging.getLogger("millstream.test")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_subject_has_one_line_in_the_time_and_then_one_with_the_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    warnings = Repeated(log, clock, every_s=10.0)
    for _ in range(3):
        warnings.note("it fell", about="a")
    assert caplog.messages == ["it fell"]
    clock.now += 9.9
    warnings.note("it fell", about="a")
    assert len(caplog.messages) == 1
    clock.now += 0.2
    warnings.note("it fell", about="a")
    warnings.note("it fell", about="a")
    assert caplog.messages[1:] == ["it fell (similar lines left out: 3)"]
    clock.now += 20
    warnings.note("it fell", about="a")
    assert caplog.messages[2:] == ["it fell (similar lines left out: 1)"]


def test_one_subject_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Repeated(log, Clock(), every_s=10.0)
    for subject in "abab":
        warnings.note(f"{subject} fell", about=subject)
    assert caplog.messages == ["a fell", "b fell"]


def test_however_many_subjects_there_are_lines_and_memory_are_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    warnings = Repeated(log, clock, every_s=10.0)
    for number in range(10 * SUBJECTS_MAX):
        warnings.note("it fell", about=f"{number}")
    assert len(caplog.messages) == SUBJECTS_MAX + 1
    clock.now += 10
    caplog.clear()
    warnings.note("it fell", about="a newcomer")
    warnings.note("others fell", about="another")
    assert caplog.messages == ["it fell", "others fell"]
