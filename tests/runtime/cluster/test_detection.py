"""Detection of dead silos: its time, and the silos that must stay."""

from __future__ import annotations

import asyncio
import errno
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.conditions import until

from millstream.runtime import (
    Env,
    Grain,
    LocalCluster,
    MemberRow,
    MembershipOptions,
    Status,
    TableView,
)
from millstream.runtime.cluster.heart import LoopHeart
from millstream.runtime.cluster.prober import LAG_SPARED_S, Prober, Sign, Stamps
from millstream.runtime.cluster.votes import suspect
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import SiloDeclaredDead, SimCluster, Simulation, run

DEFAULT = MembershipOptions()
PATIENT = MembershipOptions(
    probe_every_s=1.0, probe_timeout_s=2.5, missed_probes_max=3, refresh_s=10.0, heartbeat_s=5.0
)
SILOS = 5
TABLE = "00112233aabbccdd"


class Idle(Grain):
    async def where(self) -> str:
        return self.context.silo


def simulate(main: Callable[[Simulation], Awaitable[Any]], seed: int = 1) -> Any:
    async def driver(simulation: Simulation) -> Any:
        return await main(simulation)

    return run(driver, seed, max_virtual_s=900.0).result


def cut_off(simulation: Simulation, cluster: SimCluster, name: str) -> None:
    """Cut the network between the host and the others. The host still reaches the table."""
    for other in cluster.names:
        if other != name:
            simulation.network.partition(name, other)


def isolate(simulation: Simulation, cluster: SimCluster, name: str) -> None:
    simulation.network.isolate(name)


def freeze(simulation: Simulation, cluster: SimCluster, name: str) -> None:
    """Hang the silo: as after SIGSTOP, nothing is reset, answered or stamped."""
    simulation.crash(name, is_silent=True)


def crash(simulation: Simulation, cluster: SimCluster, name: str) -> None:
    simulation.crash(name)


TROUBLES = {"crash": crash, "SIGSTOP": freeze, "isolation": isolate, "cut off": cut_off}


def detection_s(
    trouble: str, options: MembershipOptions, seed: int, silos: int = SILOS
) -> tuple[float, int]:
    """Return the time until the silo is dead for all others, and the number of other dead silos."""

    async def main(simulation: Simulation) -> tuple[float, int]:
        cluster = SimCluster(simulation, silos=silos, grains=[Idle], membership_options=options)
        await cluster.start()
        await asyncio.sleep(simulation.rng.uniform(0, 10))
        name = simulation.rng.choice(cluster.names)
        [lost] = [s.address for s in cluster.silos() if s.address.startswith(f"{name}:")]
        others = [s for s in cluster.silos() if s.address != lost]
        started = simulation.loop.time()
        TROUBLES[trouble](simulation, cluster, name)
        while not all(silo.assembly.membership.is_dead(lost) for silo in others):
            await asyncio.sleep(0.05)
            assert simulation.loop.time() - started < 120, "never noticed"
        took_s = simulation.loop.time() - started
        await asyncio.sleep(30.0)
        dead = {event.silo for _, event in simulation.history.of(SiloDeclaredDead)}
        killed = sum(silo.address in dead for silo in others)
        simulation.repair()
        await cluster.close()
        return took_s, killed

    found: tuple[float, int] = simulate(main, seed)
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize(
    ("options", "p50_s", "max_s", "seeds"),
    [
        pytest.param(DEFAULT, 5.0, 6.0, 4, id="default", marks=pytest.mark.slow),
        pytest.param(DEFAULT, 6.0, 6.0, 1, id="one seed"),
        pytest.param(PATIENT, 14.0, 22.0, 4, id="patient", marks=pytest.mark.slow),
    ],
)
def test_a_silo_in_trouble_is_found_in_time_and_nobody_else_dies(
    options: MembershipOptions, p50_s: float, max_s: float, seeds: int, trouble: str
) -> None:
    found = [detection_s(trouble, options, seed) for seed in range(seeds)]
    times = [took_s for took_s, _ in found]
    print(f"{trouble}: p50 {statistics.median(times):.1f} s, max {max(times):.1f} s")
    assert statistics.median(times) < p50_s and max(times) < max_s
    assert sum(killed for _, killed in found) == 0


@pytest.mark.parametrize("trouble", ["SIGSTOP", "cut off"])
@pytest.mark.parametrize("silos", [2, 3])
def test_one_of_few_silos_is_found_too(silos: int, trouble: str) -> None:
    if silos == 2 and trouble == "cut off":
        return  # of two silos that both run and stamp, only the first may accuse
    assert detection_s(trouble, DEFAULT, 3, silos)[0] < 8.0


@pytest.mark.parametrize("count", [3, 5])
def test_silos_cut_off_one_after_the_other_never_evict_the_majority(count: int) -> None:
    """The vote of the first silo, dead by then, must not count together with a vote of the
    second.
    """

    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=count, grains=[Idle], membership_options=DEFAULT)
        await cluster.start()
        lost = [silo.address for silo in cluster.silos()[:2]]
        first, second, *healthy = cluster.names
        cluster.names = tuple(healthy)
        for name in (first, second)[: 2 if count > 3 else 1]:
            for other in (first, second, *healthy):
                if other != name:
                    simulation.network.partition(name, other)
            await asyncio.sleep(30.0)
        dead = {event.silo for _, event in simulation.history.of(SiloDeclaredDead)}
        assert lost[0] in dead
        for silo in cluster.silos():
            assert silo.address not in dead
        await cluster.close()

    simulate(main)


def test_a_split_in_two_equal_halves_evicts_one_of_them_at_most() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=4, grains=[Idle], membership_options=DEFAULT)
        await cluster.start()
        before = {silo.address for silo in cluster.silos()}
        for left in cluster.names[:2]:
            for right in cluster.names[2:]:
                simulation.network.partition(left, right)
        await asyncio.sleep(60.0)
        dead = {e.silo for _, e in simulation.history.of(SiloDeclaredDead)} & before
        assert {silo.split(":")[0] for silo in dead} <= set(cluster.names[2:])
        assert dead
        await cluster.close()

    simulate(main)


# --- votes ---------------------------------------------------------------------------------------

NOW = 1_000_000.0


def rows(**statuses: Status) -> TableView:
    return TableView(5, tuple(MemberRow(n, s, alive_s=NOW) for n, s in statuses.items()))


def test_the_vote_of_a_silo_that_died_since_does_not_count() -> None:
    view = rows(a=Status.ACTIVE, b=Status.ACTIVE, c=Status.ACTIVE, d=Status.ACTIVE, e=Status.DEAD)
    target = MemberRow("a", Status.ACTIVE, alive_s=NOW, suspicions=(("e", NOW - 1),))
    voted = suspect(view, target, ("b",), NOW, DEFAULT)
    assert voted.status is Status.ACTIVE and voted.suspicions == (("b", NOW),)
    assert suspect(view, voted, ("c",), NOW, DEFAULT).status is Status.DEAD


# --- a single prober -----------------------------------------------------------------------------

OPTIONS = MembershipOptions(
    probe_every_s=0.001, probe_timeout_s=0.05, missed_probes_max=2, heartbeat_s=5.0
)


class Ward:
    """A prober among silos with planned answers, and a voter that records the votes."""

    def __init__(self, *others: str, me: str = "a:1@1") -> None:
        loop, env = asyncio.get_running_loop(), Env(1)
        self.answers: dict[str, bytes | BaseException] = {}
        self.probes: Counter[str] = Counter()
        self.lag_s = 0.0
        self.votes: list[tuple[str, ...]] = []
        self.refreshes = 0
        self.opinions: list[tuple[str, str]] = []
        self.opinion: bool | None = False
        self.is_joining = False
        self.awaited: tuple[str, ...] = ()
        silos = (me, *others)
        self.view = TableView(
            5,
            tuple(
                MemberRow(silo, Status.ACTIVE, probe_port=i, alive_s=NOW)
                for i, silo in enumerate(silos)
            ),
        )
        self._silos = silos
        self.tasks = Tasks(loop, env.new_context)
        transport: Any = SimpleNamespace(probe=self._probe)
        self.prober = Prober(
            me,
            self,
            options=OPTIONS,
            transport=transport,
            env=env,
            tasks=self.tasks,
            lag_s=lambda: self.lag_s,
            table_id=TABLE,
        )
        self.prober.saw(self.view)

    async def _probe(self, address: Any, timeout_s: float) -> bytes:
        silo = self._silos[address.port]
        self.probes[silo] += 1
        answer = self.answers.get(silo, f"0.1 {silo.split('@')[1]} {TABLE}".encode())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def refresh(self) -> None:
        self.refreshes += 1

    async def vote(self, silo: str, /, *others: str) -> None:
        self.votes.append((silo, *others))

    async def ask_other(self, via: str, silo: str, /) -> bool | None:
        self.opinions.append((via, silo))
        return self.opinion

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, within_s=5)

    async def run(self, condition: Callable[[], bool]) -> None:
        self.prober.start()
        try:
            await self.until(condition)
        finally:
            self.prober.close()
            await self.tasks.aclose()


B, C = "b:1@2", "c:1@3"


async def test_a_silo_that_misses_probes_is_voted_against_with_a_second_opinion() -> None:
    ward = Ward(B, C)
    ward.answers[B] = TimeoutError()
    await ward.run(lambda: bool(ward.votes))
    assert ward.votes[0] == (B, C) and ward.opinions[0] == (C, B)


async def test_a_second_opinion_that_says_nothing_is_no_second_vote() -> None:
    ward = Ward(B, C)
    ward.answers[B], ward.opinion = TimeoutError(), None
    await ward.run(lambda: bool(ward.votes))
    assert ward.votes[0] == (B,)


async def test_a_second_opinion_that_it_lives_begins_the_count_anew() -> None:
    ward = Ward(B, C)
    ward.answers[B], ward.opinion = TimeoutError(), True
    await ward.run(lambda: len(ward.opinions) > 3)
    assert not ward.votes


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_prober_without_descriptors_accuses_nobody(number: int) -> None:
    ward = Ward(B, C)
    asked = 0

    async def probe(address: Any, timeout_s: float) -> bytes:
        nonlocal asked
        asked += 1
        raise OSError(number, "Too many open files")

    ward.prober._transport.probe = probe  # type: ignore[method-assign]
    await ward.run(lambda: asked > 20)
    assert not ward.votes and not ward.opinions
    assert await ward.prober.probe(B) is Sign.UNKNOWN


async def test_a_silo_whose_own_loop_lags_accuses_nobody() -> None:
    ward = Ward(B, C)
    ward.answers[B], ward.lag_s = TimeoutError(), LAG_SPARED_S + 0.1
    assert await ward.prober.probe(B) is Sign.UNKNOWN
    ward.prober._missed[B] = 99
    assert not ward.prober.may_accuse(B)
    ward.lag_s = LAG_SPARED_S
    assert ward.prober.may_accuse(B)
    assert await ward.prober.probe(B) is Sign.SILENT


async def test_a_probe_that_this_silo_was_too_late_to_read_says_nothing() -> None:
    ward = Ward(B, C)
    now = 0.0

    async def probe(address: Any, timeout_s: float) -> bytes:
        nonlocal now
        now += timeout_s + LAG_SPARED_S + 0.1  # the loop was blocked while the answer arrived
        raise TimeoutError

    ward.prober._now = lambda: now
    ward.prober._transport.probe = probe  # type: ignore[method-assign]
    assert await ward.prober.probe(B) is Sign.UNKNOWN


async def test_a_wedged_loop_is_voted_against_and_a_busy_one_is_not() -> None:
    ward = Ward(B, C)
    limit_s = OPTIONS.unresponsive_after_s
    ward.answers[B] = f"{limit_s + 1} 2 {TABLE}".encode()
    ward.answers[C] = f"{limit_s - 1} 3 {TABLE}".encode()
    await ward.run(lambda: bool(ward.votes))
    assert {vote[0] for vote in ward.votes} == {B}


async def test_a_silo_that_answers_and_follows_another_table_is_not_accused() -> None:
    ward = Ward(B, C)
    ward.answers[B] = b"0.1 2 ffff"
    ward.answers[C] = ConnectionRefusedError()
    await ward.run(lambda: ward.probes[B] > 10 and bool(ward.votes))
    assert {vote[0] for vote in ward.votes} == {C} and not ward.prober._has_missed(B)
    assert set(ward.prober.strangers) == {B}
    assert str(ward.prober.strangers[B]) == f"{B} follows membership table ffff, not {TABLE}"


async def test_a_silo_that_reaches_fewer_than_half_accuses_none_that_stamps() -> None:
    ward = Ward(B, C)
    ward.answers[B] = ward.answers[C] = TimeoutError()
    ward.prober.start()
    try:
        # it may accuse the first silo until it knows that it reaches neither
        await ward.until(lambda: {B, C} <= set(ward.prober._unreached))
        seen = ward.refreshes
        await ward.until(lambda: ward.refreshes > seen + 1)
        ward.votes.clear()
        await ward.until(lambda: ward.refreshes > seen + 8)
    finally:
        ward.prober.close()
    assert not ward.votes


async def test_silos_whose_ports_refuse_show_that_the_network_is_there() -> None:
    ward = Ward(B, C)
    ward.answers[B] = ward.answers[C] = ConnectionRefusedError()
    await ward.run(lambda: {vote[0] for vote in ward.votes} == {B, C})


@pytest.mark.parametrize(("me", "may"), [("a:1@1", True), ("z:1@1", False)])
async def test_of_two_that_do_not_reach_each_other_the_first_may_accuse(me: str, may: bool) -> None:
    ward = Ward(B, me=me)
    ward.answers[B] = TimeoutError()
    await ward.run(lambda: bool(ward.votes) or ward.refreshes > 5)
    assert bool(ward.votes) is may


async def test_a_silo_that_is_silent_both_ways_may_be_accused_by_who_reaches_nobody() -> None:
    ward = Ward(B, C)
    ward.answers[B] = ward.answers[C] = TimeoutError()
    start_s = asyncio.get_running_loop().time()
    ward.prober._now = lambda: start_s + 12.0  # stamps are older than 2.2 heartbeats
    await ward.run(lambda: {vote[0] for vote in ward.votes} == {B, C})


async def test_an_unexpected_error_does_not_end_the_watch() -> None:
    ward = Ward(B, C)
    ward.answers[B] = RuntimeError("a transport with a fault")
    ward.prober.start()
    await ward.until(lambda: ward.probes[B] > 3)
    assert not ward.votes
    ward.answers[B] = ConnectionRefusedError()
    await ward.run(lambda: bool(ward.votes))


async def test_beside_ring_neighbours_suspects_the_still_and_the_awaited_are_watched() -> None:
    others = [f"x{number}:1@{number}" for number in range(2, 14)]
    ward = Ward(*others)
    ward.prober._options = replace(OPTIONS, probed_silos_max=1)
    [neighbour] = ward.prober._targets(ward.view)
    suspect_, still, awaited, *rest = [silo for silo in others if silo != neighbour]
    assert rest
    ward.awaited = (awaited,)
    ward.view = TableView(
        6,
        tuple(
            MemberRow(
                one.silo,
                one.status,
                alive_s=NOW + (one.silo != still),
                suspicions=((neighbour, NOW),) if one.silo == suspect_ else (),
            )
            for one in ward.view.rows
        ),
    )
    start_s = asyncio.get_running_loop().time()
    ward.prober._now = lambda: start_s + 12.0
    ward.prober.saw(ward.view)
    assert ward.prober._targets(ward.view) == sorted({neighbour, suspect_, still, awaited})


async def test_a_silo_that_lags_gives_others_more_time() -> None:
    ward = Ward(B, C)
    waits: list[float] = []

    async def probe(address: Any, timeout_s: float) -> bytes:
        waits.append(timeout_s)
        return f"0.1 2 {TABLE}".encode()

    ward.prober._transport.probe = probe  # type: ignore[method-assign]
    for lag_s in (0.0, LAG_SPARED_S, 2.0):
        ward.lag_s = lag_s
        assert await ward.prober.probe(B) is Sign.ALIVE
    assert waits == [0.05, 0.05, pytest.approx(0.15)]


# --- the state of other silos ---------------------------------------------------------------------


def stamped(**stamps: float) -> TableView:
    return TableView(5, tuple(MemberRow(s, Status.ACTIVE, alive_s=at) for s, at in stamps.items()))


def test_a_stamp_stands_still_from_when_it_was_first_seen_on_the_own_clock() -> None:
    stamps = Stamps()
    stamps.saw(stamped(a=1_000.0, b=7.0), 50.0)
    assert stamps.still_s("a", 50.0) == 0.0 and stamps.still_s("b", 58.0) == 8.0
    stamps.saw(stamped(a=1_000.0, b=8.0), 60.0)
    assert stamps.still_s("a", 65.0) == 15.0 and stamps.still_s("b", 65.0) == 5.0


def test_a_stamp_that_is_set_back_has_moved() -> None:
    stamps = Stamps()
    stamps.saw(stamped(a=1_000.0), 50.0)
    stamps.saw(stamped(a=400.0), 60.0)
    assert stamps.still_s("a", 61.0) == 1.0


def test_nothing_is_known_of_who_is_not_in_the_table() -> None:
    stamps = Stamps()
    stamps.saw(stamped(a=1.0), 50.0)
    stamps.saw(stamped(b=1.0), 60.0)
    assert stamps.still_s("a", 90.0) == 0.0 and stamps.still_s("c", 90.0) == 0.0


async def test_an_answer_of_another_silo_at_the_probe_port_is_no_sign_of_life() -> None:
    async with LocalCluster(silos=2, grains=[Idle]) as cluster:
        one, two = (silo.assembly.membership for silo in cluster.silos)
        assert await one.prober.probe(two.address) is Sign.ALIVE
        own = one.view.row(one.address)
        assert own is not None
        # two crashed, and another silo got its port
        one.view = TableView(
            one.view.version,
            tuple(msgspec.structs.replace(r, probe_port=own.probe_port) for r in one.view.rows),
        )
        assert await one.prober.probe(two.address) is Sign.REFUSED


# --- the heart -----------------------------------------------------------------------------------


async def test_the_age_of_the_beat_is_what_a_probe_is_told() -> None:
    now = 100.0
    loop: Any = SimpleNamespace(
        time=lambda: now, call_later=lambda *_: SimpleNamespace(), call_soon_threadsafe=print
    )
    heart = LoopHeart(loop, "a:1@7", 30.0, TABLE)
    heart.start()
    now = 100.5
    assert heart.answer() == f"0.500 7 {TABLE}".encode()


async def test_the_lag_is_how_late_a_beat_was_and_fades() -> None:
    now = 100.0
    loop: Any = SimpleNamespace(
        time=lambda: now, call_later=lambda *_: SimpleNamespace(), call_soon_threadsafe=print
    )
    heart = LoopHeart(loop, "a:1@7", 30.0, TABLE)
    heart.start()
    now = 102.25
    heart._beat()
    assert heart.lag_s == 2.0
    now = 102.5
    heart._beat()
    assert heart.lag_s == 1.0
