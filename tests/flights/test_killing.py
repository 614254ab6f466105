"""The silos that are killed while flights are published, with the times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from examples.flights.__main__ import main
from examples.flights.check import Figures
from examples.flights.killing import CHAOS, DOWN_S, ONE, UP_S, Killer, Killing
from examples.flights.progress import Progress
from examples.flights.report import Troubles, judge
from tests.contract.in_virtual_time import in_virtual_time

from millstream.runtime import ClusterError
from millstream.streams import QueueStats, SiloStats


class Silos:
    """Notes each kill and restart of a silo, with its time."""

    def __init__(self, start_s: float = 2.0) -> None:
        self.did: list[tuple[str, int, float]] = []
        self.down: set[int] = set()
        self.start_s = start_s
        self.comes_back = True

    def note(self, what: str, number: int) -> None:
        self.did.append((what, number, asyncio.get_running_loop().time()))

    async def kill(self, number: int, /) -> str:
        assert not self.down, "one at a time"
        self.down.add(number)
        self.note("kill", number)
        return f"silo-{number}"

    async def start_again(self, number: int, /) -> None:
        await asyncio.sleep(self.start_s)
        if not self.comes_back:
            raise ClusterError("no room")
        self.down.remove(number)
        self.note("back", number)

    def victims(self) -> list[int]:
        return [number for what, number, _ in self.did if what == "kill"]


def killer(silos: Silos, plan: Killing, share: Callable[[], float] = lambda: 1.0) -> Killer:
    return Killer(silos, plan, 3, share, lambda text: None)


def test_a_kill_is_due_for_each_part_of_the_job() -> None:
    assert [ONE.is_due(0, share) for share in (0.29, 0.3, 1.0)] == [False, True, True]
    assert not ONE.is_due(1, 1.0)
    assert CHAOS.is_due(3, 0.5) and not CHAOS.is_due(3, 0.49) and not CHAOS.is_due(6, 1.0)


def test_publishing_waits_for_a_kill_before_the_job_is_over() -> None:
    assert ONE.holds(0, 0.6) and not ONE.holds(0, 0.59) and not ONE.holds(1, 1.0)
    for kills in range(CHAOS.kills_max):
        assert CHAOS.holds(kills, 0.875), "and something is published behind it"
        assert not CHAOS.holds(kills, (kills + 1) * CHAOS.every), "else the kill is never due"


def test_silos_are_killed_in_turn_and_each_is_back_before_the_next() -> None:
    silos = Silos()

    async def run() -> None:
        one = killer(silos, CHAOS)
        await one.run()
        assert (one.kills, one.is_busy) == (6, False)
        assert one.back_max_s == pytest.approx(DOWN_S + silos.start_s)

    in_virtual_time(run)
    assert silos.victims() == [2, 1, 0, 2, 1, 0]
    times = [when for _, _, when in silos.did]
    for back, kill in zip(times[1::2], times[2::2], strict=False):
        assert kill - back >= UP_S


def test_one_that_is_not_to_come_back_stays_away() -> None:
    silos = Silos()

    async def run() -> None:
        one = killer(silos, ONE)
        await one.run()
        assert (one.kills, one.back_max_s, one.is_busy) == (1, 0.0, False)

    in_virtual_time(run)
    assert silos.did[0][:2] == ("kill", 2) and silos.down == {2}


def test_a_killer_that_is_told_to_stop_starts_its_last_victim_again() -> None:
    silos = Silos()

    async def run() -> None:
        one = killer(silos, CHAOS)
        running = asyncio.ensure_future(one.run())
        while not silos.down:
            await asyncio.sleep(0.1)
        one.stop()
        assert not one.holds(1.0), "nobody waits for a kill that will not come"
        await running
        assert one.kills == 1

    in_virtual_time(run)
    assert not silos.down


def test_nobody_is_killed_before_it_is_time() -> None:
    silos, share = Silos(), 0.0

    async def run() -> None:
        nonlocal share
        one = killer(silos, CHAOS, lambda: share)
        running = asyncio.ensure_future(one.run())
        await asyncio.sleep(60)
        assert one.kills == 0 and one.holds(0.25) and not one.holds(0.24)
        share = 0.125
        await asyncio.sleep(60)
        assert one.kills == 1 and not one.holds(0.25)
        one.stop()
        await running

    in_virtual_time(run)


def test_one_that_does_not_come_back_is_an_error() -> None:
    silos = Silos()
    silos.comes_back = False

    async def run() -> None:
        with pytest.raises(ClusterError, match="no room"):
            await killer(silos, CHAOS).run()

    in_virtual_time(run)


def sample(read: int, delivered: int) -> list[SiloStats]:
    queue = QueueStats("q0", 1, 0, 0, read, delivered, 0, 0, 1, 0, 0.0, True)
    return [SiloStats("127.0.0.1:1@1", "silo-0", 0, [queue])]


def test_the_longest_stand_still_is_measured_from_the_first_event_on() -> None:
    progress = Progress(expected=100)
    progress.sample(sample(0, 0), 0.0)
    progress.sample(sample(5, 1), 30.0)
    assert progress.still_max_s == 0.0
    progress.sample(sample(5, 1), 33.0)
    progress.sample(sample(5, 2), 34.0)
    progress.sample(sample(5, 3), 36.0)
    assert progress.still_max_s == 4.0


def test_waiting_for_a_kill_is_no_stand_still_once_all_is_delivered() -> None:
    progress = Progress(expected=100)
    progress.sample(sample(5, 3), 0.0)
    progress.held = 1
    progress.sample(sample(5, 5), 1.0)
    progress.sample(sample(5, 5), 9.0)
    progress.sample(sample(6, 6), 9.5)
    assert progress.is_drained and progress.still_max_s == 1.0
    progress.sample(sample(7, 6), 10.0)
    progress.sample(sample(7, 6), 12.0)
    assert not progress.is_drained and progress.find_stuck_s(13.0) == 3.0


def test_the_report_says_what_the_kills_cost() -> None:
    troubles = Troubles(7, 2.31, 1.26, 4)
    report = judge(Figures(), Figures(), 0, 1.0, [], troubles)
    told = list(report.lines())[-2]
    assert told == (
        "7 silos killed and started again, which took at most 2.3 s; longest time without "
        "progress 1.3 s; 4 ensemble changes"
    )
    assert report.as_json()["kills"] == 7
    assert Troubles(1, 0.0, 3.0, 0).line() == "1 silo killed; longest time without progress 3.0 s"
    assert "kills" not in judge(Figures(), Figures(), 0, 1.0, []).as_json()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--kill", "--chaos"], "--chaos kills more than --kill: give one of them"),
        (["--durable", "--local"], "--durable needs silo processes and --silos 3 or more"),
        (["--durable", "--silos", "2"], "--durable needs silo processes and --silos 3 or more"),
        (["--chaos", "--local"], "--chaos needs silo processes and --silos 2 or more"),
        (["--kill", "--silos", "1"], "--kill needs silo processes and --silos 2 or more"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    assert capsys.readouterr().err == f"python -m examples.flights: {text}\n"
