"""The agenda of a silo: loading, changes during a read, deliveries, and limits."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from millstream.runtime.definition.reminders import ReminderSchedule
from millstream.runtime.reminders.agenda import PAGE_ROWS, Agenda, Key, PageRead, ranges_of
from millstream.runtime.reminders.record import ReminderRecord, StoredReminder, make_row, read_row
from millstream.runtime.reminders.table import (
    BUCKETS,
    MemoryReminderTable,
    ReminderPosition,
    ReminderRow,
    bucket_of,
)

EVERY = ReminderSchedule(every_ms=60_000)
ALL = frozenset(range(BUCKETS))


def stored(grain: str, due_ms: int | None, etag: str = "1") -> StoredReminder:
    return StoredReminder(grain, "n", ReminderRecord(EVERY, 0, due_ms), etag)


def put(table: MemoryReminderTable, grain: str, due_ms: int | None) -> StoredReminder:
    """Store a version of a reminder, in place of the one that is there."""
    old = table.rows_of(grain)
    row = make_row(grain, "n", ReminderRecord(EVERY, 0, due_ms))
    etag = table.put(row, old[0].etag if old else None)
    return stored(grain, due_ms, etag)


def drop(table: MemoryReminderTable, grain: str) -> None:
    table.drop(grain, "n", table.rows_of(grain)[0].etag)


def fetch(table: MemoryReminderTable, read: PageRead) -> Sequence[ReminderRow]:
    return table.list_due(*read)


def accept(agenda: Agenda, read: PageRead, rows: Sequence[ReminderRow]) -> None:
    last = rows[-1] if rows else None
    position = None
    if last is not None:
        assert last.due_ms is not None
        position = ReminderPosition(last.due_ms, last.grain, last.name)
    agenda.accept(read, map(read_row, rows), position, len(rows) < read.limit)


def begin(agenda: Agenda, before_ms: int) -> PageRead:
    """Begin a sweep, and return its first read."""
    agenda.begin_sweep(before_ms)
    read = agenda.next_read()
    assert read is not None
    return read


def sweep(agenda: Agenda, table: MemoryReminderTable, before_ms: int) -> None:
    agenda.begin_sweep(before_ms)
    while (read := agenda.next_read()) is not None:
        accept(agenda, read, fetch(table, read))


def make(loaded_max: int = 100, running_max: int = 10) -> tuple[Agenda, MemoryReminderTable]:
    agenda = Agenda(loaded_max=loaded_max, running_max=running_max)
    agenda.own(ALL)
    return agenda, MemoryReminderTable()


def names(found: Sequence[StoredReminder]) -> list[str]:
    return [one.grain for one in found]


def test_a_distant_reminder_is_loaded_within_the_window_and_evicted_after_its_delivery() -> None:
    """Orleans: DistantReminder_IsLoadedWithinWindowAndEvictedAfterFiring."""
    agenda, table = make()
    reminder = put(table, "T/a", 100_000)
    sweep(agenda, table, 100_000)
    assert len(agenda) == 0
    sweep(agenda, table, 100_001)
    assert len(agenda) == 1 and agenda.wake_ms() == 100_000
    assert agenda.take_due(99_999) == []
    assert agenda.take_due(100_000) == [reminder]
    agenda.finish(reminder.key, put(table, "T/a", 160_000))
    assert len(agenda) == 0 and agenda.wake_ms() is None
    agenda.check()


def test_a_stale_page_cannot_restore_a_removed_reminder() -> None:
    """Orleans: StaleRefreshCannotRestoreUnregisteredReminder."""
    agenda, table = make()
    put(table, "T/a", 1_000)
    read = begin(agenda, 10_000)
    rows = fetch(table, read)
    drop(table, "T/a")
    agenda.note(("T/a", "n"), None)
    accept(agenda, read, rows)
    assert len(agenda) == 0 and agenda.take_due(5_000) == []


def test_a_stale_page_cannot_revert_a_newer_version() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    read = begin(agenda, 10_000)
    rows = fetch(table, read)
    newer = put(table, "T/a", 7_000)
    agenda.note(newer.key, newer)
    accept(agenda, read, rows)
    assert agenda.take_due(6_999) == []
    assert agenda.take_due(7_000) == [newer]


def test_a_page_that_was_read_during_a_delivery_does_not_deliver_again() -> None:
    """Orleans: RefreshAtFiredTickDoesNotRedeliverOccurrence."""
    agenda, table = make()
    reminder = put(table, "T/a", 1_000)
    sweep(agenda, table, 100_000)
    assert agenda.take_due(1_000) == [reminder]
    read = begin(agenda, 100_000)
    rows = fetch(table, read)
    agenda.finish(reminder.key, put(table, "T/a", 61_000))
    accept(agenda, read, rows)
    assert agenda.take_due(60_999) == []
    assert len(agenda.take_due(61_000)) == 1


def test_a_running_delivery_is_not_started_again_by_a_page() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    sweep(agenda, table, 100_000)
    assert len(agenda.take_due(1_000)) == 1
    sweep(agenda, table, 100_000)
    assert agenda.take_due(5_000) == [] and agenda.running == 1


def test_a_reminder_that_is_gone_from_the_table_is_dropped_by_a_whole_sweep() -> None:
    agenda, table = make()
    for number in range(3):
        put(table, f"T/{number}", 1_000 + number)
    sweep(agenda, table, 10_000)
    drop(table, "T/1")
    sweep(agenda, table, 10_000)
    assert names(agenda.take_due(5_000)) == ["T/0", "T/2"]


def test_a_sweep_that_fails_in_the_middle_goes_on_with_the_same_page() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    read = begin(agenda, 10_000)
    agenda.fail_read(read)
    assert agenda.is_sweeping
    again = agenda.next_read()
    assert again == read and again is not None
    accept(agenda, again, fetch(table, again))
    assert len(agenda) == 1 and not agenda.is_sweeping


def test_a_late_page_of_a_sweep_that_was_given_up_is_ignored() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    read = begin(agenda, 10_000)
    agenda.own(frozenset())
    agenda.own(ALL)
    assert agenda.needs_sweep
    agenda.begin_sweep(10_000)
    accept(agenda, read, fetch(table, read))
    agenda.fail_read(read)
    assert len(agenda) == 0 and agenda.is_sweeping


def test_lost_buckets_are_dropped_and_running_deliveries_end() -> None:
    agenda, table = make()
    for number in range(40):
        put(table, f"T/{number}", 1_000)
    sweep(agenda, table, 10_000)
    running = agenda.take_due(1_000)
    assert len(running) == 10
    kept = bucket_of(running[0].grain)
    agenda.own({kept})
    assert agenda.running == 10
    agenda.finish(running[0].key, put(table, running[0].grain, 5_000))
    for other in running[1:]:
        if bucket_of(other.grain) != kept:
            agenda.finish(other.key, put(table, other.grain, 5_000))
    agenda.check()
    assert {bucket_of(one.grain) for one in agenda.take_due(9_000)} == {kept}


def test_a_failed_delivery_of_a_lost_bucket_is_not_repeated_here() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    sweep(agenda, table, 10_000)
    (running,) = agenda.take_due(1_000)
    agenda.own(())
    agenda.retry(running.key, 2_000)
    assert len(agenda) == 0 and agenda.take_due(9_000) == []


def test_more_buckets_give_up_a_sweep_and_fewer_do_not() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    read = begin(agenda, 10_000)
    rows = fetch(table, read)
    agenda.own(ALL - {bucket_of("T/b")})
    assert agenda.is_sweeping and not agenda.needs_sweep
    agenda.own(ALL)
    assert not agenda.is_sweeping and agenda.needs_sweep
    accept(agenda, read, rows)
    assert len(agenda) == 0 and agenda.next_read() is None
    sweep(agenda, table, 10_000)
    assert len(agenda) == 1 and not agenda.needs_sweep


def test_a_page_waits_until_there_is_room_for_half_of_the_limit() -> None:
    agenda, table = make(loaded_max=10)
    for number in range(10):
        put(table, f"T/{number}", 1_000)
    agenda.begin_sweep(10_000)
    assert agenda.next_read() == PageRead(ranges_of(ALL), None, 10_000, 10)
    agenda, table = make(loaded_max=10)
    for number in range(6):
        put(table, f"T/{number}", 1_000)
    sweep(agenda, table, 10_000)
    agenda.begin_sweep(10_000)
    assert agenda.next_read() is None
    agenda.note(("T/5", "n"), None)
    read = agenda.next_read()
    assert read is not None and read.limit == 5


def test_a_page_that_is_read_again_has_newer_rows_than_the_notes() -> None:
    agenda, table = make()
    read = begin(agenda, 10_000)
    agenda.note(("T/a", "n"), None)
    agenda.fail_read(read)
    put(table, "T/a", 1_000)  # in another silo
    again = agenda.next_read()
    assert again is not None
    accept(agenda, again, fetch(table, again))
    assert len(agenda) == 1


def test_a_failure_of_an_earlier_read_leaves_the_running_one() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    agenda.begin_sweep(10_000)
    old = agenda.next_read()
    agenda.begin_sweep(10_000)
    read = agenda.next_read()
    assert old is not None and read is not None
    agenda.fail_read(old)
    accept(agenda, read, fetch(table, read))
    assert len(agenda) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_new_reminder_of_a_later_page_is_loaded_by_that_page(fails: bool) -> None:
    agenda, table = make(loaded_max=4)
    for number in range(6):
        put(table, f"T/{number}", 1_000 + number)
    read = begin(agenda, 10_000)
    accept(agenda, read, fetch(table, read))
    for reminder in agenda.take_due(1_001):
        agenda.finish(reminder.key, None)
    if fails:
        second = agenda.next_read()
        assert second is not None
        agenda.fail_read(second)
    later = put(table, "T/later", 5_000)
    agenda.note(later.key, later)
    assert len(agenda) == 2
    assert agenda.is_sweeping and not agenda.needs_sweep


def test_a_new_version_of_the_last_row_of_a_page_is_kept() -> None:
    agenda, table = make(loaded_max=2)
    for number in range(3):
        put(table, f"T/{number}", 1_000 + number)
    read = begin(agenda, 10_000)
    accept(agenda, read, fetch(table, read))
    newer = put(table, "T/1", 1_001)
    agenda.note(newer.key, newer)
    assert agenda.take_due(1_001)[1] == newer


def test_a_removed_reminder_is_dropped_at_once() -> None:
    agenda, table = make()
    reminder = put(table, "T/a", 1_000)
    sweep(agenda, table, 10_000)
    agenda.note(reminder.key, None)
    assert len(agenda) == 0 and agenda.wake_ms() is None


def test_a_new_reminder_without_room_asks_for_another_sweep() -> None:
    agenda, table = make(loaded_max=1)
    put(table, "T/a", 1_000)
    read = begin(agenda, 10_000)
    agenda.accept(read, map(read_row, fetch(table, read)), None, True)
    assert not agenda.needs_sweep
    other = put(table, "T/b", 2_000)
    agenda.note(other.key, other)
    assert len(agenda) == 1 and agenda.needs_sweep


def test_outdated_times_are_dropped_and_the_order_stays() -> None:
    agenda, table = make()
    for number in range(50):
        put(table, f"T/{number:02}", 9_000 - number)
    sweep(agenda, table, 10_000)
    for _ in range(300):
        newer = put(table, "T/49", 8_951)
        agenda.note(newer.key, newer)
    agenda.check()
    due = [one.grain for one in agenda.take_due(8_960)]
    assert due == [f"T/{number:02}" for number in range(49, 39, -1)]


def test_a_failed_delivery_whose_reminder_changed_during_a_read_is_repeated() -> None:
    agenda, table = make()
    reminder = put(table, "T/a", 1_000)
    sweep(agenda, table, 10_000)
    assert agenda.take_due(1_000) == [reminder]
    read = begin(agenda, 10_000)
    agenda.note(reminder.key, put(table, "T/a", 1_000))
    agenda.retry(reminder.key, 5_000)
    accept(agenda, read, fetch(table, read))
    assert agenda.wake_ms() == 5_000


def test_deliveries_have_a_limit_and_go_on_in_order() -> None:
    agenda, table = make(running_max=3)
    for number in range(7):
        put(table, f"T/{number}", 1_000 + number)
    sweep(agenda, table, 100_000)
    first = agenda.take_due(5_000)
    assert names(first) == ["T/0", "T/1", "T/2"]
    assert agenda.take_due(5_000) == [] and agenda.wake_ms() is None
    agenda.finish(first[1].key, None)
    assert names(agenda.take_due(5_000)) == ["T/3"]
    agenda.retry(first[0].key, 9_000)
    assert names(agenda.take_due(9_000)) == ["T/4"]


def test_a_retry_waits_and_counts() -> None:
    agenda, table = make()
    put(table, "T/a", 1_000)
    sweep(agenda, table, 10_000)
    (running,) = agenda.take_due(1_000)
    assert agenda.attempts_of(running.key) == 0
    agenda.retry(running.key, 3_000)
    sweep(agenda, table, 10_000)  # the same version: the wait goes on
    assert agenda.take_due(2_999) == []
    assert agenda.take_due(3_000) == [running]
    assert agenda.attempts_of(running.key) == 1


def test_rows_beyond_the_limit_are_loaded_as_others_end() -> None:
    agenda, table = make(loaded_max=10, running_max=5)
    for number in range(40):
        put(table, f"T/{number:02}", 1_000)
    agenda.begin_sweep(10_000)
    delivered: list[str] = []
    for _ in range(100):
        while (read := agenda.next_read()) is not None:
            accept(agenda, read, fetch(table, read))
        assert len(agenda) <= 10
        for one in agenda.take_due(5_000):
            delivered.append(one.grain)
            agenda.finish(one.key, put(table, one.grain, 61_000))
    assert delivered == [f"T/{number:02}" for number in range(40)]
    assert not agenda.is_sweeping


def test_a_new_reminder_beyond_the_limit_asks_for_another_sweep() -> None:
    agenda, table = make(loaded_max=1)
    put(table, "T/a", 1_000)
    sweep(agenda, table, 10_000)
    agenda.begin_sweep(10_000)
    early = put(table, "T/b", 500)
    assert not agenda.needs_sweep
    sweep_over, table_two = make(loaded_max=1)
    put(table_two, "T/a", 1_000)
    sweep_over.begin_sweep(10_000)
    read = sweep_over.next_read()
    assert read is not None
    sweep_over.note(early.key, early)
    accept(sweep_over, read, fetch(table_two, read))
    assert sweep_over.needs_sweep


def test_a_new_reminder_is_kept_only_within_the_window() -> None:
    agenda, table = make()
    sweep(agenda, table, 10_000)
    for grain, due_ms in (("T/a", 9_999), ("T/b", 10_000), ("T/c", 10_001)):
        reminder = put(table, grain, due_ms)
        agenda.note(reminder.key, reminder)
    assert names(agenda.take_due(20_000)) == ["T/a"]
    assert not Agenda(loaded_max=1, running_max=1).needs_sweep


def test_a_reminder_that_is_set_again_and_again_takes_no_more_memory() -> None:
    agenda, table = make(loaded_max=2)
    sweep(agenda, table, 10_000)
    for number in range(300):
        reminder = put(table, "T/a", 1_000 + number)
        agenda.note(reminder.key, reminder)
        agenda.check()
    assert agenda.take_due(1_298) == []
    assert names(agenda.take_due(1_299)) == ["T/a"]


def test_a_page_has_a_limit() -> None:
    agenda, table = make(loaded_max=10**6)
    agenda.begin_sweep(1)
    read = agenda.next_read()
    assert read is not None and read.limit == PAGE_ROWS


def test_ranges_join_neighbours() -> None:
    assert ranges_of([3, 1, 2, 7, 9, 8, 0]) == [(0, 3), (7, 9)]
    assert ranges_of([]) == []
    assert ranges_of(ALL) == [(0, BUCKETS - 1)]


GRAINS = [f"T/{number}" for number in range(8)]
HALF = frozenset(bucket_of(grain) for grain in GRAINS[:4])
WHOLE = frozenset(bucket_of(grain) for grain in GRAINS)


class AgendaMachine(RuleBasedStateMachine):
    """A table, an agenda, and a driver that reads pages late and learns of changes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.agenda = Agenda(loaded_max=4, running_max=2)
        self.table = MemoryReminderTable()
        self.owned: frozenset[int] = WHOLE
        self.agenda.own(WHOLE)
        self.now = 0
        self.read: PageRead | None = None
        self.rows: Sequence[ReminderRow] | None = None
        self.running: dict[Key, StoredReminder] = {}

    @rule(grain=st.sampled_from(GRAINS), delay=st.integers(1, 50))
    def set(self, grain: str, delay: int) -> None:
        reminder = put(self.table, grain, self.now + delay)
        self.agenda.note(reminder.key, reminder)

    @rule(grain=st.sampled_from(GRAINS))
    def cancel(self, grain: str) -> None:
        if self.table.rows_of(grain):
            drop(self.table, grain)
        self.agenda.note((grain, "n"), None)

    @rule(grain=st.sampled_from(GRAINS), delay=st.integers(1, 50))
    def set_without_notice(self, grain: str, delay: int) -> None:
        if (grain, "n") not in self.running:
            put(self.table, grain, self.now + delay)

    @rule(by=st.integers(1, 30))
    def wait(self, by: int) -> None:
        self.now += by

    @rule(is_half=st.booleans())
    def move(self, is_half: bool) -> None:
        self.owned = HALF if is_half else WHOLE
        self.agenda.own(self.owned)

    @precondition(lambda self: self.read is None)
    @rule(is_new=st.booleans())
    def begin_read(self, is_new: bool) -> None:
        if is_new or self.agenda.needs_sweep:
            self.agenda.begin_sweep(self.now + 100)
        self.read = self.agenda.next_read()

    @precondition(lambda self: self.read is not None and self.rows is None)
    @rule()
    def answer(self) -> None:
        assert self.read is not None
        self.rows = fetch(self.table, self.read)

    @precondition(lambda self: self.rows is not None)
    @rule(fails=st.booleans())
    def end_read(self, fails: bool) -> None:
        assert self.read is not None and self.rows is not None
        if fails:
            self.agenda.fail_read(self.read)
        else:
            accept(self.agenda, self.read, self.rows)
        self.read = self.rows = None

    @rule()
    def take(self) -> None:
        for reminder in self.agenda.take_due(self.now):
            assert reminder.key not in self.running
            assert bucket_of(reminder.grain) in self.owned
            assert reminder.record.due_ms is not None and reminder.record.due_ms <= self.now
            self.running[reminder.key] = reminder

    @precondition(lambda self: self.running)
    @rule(is_retried=st.booleans(), delay=st.integers(1, 90))
    def end(self, is_retried: bool, delay: int) -> None:
        key = next(iter(self.running))
        reminder = self.running.pop(key)
        rows = self.table.rows_of(reminder.grain)
        if is_retried:
            self.agenda.retry(key, self.now + delay)
        elif rows and rows[0].etag == reminder.etag:
            self.agenda.finish(key, put(self.table, reminder.grain, self.now + delay))
        else:
            self.agenda.finish(key, read_row(rows[0]) if rows else None)

    @invariant()
    def keeps_its_invariants(self) -> None:
        self.agenda.check()
        assert len(self.running) == self.agenda.running

    def teardown(self) -> None:
        """In the end, whole sweeps deliver everything that is due and owned, and nothing else."""
        for key in list(self.running):
            self.running.pop(key)
            rows = self.table.rows_of(key[0])
            self.agenda.finish(key, read_row(rows[0]) if rows else None)
        self.now += 1_000
        due = {g for g in GRAINS if self.table.rows_of(g) and bucket_of(g) in self.owned}
        delivered: set[str] = set()
        for _ in range(30):
            if not self.agenda.is_sweeping:
                self.agenda.begin_sweep(self.now)
            read = self.agenda.next_read()
            if read is not None:
                accept(self.agenda, read, fetch(self.table, read))
            for one in self.agenda.take_due(self.now):
                rows = self.table.rows_of(one.grain)
                if rows and rows[0].etag == one.etag:
                    delivered.add(one.grain)
                    drop(self.table, one.grain)
                self.agenda.finish(one.key, None)
        assert delivered == due


TestAgenda = AgendaMachine.TestCase
TestAgenda.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_stored_rows_and_buckets_keep_their_form() -> None:
    """Rows that this version has written must be readable for ever."""
    schedule = ReminderSchedule(cron="0 6 * * *", time_zone="Europe/Berlin", missed="all")
    record = ReminderRecord(schedule, 1000, 5000, 7, True)
    data = bytes.fromhex(
        "4d5372770100000000000000000000000000000042893c410bc0576e959500c0a9302036202a202a202a"
        "ad4575726f70652f4265726c696ea3616c6ccd03e8cd138807c3"
    )
    row = make_row("Bell/é", "ring", record)
    assert row == ReminderRow("Bell/é", "ring", 390, 5000, data, "")
    assert read_row(row).record == record
    buckets = [bucket_of(grain) for grain in ("Bell/g0", "Bell/g1", "Order/tea", "T%2Fx/é")]
    assert buckets == [0, 703, 0, 252]
