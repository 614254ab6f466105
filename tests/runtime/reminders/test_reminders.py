"""Reminders of grains in one silo, in virtual time: an author's view of them."""

from __future__ import annotations

import asyncio
import importlib.metadata
import pydoc
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.providers.sqlite import SqliteReminderTable
from millstream.runtime import (
    CallCycle,
    ConfigError,
    Contract,
    DefinitionError,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    MemoryReminderTable,
    MemoryStateStore,
    NotRemote,
    Occurrence,
    Reminder,
    ReminderRow,
    RuntimeOptions,
    Silo,
    StorageUnavailable,
    always_interleave,
    grain,
    read_only,
    reminder,
    state,
    timeout,
    timer,
    with_options,
)
from millstream.runtime.testing import (
    FailingReminderTable,
    SimCluster,
    SimEnv,
    Simulation,
    grain_of,
    home_of,
    run,
)

LOG: list[tuple[float, str]] = []
GOT: list[Occurrence] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
STARTED = [0.0, 0.0]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    GOT.clear()
    GATES.clear()
    yield


def elapsed() -> float:
    return asyncio.get_running_loop().time() - STARTED[0]


def note(what: str) -> None:
    LOG.append((round(elapsed(), 2), what))


def times(what: str) -> list[float]:
    """Return the seconds since the start of the test at which something happened."""
    return [at_s for at_s, event in LOG if event == what]


def near(*times_s: float, within: float = 0.1) -> list[Any]:
    return [pytest.approx(at_s, abs=within) for at_s in times_s]


def in_silo(
    main: Callable[[Silo], Awaitable[None]],
    *grains: type[Grain],
    options: RuntimeOptions | None = None,
    table: MemoryReminderTable | None = None,
) -> None:
    """Run a test in a silo, in virtual time."""

    async def driver(sim: Simulation) -> None:
        async with SimCluster(
            sim, silos=1, grains=grains, options=options, reminders=table, skew_s=0.0
        ) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None

            async def program() -> None:
                STARTED[:] = asyncio.get_running_loop().time(), wall_s(silo)
                await main(silo)

            await sim.call(sim.host(cluster.names[0]), program())

    run(driver, seed=1)


def wall_s(silo: Silo) -> float:
    return silo.services.clock.wall_s()


def step_clock(silo: Silo, by_s: float) -> None:
    env = silo.assembly.env
    assert isinstance(env, SimEnv)
    env.step_clock(by_s)


class Marked(Grain):
    """Has a reminder whose schedule is in its mark."""

    @reminder(every=60)
    async def ring(self, occurrence: Occurrence) -> None:
        note(f"ring {occurrence.number}")
        GOT.append(occurrence)

    async def wake(self) -> None:
        note("call")

    async def cancel(self) -> bool:
        return await self.context.reminders.cancel("ring")

    async def names(self) -> list[str]:
        return [one.name for one in await self.context.reminders.list()]

    async def end(self) -> None:
        self.context.deactivate_when_idle()


class Asking(Grain):
    """Sets reminders on request."""

    @reminder
    async def ring(self, occurrence: Occurrence) -> None:
        note("ring")
        GOT.append(occurrence)

    @reminder
    async def fail(self, occurrence: Occurrence) -> None:
        note("fail")
        raise ValueError("no occurrence today")

    @reminder
    @timeout(5.0)
    async def hang(self, occurrence: Occurrence) -> None:
        note("hang")
        await GATES["never"].wait()

    @reminder
    async def stay(self, occurrence: Occurrence) -> None:
        note(f"+stay {occurrence.number}")
        await GATES["stay"].wait()
        note(f"-stay {occurrence.number}")

    @reminder
    async def stop(self, occurrence: Occurrence) -> None:
        note("stop")
        await self.context.reminders.cancel("stop")

    @reminder
    async def again(self, occurrence: Occurrence) -> None:
        note(f"again {occurrence.number}")
        if len(times("again 1")) < 3:
            await self.context.reminders.set("again", at=occurrence.due + timedelta(seconds=7))

    async def wait(self, gate: str) -> None:
        note(f"+{gate}")
        await GATES[gate].wait()

    async def every(self, name: str, seconds: float, missed: str = "once") -> None:
        policy: Any = missed
        await self.context.reminders.set(name, every=seconds, missed=policy)

    async def at(self, name: str, wall_s: float) -> str:
        found = await self.context.reminders.set(name, at=datetime.fromtimestamp(wall_s, UTC))
        return found.due.isoformat()

    async def cron(self, name: str, line: str, zone: str | None) -> str:
        found = await self.context.reminders.set(name, cron=line, time_zone=zone)
        return found.due.isoformat()

    async def cancel(self, name: str) -> bool:
        return await self.context.reminders.cancel(name)

    async def listed(self) -> list[str]:
        return [f"{one.name} {one.number}" for one in await self.context.reminders.list()]


# --- when a reminder is delivered ----------------------------------------------------------------


def test_the_first_activation_stores_a_marked_reminder_and_its_cadence_is_kept() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Marked, "a")
        await ref.wake()
        assert await ref.names() == ["ring"]
        await asyncio.sleep(25)
        await ref.end()
        await asyncio.sleep(5)
        await ref.wake()  # the second activation changes nothing
        await asyncio.sleep(160)
        assert [at for at, what in LOG if what.startswith("ring")] == near(60, 120, 180)
        assert [one.number for one in GOT] == [1, 2, 3]
        first, second, third = [one.due for one in GOT]
        assert second - first == third - second == timedelta(seconds=60)
        assert all(one.due.tzinfo is UTC and 0 <= one.late_s < 0.1 for one in GOT)
        assert not any(one.is_missed for one in GOT)

    in_silo(main, Marked)


def test_an_occurrence_activates_its_grain() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Marked, "a").wake()
        await asyncio.sleep(50)
        assert silo.assembly.catalog.count == 0
        await asyncio.sleep(11)
        assert silo.assembly.catalog.count == 1 and times("ring 1") == near(60)

    in_silo(main, Marked, options=RuntimeOptions(idle_after_s=5, collect_every_s=1))


def test_a_reminder_is_set_at_a_time_once() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.at("ring", STARTED[1] + 5)
        assert await ref.listed() == ["ring 1"]
        await asyncio.sleep(200)
        assert times("ring") == near(5)
        assert await ref.listed() == []
        await ref.at("ring", wall_s(silo) - 1)  # a time in the past: at once
        await asyncio.sleep(1)
        assert times("ring") == near(5, 200)

    in_silo(main, Asking)


def test_a_cron_line_fires_in_its_zone() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        # the simulated clock starts at 2023-11-14 22:13:20 UTC
        assert await ref.cron("ring", "20 23 * * *", "Europe/Berlin") == "2023-11-14T22:20:00+00:00"
        await asyncio.sleep(450)
        assert times("ring") == near(400 - (STARTED[1] - 1_700_000_000))
        assert GOT[0].due == datetime(2023, 11, 14, 22, 20, tzinfo=UTC)

    in_silo(main, Asking)


def test_set_replaces_the_reminder_of_the_same_name() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.every("ring", 60)
        await asyncio.sleep(30)
        await ref.every("ring", 100)
        await asyncio.sleep(120)
        assert times("ring") == near(130)
        assert GOT[0].number == 1

    in_silo(main, Asking)


def test_a_handler_that_sets_its_own_reminder_wins_over_the_cadence() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").at("again", STARTED[1] + 5)
        await asyncio.sleep(60)
        assert times("again 1") == near(5, 12, 19)
        assert await silo.grain(Asking, "a").listed() == []

    in_silo(main, Asking)


def test_an_occurrence_waits_for_its_turn() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.every("ring", 60)
        await asyncio.sleep(59)
        waiting = asyncio.create_task(ref.wait("g"))
        await asyncio.sleep(6)
        assert times("ring") == []
        GATES["g"].set()
        await waiting
        await asyncio.sleep(0.1)
        assert times("ring") == near(65)

    in_silo(main, Asking)


def test_an_occurrence_begins_a_chain_of_its_own() -> None:
    class Curious(Asking):
        @reminder
        async def call_self(self, occurrence: Occurrence) -> None:
            assert not self.context.headers
            note("own")
            try:
                await self.grain(Curious, self.key).listed()
            except CallCycle:
                note("cycle")

    async def main(silo: Silo) -> None:
        ref = silo.grain(Curious, "a")
        await with_options(ref, headers={"trace": "1"}).at("call_self", STARTED[1] + 5)
        await asyncio.sleep(6)
        assert [what for _, what in LOG] == ["own", "cycle"]

    in_silo(main, Curious)


def test_one_delivery_of_a_reminder_at_a_time_and_the_cadence_goes_on() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("stay", 60)
        await asyncio.sleep(65)
        GATES["stay"].set()
        await asyncio.sleep(60)
        assert [what for _, what in LOG] == ["+stay 1", "-stay 1", "+stay 2", "-stay 2"]
        assert times("+stay 2") == near(120)

    in_silo(main, Asking)


def test_a_handler_that_fails_is_logged_and_the_next_occurrence_comes_at_its_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("fail", 60)
        await asyncio.sleep(150)
        assert times("fail") == near(60, 120)
        assert caplog.text.count("Asking/a: reminder fail, occurrence 1 failed") == 1
        assert "no occurrence today" in caplog.text
        assert silo.reminder_counts().failed == 2

    in_silo(main, Asking)


def test_a_handler_that_hangs_ends_by_its_deadline_and_the_next_occurrence_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.every("hang", 60)
        await asyncio.sleep(61)
        await ref.listed()  # waits for the handler
        assert elapsed() == pytest.approx(65, abs=0.2)
        await asyncio.sleep(65)
        assert times("hang") == near(60, 120)
        assert "reminder hang, occurrence 1 did not end within its deadline (5 s)" in caplog.text

    in_silo(main, Asking)


def test_states_that_are_written_with_each_turn_are_written_with_an_occurrence() -> None:
    class Counting(Grain):
        count = state(int, write="turn")

        @reminder(every=60)
        async def ring(self, occurrence: Occurrence) -> None:
            self.count.value += 1
            self.context.deactivate_when_idle()

        async def read(self) -> int:
            return self.count.value

    async def main(silo: Silo) -> None:
        ref = silo.grain(Counting, "a")
        assert await ref.read() == 0
        await asyncio.sleep(125)
        assert await ref.read() == 2

    in_silo(main, Counting)


# --- missed occurrences and clocks ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "wanted"),
    [
        # 10 minutes without the table's silo: occurrences at 60, ..., 600 s
        ("skip", [(600, False)]),
        ("once", [(540, True), (600, False)]),
        ("all", [(60 * n, n < 10) for n in range(1, 11)]),
    ],
)
def test_missed_occurrences_after_an_outage(missed: str, wanted: list[tuple[int, bool]]) -> None:
    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=1, grains=[Asking], skew_s=0.0) as cluster:
            name = cluster.names[0]
            silo = cluster.silo(name)
            assert silo is not None
            await sim.call(sim.host(name), silo.grain(Asking, "a").every("ring", 60, missed))
            STARTED[:] = sim.loop.time(), wall_s(silo)
            sim.crash(name)
            await asyncio.sleep(625)
            cluster.boot(name)
            await cluster.until_active()
            await asyncio.sleep(20)
            found = [(round(one.due.timestamp() - STARTED[1]), one.is_missed) for one in GOT]
            assert found == wanted
            assert [one.number for one in GOT] == list(range(1, len(wanted) + 1))
            await asyncio.sleep(35)
            assert round(GOT[-1].due.timestamp() - STARTED[1]) == 660 and not GOT[-1].is_missed
            await asyncio.sleep(0)

    run(driver, seed=3)


def test_a_clock_that_steps_back_repeats_nothing() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 60)
        await asyncio.sleep(61)
        step_clock(silo, -50.0)
        await asyncio.sleep(105)
        assert times("ring") == near(60)
        await asyncio.sleep(10)
        assert times("ring") == near(60, 170)
        assert [one.number for one in GOT] == [1, 2]

    in_silo(main, Asking)


def test_a_clock_that_steps_forward_fires_early_by_the_step() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 600)
        await asyncio.sleep(500)
        step_clock(silo, 80.0)
        await asyncio.sleep(30)
        assert times("ring") == near(520, within=1.1)
        step_clock(silo, -80.0)
        await asyncio.sleep(660)
        assert times("ring") == near(520, within=1.1)
        await asyncio.sleep(20)
        assert times("ring")[1:] == near(1200)

    in_silo(main, Asking)


def test_a_loaded_reminder_follows_a_step_of_the_clock() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 60)
        await asyncio.sleep(10)
        step_clock(silo, 40.0)
        await asyncio.sleep(14)
        assert times("ring") == near(20, within=1.1)

    in_silo(main, Asking)


def test_a_jump_far_ahead_is_an_outage_and_gives_no_burst() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 60, "skip")
        step_clock(silo, 86_400.0)
        await asyncio.sleep(40)
        assert len(times("ring")) <= 1

    in_silo(main, Asking)


# --- cancel --------------------------------------------------------------------------------------


def test_no_occurrence_starts_after_cancel() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.every("ring", 60)
        await asyncio.sleep(65)
        assert await ref.cancel("ring") is True
        assert await ref.cancel("ring") is False
        await asyncio.sleep(300)
        assert times("ring") == near(60)
        assert await ref.listed() == []
        assert silo.reminder_counts().loaded == 0

    in_silo(main, Asking)


def test_a_cancelled_marked_reminder_stays_cancelled_until_it_is_set() -> None:
    class Settable(Marked):
        async def set(self) -> None:
            await self.context.reminders.set("ring", every=90)

    async def main(silo: Silo) -> None:
        ref = silo.grain(Settable, "a")
        assert await ref.cancel() is True
        assert await ref.names() == []
        await ref.end()
        await asyncio.sleep(100)
        await ref.wake()
        assert await ref.names() == []
        await asyncio.sleep(100)
        assert GOT == []
        await ref.set()
        await ref.end()
        await asyncio.sleep(1)
        await ref.wake()
        await asyncio.sleep(100)
        assert len(GOT) == 1

    in_silo(main, Settable)


def test_a_handler_that_cancels_its_own_reminder_ends_it() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("stop", 60)
        await asyncio.sleep(300)
        assert times("stop") == near(60)
        assert await silo.grain(Asking, "a").listed() == []

    in_silo(main, Asking)


def test_cancel_wins_over_a_delivery_that_runs() -> None:
    @grain(reentrant=True)
    class Open(Asking): ...

    async def main(silo: Silo) -> None:
        ref = silo.grain(Open, "a")
        await ref.every("stay", 60)
        await asyncio.sleep(61)
        assert times("+stay 1") == near(60)
        assert await ref.cancel("stay") is True
        GATES["stay"].set()
        await asyncio.sleep(300)
        assert [what for _, what in LOG] == ["+stay 1", "-stay 1"]
        assert await ref.listed() == []

    in_silo(main, Open)


def test_a_cancel_during_the_check_of_a_delivery_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delivery reads the table, and the answer comes after the cancellation."""

    @grain(reentrant=True)
    class Open(Asking): ...

    place = "millstream.runtime.reminders.checked_table.CheckedTable"
    find: Any = pydoc.locate(f"{place}.find")
    slow: list[bool] = []

    async def find_slowly(self: Any, grain: str, name: str) -> Any:
        found = await find(self, grain, name)
        if slow:
            slow.clear()
            note("read")
            await asyncio.sleep(1.0)
        return found

    monkeypatch.setattr(f"{place}.find", find_slowly)

    async def main(silo: Silo) -> None:
        ref = silo.grain(Open, "a")
        await ref.every("ring", 60)
        await asyncio.sleep(70)
        slow.append(True)
        await asyncio.sleep(50.5)
        assert times("read") == near(120)
        assert await ref.cancel("ring") is True
        await asyncio.sleep(100)
        assert times("ring") == near(60)

    in_silo(main, Open)


def test_a_changed_mark_replaces_the_stored_schedule() -> None:
    table = MemoryReminderTable()

    @grain(name="Changing")
    class Before(Marked): ...

    @grain(name="Changing")
    class After(Grain):
        @reminder(every=600)
        async def ring(self, occurrence: Occurrence) -> None:
            note("later")

        async def wake(self) -> list[float | None]:
            return [one.every for one in await self.context.reminders.list()]

    async def before(silo: Silo) -> None:
        await silo.grain(Before, "a").wake()

    async def after(silo: Silo) -> None:
        assert await silo.grain(After, "a").wake() == [600.0]
        await asyncio.sleep(700)
        assert times("later") == near(600)

    in_silo(before, Before, table=table)
    in_silo(after, After, table=table)


# --- handlers that are gone, and damaged rows ----------------------------------------------------


def test_a_reminder_without_a_handler_is_kept_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = MemoryReminderTable()

    @grain(name="Same")
    class Before(Marked): ...

    @grain(name="Same")
    class Without(Grain):
        @reminder
        async def other(self, occurrence: Occurrence) -> None: ...

        async def listed(self) -> list[str]:
            return [one.name for one in await self.context.reminders.list()]

        async def cancel(self) -> bool:
            return await self.context.reminders.cancel("ring")

    async def before(silo: Silo) -> None:
        await silo.grain(Before, "a").wake()

    async def without(silo: Silo) -> None:
        await asyncio.sleep(300)
        assert silo.reminder_counts().without_handler == 1
        text = "reminder ring of Same/a is due, and no active silo has Same.ring with @reminder"
        assert caplog.text.count(text) == 1
        assert await silo.grain(Without, "a").listed() == ["ring"]

    async def back(silo: Silo) -> None:
        await asyncio.sleep(70)
        assert [one.number for one in GOT] == [1]

    async def cancelled(silo: Silo) -> None:
        assert await silo.grain(Without, "a").cancel() is True
        assert await silo.grain(Without, "a").listed() == []
        await asyncio.sleep(100)
        assert silo.reminder_counts().without_handler == 0

    in_silo(before, Before, table=table)
    in_silo(without, Without, table=table)
    in_silo(back, Before, table=table)
    in_silo(cancelled, Without, table=table)


def test_a_damaged_row_is_reported_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    import msgspec

    table = MemoryReminderTable()

    async def main(silo: Silo) -> None:
        for key in "abc":
            await silo.grain(Asking, key).every("ring", 60)
        (row,) = table.rows_of("Asking/b")
        damaged = bytes([*row.data[:-1], row.data[-1] ^ 1])
        table.put(msgspec.structs.replace(row, data=damaged), row.etag)
        (row,) = table.rows_of("Asking/c")
        moved = msgspec.structs.replace(row, due_ms=(row.due_ms or 0) - 5000)
        table.put(moved, row.etag)
        await asyncio.sleep(100)
        assert len(times("ring")) == 1
        assert silo.reminder_counts().damaged == 2
        assert "row reminder ring of Asking/b is damaged" in caplog.text
        assert "reminder ring of Asking/c: its columns state" in caplog.text
        assert await silo.grain(Asking, "b").listed() == []
        await silo.grain(Asking, "b").every("ring", 60)  # repairs the row
        assert await silo.grain(Asking, "c").cancel("ring") is True
        await asyncio.sleep(70)
        assert silo.reminder_counts().damaged == 0
        assert len(times("ring")) == 3

    in_silo(main, Asking, table=table)


# --- the table -----------------------------------------------------------------------------------


def test_an_occurrence_that_is_due_when_the_table_comes_back_is_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Orleans: StorageRecoveryAtExactDueTime_DeliversDueOccurrence."""
    table = FailingReminderTable()

    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 100)
        await silo.grain(Asking, "b").at("ring", STARTED[1] + 100)
        table.fail("due", times=10**6)
        await asyncio.sleep(50)
        table.fail("due", times=1)
        table._failures._said.clear()
        await asyncio.sleep(60)
        assert times("ring") == near(100, 100)
        assert "reminders cannot be read" in caplog.text

    in_silo(main, Asking, table=table)


@pytest.mark.parametrize("idle_s", [900.0, 2.0])
def test_a_row_that_cannot_advance_does_not_repeat_its_handler(idle_s: float) -> None:
    """Also when the activation, which knows what it has handled, ends meanwhile."""
    table = FailingReminderTable()

    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 60)
        table.fail("upsert", times=3)
        table.fail("upsert", times=2, is_done=True)
        await asyncio.sleep(150)
        assert times("ring") == near(60, 120)
        assert await silo.grain(Asking, "a").listed() == ["ring 3"]

    options = RuntimeOptions(idle_after_s=idle_s, collect_every_s=0.5)
    in_silo(main, Asking, table=table, options=options)


def test_a_table_that_never_answers_is_not_waited_for() -> None:
    table = FailingReminderTable()

    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").every("ring", 60)
        table.fail("due", times=2, hangs=True)
        table.fail("read", times=2, hangs=True)
        await asyncio.sleep(150)
        assert len(times("ring")) >= 2

    in_silo(main, Asking, table=table)


@pytest.mark.parametrize("how", ["raises", "repeats", "greedy", "strange"])
def test_a_table_that_is_wrong_does_not_end_deliveries(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(MemoryReminderTable):
        is_wrong = True

        def list_due(self, *args: Any) -> Any:
            if not self.is_wrong:
                return super().list_due(*args)
            if how == "raises":
                raise ConfigError("a bug")
            if how == "repeats":  # the same full page again and again
                buckets, _, before_ms, limit = args
                found = super().list_due(buckets, None, before_ms, limit)
                return (list(found) * limit)[:limit]
            if how == "greedy":
                buckets, after, before_ms, _ = args
                return super().list_due(buckets, after, before_ms, 10**6)
            return [ReminderRow("no grain", "x", 0, 5, b"y", "z")]

    table = Wrong()

    async def main(silo: Silo) -> None:
        for number in range(30):
            await silo.grain(Asking, str(number)).every("ring", 60)
        await asyncio.sleep(40)
        table.is_wrong = False
        await asyncio.sleep(100)
        assert len(times("ring")) == 60
        assert silo.reminder_counts().damaged == 0

    most = 20 if how == "greedy" else 100
    in_silo(main, Asking, table=table, options=RuntimeOptions(reminders_loaded_max=most))
    if how in ("raises", "repeats"):
        text = "ConfigError: a bug" if how == "raises" else "correct `due` of the table"
        assert text in caplog.text


def test_a_grain_whose_reminders_cannot_be_stored_does_not_start() -> None:
    table = FailingReminderTable()

    async def main(silo: Silo) -> None:
        table.fail("read", times=1)
        with pytest.raises(StorageUnavailable):
            await silo.grain(Marked, "a").wake()
        await silo.grain(Marked, "a").wake()
        assert await silo.grain(Marked, "a").names() == ["ring"]

    in_silo(main, Marked, table=table)


def test_a_delivery_that_does_not_reach_the_grain_is_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Shy(Marked):
        async def on_activate(self) -> None:
            if times("shy"):
                return
            note("shy")
            raise ValueError("not now")

    table = MemoryReminderTable()

    async def main(silo: Silo) -> None:
        note("shy")
        await silo.grain(Shy, "a").wake()
        await silo.grain(Shy, "a").end()
        LOG.clear()
        await asyncio.sleep(65)
        assert [what for _, what in LOG] == ["shy", "ring 1"]
        assert times("ring 1") == near(61, within=1.0)
        assert "reminder ring of Shy/a was not delivered, attempt 1" in caplog.text

    in_silo(main, Shy, table=table)


def test_deliveries_have_a_limit() -> None:
    async def main(silo: Silo) -> None:
        for number in range(9):
            await silo.grain(Asking, str(number)).at("stay", STARTED[1] + 10)
        await asyncio.sleep(12)
        assert len(times("+stay 1")) == 2 == silo.reminder_counts().running
        GATES["stay"].set()
        await asyncio.sleep(1)
        assert len(times("+stay 1")) == 9

    in_silo(main, Asking, options=RuntimeOptions(reminder_deliveries_max=2))


# --- wrong uses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every": 5}, r"every=5: a reminder has a period of at least 60 s; .* use `@timer`"),
        ({"every": 59.999}, "at least 60 s"),
        ({"every": float("inf")}, "write a finite number of seconds"),
        ({"every": True}, "write a finite number of seconds"),
        ({"every": "60"}, "write a finite number of seconds"),
        ({"every": 1e12}, "a period of at most"),
        ({"cron": "* * *"}, r"has 3 fields: write five fields"),
        ({"cron": "* * * * * *"}, r"has 6 fields: write five fields"),
        ({"cron": "61 * * * *"}, r"bad minute: write five fields"),
        ({"cron": 5}, "write five fields"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "0 0 31 4 *"}, "bad day-of-month"),
        ({"cron": "0 0 * * *", "time_zone": "Europe/Berln"}, r"unknown: write a name of the IANA"),
        ({"cron": "0 0 * * *", "time_zone": "../etc/passwd"}, "unknown: write a name"),
        ({"cron": "0 0 * * *", "time_zone": "Europe"}, "unknown: write a name"),
        ({"cron": "0 0 * * *", "time_zone": ""}, "unknown: write a name"),
        ({"every": 60, "time_zone": "UTC"}, "time_zone= has an effect only with cron="),
        ({"every": 60, "cron": "* * * * *"}, "write exactly one of every=, at= and cron="),
        ({"every": 60, "missed": "twice"}, 'missed=.twice.: write missed="skip", "once" or "all"'),
        ({"missed": "all"}, "belong to a schedule: add every= or cron="),
        ({"time_zone": "UTC"}, "belong to a schedule"),
    ],
)
def test_a_wrong_mark_is_refused_at_definition(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^reminder\(\.\.\.\): .*{text}"):
        reminder(**arguments)


def test_a_method_that_cannot_be_a_handler_is_refused_with_its_place() -> None:
    place = r"test_reminders\.py:\d+: Wrong\.ring: "
    with pytest.raises(DefinitionError, match=place + r"write `async def ring\(self, occurrence"):

        class Wrong(Grain):
            @reminder  # type: ignore[type-var]
            async def ring(self) -> None: ...

    with pytest.raises(DefinitionError, match=place + r"write `async def ring\(self, occurrence"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @reminder(every=60)  # type: ignore[type-var]
            def ring(self, occurrence: Occurrence) -> None: ...

    with pytest.raises(DefinitionError, match=place + "`@read_only` has no effect on a reminder"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @read_only
            @reminder
            async def ring(self, occurrence: Occurrence) -> None: ...

    with pytest.raises(DefinitionError, match=place + "a method has at most one `@reminder`"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @reminder
            @reminder(every=60)
            async def ring(self, occurrence: Occurrence) -> None: ...

    with pytest.raises(DefinitionError, match=place + "a contract has no reminders"):

        class Wrong(Contract):  # type: ignore[no-redef]
            @reminder
            async def ring(self, occurrence: Occurrence) -> None: ...

    with pytest.raises(DefinitionError, match="`@always_interleave` has no effect on a reminder"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @reminder
            @always_interleave
            async def ring(self, occurrence: Occurrence) -> None: ...

    with pytest.raises(DefinitionError):

        class Wrong(Grain):  # type: ignore[no-redef]
            @timer(5.0)  # type: ignore[type-var]
            @reminder
            async def ring(self, occurrence: Occurrence) -> None: ...

    with pytest.raises(DefinitionError, match="marks a method of a grain, not 60"):
        reminder(60)  # type: ignore[call-overload]


def test_a_handler_cannot_be_called_through_a_reference() -> None:
    async def main(silo: Silo) -> None:
        with pytest.raises(NotRemote, match="a handler that only the runtime calls"):
            await silo.grain(Marked, "a").ring(Occurrence(datetime.now(UTC), 1, 0.0, False))

    in_silo(main, Marked)


def test_a_wrong_reminder_is_refused_at_the_call() -> None:
    class Wrong(Asking):
        async def wrong(self, how: str) -> None:
            reminders: Any = self.context.reminders
            match how:
                case "name":
                    await reminders.set("rign", every=60)
                case "method":
                    await reminders.set("listed", every=60)
                case "naive":
                    await reminders.set("ring", at=datetime(2030, 1, 1))
                case "text":
                    await reminders.set("ring", at="2030-01-01")
                case "short":
                    await reminders.set("ring", every=5)
                case "nothing":
                    await reminders.set("ring")

    async def main(silo: Silo) -> None:
        ref = silo.grain(Wrong, "a")
        for how, text in {
            "name": r"no handler of this name; it has 'again', 'fail', .*write `@reminder` above",
            "method": "no handler of this name",
            "naive": r"has no time zone: write datetime\(\.\.\., tzinfo=UTC\)",
            "text": "write a datetime with a time zone",
            "short": "a period of at least 60 s",
            "nothing": "write exactly one of every=, at= and cron=",
        }.items():
            with pytest.raises(ConfigError, match=rf"Wrong/a: context\.reminders\.set\(.*{text}"):
                await ref.wrong(how)
        assert await ref.listed() == []

    in_silo(main, Wrong)


def test_a_grain_without_reminders_is_told_how_to_have_some() -> None:
    class Plain(Grain):
        async def ask(self) -> None:
            await self.context.reminders.list()

    async def main(silo: Silo) -> None:
        with pytest.raises(ConfigError, match="write `@reminder` above `async def remind"):
            await silo.grain(Plain, "a").ask()
        assert silo.reminder_counts().owned_buckets == 0

    in_silo(main, Plain)


def test_a_silo_needs_a_table_that_its_cluster_shares() -> None:
    shared = MemoryMembershipTable()
    with pytest.raises(ConfigError, match=r"has no reminder table: pass Silo\(reminders="):
        Silo(grains=[Marked], membership=shared)
    with pytest.raises(ConfigError, match="it must be a ReminderTable"):
        Silo(grains=[Marked], reminders=MemoryStateStore())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="it must be a ReminderTable"):
        Silo(grains=[Marked], reminders=MemoryReminderTable)  # type: ignore[arg-type]
    Silo(grains=[Marked])  # in memory, as its state
    Silo(grains=[Marked], membership=shared, reminders=MemoryReminderTable())

    class Plain(Grain): ...

    Silo(grains=[Plain], membership=shared)

    class Elsewhere(MemoryMembershipTable):
        is_of_one_process = False

    with pytest.raises(ConfigError, match=r"is in the memory of this process: pass Silo\(remind"):
        Silo(
            grains=[Marked],
            membership=Elsewhere(),
            stores={"default": MemoryStateStore(private=True)},
            reminders=MemoryReminderTable(),
        )


async def test_a_silo_keeps_reminders_where_its_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.metadata.entry_points
    table = "millstream.providers.sqlite:SqliteReminderTable"
    point = importlib.metadata.EntryPoint("sqlite", table, "millstream.reminders")

    def found(**chosen: Any) -> Any:
        return [point] if chosen == {"group": point.group} else installed(**chosen)

    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    place = f"sqlite:{tmp_path}"
    for names in (["ring"], ["ring"]):
        async with Silo(grains=[Marked], membership=place, stores={"default": place}) as silo:
            assert await silo.grain(Marked, "a").names() == names
            assert silo.reminder_counts().owned_buckets == 1024
    stored = SqliteReminderTable(tmp_path)
    assert [row.name for row in await stored.read("Marked/a")] == ["ring"]
    await stored.aclose()


async def test_a_local_cluster_shares_a_table_in_memory() -> None:
    async with LocalCluster(silos=2, grains=[Marked]) as cluster:
        await cluster.grain(Marked, "a").wake()
        assert await cluster.grain(Marked, "a").names() == ["ring"]


# --- unit tests ----------------------------------------------------------------------------------


async def test_a_unit_test_sees_the_reminders_and_delivers_them_by_hand() -> None:
    asking = grain_of(Asking, "a")
    reminders = home_of(asking).reminders
    await asking.every("ring", 60)
    armed = reminders.armed["ring"]
    assert isinstance(armed, Reminder) and (armed.every, armed.number) == (60.0, 1)
    await reminders.fire("ring", late_s=5.0)
    await reminders.fire("ring", is_missed=True)
    assert [(one.number, one.late_s, one.is_missed) for one in GOT] == [
        (1, 5.0, False),
        (2, 0.0, True),
    ]
    assert GOT[1].due - GOT[0].due == timedelta(seconds=60)
    assert await asking.listed() == ["ring 3"]
    assert await asking.cancel("ring") is True
    assert await asking.cancel("ring") is False
    with pytest.raises(LookupError, match="reminder 'ring' is not set; the grain has set none"):
        await reminders.fire("ring")
    exact = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    found = await reminders.set("ring", at=exact)
    assert (found.due, found.at, found.every, found.cron) == (exact, exact, None, None)
    assert (found.time_zone, found.missed) == ("UTC", "once")
    cron = await reminders.set("fail", cron="0  6 * * *", time_zone="Asia/Tokyo", missed="all")
    assert (cron.at, cron.every, cron.cron) == (None, None, "0 6 * * *")
    assert (cron.time_zone, cron.missed, cron.due.hour) == ("Asia/Tokyo", "all", 21)
    assert await asking.cancel("fail") is True
    await asking.at("ring", 5)
    await reminders.fire("ring")
    assert reminders.armed == {}
    with pytest.raises(ConfigError, match="no handler of this name"):
        await asking.every("rign", 60)
    await asking.every("fail", 60)
    with pytest.raises(ValueError):
        await reminders.fire("fail")
