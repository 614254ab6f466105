"""The life of an activation: start, failed start, and end on request, when idle or at a stop."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conditions import spin, until
from tests.runtime.callers import runtime_of

import millstream.runtime
from millstream.runtime import (
    PREFER_LOCAL,
    ActivationTimeout,
    CallTimeout,
    DeactivationReason,
    Grain,
    GrainError,
    LocalCluster,
    MemoryMembershipTable,
    MillstreamError,
    NotInCluster,
    RuntimeOptions,
    Silo,
    always_interleave,
    grain,
    one_way,
    read_only,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
FAILING: list[BaseException] = []
TASKS: list[asyncio.Task[None]] = []


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    FAILING.clear()
    TASKS.clear()
    yield


def test_every_reason_of_a_deactivation_is_given_somewhere() -> None:
    modules = Path(millstream.runtime.__file__).parent.rglob("*.py")
    source = "".join(module.read_text() for module in modules)
    given = [reason for reason in DeactivationReason if f"Reason.{reason.name}" in source]
    assert given == list(DeactivationReason)


class Living(Grain):
    """Logs its life under its key."""

    def __init__(self) -> None:
        self._calls = 0

    async def on_activate(self) -> None:
        LOG.append("activate")
        if self.key.startswith("slow"):
            await GATES["activate"].wait()
        if FAILING:
            raise FAILING.pop(0)
        LOG.append("active")

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append(f"deactivate {reason.name}")
        if self.key.startswith("slow-end"):
            await GATES["deactivate"].wait()
        if self.key.startswith("bad-end"):
            raise ValueError("bad end")
        if self.key.startswith("cancelled-end"):
            raise asyncio.CancelledError
        LOG.append("gone")

    async def call(self, name: str) -> int:
        LOG.append(name)
        self._calls += 1
        return self._calls

    async def stay(self, name: str) -> str:
        LOG.append(f"+{name}")
        await GATES[name].wait()
        LOG.append(f"-{name}")
        return name

    async def leave_then_stay(self, name: str) -> str:
        self.context.deactivate_when_idle()
        LOG.append(f"+{name}")
        await GATES[name].wait()
        LOG.append(f"-{name}")
        return name

    @always_interleave
    async def peek(self) -> str:
        LOG.append("peek")
        return "peek"

    @one_way
    async def note(self, name: str) -> None:
        LOG.append(name)

    @read_only
    async def read(self, name: str) -> str:
        LOG.append(f"+{name}")
        await GATES[name].wait()
        return name

    async def start_task(self, name: str) -> None:
        async def work() -> None:
            LOG.append(f"task {name}")
            try:
                await GATES[name].wait()
            except asyncio.CancelledError:
                LOG.append(f"task {name} cancelled")
                raise
            LOG.append(f"task {name} done")

        TASKS.append(self.context.create_task(work()))

    async def keep_alive(self, seconds: float) -> None:
        self.context.keep_alive(seconds)

    async def leave(self) -> str:
        self.context.deactivate_when_idle()
        return "leaving"

    async def fail(self) -> None:
        raise ValueError("no")

    async def headers(self) -> int:
        return len(self.context.headers)

    async def where(self) -> str:
        return self.context.silo


@grain(placement=PREFER_LOCAL)
class Settled(Living):
    """The same, activated in the calling silo."""


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Living, Settled]) as started:
        yield started


@pytest.fixture
async def pair() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=2, grains=[Living, Settled]) as started:
        yield started


def activation_in(silo: Silo, key: str, kind: str = "Living") -> object:
    return silo.assembly.catalog.of(kind).get(key)


# --- starting ------------------------------------------------------------------------------------


async def test_on_activate_ends_before_the_first_call_starts(silo: Silo) -> None:
    ref = silo.grain(Living, "slow")
    calls = [asyncio.create_task(ref.call(f"c{i}")) for i in range(3)]
    calls.append(asyncio.create_task(ref.peek()))  # type: ignore[arg-type]
    await spin()
    assert LOG == ["activate"]
    GATES["activate"].set()
    await asyncio.gather(*calls)
    assert LOG[:2] == ["activate", "active"]
    assert [name for name in LOG if name[0] == "c"] == ["c0", "c1", "c2"]


@pytest.mark.parametrize("where", ["local", "remote"])
async def test_a_failing_start_fails_all_that_wait_and_the_next_call_builds_anew(
    pair: LocalCluster, where: str
) -> None:
    FAILING.append(ValueError("not today"))
    ref = pair.silos[0].grain(Settled, "slow")
    calls = [asyncio.create_task(ref.call(f"c{i}")) for i in range(3)]
    await until(lambda: "activate" in LOG[-1:])
    if where == "remote":
        calls += [asyncio.create_task(pair.client.grain(Settled, "slow").call("far"))]
        await spin(100)
    GATES["activate"].set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in found] == [ValueError] * len(calls)
    assert not any(name.startswith("c") for name in LOG)
    assert await ref.call("again") == 1
    assert LOG[-3:] == ["activate", "active", "again"]


async def test_a_failing_constructor_is_a_failing_start(silo: Silo) -> None:
    tries: list[int] = []

    class Picky(Grain):
        def __init__(self) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("not yet")

        async def ok(self) -> str:
            return "ok"

    async with Silo(grains=[Picky]) as other:
        for _ in range(2):
            with pytest.raises(ValueError, match="not yet"):
                await other.grain(Picky, "a").ok()
        assert await other.grain(Picky, "a").ok() == "ok"
        assert other.assembly.catalog.count == 1


class Careless(Grain):
    """Its tasks break the rules."""

    async def stays(self) -> None:
        async def work() -> None:
            while not GATES["over"].is_set():
                with suppress(asyncio.CancelledError):
                    await GATES["over"].wait()

        TASKS.append(self.context.create_task(work()))

    async def exits(self) -> None:
        async def work() -> None:
            sys.exit(4)

        TASKS.append(self.context.create_task(work()))

    async def never_begins(self) -> None:
        async def work() -> None:
            LOG.append("began")

        TASKS.append(self.context.create_task(work()))
        TASKS[-1].cancel()

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def ok(self) -> str:
        return "ok"


async def test_a_task_that_swallows_its_cancellation_does_not_keep_its_grain_from_ending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = RuntimeOptions(deactivation_timeout_s=0.05)
    async with Silo(grains=[Careless], options=options) as silo:
        ref = silo.grain(Careless, "a")
        await ref.stays()
        await ref.leave()
        assert await with_options(ref, timeout=5).ok() == "ok"
    assert "Careless/a: 1 of its tasks did not end within 0.05 s" in caplog.text
    GATES["over"].set()
    await TASKS[-1]


async def test_a_task_that_calls_sys_exit_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with Silo(grains=[Careless]) as silo:
        ref = silo.grain(Careless, "a")
        await ref.exits()
        with pytest.raises(GrainError, match="SystemExit: Careless/a: a task of the activation: 4"):
            await TASKS[-1]
        assert await ref.ok() == "ok"
    assert "Careless/a: a task of the activation raised SystemExit(4)" in caplog.text


@pytest.mark.filterwarnings("error")
async def test_a_task_that_is_cancelled_before_it_begins_leaves_no_warning() -> None:
    async with Silo(grains=[Careless]) as other:
        await other.grain(Careless, "a").never_begins()
        await spin()
        assert TASKS[-1].cancelled()
        assert "began" not in LOG
        TASKS.clear()
        gc.collect()


async def test_a_start_that_takes_too_long_fails_with_its_own_limit() -> None:
    options = RuntimeOptions(activation_timeout_s=0.05)
    async with Silo(grains=[Living], options=options) as silo:
        with pytest.raises(ActivationTimeout, match=r"on_activate.*0\.05 s"):
            await silo.grain(Living, "slow").call("c")
        GATES["activate"].set()
        assert await silo.grain(Living, "slow").call("again") == 1


async def test_a_cancellation_out_of_on_activate_is_a_failing_start(silo: Silo) -> None:
    FAILING.append(asyncio.CancelledError())
    with pytest.raises(MillstreamError) as caught:
        await with_options(silo.grain(Living, "a"), timeout=2).call("c")
    assert not isinstance(caught.value, CallTimeout)
    assert await silo.grain(Living, "a").call("again") == 1


async def test_a_caller_cancelled_during_the_start_does_not_stop_it(silo: Silo) -> None:
    ref = silo.grain(Living, "slow")
    first = asyncio.create_task(ref.call("first"))
    second = asyncio.create_task(ref.call("second"))
    await spin()
    first.cancel()
    await spin()
    GATES["activate"].set()
    assert await second == 1
    assert first.cancelled() and LOG == ["activate", "active", "second"]


async def test_a_grain_may_call_others_in_on_activate(silo: Silo) -> None:
    class Early(Grain):
        async def on_activate(self) -> None:
            self._answer = await self.grain(Living, "other").call("from on_activate")

        async def answer(self) -> int:
            return self._answer

    async with Silo(grains=[Early, Living]) as other:
        assert await other.grain(Early, "a").answer() == 1


# --- deactivate_when_idle ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["local", "silo", "client"])
async def test_an_asked_for_end_lets_the_method_finish_and_queued_calls_go_to_the_next(
    pair: LocalCluster, where: str
) -> None:
    home = pair.silos[0].grain(Settled, "a")
    await home.call("first")
    runtime = runtime_of(pair, where)
    ref = runtime.grain(Settled, "a")
    running = asyncio.create_task(ref.leave_then_stay("last"))
    await until(lambda: "+last" in LOG)
    queued = [asyncio.create_task(ref.call(f"q{i}")) for i in range(3)]
    await spin(100)
    assert not any(task.done() for task in queued)
    GATES["last"].set()
    assert await running == "last"
    assert sorted(await asyncio.gather(*queued)) == [1, 2, 3]  # on one fresh activation
    assert LOG[: LOG.index("q0")] == [
        *("activate", "active", "first", "+last", "-last"),
        *("deactivate REQUESTED", "gone", "activate", "active"),
    ]


async def test_no_turn_starts_once_an_end_was_asked_for(silo: Silo) -> None:
    ref = silo.grain(Living, "a")
    reader = asyncio.create_task(ref.read("r"))
    await until(lambda: "+r" in LOG)
    running = asyncio.create_task(ref.leave())
    await spin()
    peek = asyncio.create_task(ref.peek())
    await spin()
    GATES["r"].set()
    await asyncio.gather(reader, running, peek)
    assert await ref.call("c") == 1


async def test_nothing_runs_beside_on_deactivate(silo: Silo) -> None:
    ref = silo.grain(Living, "slow-end")
    GATES["activate"].set()
    await ref.leave()
    await until(lambda: "deactivate REQUESTED" in LOG)
    waiting = [asyncio.create_task(ref.peek()), asyncio.create_task(ref.call("c"))]
    await spin()
    assert LOG[-1] == "deactivate REQUESTED"
    GATES["deactivate"].set()
    await asyncio.gather(*waiting)
    assert LOG.index("gone") < LOG.index("peek")
    assert LOG.count("activate") == 2


async def test_calls_keep_their_order_over_an_end(silo: Silo) -> None:
    ref = silo.grain(Living, "a")
    running = asyncio.create_task(ref.leave_then_stay("last"))
    await until(lambda: "+last" in LOG)
    queued = [asyncio.create_task(ref.call(f"q{i}")) for i in range(20)]
    await spin()
    GATES["last"].set()
    await asyncio.gather(running, *queued)
    assert [name for name in LOG if name[0] == "q"] == [f"q{i}" for i in range(20)]


@pytest.mark.parametrize("where", ["local", "silo", "client"])
async def test_a_one_way_call_that_waited_reaches_the_next_activation(
    pair: LocalCluster, where: str
) -> None:
    home = pair.silos[0].grain(Settled, "a")
    await home.call("first")
    runtime = runtime_of(pair, where)
    await runtime.grain(Settled, "a").call("warm")
    running = asyncio.create_task(home.leave_then_stay("last"))
    await until(lambda: "+last" in LOG)
    activation = pair.silos[0].assembly.catalog.of("Settled")["a"]
    await runtime.grain(Settled, "a").note("noted")
    await until(lambda: activation.mailbox is not None and bool(activation.mailbox.waiting))
    GATES["last"].set()
    await running
    await until(lambda: "noted" in LOG)
    assert LOG.index("noted") > LOG.index("gone")


@pytest.mark.parametrize("key", ["bad-end", "cancelled-end"])
async def test_a_failing_on_deactivate_does_not_keep_the_grain(silo: Silo, key: str) -> None:
    ref = with_options(silo.grain(Living, key), timeout=2)
    assert await ref.call("one") == 1
    await ref.leave()
    assert await ref.call("two") == 1


async def test_an_end_that_takes_too_long_is_given_up() -> None:
    options = RuntimeOptions(deactivation_timeout_s=0.05)
    async with Silo(grains=[Living], options=options) as silo:
        GATES["activate"].set()
        ref = silo.grain(Living, "slow-end")
        await ref.leave()
        assert await ref.call("again") == 1
        GATES["deactivate"].set()


async def test_an_ended_grain_is_freed_without_the_collector(silo: Silo) -> None:
    ref = silo.grain(Living, "a")
    await ref.call("one")
    found = weakref.ref(silo.assembly.catalog.of("Living")["a"].grain)
    gc.collect()
    gc.disable()
    try:
        await ref.leave()
        await until(lambda: activation_in(silo, "a") is None)
        await spin()
        assert found() is None
    finally:
        gc.enable()


# --- reasons -------------------------------------------------------------------------------------


async def test_a_stop_of_the_silo_is_the_reason() -> None:
    async with Silo(grains=[Living]) as silo:
        await silo.grain(Living, "a").call("c")
    assert LOG[-2:] == ["deactivate SILO_STOPS", "gone"]


async def test_a_killed_silo_runs_no_on_deactivate() -> None:
    async with Silo(grains=[Living]) as silo:
        await silo.grain(Living, "a").call("c")
        await silo.kill()
    assert "deactivate SILO_STOPS" not in LOG


async def test_a_running_turn_ends_before_its_silo_stops() -> None:
    async with Silo(grains=[Living]) as silo:
        task = asyncio.create_task(silo.grain(Living, "a").stay("s"))
        await until(lambda: "+s" in LOG)
        stopping = asyncio.create_task(silo.stop())
        await spin()
        assert not stopping.done() and not task.done()
        GATES["s"].set()
        assert await task == "s"
        await stopping
    assert LOG[-3:] == ["-s", "deactivate SILO_STOPS", "gone"]


async def test_a_turn_that_does_not_end_is_cancelled_after_the_drain_time() -> None:
    async with Silo(grains=[Living], options=RuntimeOptions(drain_s=0.05)) as silo:
        task = asyncio.create_task(silo.grain(Living, "a").stay("s"))
        await until(lambda: "+s" in LOG)
        async with asyncio.timeout(5):
            await silo.stop()
        async with asyncio.timeout(20):
            with pytest.raises(MillstreamError):
                await task


# --- idle collection -----------------------------------------------------------------------------


SCAN_S = 1.0


def while_scanned(main: Callable[[Silo, Silo], Awaitable[None]]) -> None:
    """Run a test in the first of two silos in virtual time, with a scan after each `SCAN_S`.

    The test begins between two scans, so a sleep of n times `SCAN_S` contains n scans.
    """
    options = RuntimeOptions(collect_every_s=SCAN_S, idle_after_s=SCAN_S / 2)

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=2, grains=[Settled], options=options) as cluster:
            one, two = (cluster.silo(name) for name in cluster.names)
            assert one is not None and two is not None
            await asyncio.sleep(SCAN_S / 2)

            async def program() -> None:
                await main(one, two)

            await sim.call(sim.host(cluster.names[0]), program())

    run(driver, seed=1)


def idle_ends() -> int:
    """Count the collected activations."""
    return LOG.count("deactivate IDLE")


def test_an_unused_activation_is_collected_at_the_second_scan() -> None:
    async def main(silo: Silo, _: Silo) -> None:
        ref = silo.grain(Settled, "a")
        await ref.call("c")
        await asyncio.sleep(SCAN_S)
        assert not idle_ends()
        await asyncio.sleep(SCAN_S)
        assert activation_in(silo, "a", "Settled") is None
        assert LOG[-2:] == ["deactivate IDLE", "gone"]
        assert await ref.call("again") == 1

    while_scanned(main)


@pytest.mark.parametrize("how", ["call", "read", "peek", "fail", "one way", "remote"])
def test_any_use_puts_collection_off(how: str) -> None:
    async def use(silo: Silo, other: Silo) -> None:
        ref = silo.grain(Settled, "a")
        if how == "call":
            await ref.call("c")
        elif how == "read":
            await ref.read("r")
        elif how == "peek":
            await ref.peek()
        elif how == "one way":
            await ref.note("n")
        elif how == "remote":
            await other.grain(Settled, "a").call("c")
        else:
            with pytest.raises(ValueError):
                await ref.fail()

    async def main(silo: Silo, other: Silo) -> None:
        GATES["r"].set()
        await silo.grain(Settled, "a").call("c")
        for _ in range(4):
            await use(silo, other)
            await asyncio.sleep(SCAN_S)
        assert not idle_ends() and activation_in(silo, "a", "Settled") is not None
        await asyncio.sleep(SCAN_S)
        assert idle_ends() == 1

    while_scanned(main)


def test_a_busy_activation_or_one_with_waiting_calls_is_never_collected() -> None:
    async def main(silo: Silo, _: Silo) -> None:
        ref = silo.grain(Settled, "a")
        assert await ref.call("c") == 1
        calls = asyncio.gather(ref.stay("s"), ref.call("q"))
        await asyncio.sleep(4 * SCAN_S)
        assert LOG[-1] == "+s"
        GATES["s"].set()
        assert [*await calls] == ["s", 2]
        await asyncio.sleep(SCAN_S / 4)
        assert not idle_ends()  # its end was not postponed either

    while_scanned(main)


def test_keep_alive_puts_collection_off_until_its_time_has_passed() -> None:
    async def main(silo: Silo, _: Silo) -> None:
        await silo.grain(Settled, "a").keep_alive(3 * SCAN_S)
        await asyncio.sleep(3 * SCAN_S)
        assert not idle_ends()
        await asyncio.sleep(SCAN_S)
        assert idle_ends() == 1

    while_scanned(main)


def test_a_task_of_the_activation_puts_collection_off() -> None:
    async def main(silo: Silo, _: Silo) -> None:
        await silo.grain(Settled, "a").start_task("t")
        await asyncio.sleep(3 * SCAN_S)
        assert not idle_ends()
        GATES["t"].set()
        await asyncio.sleep(SCAN_S)
        assert "task t done" in LOG and idle_ends() == 1

    while_scanned(main)


def test_many_idle_activations_are_collected_together() -> None:
    async def main(silo: Silo, _: Silo) -> None:
        await asyncio.gather(*(silo.grain(Settled, f"{i}").call("c") for i in range(100)))
        await asyncio.sleep(SCAN_S)
        await silo.grain(Settled, "7").call("c")
        await asyncio.sleep(SCAN_S)
        assert idle_ends() == 99 and silo.assembly.catalog.count == 1
        assert await silo.grain(Settled, "7").call("c") == 3

    while_scanned(main)


def test_collection_keeps_its_times_in_a_running_silo() -> None:
    """Unused activations are collected after one to two times `idle_after`, and used ones never."""

    async def driver(sim: Simulation) -> list[float]:
        host = sim.host("one")
        loop = asyncio.get_running_loop()

        async def program() -> list[float]:
            @grain(idle_after=10)
            class Brief(Grain):
                async def call(self) -> None:
                    return None

                async def on_deactivate(self, reason: DeactivationReason, /) -> None:
                    LOG.append(reason.name)
                    ended.append(loop.time() - started)

            ended: list[float] = []
            silo = Silo(
                grains=[Brief],
                address="one:7700",
                insecure=True,
                membership=MemoryMembershipTable(),
                options=RuntimeOptions(collect_every_s=1, idle_after_s=1000),
                env=sim.env(host),
                transport=sim.transport(host),
            )
            async with silo:
                await asyncio.sleep(5)
                started = loop.time()
                await silo.grain(Brief, "once").call()
                for _ in range(40):
                    await silo.grain(Brief, "often").call()
                    await asyncio.sleep(1)
                assert len(ended) == 1
                ended_while_running = list(ended)
            return ended_while_running

        return await sim.call(host, program())

    (ended_after,) = run(driver, seed=1).result
    assert 10 <= ended_after <= 21 + 1
    assert LOG == ["IDLE", "SILO_STOPS"]


# --- tasks of the activation ---------------------------------------------------------------------


async def test_a_task_of_the_activation_is_cancelled_before_on_deactivate(silo: Silo) -> None:
    ref = silo.grain(Living, "a")
    await ref.start_task("t")
    await until(lambda: "task t" in LOG)
    await ref.leave()
    await until(lambda: "gone" in LOG)
    assert LOG[-3:] == ["task t cancelled", "deactivate REQUESTED", "gone"]
    assert TASKS[0].cancelled()


async def test_a_task_of_the_activation_may_go_on_beside_later_turns(silo: Silo) -> None:
    ref = silo.grain(Living, "a")
    await ref.start_task("t")
    assert await ref.call("c") == 1
    GATES["t"].set()
    await until(lambda: "task t done" in LOG)
    assert activation_in(silo, "a") is not None


async def test_no_task_starts_after_the_end(silo: Silo) -> None:
    ref = silo.grain(Living, "a")
    await ref.call("c")
    held = silo.assembly.catalog.of("Living")["a"].grain.context
    await ref.leave()
    await until(lambda: activation_in(silo, "a") is None)

    async def work() -> None:
        LOG.append("must not run")

    with pytest.raises(NotInCluster):
        held.create_task(work())
    assert "must not run" not in LOG


async def test_a_task_of_a_turn_sees_no_request_once_the_turn_has_ended(silo: Silo) -> None:
    assert await with_options(silo.grain(Living, "a"), headers={"a": "1"}).headers() == 1
    assert await silo.grain(Living, "a").headers() == 0


async def test_a_failing_start_of_an_unknown_type_arrives_as_grain_error(silo: Silo) -> None:
    class OddError(Exception):
        pass

    FAILING.append(OddError("odd"))
    with pytest.raises(GrainError, match="odd"):
        await silo.grain(Living, "a").call("c")
    assert await silo.grain(Living, "a").call("c") == 1
