"""Timers of grains, in virtual time: when they tick, what they wait for, and when they end."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from millstream.runtime import (
    ConfigError,
    Contract,
    DeactivationReason,
    DefinitionError,
    Grain,
    NotInCluster,
    NotRemote,
    Overloaded,
    RuntimeOptions,
    Silo,
    Timer,
    always_interleave,
    grain,
    read_only,
    state,
    timeout,
    timer,
)
from millstream.runtime.testing import SimCluster, Simulation, grain_of, home_of, run

LOG: list[tuple[float, str]] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
TIMERS: dict[str, Timer] = {}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    TIMERS.clear()
    yield


def note(what: str) -> None:
    LOG.append((round(asyncio.get_running_loop().time() - STARTED[0], 3), what))


STARTED = [0.0]


def times(what: str) -> list[float]:
    """Return the seconds since the start of the test at which something happened."""
    return [at_s for at_s, event in LOG if event == what]


def in_silo(
    main: Callable[[Silo], Awaitable[None]],
    *grains: type[Grain],
    options: RuntimeOptions | None = None,
) -> None:
    """Run a test in a silo, in virtual time."""
    options = options or RuntimeOptions()

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=1, grains=grains, options=options) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None

            async def program() -> None:
                STARTED[0] = asyncio.get_running_loop().time()
                await main(silo)

            await sim.call(sim.host(cluster.names[0]), program())

    run(driver, seed=1)


class Beating(Grain):
    @timer(every=2.0)
    async def _beat(self) -> None:
        note("beat")

    async def wake(self) -> None:
        note("call")


class AtOnce(Grain):
    @timer(every=2.0, first=0)
    async def _beat(self) -> None:
        note("beat")
        await asyncio.sleep(0.5)
        note("end")

    async def wake(self) -> None: ...


class Asking(Grain):
    """Starts timers on request."""

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        note(f"deactivate {reason.name}")
        try:
            self.context.timer(self._tick, every=1.0)
        except NotInCluster:
            note("too late")

    async def start(self, how: str, every: float | None, first: float | None = None) -> None:
        method = {"plain": self._tick, "slow": self._slow, "bad": self._bad, "self": self._on_own}
        keep_alive, interleave = how.endswith("+alive"), how.endswith("+interleave")
        TIMERS[how] = self.context.timer(
            method[how.partition("+")[0]],
            every=every,
            first=first,
            keep_alive=keep_alive,
            interleave=interleave,
        )

    async def stay(self, gate: str) -> None:
        note(f"+{gate}")
        await GATES[gate].wait()
        note(f"-{gate}")

    async def wake(self) -> int:
        note("call")
        return 1

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def _tick(self) -> None:
        note("tick")

    async def _slow(self) -> None:
        note("slow")
        await asyncio.sleep(0.75)
        note("end of slow")

    async def _bad(self) -> None:
        note("bad")
        raise ValueError("no tick today")

    async def _on_own(self) -> None:
        """Calls itself by its reference, which a turn of a grain cannot do."""
        note("own")
        ref = self.grain(Asking, self.key)
        try:
            await ref.wake()
        except Exception as error:
            note(type(error).__name__)


# --- when a timer ticks --------------------------------------------------------------------------


def test_a_timer_ticks_after_its_period_from_the_activation_on() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Beating, "a").wake()
        await asyncio.sleep(7)
        assert times("beat") == [2.0, 4.0, 6.0]

    in_silo(main, Beating)


def test_the_period_runs_from_the_end_of_a_tick() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(AtOnce, "a").wake()
        await asyncio.sleep(6)
        assert times("beat") == [0.0, 2.5, 5.0]

    in_silo(main, AtOnce)


def test_a_tick_never_overlaps_itself_even_if_it_takes_longer_than_its_period() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").start("slow+interleave", 0.25)
        await asyncio.sleep(3)
        assert times("slow") == [0.25, 1.25, 2.25]

    in_silo(main, Asking)


@pytest.mark.parametrize(
    ("every", "first", "ticks"),
    [
        (1.0, None, [1.0, 2.0, 3.0]),
        (1.0, 0, [0.0, 1.0, 2.0, 3.0]),
        (1.0, 2.5, [2.5, 3.5]),
        (None, 2.5, [2.5]),
    ],
)
def test_a_timer_of_run_time_has_the_same_times(
    every: float | None, first: float | None, ticks: list[float]
) -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").start("plain", every, first)
        await asyncio.sleep(3.75)
        assert times("tick") == ticks

    in_silo(main, Asking)


def test_an_error_is_logged_and_the_timer_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").start("bad", 1.0)
        await asyncio.sleep(2.5)
        assert times("bad") == [1.0, 2.0]
        texts = [one.getMessage() for one in caplog.records if one.name == "millstream.timers"]
        assert texts == ["Asking/a: timer Asking._bad: a tick failed"] * 2
        assert "no tick today" in caplog.text

    in_silo(main, Asking)


def test_a_tick_that_awaits_something_cancelled_fails_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unlucky(Beating):
        @timer(every=1.0)
        async def _wait(self) -> None:
            note("wait")
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

    async def main(silo: Silo) -> None:
        await silo.grain(Unlucky, "a").wake()
        await asyncio.sleep(2.5)
        assert times("wait") == [1.0, 2.0]
        assert caplog.text.count("Unlucky._wait awaited a cancelled task or future") == 2

    in_silo(main, Unlucky)


# --- a tick is a turn ----------------------------------------------------------------------------


def test_a_tick_waits_for_a_running_turn_and_calls_wait_for_a_tick() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.start("slow", 1.0)
        staying = asyncio.create_task(ref.stay("s"))
        await asyncio.sleep(3)
        assert times("slow") == []
        GATES["s"].set()
        await staying
        calling = asyncio.create_task(ref.wake())
        await calling
        assert times("slow") == [3.0] and times("call") == times("end of slow") == [3.75]
        await asyncio.sleep(1.1)
        assert times("slow") == [3.0, 4.75]

    in_silo(main, Asking)


def test_an_interleaving_tick_starts_within_a_running_turn() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.start("plain+interleave", 1.0)
        staying = asyncio.create_task(ref.stay("s"))
        await asyncio.sleep(2.5)
        assert times("tick") == [1.0, 2.0] and times("-s") == []
        GATES["s"].set()
        await staying

    in_silo(main, Asking)


def test_a_tick_of_a_reentrant_grain_interleaves() -> None:
    @grain(reentrant=True)
    class Open(Asking): ...

    async def main(silo: Silo) -> None:
        ref = silo.grain(Open, "a")
        await ref.start("slow", 1.0)
        await ref.start("plain", 1.25)
        await asyncio.sleep(2)
        assert LOG == [(1.0, "slow"), (1.25, "tick"), (1.75, "end of slow")]

    in_silo(main, Open)


def test_a_tick_that_calls_its_own_grain_gets_the_error_of_a_cycle() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").start("self", None, 1.0)
        await asyncio.sleep(1.5)
        assert [what for _, what in LOG] == ["own", "CallCycle"]

    in_silo(main, Asking)


def test_a_tick_sees_no_headers_and_no_context_of_the_turn_that_started_it() -> None:
    from contextvars import ContextVar

    from millstream.runtime import with_options

    seen: ContextVar[str] = ContextVar("seen", default="nothing")

    class Curious(Grain):
        async def start(self) -> None:
            seen.set("the starter")
            assert self.context.headers == {"trace": "1"}
            self.context.timer(self._tick, every=None, first=1.0)

        async def _tick(self) -> None:
            note(f"{seen.get()} {dict(self.context.headers)}")

    async def main(silo: Silo) -> None:
        await with_options(silo.grain(Curious, "a"), headers={"trace": "1"}).start()
        await asyncio.sleep(1.5)
        assert [what for _, what in LOG] == ["nothing {}"]

    in_silo(main, Curious)


def test_a_tick_has_a_deadline_and_the_timer_goes_on_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hanging(Grain):
        @timer(every=1.0)
        @timeout(2.0)
        async def _hang(self) -> None:
            note("hang")
            await GATES["never"].wait()

        async def wake(self) -> None:
            note("call")

    async def main(silo: Silo) -> None:
        ref = silo.grain(Hanging, "a")
        await ref.wake()
        await asyncio.sleep(1.5)
        await ref.wake()
        assert times("call")[1] == pytest.approx(3.0, abs=0.2)  # a sweep later than the deadline
        await asyncio.sleep(1.5)
        assert len(times("hang")) == 2
        assert "Hanging._hang did not end within its deadline (at most 2 s)" in caplog.text

    in_silo(main, Hanging)


def test_states_that_are_written_with_each_turn_are_written_with_a_tick() -> None:
    class Counting(Grain):
        count = state(int, write="turn")

        @timer(every=1.0)
        async def _count(self) -> None:
            self.count.value += 1
            if self.count.value == 2:
                self.context.deactivate_when_idle()

        async def read(self) -> int:
            return self.count.value

        async def on_deactivate(self, reason: DeactivationReason, /) -> None:
            note("end")

    async def main(silo: Silo) -> None:
        ref = silo.grain(Counting, "a")
        assert await ref.read() == 0
        await asyncio.sleep(2.5)
        assert times("end") == [pytest.approx(2.0, abs=0.1)]
        assert await ref.read() == 2

    in_silo(main, Counting)


# --- change and cancel ---------------------------------------------------------------------------


def test_change_sets_new_times() -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").start("plain", 10.0)
        TIMERS["plain"].change(every=1.0, first=0.5)
        await asyncio.sleep(2.0)
        TIMERS["plain"].change(every=None, first=2.0)
        await asyncio.sleep(5)
        assert times("tick") == [0.5, 1.5, 4.0]
        with pytest.raises(ConfigError, match=r"Asking\._tick has ended: start another one"):
            TIMERS["plain"].change(every=1.0)
        assert silo.assembly.catalog._timers._all == {1: []}

    in_silo(main, Asking)


def test_change_and_cancel_in_a_tick_apply_when_it_ends() -> None:
    class Own(Grain):
        async def start(self) -> None:
            self._ticks = 0
            self._timer = self.context.timer(self._tick, every=1.0)

        async def _tick(self) -> None:
            note("tick")
            self._ticks += 1
            if self._ticks == 2:
                self._timer.change(every=3.0, first=0.5)
            if self._ticks == 4:
                self._timer.cancel()
            await asyncio.sleep(0.25)
            note("end")

    async def main(silo: Silo) -> None:
        await silo.grain(Own, "a").start()
        await asyncio.sleep(20)
        assert times("tick") == [1.0, 2.25, 3.0, 6.25]
        assert times("end") == [1.25, 2.5, 3.25, 6.5]

    in_silo(main, Own)


def test_a_tick_that_waits_is_withdrawn_by_change_and_by_cancel() -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.start("plain", 1.0)
        await ref.start("slow", 1.0)
        staying = asyncio.create_task(ref.stay("s"))
        await asyncio.sleep(1.5)  # both wait
        TIMERS["plain"].change(every=2.0)
        TIMERS["slow"].cancel()
        TIMERS["slow"].cancel()
        GATES["s"].set()
        await staying
        await asyncio.sleep(2.25)
        assert times("tick") == [3.5] and times("slow") == []

    in_silo(main, Asking)


# --- the end of the activation -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["requested", "stop"])
def test_no_tick_starts_once_the_activation_ends(how: str) -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.start("plain+interleave", 1.0)
        await ref.start("slow", 0.9)
        if how == "requested":
            await asyncio.sleep(1)  # within a tick, which ends first
            await ref.end()
        else:
            await silo.stop()
        at_end = len(LOG)
        await asyncio.sleep(5)
        ended = [what for _, what in LOG[at_end - 2 if how == "stop" else 0 :]]
        assert ended[-2:] == [
            f"deactivate {'REQUESTED' if how == 'requested' else 'SILO_STOPS'}",
            "too late",
        ]
        with pytest.raises(ConfigError, match="has ended"):
            TIMERS["slow"].change(every=1.0)
        TIMERS["slow"].cancel()

    in_silo(main, Asking)


def test_a_silo_that_stops_by_force_ends_all_timers() -> None:
    class Stuck(Asking):
        async def on_deactivate(self, reason: DeactivationReason, /) -> None:
            await GATES["never"].wait()

    async def main(silo: Silo) -> None:
        await silo.grain(Stuck, "a").start("plain", 1.0)
        await silo.stop()
        with pytest.raises(ConfigError, match="has ended"):
            TIMERS["plain"].change(every=1.0)

    in_silo(main, Stuck, options=RuntimeOptions(drain_s=1.0))


def test_marked_timers_start_again_with_the_next_activation() -> None:
    class Restarting(Beating):
        async def end(self) -> None:
            self.context.deactivate_when_idle()

    async def main(silo: Silo) -> None:
        ref = silo.grain(Restarting, "a")
        await ref.wake()
        await asyncio.sleep(2.5)
        await ref.end()
        await asyncio.sleep(5)
        assert times("beat") == [2.0]
        await ref.wake()
        await asyncio.sleep(2.5)
        assert times("beat") == [2.0, 9.5]

    in_silo(main, Restarting)


@pytest.mark.parametrize(("how", "is_collected"), [("plain", True), ("plain+alive", False)])
def test_only_a_timer_that_keeps_alive_puts_collection_off(how: str, is_collected: bool) -> None:
    async def main(silo: Silo) -> None:
        await silo.grain(Asking, "a").start(how, 1.0)
        await asyncio.sleep(20)
        assert times("deactivate IDLE") == ([] if not is_collected else [pytest.approx(6, abs=4)])
        assert (len(times("tick")) >= 19) is not is_collected

    in_silo(main, Asking, options=RuntimeOptions(collect_every_s=3.0, idle_after_s=3.0))


def test_a_call_that_waits_behind_a_tick_counts_as_a_use() -> None:
    """The activation is used by calls only, each of which arrives during a tick."""

    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.start("slow", 0.25)
        for _ in range(10):
            await asyncio.sleep(2.1)
            await ref.wake()
        assert times("deactivate IDLE") == []

    in_silo(main, Asking, options=RuntimeOptions(collect_every_s=3.0, idle_after_s=3.0))


def test_a_timer_that_starts_in_on_activate_ticks_once_the_activation_is_valid() -> None:
    class Early(Grain):
        async def on_activate(self) -> None:
            self.context.timer(partial(self._tick, "early"), every=None, first=0)
            await asyncio.sleep(1)
            note("active")

        async def _tick(self, what: str) -> None:
            note(what)

        async def wake(self) -> None:
            note("call")

    async def main(silo: Silo) -> None:
        await silo.grain(Early, "a").wake()
        await asyncio.sleep(1)
        assert [what for _, what in LOG] == ["active", "call", "early"]

    in_silo(main, Early)


def test_no_timer_outlives_an_activation_that_could_not_start() -> None:
    class Failing(Grain):
        async def on_activate(self) -> None:
            TIMERS["a"] = self.context.timer(self._tick, every=1.0)
            raise ValueError("no start today")

        async def _tick(self) -> None:
            note("tick")

        async def wake(self) -> None: ...

    async def main(silo: Silo) -> None:
        with pytest.raises(ValueError, match="no start today"):
            await silo.grain(Failing, "a").wake()
        await asyncio.sleep(3)
        assert LOG == []

    in_silo(main, Failing)


def test_a_tick_that_finds_too_many_waiting_calls_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(silo: Silo) -> None:
        ref = silo.grain(Asking, "a")
        await ref.start("plain", 1.0)
        calls = [asyncio.create_task(ref.stay("s")) for _ in range(3)]
        await asyncio.sleep(2.5)
        assert caplog.text.count("a tick is skipped: ") == 2
        assert "waiting_calls_max" in caplog.text
        GATES["s"].set()
        await asyncio.gather(*calls)
        await asyncio.sleep(1)
        assert times("tick") == [3.0]
        with pytest.raises(Overloaded):
            await asyncio.gather(*(ref.stay("t") for _ in range(4)))

    with caplog.at_level(logging.WARNING):
        in_silo(main, Asking, options=RuntimeOptions(waiting_calls_max=2))


# --- wrong uses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, -1.0, float("inf"), float("nan"), "5", True, None])
def test_a_period_that_is_no_positive_number_is_refused_at_definition(every: Any) -> None:
    with pytest.raises(ConfigError, match=r"timer\(\.\.\.\)"):
        timer(every)


@pytest.mark.parametrize("first", [-1.0, float("inf"), float("nan"), "5", True])
def test_a_first_time_that_is_no_number_is_refused(first: Any) -> None:
    with pytest.raises(ConfigError, match=r"first=.*at least 0"):
        timer(1.0, first=first)


def test_a_method_that_a_timer_cannot_call_is_refused_with_its_place() -> None:
    place = r"test_timers\.py:\d+: Wrong\.tick: "
    with pytest.raises(DefinitionError, match=place + r"a timer calls `async def tick\(self\)"):

        class Wrong(Grain):
            @timer(1.0)  # type: ignore[type-var]
            async def tick(self, what: str) -> None: ...

    with pytest.raises(DefinitionError, match=place + r"a timer calls `async def tick\(self\)"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @timer(1.0)  # type: ignore[type-var]
            def tick(self) -> None: ...

    with pytest.raises(DefinitionError, match=place + r"write `@timer\(\.\.\., interleave=True\)`"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @timer(1.0)
            @always_interleave
            async def tick(self) -> None: ...

    with pytest.raises(DefinitionError, match=place + "`@read_only` has no effect on a timer"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @read_only
            @timer(1.0)
            async def tick(self) -> None: ...

    with pytest.raises(DefinitionError, match=place + "a method has at most one `@timer`"):

        class Wrong(Grain):  # type: ignore[no-redef]
            @timer(1.0)
            @timer(2.0)
            async def tick(self) -> None: ...

    with pytest.raises(DefinitionError, match=place + "a contract has no timers"):

        class Wrong(Contract):  # type: ignore[no-redef]
            @timer(1.0)
            async def tick(self) -> None: ...


def test_a_timer_cannot_be_called_through_a_reference() -> None:
    class Hidden(Grain):
        @timer(1.0)
        async def tick(self) -> None: ...

    async def main(silo: Silo) -> None:
        with pytest.raises(NotRemote, match="a handler that only the runtime calls"):
            await silo.grain(Hidden, "a").tick()

    in_silo(main, Hidden)


def test_a_wrong_timer_of_run_time_is_refused_at_the_call() -> None:
    class Wrong(Grain):
        async def start(self, how: str) -> None:
            match how:
                case "sync":
                    self.context.timer(print, every=1.0)  # type: ignore[arg-type]
                case "called":
                    coro = self._tick()
                    try:
                        self.context.timer(coro, every=1.0)  # type: ignore[arg-type]
                    finally:
                        coro.close()
                case "argument":
                    self.context.timer(self.start, every=1.0)  # type: ignore[arg-type]
                case "no time":
                    self.context.timer(self._tick, every=None)
                case "zero":
                    self.context.timer(self._tick, every=0)

        async def _tick(self) -> None: ...

    async def main(silo: Silo) -> None:
        ref = silo.grain(Wrong, "a")
        for how in ("sync", "called", "argument"):
            with pytest.raises(TypeError, match=r"Wrong/a: context\.timer\(.*`async def` method"):
                await ref.start(how)
        with pytest.raises(ConfigError, match="Wrong/a: .*write `every`.*or `first`"):
            await ref.start("no time")
        with pytest.raises(ConfigError, match="every=0"):
            await ref.start("zero")

    in_silo(main, Wrong)


async def test_a_unit_test_gets_the_timers_and_calls_their_methods() -> None:
    asking = grain_of(Asking, "a")
    await asking.start("plain", 5.0, 1.0)
    (one,) = home_of(asking).timers
    assert (one.every_s, one.first_s, one.is_ended) == (5.0, 1.0, False)
    await one.method()
    assert [what for _, what in LOG] == ["tick"]
    one.change(every=None, first=2.0)
    one.cancel()
    assert (one.every_s, one.first_s, one.is_ended) == (None, 2.0, True)
    with pytest.raises(ConfigError):
        one.change(every=0)
