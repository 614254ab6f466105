"""The occurrences of schedules: cadence, cron lines in time zones, and missed occurrences."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.examples import examples

from millstream.runtime.definition.reminders import Missed, ReminderSchedule
from millstream.runtime.reminders.schedule import (
    TIME_MS_MAX,
    Choice,
    choose,
    find_first,
    find_last,
    find_next,
)

MINUTE = 60_000
HOUR = 3_600_000
DAY = 24 * HOUR
LATE = 60_000


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(local.timestamp() * 1000)


def utc(time_ms: int | None) -> str:
    assert time_ms is not None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%m-%d %H:%M")


def fires(line: str, zone: str, after: str, count: int) -> list[str]:
    """Return the first occurrences of a cron line after a time of UTC."""
    schedule = ReminderSchedule(cron=line, time_zone=zone)
    found, at = [], ms(after)
    for _ in range(count):
        due = find_next(schedule, 0, at)
        assert due is not None and due > at
        found.append(utc(due))
        at = due
    return found


# --- daylight saving -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "zone", "after", "wanted"),
    [
        # Berlin: 02:00 becomes 03:00 on 2026-03-29 at 01:00 UTC
        ("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00", ["03-28 01:30", "03-29 01:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", ["03-30 00:30"]),
        ("0,20,40 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:00"]),
        ("15 * * * *", "Europe/Berlin", "2026-03-28T23:30", ["03-29 00:15", "03-29 01:15"]),
        # and 03:00 becomes 02:00 on 2026-10-25 at 01:00 UTC
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 00:30", "10-26 01:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10", ["10-26 01:30"]),
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:45",
            ["10-25 00:30", "10-25 01:30", "10-25 02:30"],
        ),
        # New York: 02:00 becomes 03:00 on 2026-03-08 at 07:00 UTC
        ("5 2 * * *", "America/New_York", "2026-03-07T12:00", ["03-08 07:00", "03-09 06:05"]),
        # and 02:00 becomes 01:00 on 2026-11-01 at 06:00 UTC
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["11-01 05:30", "11-02 06:30"]),
        (
            "0 * * * *",
            "America/New_York",
            "2026-11-01T04:30",
            ["11-01 05:00", "11-01 06:00", "11-01 07:00"],
        ),
        # Lord Howe: 02:00 becomes 02:30 on 2026-10-04 at 15:30 UTC of the day before
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T17:00", ["10-03 15:30", "10-04 15:15"]),
        # and 02:00 becomes 01:30 on 2026-04-05 at 15:00 UTC of the day before
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["04-04 14:45", "04-05 15:15"]),
        (
            "*/30 * * * *",
            "Australia/Lord_Howe",
            "2026-04-04T14:20",
            ["04-04 14:30", "04-04 15:00", "04-04 15:30"],
        ),
        ("0 6 * * mon-fri", "UTC", "2026-11-27T07:00", ["11-30 06:00", "12-01 06:00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["02-29 00:00"]),
    ],
)
def test_a_cron_line_follows_the_clock_on_the_wall(
    line: str, zone: str, after: str, wanted: list[str]
) -> None:
    assert fires(line, zone, after, len(wanted)) == wanted


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("line", ["30 2 * * *", "*/15 * * * *", "10,50 1-3 * * *"])
def test_occurrences_rise_from_every_minute_of_a_year_with_changes(zone: str, line: str) -> None:
    """From any start, the next occurrence is later, and none between is left out."""
    schedule = ReminderSchedule(cron=line, time_zone=zone)
    changes = {
        "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00"),
        "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
        "Australia/Lord_Howe": ("2026-04-04T15:00", "2026-10-03T15:30"),
    }[zone]
    for change in changes:
        start = ms(change) - 2 * HOUR
        found = [find_next(schedule, 0, at) for at in range(start, start + 4 * HOUR, 4 * MINUTE)]
        for at, due in zip(range(start, start + 4 * HOUR, 4 * MINUTE), found, strict=True):
            assert due is not None and due > at
        assert found == sorted(found)  # type: ignore[type-var]


# --- cadence -------------------------------------------------------------------------------------


def test_the_cadence_is_kept_at_the_boundary_of_an_occurrence() -> None:
    """Orleans: CalculateNextTickTime_PreservesCadenceAtOccurrenceBoundary."""
    every = ReminderSchedule(every_ms=MINUTE)
    assert find_first(every, 1_000) == 61_000
    assert find_next(every, 1_000, 60_999) == 61_000
    assert find_next(every, 1_000, 61_000) == 121_000
    assert find_next(every, 1_000, 121_001) == 181_000


def test_an_early_time_gives_the_first_occurrence() -> None:
    assert find_next(ReminderSchedule(every_ms=MINUTE), 1_000, -(10**9)) == 61_000


def test_a_single_time_has_one_occurrence() -> None:
    once = ReminderSchedule(at_ms=5_000)
    assert find_first(once, 9_000) == 5_000  # a time in the past is delivered at once
    assert find_next(once, 0, 4_999) == 5_000
    assert find_next(once, 0, 5_000) is None
    assert find_last(once, 0, 5_000) == 5_000
    assert find_last(once, 0, 4_999) is None


def test_a_schedule_ends_before_a_time_that_no_date_shows() -> None:
    end = ms("9999-12-31T23:59")
    assert find_next(ReminderSchedule(every_ms=DAY), end - 1, end) is None
    assert find_next(ReminderSchedule(cron="0 0 1 1 *"), 0, end) is None


SCHEDULES = st.one_of(
    st.builds(
        lambda every, missed: ReminderSchedule(every_ms=every, missed=missed),
        st.integers(MINUTE, 40 * DAY),
        st.sampled_from(["skip", "once", "all"]),
    ),
    st.builds(
        lambda line, zone, missed: ReminderSchedule(cron=line, time_zone=zone, missed=missed),
        st.sampled_from(["* * * * *", "30 2 * * *", "0 */6 1 * *", "*/7 0 * * sun", "0 0 29 2 *"]),
        st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
        st.sampled_from(["skip", "once", "all"]),
    ),
)
START = ms("2026-01-01T00:00")
TIMES = st.integers(START, START + 800 * DAY)


@settings(max_examples=examples(300), deadline=None)
@given(SCHEDULES, TIMES)
def test_find_last_is_the_inverse_of_find_next(schedule: ReminderSchedule, at: int) -> None:
    following = find_next(schedule, START, at)
    assert following is not None and following > at
    last = find_last(schedule, START, at)
    if last is None:
        assert (find_next(schedule, START, START) or 0) > at
    else:
        assert START < last <= at
        assert find_next(schedule, START, last) == following
    assert find_last(schedule, START, following) == following


# --- missed occurrences --------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None)
@given(SCHEDULES, TIMES, st.integers(0, 3 * DAY), st.integers(0, 10 * MINUTE))
def test_a_choice_skips_only_what_the_policy_permits(
    schedule: ReminderSchedule, start: int, outage: int, late_max: int
) -> None:
    due = find_next(schedule, start, start)
    assert due is not None
    now = due - HOUR + outage
    choice = choose(schedule, start, due, now, late_max)
    assert choice.due_ms is not None and choice.due_ms >= due
    if due > now:
        assert choice == Choice(due, False, False)
        return
    if now - due <= late_max:
        assert choice == Choice(due, False, True)
        return
    assert choice.is_due == (choice.due_ms <= now)
    assert choice.is_missed == (choice.is_due and now - choice.due_ms > late_max)
    following = find_next(schedule, start, choice.due_ms)
    match schedule.missed:
        case "all":
            assert choice.due_ms == due
        case "once":  # it is the last missed one
            assert choice.is_missed and following is not None and now - following <= late_max
        case "skip":  # it is the first one that is not missed
            assert not choice.is_missed
            before = find_last(schedule, start, choice.due_ms - 1)
            assert before is not None and now - before > late_max


@pytest.mark.parametrize(
    ("missed", "wanted"),
    [
        ("skip", Choice(600_000, False, True)),
        ("once", Choice(540_000, True, True)),
        ("all", Choice(120_000, True, True)),
    ],
)
def test_missed_occurrences_are_skipped_without_a_drift(missed: Missed, wanted: Choice) -> None:
    """Orleans: CalculateFollowingTickTime_SkipsMissedOccurrencesWithoutDrifting."""
    schedule = ReminderSchedule(every_ms=MINUTE, missed=missed)
    assert choose(schedule, 0, 2 * MINUTE, 630_000, LATE) == wanted


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_an_occurrence_at_the_limit_is_not_missed(missed: Missed) -> None:
    schedule = ReminderSchedule(every_ms=HOUR, missed=missed)
    assert choose(schedule, 0, HOUR, HOUR + LATE, LATE) == Choice(HOUR, False, True)


def test_the_occurrence_at_the_limit_is_not_the_last_missed_one() -> None:
    once = ReminderSchedule(every_ms=MINUTE, missed="once")
    assert choose(once, 0, MINUTE, 6 * MINUTE, LATE) == Choice(4 * MINUTE, True, True)
    skip = ReminderSchedule(every_ms=MINUTE, missed="skip")
    assert choose(skip, 0, MINUTE, 6 * MINUTE, LATE) == Choice(5 * MINUTE, False, True)


def test_an_occurrence_is_missed_only_beyond_the_limit() -> None:
    schedule = ReminderSchedule(every_ms=HOUR, missed="skip")
    assert choose(schedule, 0, HOUR, HOUR + LATE, LATE) == Choice(HOUR, False, True)
    assert choose(schedule, 0, HOUR, HOUR + LATE + 1, LATE) == Choice(2 * HOUR, False, False)
    assert choose(schedule, 0, HOUR, HOUR, LATE) == Choice(HOUR, False, True)
    assert choose(schedule, 0, HOUR, HOUR - 1, LATE) == Choice(HOUR, False, False)


def test_a_single_time_that_is_skipped_leaves_nothing() -> None:
    once = ReminderSchedule(at_ms=0, missed="skip")
    assert choose(once, 0, 0, LATE + 1, LATE) == Choice(None, False, False)
    kept = ReminderSchedule(at_ms=0, missed="once")
    assert choose(kept, 0, 0, LATE + 1, LATE) == Choice(0, True, True)


def test_the_last_occurrence_after_years_is_found_without_reading_them_all() -> None:
    schedule = ReminderSchedule(cron="* * * * *")
    now = ms("2026-06-01T00:00:30")
    assert find_last(schedule, 0, now) == ms("2026-06-01T00:00")
    assert find_last(ReminderSchedule(cron="0 0 29 2 *"), 0, now) == ms("2024-02-29T00:00")


def test_an_occurrence_at_the_last_time_that_a_date_shows_is_found() -> None:
    schedule = ReminderSchedule(every_ms=60_000)
    start_ms = TIME_MS_MAX - 60_000
    assert find_next(schedule, start_ms, start_ms) == TIME_MS_MAX
    assert find_next(schedule, start_ms, start_ms + 60_000) is None


def test_the_last_missed_occurrence_may_be_a_moment_before_the_limit() -> None:
    once = ReminderSchedule(every_ms=60_000, missed="once")
    assert choose(once, 0, 60_000, 180_011, 10) == Choice(180_000, True, True)
    assert choose(once, 0, 60_000, 180_010, 10) == Choice(120_000, True, True)


def test_an_occurrence_that_is_due_now_is_delivered_after_missed_ones() -> None:
    skipping = ReminderSchedule(every_ms=60_000, missed="skip")
    assert choose(skipping, 0, 60_000, 180_000, 10) == Choice(180_000, False, True)
    assert choose(skipping, 0, 60_000, 179_999, 10) == Choice(180_000, False, False)
