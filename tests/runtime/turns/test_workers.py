"""Stateless workers of one silo, in virtual time: which calls run, wait and fail, and when workers
start and end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.call_count import calls_of

from millstream.runtime import (
    ActivationTimeout,
    CallCycle,
    CallFilters,
    CallTimeout,
    ConfigError,
    DeactivationReason,
    DefinitionError,
    Grain,
    GrainCall,
    Overloaded,
    Proceed,
    RuntimeOptions,
    Silo,
    StatelessWorker,
    always_interleave,
    grain,
    one_way,
    read_only,
    reminder,
    state,
    stateless_worker,
    timeout,
    timer,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run

LOG: list[tuple[float, str]] = []
LIVE: Counter[str] = Counter()
MOST: Counter[str] = Counter()
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
FAILS: list[Callable[[], Awaitable[None]]] = []
STARTED = [0.0]
PROCESSORS = len(os.sched_getaffinity(0))
LOOK_EVERY_S, QUIET_LOOKS = 1.0, 10  # as the page of limits has them


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for one in (LOG, LIVE, MOST, GATES, FAILS):
        one.clear()
    yield


def now() -> float:
    return round(asyncio.get_running_loop().time() - STARTED[0], 3)


def note(what: str) -> None:
    LOG.append((now(), what))


def times(what: str) -> list[float]:
    return [at_s for at_s, event in LOG if event == what]


def in_silo(
    main: Callable[[Silo], Awaitable[None]],
    *grains: type[Grain],
    options: RuntimeOptions | None = None,
    **cluster: Any,
) -> None:
    """Run a test in a silo, in virtual time."""
    options = options or RuntimeOptions()

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=1, grains=grains, options=options, **cluster) as made:
            silo = made.silo(made.names[0])
            assert silo is not None

            async def program() -> None:
                STARTED[0] = asyncio.get_running_loop().time()
                await main(silo)

            await sim.call(sim.host(made.names[0]), program())

    run(driver, seed=1)


def run_at_once(call: Coroutine[Any, Any, object]) -> None:
    """Run a call that never suspends."""
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("the call waits")


class Worker(Grain):
    """The base of the classes here. It counts its activations."""

    async def on_activate(self) -> None:
        name = type(self).__name__
        LIVE[name] += 1
        MOST[name] = max(MOST[name], LIVE[name])
        note("activate")
        if FAILS:
            await FAILS.pop(0)()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LIVE[type(self).__name__] -= 1
        note(f"deactivate {reason.name}")

    busy = 0

    async def work(self, seconds: float = 1.0) -> int:
        self.busy += 1
        MOST["turns of one worker"] = max(MOST["turns of one worker"], self.busy)
        await asyncio.sleep(seconds)
        self.busy -= 1
        return id(self)

    async def wait(self, gate: str) -> int:
        await GATES[gate].wait()
        return id(self)

    async def hello(self) -> int:
        return id(self)

    async def leave(self) -> None:
        self.context.deactivate_when_idle()


@grain(placement=stateless_worker(max_local=3))
class Three(Worker): ...


@grain(placement=stateless_worker(max_local=1))
class Single(Worker):
    @one_way
    async def drop(self, what: str) -> None:
        note(what)

    @always_interleave
    async def peek(self) -> str:
        return "peeked"

    @timeout(2.0)
    async def slow(self) -> None:
        await asyncio.sleep(5.0)


@grain(placement=stateless_worker(max_local=2))
class Two(Worker):
    async def call(self, cls_key: str, seconds: float) -> int:
        return await self.grain(Two, cls_key).work(seconds)

    async def relay(self, delay_s: float = 0.0) -> int:
        await asyncio.sleep(delay_s)
        return await self.grain(Asker, "a").ask(self.key)

    async def nest(self, depth: int) -> int:
        if not depth:
            return 0
        return 1 + await self.grain(Two, self.key).nest(depth - 1)


class Asker(Grain):
    async def ask(self, key: str) -> int:
        return await self.grain(Two, key).hello()

    async def ask_single(self, key: str) -> int:
        return await self.grain(Single, key).hello()


@grain(placement=stateless_worker())
class Default(Worker): ...


# --- which calls run, and where ------------------------------------------------------------------


def test_concurrent_calls_run_on_several_workers_and_never_on_more_than_the_limit() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Three, "a")
        ran_on = await asyncio.gather(*[worker.work() for _ in range(9)])
        assert now() == 3.0
        assert sorted(Counter(ran_on).values()) == [3, 3, 3]
        assert MOST["Three"] == 3 and silo.assembly.catalog.count == 3

    in_silo(main, Three)


def test_many_concurrent_calls_of_few_workers_do_not_fail() -> None:
    async def main(silo: Silo) -> None:
        workers = [silo.grain(Three, f"{i % 2}") for i in range(600)]
        await asyncio.gather(*[worker.work(0.01) for worker in workers])
        assert MOST["Three"] <= 6 and now() == pytest.approx(1.0, abs=0.01)

    in_silo(main, Three)


def test_without_a_limit_there_are_as_many_workers_as_processors() -> None:
    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Default, "a").work() for _ in range(2 * PROCESSORS)])
        assert MOST["Default"] == PROCESSORS and now() == 2.0

    in_silo(main, Default)


def test_calls_one_after_the_other_use_one_worker() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Three, "a")
        assert len({await worker.work(0.1) for _ in range(10)}) == 1
        assert len({await worker.hello() for _ in range(10)}) == 1
        assert silo.assembly.catalog.count == 1

    in_silo(main, Three)


def test_a_call_to_an_idle_worker_runs_directly() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Three, "a")
        await worker.hello()
        assert calls_of(lambda: run_at_once(worker.hello())) <= 12

    in_silo(main, Three)


def test_a_waiting_call_gets_the_first_worker_that_is_free() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Two, "a")
        long, short = (asyncio.create_task(worker.wait(gate)) for gate in ("long", "short"))
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(worker.hello()) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        GATES["short"].set()
        assert {await task for task in waiting} == {await short}
        assert not long.done()
        GATES["long"].set()
        await long

    in_silo(main, Two)


def test_workers_of_different_keys_are_different_pools() -> None:
    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Single, key).work() for key in "abcd"])
        assert now() == 1.0 and silo.assembly.catalog.count == 4

    in_silo(main, Single)


def test_a_call_of_a_full_pool_is_refused_at_the_limit_of_waiting_calls() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Two, "a")
        running = [asyncio.create_task(worker.wait("end")) for _ in range(2)]
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(worker.hello()) for _ in range(2 * 3)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="waiting_calls_max is 3"):
            await worker.hello()
        GATES["end"].set()
        await asyncio.gather(*running, *waiting)

    in_silo(main, Two, options=RuntimeOptions(waiting_calls_max=3))


# --- the rules of turns hold ---------------------------------------------------------------------


def test_a_deadline_ends_a_call_that_waits_for_a_worker() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Single, "a")
        running = asyncio.create_task(worker.work(10.0))
        await asyncio.sleep(0.1)
        with pytest.raises(CallTimeout, match=r"waited for Single/a, which runs Single\.work"):
            await worker.slow()
        assert 2.0 <= now() < 2.5
        await running

    in_silo(main, Single)


def test_a_caller_that_gives_up_leaves_no_trace() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Two, "a")
        running = [asyncio.create_task(worker.wait("end")) for _ in range(2)]
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(worker.hello()) for _ in range(6)]
        await asyncio.sleep(0.1)
        for task in waiting[::2]:
            task.cancel()
        GATES["end"].set()
        await asyncio.gather(*running, *waiting[1::2])
        assert all(task.cancelled() for task in waiting[::2])
        assert all(one.is_idle for one in silo.assembly.catalog.all())

    in_silo(main, Two)


def test_a_call_back_into_a_pool_of_one_is_a_cycle() -> None:
    @grain(placement=stateless_worker(max_local=1))
    class Looping(Grain):
        async def again(self) -> None:
            await self.grain(Looping, self.key).again()

    async def main(silo: Silo) -> None:
        with pytest.raises(CallCycle, match="Looping/a → Looping/a"):
            await silo.grain(Looping, "a").again()

    in_silo(main, Looping)


def test_a_call_back_into_a_pool_uses_another_worker() -> None:
    async def main(silo: Silo) -> None:
        assert await silo.grain(Two, "a").nest(1) == 1
        with pytest.raises(CallCycle, match="Two/a → Two/a"):
            await silo.grain(Two, "a").nest(2)
        await silo.grain(Two, "b").relay()

    in_silo(main, Two, Asker)


@pytest.mark.parametrize("chain_first", [True, False])
def test_a_call_of_the_chain_waits_for_a_worker_that_the_chain_does_not_occupy(
    chain_first: bool,
) -> None:
    async def main(silo: Silo) -> None:
        other, chain = silo.grain(Two, "a").work(3.0), silo.grain(Two, "a").relay(0.1)
        calls = [chain, other] if chain_first else [other, chain]
        await asyncio.gather(*calls)
        assert now() == 3.0

    in_silo(main, Two, Asker)


def test_methods_that_interleave_start_at_once_on_a_busy_worker() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Single, "a")
        running = asyncio.create_task(worker.work(1.0))
        await asyncio.sleep(0.1)
        assert await worker.peek() == "peeked"
        assert now() == 0.1
        await running

    in_silo(main, Single)


@pytest.mark.parametrize("admits", [True, False])
def test_may_interleave_decides_for_the_calls_of_workers(admits: bool) -> None:
    @grain(placement=stateless_worker(max_local=1), may_interleave=lambda call: admits)
    class Choosy(Worker): ...

    async def main(silo: Silo) -> None:
        worker = silo.grain(Choosy, "a")
        await asyncio.gather(*[worker.work() for _ in range(3)])
        assert now() == (1.0 if admits else 3.0)

    in_silo(main, Choosy)


def test_turns_of_reentrant_workers_spread_and_then_overlap() -> None:
    @grain(placement=stateless_worker(max_local=2), reentrant=True)
    class Open(Worker): ...

    async def main(silo: Silo) -> None:
        ran_on = await asyncio.gather(*[silo.grain(Open, "a").work() for _ in range(6)])
        assert now() == 1.0 and sorted(Counter(ran_on).values()) == [3, 3]

    in_silo(main, Open)


def test_read_only_turns_use_idle_workers_first() -> None:
    @grain(placement=stateless_worker(max_local=2))
    class Reading(Worker):
        @read_only
        async def read(self) -> int:
            await asyncio.sleep(1.0)
            return id(self)

    async def main(silo: Silo) -> None:
        ran_on = await asyncio.gather(*[silo.grain(Reading, "a").read() for _ in range(6)])
        assert now() == 1.0 and len(set(ran_on)) == 2

    in_silo(main, Reading)


def test_filters_run_around_the_calls_of_workers() -> None:
    async def audit(call: GrainCall, proceed: Proceed) -> object:
        note(f"{call.type_name}/{call.key}.{call.method}")
        return await proceed()

    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Three, "a").work() for _ in range(3)])
        assert times("Three/a.work") == [0.0] * 3 and now() == 1.0

    in_silo(main, Three, filters=CallFilters(incoming=[audit]))


def test_one_way_calls_run_on_workers() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Single, "a")
        for what in ("one", "two"):
            await worker.drop(what)
        await asyncio.sleep(0.1)
        assert [event for _, event in LOG] == ["activate", "one", "two"]

    in_silo(main, Single)


def test_each_worker_has_its_own_timer() -> None:
    @grain(placement=stateless_worker(max_local=2))
    class Ticking(Worker):
        @timer(every=1.0)
        async def _tick(self) -> None:
            note("tick")

    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Ticking, "a").work(0.1) for _ in range(2)])
        await asyncio.sleep(3.0)
        assert times("tick") == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]

    in_silo(main, Ticking)


# --- starts --------------------------------------------------------------------------------------


def test_a_worker_that_cannot_start_fails_only_the_calls_that_waited_for_it() -> None:
    async def fine() -> None: ...

    async def fail() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("no")

    async def main(silo: Silo) -> None:
        FAILS[:] = [fine, fail]
        worker = silo.grain(Two, "a")
        calls = [worker.work(seconds) for seconds in (2.0, 0.5, 0.5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in results] == [int, ValueError, int] and now() == 2.5
        assert silo.assembly.catalog.count == 1

    in_silo(main, Two)


def test_a_worker_that_becomes_free_takes_calls_that_wait_for_the_start_of_another_one() -> None:
    async def fine() -> None: ...

    async def fail() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("no")

    async def main(silo: Silo) -> None:
        FAILS[:] = [fine, fail]
        worker = silo.grain(Two, "a")
        assert len(set(await asyncio.gather(worker.work(0.2), worker.work(0.2)))) == 1
        assert now() == 0.4 and silo.assembly.catalog.count == 2
        await asyncio.sleep(1.0)
        assert silo.assembly.catalog.count == 1

    in_silo(main, Two)


def test_the_error_of_a_constructor_reaches_the_calls_and_the_next_call_tries_again() -> None:
    made: list[int] = []

    @grain(placement=stateless_worker(max_local=1))
    class Failing(Grain):
        def __init__(self) -> None:
            made.append(1)
            if len(made) < 3:
                raise ValueError(f"start {len(made)}")

        async def hello(self) -> str:
            return "hello"

    async def main(silo: Silo) -> None:
        worker = silo.grain(Failing, "a")
        for number in (1, 2):
            with pytest.raises(ValueError, match=f"start {number}"):
                await worker.hello()
        assert await worker.hello() == "hello"
        assert silo.assembly.catalog.count == 1

    in_silo(main, Failing)


def test_a_start_that_takes_too_long_ends_the_calls_that_waited_for_it() -> None:
    async def hang() -> None:
        await asyncio.sleep(100.0)

    async def main(silo: Silo) -> None:
        FAILS[:] = [hang]
        with pytest.raises(ActivationTimeout):
            await silo.grain(Single, "a").hello()
        await silo.grain(Single, "a").hello()

    in_silo(main, Single, options=RuntimeOptions(activation_timeout_s=1.0))


def test_no_directory_knows_a_worker_that_starts_at_once_or_later() -> None:
    @grain(placement=stateless_worker())
    class Simple(Grain):
        async def hello(self) -> str:
            return self.key

    async def main(silo: Silo) -> None:
        assert await silo.grain(Simple, "a").hello() == "a"
        await silo.grain(Single, "a").hello()
        for kind in ("Simple", "Single"):
            assert await silo.assembly.directory.find_entry(kind, "a") is None
            assert silo.assembly.catalog.of(kind)["a"].version == 0

    in_silo(main, Simple, Single)


# --- ends ----------------------------------------------------------------------------------------


def test_workers_that_are_not_needed_end_one_at_a_time_and_the_last_one_when_it_is_idle() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Three, "a")
        await asyncio.gather(*[worker.work() for _ in range(3)])
        await asyncio.sleep(2 * QUIET_LOOKS * LOOK_EVERY_S)
        ends = times("deactivate IDLE")
        assert len(ends) == 2 and ends[1] - ends[0] == LOOK_EVERY_S
        assert QUIET_LOOKS * LOOK_EVERY_S <= ends[0] <= (QUIET_LOOKS + 2) * LOOK_EVERY_S
        assert silo.assembly.catalog.count == 1
        await asyncio.sleep(300.0)
        assert silo.assembly.catalog.count == 0 and LIVE["Three"] == 0

    in_silo(main, Three, options=RuntimeOptions(idle_after_s=60.0))


def test_workers_that_the_load_needs_do_not_end() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Three, "a")
        for _ in range(60):
            await asyncio.gather(*[worker.work(0.5) for _ in range(3)])
            await asyncio.sleep(0.3)
        assert MOST["Three"] == LIVE["Three"] == 3 and not times("deactivate IDLE")

    in_silo(main, Three)


def test_a_worker_that_keeps_itself_alive_or_has_tasks_is_not_ended() -> None:
    @grain(placement=stateless_worker(max_local=2))
    class Busy(Worker):
        async def keep(self) -> None:
            self.context.keep_alive(30.0)
            await asyncio.sleep(1.0)

    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Busy, "a").keep() for _ in range(2)])
        await asyncio.sleep(28.0)
        assert LIVE["Busy"] == 2
        await asyncio.sleep(5.0)
        assert LIVE["Busy"] == 1

    in_silo(main, Busy)


def test_all_workers_end_when_the_silo_stops() -> None:
    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Three, key).work() for key in "aaabbb"])
        assert LIVE["Three"] == 6
        await silo.stop()
        assert LIVE["Three"] == 0 and len(times("deactivate SILO_STOPS")) == 6
        assert silo.assembly.catalog.count == 0

    in_silo(main, Three)


def test_late_and_fresh_calls_use_one_replacement_of_a_pool_that_has_ended() -> None:
    """A call that waits at the last worker, and a call that arrives after its end, share the next
    pool.
    """

    async def main(silo: Silo) -> None:
        worker = silo.grain(Single, "a")
        first = await worker.hello()
        running = asyncio.create_task(worker.wait("end"))
        await asyncio.sleep(0.1)
        (activation,) = silo.assembly.catalog.all()
        late = [asyncio.create_task(worker.hello()) for _ in range(3)]
        await asyncio.sleep(0.1)
        silo.assembly.catalog.deactivate(activation, DeactivationReason.IDLE)
        GATES["end"].set()
        await running
        fresh = await worker.hello()
        assert {await task for task in late} == {fresh} and fresh != first
        assert MOST["Single"] == 1 and silo.assembly.catalog.count == 1

    in_silo(main, Single)


@pytest.mark.parametrize("has_options", [False, True])
def test_calls_that_wait_at_a_pool_that_ends_spread_over_its_replacement(has_options: bool) -> None:
    """Calls with options wait for the location, and stubs call again."""

    async def main(silo: Silo) -> None:
        worker = silo.grain(Two, "a")
        late_worker = with_options(worker, timeout=20.0) if has_options else worker
        running = [asyncio.create_task(worker.wait("end")) for _ in range(2)]
        await asyncio.sleep(0.1)
        late = [asyncio.create_task(late_worker.work(seconds)) for seconds in (3.0, 1.0, 0.5, 0.5)]
        await asyncio.sleep(0.1)
        for activation in silo.assembly.catalog.all():
            silo.assembly.catalog.deactivate(activation, DeactivationReason.IDLE)
        GATES["end"].set()
        ran_on = await asyncio.gather(*late)
        await asyncio.gather(*running)
        assert ran_on[1] == ran_on[2] == ran_on[3] != ran_on[0]
        assert MOST["Two"] == 2 and MOST["turns of one worker"] == 1
        assert now() == pytest.approx(3.2, abs=0.05)

    in_silo(main, Two)


def test_a_worker_that_asks_for_its_own_end_is_replaced() -> None:
    async def main(silo: Silo) -> None:
        worker = silo.grain(Single, "a")
        first = await worker.hello()
        leaving = [asyncio.create_task(worker.leave()) for _ in range(2)]
        await asyncio.gather(*leaving)
        assert await worker.hello() != first
        assert len(times("deactivate REQUESTED")) == 2 and MOST["Single"] == 1

    in_silo(main, Single)


def test_a_slow_end_counts_against_the_limit() -> None:
    @grain(placement=stateless_worker(max_local=1))
    class Slow(Worker):
        async def on_deactivate(self, reason: DeactivationReason, /) -> None:
            await asyncio.sleep(2.0)
            LIVE["Slow"] -= 1

    async def main(silo: Silo) -> None:
        await silo.grain(Slow, "a").leave()
        await silo.grain(Slow, "a").hello()
        assert now() == 2.0 and MOST["Slow"] == 1

    in_silo(main, Slow)


def test_an_ended_worker_is_not_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main(silo: Silo) -> None:
        await asyncio.gather(*[silo.grain(Three, "a").work() for _ in range(30)])
        await asyncio.sleep(30.0)

    with caplog.at_level(logging.WARNING):
        in_silo(main, Three)
    assert not caplog.records


# --- definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 2.0, "4"])
def test_a_wrong_limit_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"stateless_worker\(max_local=\.\.\.\) is .*from 1 to"):
        stateless_worker(max_local=limit)
    with pytest.raises(ConfigError, match="from 1 to 1000"):
        StatelessWorker(limit)


def test_a_class_of_workers_has_no_state() -> None:
    with pytest.raises(DefinitionError, match=r"Stateful\.total: a stateless worker cannot have a"):

        @grain(placement=stateless_worker())
        class Stateful(Grain):
            total = state(int)


def test_a_class_of_workers_has_no_streamed_result() -> None:
    """The next request for items could reach another worker."""
    with pytest.raises(
        DefinitionError, match=r"Listing\.rows: a stateless worker .* streamed result"
    ):

        @grain(placement=stateless_worker())
        class Listing(Grain):
            async def rows(self) -> AsyncGenerator[int, None]:
                yield 1


def test_a_class_of_workers_has_no_reminder() -> None:
    with pytest.raises(DefinitionError, match=r"Waking\.wake: a stateless worker .*`@reminder"):

        @grain(placement=stateless_worker())
        class Waking(Grain):
            @reminder
            async def wake(self, occurrence: Any) -> None: ...


def test_a_subclass_of_workers_inherits_the_placement_and_its_checks() -> None:
    @grain(placement=stateless_worker(max_local=2))
    class Base(Grain): ...

    class Fine(Base): ...

    assert Fine.__millstream_type__.is_worker
    with pytest.raises(DefinitionError, match="keep the state in a grain of another class"):

        class Bad(Base):
            total = state(int)

    @grain
    class Plain(Base): ...

    @grain()
    class Reset(Base):
        total = state(int) if False else 0

    assert Plain.__millstream_type__.is_worker is False
    assert Reset.__millstream_type__.is_worker is False
