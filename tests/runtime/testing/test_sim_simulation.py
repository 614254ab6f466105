"""Whole runs: determinism, failures that tell how to replay them, nemesis, faults, hosts."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import Address, Link, SiloUnavailable, faults
from millstream.runtime.extending import read_file, replace_file
from millstream.runtime.testing import (
    CallEnded,
    CallStarted,
    FaultPlan,
    HostCrashed,
    HostDown,
    HostUp,
    Outcome,
    Repaired,
    Script,
    SimEnv,
    Simulation,
    SimulationError,
    SimulationFailed,
    Step,
    check_live_after_repair,
    make_random,
    make_script,
    parse_script,
    run,
    shrink,
)

NAMES = ("red", "green", "blue")


class Echo:
    """Sends back the data that it gets."""

    def __init__(self, link: Link) -> None:
        self.link = link
        link.start(self)

    def on_received(self, data: bytes, /) -> None:
        self.link.write(data)

    def writable(self, is_writable: bool, /) -> None:
        self.link.reading(is_writable)

    def on_closed(self, reason: str, /) -> None:
        return None


class Asker:
    """Sends a request, and waits for its echo."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.data = b""
        link.start(self)

    async def ask(self, data: bytes) -> bytes:
        self.link.write(data)
        async with asyncio.timeout(5):
            while self.data != data:
                await self.answer
                self.answer = asyncio.get_running_loop().create_future()
        return self.data

    def on_received(self, data: bytes, /) -> None:
        self.data += data
        if not self.answer.done():
            self.answer.set_result(data)

    def writable(self, is_writable: bool, /) -> None:
        return None

    def on_closed(self, reason: str, /) -> None:
        if not self.answer.done():
            self.answer.set_exception(SiloUnavailable(reason))
            self.answer.exception()  # nobody may be waiting


def accept(link: Link) -> None:
    Echo(link)


async def serve(sim: Simulation, name: str) -> None:
    await sim.transport(sim.host(name)).listen(Address(name, 1), accept)


async def ask_others(sim: Simulation, name: str) -> None:
    """Run a program that calls the other hosts forever."""
    host = sim.host(name)
    env, transport = sim.env(host), sim.transport(host)
    others = [other for other in NAMES if other != name]
    while True:
        await asyncio.sleep(env.uniform(0.1, 1.0))
        call = f"{env.new_id():x}"
        sim.history.record(CallStarted(call, name))
        error = ""
        try:
            link = await transport.connect(Address(others[env.choice(2)], 1))
            try:
                await Asker(link).ask(call.encode() * 20)
            finally:
                link.close()
        except (SiloUnavailable, TimeoutError) as failure:
            error = type(failure).__name__
        sim.history.record(CallEnded(call, error))


def start(sim: Simulation, name: str) -> None:
    sim.spawn(sim.host(name), serve(sim, name))
    sim.spawn(sim.host(name), ask_others(sim, name))


async def stormy_cluster(sim: Simulation) -> int:
    """Run three hosts that call each other through a seeded nemesis."""

    def restart(name: str) -> None:
        sim.restart(name)
        start(sim, name)

    for name in NAMES:
        start(sim, name)
    await sim.nemesis(make_script(sim.rng, NAMES, duration_s=40), restart)
    await asyncio.sleep(20)
    assert check_live_after_repair(sim.history, 11) == []
    return sum(1 for _ in sim.history.of(CallEnded))


def fingerprint(outcome: Outcome[int]) -> str:
    calls = [event.call for _, event in outcome.history.of(CallStarted)]
    return f"{outcome.trace_hash} {outcome.iterations} {outcome.virtual_s!r} {calls[-1]}"


def test_equal_seeds_give_equal_runs_and_other_seeds_others() -> None:
    runs = [run(stormy_cluster, seed) for seed in (17, 18, 17)]
    assert fingerprint(runs[0]) == fingerprint(runs[2]) != fingerprint(runs[1])
    assert all(outcome.result > 50 for outcome in runs)
    assert [outcome.virtual_s for outcome in runs] == pytest.approx([60] * 3, abs=0.001)


REPLAY = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("replayed", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["replayed"] = module
spec.loader.exec_module(module)
print(module.fingerprint(module.run(module.stormy_cluster, 17)))
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_run_is_the_same_in_another_process_with_another_hash_seed(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", REPLAY, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == fingerprint(run(stormy_cluster, 17))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(100, 110))
def test_storm_leaves_no_warning_and_no_stuck_call(seed: int) -> None:
    assert run(stormy_cluster, seed).result > 50
    gc.collect()


def test_collector_state_and_fault_hook_are_put_back() -> None:
    async def main(sim: Simulation) -> bool:
        return gc.isenabled()

    assert gc.isenabled() and not run(main, 1).result and gc.isenabled()
    assert faults.install(None) is None


def test_failing_driver_prints_seed_time_script_events_and_command() -> None:
    async def main(sim: Simulation) -> None:
        script = parse_script("0.5 partition a b\n2 repair")
        sim.host("a")
        sim.nemesis(script, print)
        await asyncio.sleep(1.5)
        raise AssertionError("two owners")

    with pytest.raises(SimulationFailed) as caught:
        run(main, 17, replay="python -m tests.sim --suite calls --seed 17")
    assert str(caught.value).splitlines() == [
        "seed 17 failed at t=1.500000 s: AssertionError",
        "nemesis script:",
        "  0.500000 partition a b",
        "  2.000000 repair",
        "last events:",
        "    0.000000 HostUp(host='a')",
        "replay: python -m tests.sim --suite calls --seed 17",
    ]
    assert isinstance(caught.value.__cause__, AssertionError)
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("AssertionError: two owners") == 1
    assert caught.value.report.startswith(
        "seed 17 failed at t=1.500000 s: AssertionError: two owners\nnemesis script:\n"
    )
    assert (caught.value.seed, len(caught.value.script)) == (17, 2)


def test_a_violation_is_told_with_the_events_around_it() -> None:
    async def main(sim: Simulation) -> None:
        for number in range(100):
            sim.history.record(HostUp(f"h{number}"))
            await asyncio.sleep(1)
        raise AssertionError("t=40.000000: two owners, since t=3.000000")

    with pytest.raises(SimulationFailed) as caught:
        run(main, 1)
    told = str(caught.value)
    assert "events around t=40.000000 s:\n" in told and "last events" not in told
    shown = [int(number) for number in re.findall(r"HostUp\(host='h(\d+)'\)", told)]
    assert shown == list(range(31, 51))


async def _fails() -> None:
    raise ZeroDivisionError("in the background")


def test_spawned_task_that_fails_unseen_fails_the_run() -> None:
    async def main(sim: Simulation) -> None:
        sim.spawn(sim.host("a"), _fails())
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailed, match="ZeroDivisionError"):
        run(main, 1)


def test_spawned_task_whose_error_was_taken_does_not_fail_the_run() -> None:
    async def main(sim: Simulation) -> None:
        with pytest.raises(ZeroDivisionError):
            await sim.spawn(sim.host("a"), _fails())
        with pytest.raises(ZeroDivisionError):
            await sim.call(sim.host("a"), _fails())

    run(main, 1)


def test_callback_that_raises_fails_the_run() -> None:
    async def main(sim: Simulation) -> None:
        sim.loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailed, match="ZeroDivisionError"):
        run(main, 1)


def test_unseen_errors_are_named_beside_the_deadlock_that_they_cause() -> None:
    async def main(sim: Simulation) -> None:
        sim.spawn(sim.host("a"), _fails())
        await asyncio.Event().wait()

    with pytest.raises(SimulationFailed, match=r"Deadlock(.|\n)*also uncaught:\n  ZeroDivision"):
        run(main, 1)


def test_driver_that_waits_too_long_fails() -> None:
    async def main(sim: Simulation) -> None:
        await asyncio.sleep(11)

    with pytest.raises(SimulationFailed, match="VirtualTimeExceeded"):
        run(main, 1, max_virtual_s=10)


def test_call_ends_with_the_result_or_with_the_host() -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("a")
        assert await sim.call(host, asyncio.sleep(1, "result")) == "result"
        sim.loop.call_later(1, sim.crash, host)
        with pytest.raises(HostCrashed, match="a#1"):
            await sim.call(host, asyncio.sleep(100))
        with pytest.raises(HostCrashed):
            sim.spawn(host, asyncio.sleep(1))
        with pytest.raises(ValueError, match="crashed already"):
            sim.crash("a")

    run(main, 1)


def test_call_that_is_cancelled_cancels_on_the_host() -> None:
    async def main(sim: Simulation) -> tuple[str, ...]:
        ended: list[str] = []

        async def program() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append("cleaned up")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await sim.call(sim.host("a"), program())
        await asyncio.sleep(1)
        return tuple(ended)

    assert run(main, 1).result == ("cleaned up",)


def test_restarted_host_is_new_and_keeps_its_disk() -> None:
    async def main(sim: Simulation) -> None:
        first = sim.host("a")
        first_ids = sim.env(first).new_id()
        replace_file(sim.disk(first), "f", b"x")
        with pytest.raises(ValueError, match="alive"):
            sim.restart("a")
        sim.crash(first)
        second = sim.restart("a")
        assert sim.host("a") is second is not first and second.incarnation == 2
        assert sim.env(second).new_id() != first_ids
        assert read_file(sim.disk(second), "f", 1) == b"x"

    history = run(main, 1).history
    assert [type(event) for _, event in history.events] == [HostUp, HostDown, HostUp]


def test_env_follows_virtual_time_and_skew() -> None:
    async def main(sim: Simulation) -> None:
        env, true = sim.env(sim.host("a"), skew_s=-3.0), sim.env(sim.host("true"))
        start_s = true.wall_s()
        await asyncio.sleep(100)
        assert env.wall_s() == start_s + 97.0 and true.wall_s() == start_s + 100.0
        assert sim.env(sim.host("a")) is env
        assert (
            SimEnv(5, sim.loop, sim.host("a")).new_id()
            == SimEnv(5, sim.loop, sim.host("b")).new_id()
        )

    run(main, 1)


def test_history_ignores_what_crashed_programs_do_at_the_end() -> None:
    async def main(sim: Simulation) -> None:
        async def program() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                sim.history.record(CallStarted("ghost"))

        sim.spawn(sim.host("a"), program())
        await asyncio.sleep(1)
        sim.crash("a")

    assert not list(run(main, 1).history.of(CallStarted))


# Faults.


@pytest.fixture
def unhooked() -> Iterator[None]:
    before = faults.install(None)
    yield
    faults.install(before)


def test_maybe_is_false_without_a_hook(unhooked: None) -> None:
    assert not faults.maybe("agent.slow_read")
    assert faults.install(lambda name: name == "on") is None
    assert faults.maybe("on") and not faults.maybe("off")


def test_simulation_answers_maybe_for_its_own_loop_only() -> None:
    async def main(sim: Simulation) -> None:
        sim.faults.force("disk.slow", 2)
        assert [faults.maybe("disk.slow") for _ in range(2)] == [True, True]
        assert sim.faults.fired["disk.slow"] == 2
        sim.faults.force("disk.slow")
        sim.loop.call_later(1, sim.rng.random)

    run(main, 1)
    assert not faults.maybe("disk.slow")


def test_seed_enables_a_subset_of_faults_whatever_the_order_of_asking() -> None:
    names = [f"part.fault{number}" for number in range(40)]

    def fired(order: list[str]) -> dict[str, int]:
        plan = FaultPlan(3)
        for _ in range(200):
            for name in order:
                plan(name)
        return dict(sorted(plan.fired.items()))

    assert fired(names) == fired(names[::-1])
    assert 2 < len(fired(names)) < 25
    assert all(1 <= count < 40 for count in fired(names).values())


def test_forbidden_fault_never_fires() -> None:
    plan = FaultPlan(1, enabled_share=1.0, fire_chance=1.0)
    plan.forbid("a.b")
    assert not plan("a.b") and plan("a.c") and plan.names() == ["a.b", "a.c"]


# Scripts.


@given(st.integers(0, 100_000))
@settings(max_examples=examples(50))
def test_script_prints_and_parses_and_ends_its_own_troubles(seed: int) -> None:
    script = make_script(make_random(seed), NAMES, duration_s=30, troubles=12)
    times = [step.at_s for step in script]
    assert times == sorted(times) and script[-1] == Step(30, "repair")
    text = "\n".join(map(str, script))
    assert [str(step) for step in parse_script(text)] == text.splitlines()
    down: set[str] = set()
    for step in script:
        if step.verb in ("crash", "power_cut"):
            down.add(step.words[0])
        elif step.verb == "restart":
            down.remove(step.words[0])
        assert len(down) <= 1
    assert not down


def test_every_seed_uses_its_own_script() -> None:
    assert (
        make_script(make_random(1), NAMES)
        == make_script(make_random(1), NAMES)
        != make_script(make_random(2), NAMES)
    )


@pytest.mark.parametrize("text", ["partition a b", "1.0", "x repair"])
def test_line_that_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a step"):
        parse_script(text)


@pytest.mark.parametrize("text", ["0 explode a", "0 partition a", "0 clog a b fast", "0 crash a 5"])
def test_step_that_makes_no_sense_fails_the_run(text: str) -> None:
    async def main(sim: Simulation) -> None:
        await sim.nemesis(parse_script(text), print)

    with pytest.raises(SimulationFailed) as caught:
        run(main, 1)
    assert isinstance(caught.value.__cause__, SimulationError) and text[2:] in caught.value.report


def test_nemesis_plays_every_verb_and_restarts_what_is_down() -> None:
    text = """
        0 latency 0.1 0.2 red green
        0 loss red green 0.1
        1 clog red blue 1000
        1 partition red green
        2 partition_oneway green blue
        2 hold red blue
        3 release red blue
        3 power_cut green 0
        4 crash red silent
        5 restart red
        6 repair
        7 crash blue reset
    """

    async def main(sim: Simulation) -> list[str]:
        restarted: list[str] = []

        def restart(name: str) -> None:
            restarted.append(name)
            sim.restart(name)

        for name in NAMES:
            sim.host(name)
        playing = sim.nemesis(parse_script(text), restart)
        await asyncio.sleep(2.5)
        assert sim.network.is_blocked("red", "green") and sim.network.is_blocked("green", "blue")
        assert not sim.network.is_blocked("blue", "green") and sim.network.is_blocked("blue", "red")
        await asyncio.sleep(1)
        assert not sim.network.is_blocked("blue", "red")
        with pytest.raises(OSError):
            sim.disk("green").create("f")
        await playing
        assert not sim.network.is_blocked("red", "green")
        return restarted

    outcome = run(main, 1)
    assert outcome.result == ["red", "green", "blue"]
    assert [at_s for at_s, _ in outcome.history.of(Repaired)] == [6.0]


def test_nemesis_plays_verbs_of_its_caller_with_the_words_of_their_steps() -> None:
    played: list[tuple[float, str, str]] = []

    async def main(sim: Simulation) -> None:
        def move(what: str, where: str) -> None:
            played.append((sim.loop.time(), what, where))

        await sim.nemesis(parse_script("1.5 move a b\n2 repair"), print, {"move": move})
        await sim.nemesis(parse_script("0 move a"), print, {"move": move})

    with pytest.raises(SimulationFailed) as caught:
        run(main, 1)
    assert "nemesis step 0.000000 move a: " in caught.value.report
    assert played == [(1.5, "a", "b")]


def test_power_cut_that_had_no_occasion_is_taken_back_by_the_restart() -> None:
    async def main(sim: Simulation) -> None:
        sim.host("red")
        await sim.nemesis(parse_script("0 power_cut red 1\n1 restart red"), print)
        for path in ("a", "b", "c"):
            sim.disk("red").create(path)
        assert sim.is_up("red")

    run(main, 1)


def test_shrink_drops_every_line_that_is_not_needed() -> None:
    script = make_script(make_random(4), NAMES, troubles=10)
    needed = {script[2], script[7]}

    def fails(candidate: Script) -> bool:
        return needed <= set(candidate)

    assert set(shrink(script, fails)) == needed
    with pytest.raises(ValueError, match="does not fail"):
        shrink((), fails)


@pytest.mark.parametrize(("seed", "is_early"), [(1, False), (2, True), (3, False), (4, True)])
def test_timers_of_even_seeds_fire_early(seed: int, is_early: bool) -> None:
    async def main(simulation: Simulation) -> bool:
        for _ in range(50):
            due = simulation.loop.time() + 0.01
            await asyncio.sleep(0.01)
            if simulation.loop.time() < due:
                return True
        return False

    assert run(main, seed).result is is_early
