"""Cancellation and deadlines: the results for caller and callee, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.runtime import (
    PREFER_LOCAL,
    Address,
    CallCycle,
    CallError,
    CallTimeout,
    Grain,
    Link,
    LocalCluster,
    MembershipOptions,
    Runtime,
    RuntimeOptions,
    Silo,
    TcpTransport,
    grain,
    shielded,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
TASKS: set[asyncio.Task[object]] = set()
LEAK: contextvars.ContextVar[str] = contextvars.ContextVar("leak", default="clean")
SHORT = 0.05


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    TASKS.clear()
    yield


async def forever() -> None:
    await asyncio.Event().wait()


@grain(placement=PREFER_LOCAL)
class Worker(Grain):
    async def ok(self) -> str:
        return "ok"

    async def note(self, name: str) -> str:
        LOG.append(name)
        return name

    async def wait(self, name: str) -> str:
        LOG.append(f"+{name}")
        try:
            await GATES[name].wait()
        except asyncio.CancelledError:
            LOG.append(f"!{name}")
            raise
        finally:
            LOG.append(f"-{name}")
        return name

    async def wait_in(self, how: str) -> None:
        if how == "plain":
            await forever()
        elif how == "timeout":
            async with asyncio.timeout(5):
                await forever()
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(forever())
                group.create_task(forever())
        elif how == "gather":
            await asyncio.gather(forever(), forever())
        elif how == "wait_for":
            await asyncio.wait_for(forever(), 5)
        elif how == "nested":
            await self.grain(Worker, f"{self.key}-inner").wait_in("plain")

    async def inner_timeout(self) -> str:
        try:
            async with asyncio.timeout(0.01):
                await forever()
        except TimeoutError:
            return "inner timed out"
        return "no"

    async def swallow(self) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            LOG.append("swallowed")
        return "late"

    async def swallow_then_work(self, name: str) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            await GATES[name].wait()
        return "late"

    async def turn_into_error(self) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            raise ValueError("instead") from None
        return "no"

    async def slow_cleanup(self, name: str, step_s: float) -> None:
        try:
            await forever()
        finally:
            LOG.append(f"+{name}")
            for _ in range(60):
                await asyncio.sleep(step_s)
            LOG.append(f"-{name}")

    async def fail(self) -> None:
        raise ValueError("no")

    async def group_fail(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fail())

    async def bad_result(self) -> int:
        return "five"  # type: ignore[return-value]

    async def add(self, by: int) -> int:
        return by + 1

    async def cancels_itself(self) -> None:
        child = asyncio.get_running_loop().create_task(forever())
        await asyncio.sleep(0)
        child.cancel()
        await child

    async def call_self(self) -> str:
        return await self.grain(Worker, self.key).ok()

    async def call(self, key: str, name: str) -> str:
        try:
            return await self.grain(Worker, key).wait(name)
        finally:
            LOG.append("caller cleaned up")

    async def call_with_timeout(self, key: str, name: str) -> str:
        try:
            async with asyncio.timeout(0.03):
                await self.grain(Worker, key).wait(name)
        except TimeoutError as error:
            return type(error).__name__
        return "no"

    async def deep(self, depth: int, name: str) -> None:
        if depth:
            try:
                await self.grain(Worker, f"deep-{depth}").deep(depth - 1, name)
            except BaseException:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                LOG.append(f"clean-{depth}")
                raise
        else:
            await self.wait(name)

    @shielded
    async def solid(self, name: str) -> None:
        LOG.append(f"+{name}")
        await GATES[name].wait()
        LOG.append(f"-{name}")

    async def leave_child(self, key: str) -> None:
        async def later() -> None:
            await GATES["child"].wait()
            LOG.append(await self.grain(Worker, key).call_back(self.key))

        TASKS.add(asyncio.get_running_loop().create_task(later()))

    async def call_back(self, key: str) -> str:
        return await self.grain(Worker, key).ok()

    async def stain(self) -> None:
        LEAK.set("stained")

    async def look(self) -> str:
        return LEAK.get()

    async def spin(self, turns: int) -> None:
        other = self.grain(Worker, "other")
        for _ in range(turns):
            await other.ok()


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Worker]) as started:
        yield started


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster with `a` in the first silo."""
    async with LocalCluster(silos=2, grains=[Worker]) as started:
        assert await started.silos[0].grain(Worker, "a").ok() == "ok"
        yield started


def caller(cluster: LocalCluster, where: str) -> Worker:
    runtimes: dict[str, Runtime] = {
        "local": cluster.silos[0],
        "silo": cluster.silos[1],
        "client": cluster.client,
    }
    return runtimes[where].grain(Worker, "a")


WHERE = pytest.mark.parametrize("where", ["local", "silo", "client"])


def nothing_is_left(cluster: LocalCluster) -> None:
    """Check that no request is pending, no turn runs, and nobody waits."""
    for silo in cluster.silos:
        assert list(silo.assembly.turns.deadlines.iter_watched()) == []
        for activation in silo.assembly.catalog.all():
            activation.check()
            assert activation.is_idle
    assert list(cluster.client.engine.turns.deadlines.iter_watched()) == []


# --- cancelling ----------------------------------------------------------------------------------


@WHERE
async def test_cancelling_the_caller_cancels_the_running_method(
    cluster: LocalCluster, where: str
) -> None:
    ref = caller(cluster, where)
    task = asyncio.create_task(ref.wait("w"))
    await until(lambda: "+w" in LOG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: LOG == ["+w", "!w", "-w"])
    assert await ref.ok() == "ok"
    nothing_is_left(cluster)


@WHERE
async def test_a_call_cancelled_while_it_waits_never_runs(
    cluster: LocalCluster, where: str
) -> None:
    ref = caller(cluster, where)
    first = asyncio.create_task(cluster.silos[0].grain(Worker, "a").wait("w"))
    await until(lambda: "+w" in LOG)
    activation = cluster.silos[0].assembly.catalog.of("Worker")["a"]

    def waiting() -> int:
        box = activation.mailbox
        return 0 if box is None else sum(not entry.is_withdrawn for entry in box.waiting)

    second = asyncio.create_task(ref.note("never"))
    await until(lambda: waiting() == 1)
    third = asyncio.create_task(ref.note("third"))
    await until(lambda: waiting() == 2)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await until(lambda: waiting() == 1)
    GATES["w"].set()
    assert await first == "w" and await third == "third"
    assert "never" not in LOG
    nothing_is_left(cluster)


@pytest.mark.parametrize("iterations", range(6))
async def test_a_cancellation_around_the_hand_over_never_loses_the_activation(
    silo: Silo, iterations: int
) -> None:
    ref = silo.grain(Worker, "a")
    first = asyncio.create_task(ref.wait("w"))
    await spin()
    second = asyncio.create_task(ref.note("second"))
    third = asyncio.create_task(ref.note("third"))
    await spin()
    GATES["w"].set()
    for _ in range(iterations):
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert third.result() == "third"
    assert await ref.ok() == "ok"


async def test_the_turn_goes_on_when_it_was_handed_to_a_caller_cancelled_in_that_iteration(
    silo: Silo,
) -> None:
    ref = silo.grain(Worker, "a")
    activation_of = silo.assembly.catalog.of("Worker")
    first = asyncio.create_task(ref.wait("w"))
    await spin()
    second = asyncio.create_task(ref.note("second"))
    third = asyncio.create_task(ref.note("third"))
    await spin()
    GATES["w"].set()
    blocking = activation_of["a"].blocking()[0]
    await until(lambda: blocking.done)
    second.cancel()  # it was granted the turn and has not run yet
    with pytest.raises(asyncio.CancelledError):
        await second
    assert await third == "third"
    assert LOG == ["+w", "-w", "third"]
    assert await first == "w"


async def test_every_cancelled_waiter_leaves_the_queue(silo: Silo) -> None:
    ref = silo.grain(Worker, "a")
    first = asyncio.create_task(ref.wait("w"))
    await spin()
    waiting = [asyncio.create_task(ref.note(f"{i}")) for i in range(20)]
    await spin()
    for task in waiting[::2]:
        task.cancel()
    await spin()
    GATES["w"].set()
    await asyncio.gather(first, *waiting, return_exceptions=True)
    assert LOG == ["+w", "-w", *(f"{i}" for i in range(1, 20, 2))]
    activation = silo.assembly.catalog.of("Worker")["a"]
    assert activation.mailbox is None and not activation.is_gated


async def test_many_remote_calls_cancelled_in_the_queue_start_at_most_once(
    cluster: LocalCluster,
) -> None:
    first = asyncio.create_task(caller(cluster, "local").wait("w"))
    await until(lambda: "+w" in LOG)
    tasks = [asyncio.create_task(caller(cluster, "silo").note(f"{i}")) for i in range(200)]
    activation = cluster.silos[0].assembly.catalog.of("Worker")["a"]
    await until(lambda: activation.mailbox is not None and len(activation.mailbox.waiting) == 200)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: activation.mailbox is None or not activation.mailbox.waiting)
    GATES["w"].set()
    await first
    assert LOG == ["+w", "-w"]
    nothing_is_left(cluster)


class Held(TcpTransport):
    """Joins the data that is written while it holds, and sends it in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[Link, list[bytes]] | None = None

    async def connect(self, address: Address, /) -> Link:
        link: Any = await super().connect(address)
        write = link.write

        def hold(data: bytes) -> None:
            if self.held is None:
                write(data)
            else:
                self.held.setdefault(link, []).append(data)

        class HeldLink:
            write = staticmethod(hold)

            def __getattr__(self, name: str) -> Any:
                return getattr(link, name)

        found: Any = HeldLink()
        return found  # type: ignore[no-any-return]

    def release(self) -> None:
        held, self.held = self.held, None
        for link, data in (held or {}).items():
            link.write(b"".join(data))


@pytest.mark.parametrize("where", ["silo", "client"])
@pytest.mark.parametrize("key", ["a", "nobody has called me"])
async def test_a_cancel_in_the_same_batch_as_its_call_keeps_the_method_from_running(
    where: str, key: str
) -> None:
    transport = Held()
    async with LocalCluster(silos=2, grains=[Worker], transport=transport) as cluster:
        await cluster.silos[0].grain(Worker, "a").ok()
        runtime = cluster.silos[1] if where == "silo" else cluster.client
        if where == "silo" and key != "a":
            await cluster.silos[0].grain(Worker, key).ok()
        if where == "silo" or key == "a":
            await runtime.grain(Worker, key).ok()
        for number in range(8):  # opens every connection
            await runtime.grain(Worker, f"{number}").ok()
        transport.held = {}
        task = asyncio.create_task(runtime.grain(Worker, key).note("ran"))
        await spin(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await spin(3)
        assert any(len(data) == 2 for data in transport.held.values())
        transport.release()
        assert await runtime.grain(Worker, key).ok() == "ok"
        await spin(200)
        assert LOG == []
        nothing_is_left(cluster)


async def test_a_cancelled_local_caller_waits_for_the_callees_cleanup(silo: Silo) -> None:
    task = asyncio.create_task(silo.grain(Worker, "a").slow_cleanup("c", 0.0))
    await spin()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert LOG == ["+c", "-c"]


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_a_method_that_swallows_its_cancellation_does_not_undo_it_for_its_caller(
    cluster: LocalCluster, where: str
) -> None:
    ref = caller(cluster, where)
    task = asyncio.create_task(ref.swallow())
    activation = cluster.silos[0].assembly.catalog.of("Worker")["a"]
    await until(lambda: activation.running is not None)
    await spin()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: LOG == ["swallowed"])
    assert await ref.ok() == "ok"
    nothing_is_left(cluster)


async def test_the_callers_own_timeout_around_a_call_works(silo: Silo) -> None:
    ref = silo.grain(Worker, "a")
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.02):
            await ref.wait("w")
    # not a CallTimeout, because the timeout is the caller's own
    assert type(caught.value) is TimeoutError
    assert await silo.grain(Worker, "b").call_with_timeout("a", "w2") == "TimeoutError"
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert await ref.ok() == "ok"


async def test_cancelling_a_silo_to_silo_chain_reaches_its_end(cluster: LocalCluster) -> None:
    await cluster.silos[1].grain(Worker, "far").ok()
    task = asyncio.create_task(caller(cluster, "client").call("far", "w"))
    await until(lambda: "+w" in LOG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: "caller cleaned up" in LOG and "!w" in LOG)
    assert await caller(cluster, "client").ok() == "ok"
    assert await cluster.grain(Worker, "far").ok() == "ok"
    nothing_is_left(cluster)


@WHERE
async def test_a_cancellation_that_the_method_made_itself_is_an_error_and_not_silence(
    cluster: LocalCluster, where: str
) -> None:
    ref = with_options(caller(cluster, where), timeout=60)
    async with asyncio.timeout(20):
        with pytest.raises(CallError):
            await ref.cancels_itself()
    assert await ref.ok() == "ok"
    nothing_is_left(cluster)


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@WHERE
@pytest.mark.parametrize("how", ["plain", "timeout", "group", "gather", "wait_for", "nested"])
async def test_a_deadline_ends_the_method_whatever_it_waits_in(
    cluster: LocalCluster, where: str, how: str
) -> None:
    ref = caller(cluster, where)
    # The callee may notice first. Its error names the time that was left on arrival.
    with pytest.raises(CallTimeout, match=r"at most 0\.0\d+ s"):
        await with_options(ref, timeout=SHORT).wait_in(how)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert await ref.ok() == "ok"
    await until(lambda: not list(cluster.silos[0].assembly.turns.deadlines.iter_watched()))
    nothing_is_left(cluster)


async def test_a_deadline_leaves_the_callers_own_timeout_and_cancel_working(silo: Silo) -> None:
    ref = silo.grain(Worker, "a")
    async with asyncio.timeout(5):
        with pytest.raises(CallTimeout):
            await with_options(ref, timeout=SHORT).wait("w")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await forever()

    async def ask_and_wait() -> None:
        with pytest.raises(CallTimeout):
            await with_options(ref, timeout=SHORT).wait("w")
        LOG.append("timed out")
        await forever()

    task = asyncio.create_task(ask_and_wait())
    await until(lambda: "timed out" in LOG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@WHERE
async def test_an_inner_timeout_that_fires_first_is_the_methods_own(
    cluster: LocalCluster, where: str
) -> None:
    assert await caller(cluster, where).inner_timeout() == "inner timed out"


@WHERE
@pytest.mark.parametrize("method", ["swallow", "turn_into_error"])
async def test_a_method_that_swallows_its_deadline_still_times_out(
    cluster: LocalCluster, where: str, method: str
) -> None:
    ref = caller(cluster, where)
    with pytest.raises(CallTimeout):
        await getattr(with_options(ref, timeout=SHORT), method)()
    assert await ref.ok() == "ok"
    nothing_is_left(cluster)


@WHERE
async def test_a_call_queued_past_its_deadline_never_runs(
    cluster: LocalCluster, where: str
) -> None:
    first = asyncio.create_task(caller(cluster, "local").wait("w"))
    await until(lambda: "+w" in LOG)
    with pytest.raises(CallTimeout):
        await with_options(caller(cluster, where), timeout=SHORT).note("never")
    activation = cluster.silos[0].assembly.catalog.of("Worker")["a"]
    await until(lambda: activation.mailbox is None or not activation.mailbox.waiting)
    GATES["w"].set()
    await first
    assert await caller(cluster, where).ok() == "ok"
    assert LOG == ["+w", "-w"]
    nothing_is_left(cluster)


async def test_a_queued_calls_timeout_names_what_it_waited_for(silo: Silo) -> None:
    ref = silo.grain(Worker, "a")
    first = asyncio.create_task(ref.wait("w"))
    await spin()
    with pytest.raises(CallTimeout, match=r"Worker/a.*Worker\.wait"):
        await with_options(ref, timeout=SHORT).note("never")
    GATES["w"].set()
    await first


@WHERE
async def test_the_remaining_time_travels_with_nested_calls(
    cluster: LocalCluster, where: str
) -> None:
    await cluster.silos[1].grain(Worker, "far").ok()
    with pytest.raises(CallTimeout):
        await with_options(caller(cluster, where), timeout=SHORT).call("far", "w")
    await until(lambda: "caller cleaned up" in LOG and "!w" in LOG)
    assert await cluster.grain(Worker, "far").ok() == "ok"
    assert await cluster.grain(Worker, "a").ok() == "ok"
    await until(lambda: not list(cluster.silos[1].assembly.turns.deadlines.iter_watched()))
    nothing_is_left(cluster)


def in_a_silo(program: Callable[[Silo], Coroutine[Any, Any, None]]) -> None:
    """Run the program beside a silo in virtual time, where calls take no time."""

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, silos=1, grains=[Worker]) as cluster:
            [silo] = cluster.silos()
            await simulation.call(simulation.host("silo-0"), program(silo))

    run(main, 1)


def test_one_sweep_cancels_each_task_of_a_deep_chain_once() -> None:
    # 101 levels over several tasks. Each level awaits twice while it cleans up, undisturbed.
    async def program(silo: Silo) -> None:
        with pytest.raises(CallTimeout):
            await with_options(silo.grain(Worker, "top"), timeout=0.2).deep(100, "w")
        cleaned = [name for name in LOG if name.startswith("clean-")]
        assert cleaned == [f"clean-{depth}" for depth in range(1, 101)]
        assert await silo.grain(Worker, "deep-50").ok() == "ok"

    in_a_silo(program)


def test_the_cleanup_of_an_expired_turn_is_not_cancelled_again() -> None:
    async def program(silo: Silo) -> None:
        with pytest.raises(CallTimeout):
            await with_options(silo.grain(Worker, "a"), timeout=0.02).slow_cleanup("c", 0.001)
        assert LOG == ["+c", "-c"]

    in_a_silo(program)


async def test_a_nested_call_cannot_outlive_its_callers_deadline(silo: Silo) -> None:
    silo_ref = with_options(silo.grain(Worker, "a"), timeout=SHORT)
    with pytest.raises(CallTimeout, match=r"Worker\.call "):
        await silo_ref.call("b", "w")
    assert LOG == ["+w", "!w", "-w", "caller cleaned up"]


async def test_a_deadline_does_not_cancel_a_turn_that_ended_in_time(silo: Silo) -> None:
    ref = with_options(silo.grain(Worker, "a"), timeout=SHORT)
    assert await ref.ok() == "ok"
    with pytest.raises(CallTimeout):  # after several more sweeps this task is not cancelled
        await with_options(silo.grain(Worker, "b"), timeout=SHORT * 2).wait("w")
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_distinct_timeouts_do_not_pile_up(silo: Silo) -> None:
    ref = silo.grain(Worker, "a")
    before = len(silo.assembly.turns.deadlines.groups)
    for i in range(200):
        await with_options(ref, timeout=1 + i / 1000).ok()
    assert len(silo.assembly.turns.deadlines.groups) - before < 100


# --- the grain works after each kind of failure --------------------------------------------------

FAILURES: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "method raises": lambda ref: ref.fail(),
    "task group raises": lambda ref: ref.group_fail(),
    "wrong argument": lambda ref: ref.add("five"),  # type: ignore[arg-type]
    "huge argument": lambda ref: ref.add(2**70),
    "wrong result": lambda ref: ref.bad_result(),
    "cycle": lambda ref: with_options(ref, timeout=0.3).call_self(),
    "deadline": lambda ref: with_options(ref, timeout=SHORT).wait("w"),
    "deadline swallowed": lambda ref: with_options(ref, timeout=SHORT).swallow(),
    "cancels itself": lambda ref: with_options(ref, timeout=0.3).cancels_itself(),
}


@pytest.mark.one_in(3)
@WHERE
@pytest.mark.parametrize("failure", FAILURES)
async def test_the_grain_answers_after_a_failure(
    cluster: LocalCluster, where: str, failure: str
) -> None:
    ref = caller(cluster, where)
    for _ in range(3):
        with pytest.raises(Exception):  # noqa: B017  # other tests check which error
            await FAILURES[failure](ref)
        async with asyncio.timeout(2):
            assert await ref.ok() == "ok"
    nothing_is_left(cluster)


async def test_a_coroutine_that_is_closed_frees_the_grain(silo: Silo) -> None:
    ref = silo.grain(Worker, "a")
    await ref.ok()
    coroutine = ref.wait("w")
    coroutine.send(None)
    coroutine.close()
    assert await ref.ok() == "ok"
    activation = silo.assembly.catalog.of("Worker")["a"]
    activation.check()
    assert activation.is_idle


async def test_a_child_that_outlives_its_turn_has_neither_its_deadline_nor_its_chain(
    silo: Silo,
) -> None:
    await with_options(silo.grain(Worker, "a"), timeout=SHORT).leave_child("b")
    with pytest.raises(CallTimeout):  # the deadline of the turn passes
        await with_options(silo.grain(Worker, "c"), timeout=SHORT * 2).wait("w")
    GATES["child"].set()
    await asyncio.gather(*TASKS)
    assert LOG[-1] == "ok"


# --- nothing is left to the garbage collector ----------------------------------------------------


async def swallowed(call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
    except (Exception, asyncio.CancelledError):
        pass


async def cancelled(call: Callable[[], Awaitable[object]]) -> None:
    task = asyncio.ensure_future(call())
    await spin(10)
    task.cancel()
    await asyncio.wait([task])


async def garbage_of(action: Callable[[], Awaitable[None]]) -> list[str]:
    """Return the types of objects that only the collector could free."""
    for _ in range(3):
        await action()
    await spin()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            await action()
        await spin()
        gc.collect()
        return sorted(type(found).__name__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


GARBAGE: dict[str, Callable[[Worker], Awaitable[None]]] = {
    "success": lambda ref: swallowed(lambda: ref.ok()),
    "failure": lambda ref: swallowed(lambda: ref.fail()),
    "wrong argument": lambda ref: swallowed(lambda: ref.add("five")),  # type: ignore[arg-type]
    "wrong result": lambda ref: swallowed(lambda: ref.bad_result()),
    "cycle": lambda ref: swallowed(lambda: ref.call_self()),
    "cancelled": lambda ref: cancelled(lambda: ref.wait("w")),
    "deadline": lambda ref: swallowed(lambda: ref.wait("w")),
    "cancels itself": lambda ref: swallowed(lambda: ref.cancels_itself()),
}


@pytest.fixture
async def no_old_silos() -> None:
    """Wait for the probe threads of earlier silos, whose objects must not be counted."""
    await until(lambda: not any(t.name == "millstream-probe" for t in threading.enumerate()))


@pytest.fixture
async def still_silo(no_old_silos: None) -> AsyncIterator[Silo]:
    async with Silo(grains=[Worker]) as started:
        yield started


@pytest.fixture
async def still_cluster(no_old_silos: None) -> AsyncIterator[LocalCluster]:
    """Like `cluster`, without probes, because asyncio's streams are garbage when they close."""
    still = MembershipOptions(probe_every_s=1000)
    async with LocalCluster(silos=2, grains=[Worker], membership_options=still) as started:
        assert await started.silos[0].grain(Worker, "a").ok() == "ok"
        yield started


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["local", "silo"])
@pytest.mark.parametrize("what", GARBAGE)
async def test_a_call_leaves_nothing_to_the_garbage_collector(
    still_cluster: LocalCluster, where: str, what: str
) -> None:
    ref = caller(still_cluster, where)
    if what == "deadline":
        ref = with_options(ref, timeout=0.01)
    assert await garbage_of(lambda: GARBAGE[what](ref)) == []


async def test_a_call_cancelled_in_the_queue_leaves_nothing_to_the_garbage_collector(
    still_silo: Silo,
) -> None:
    ref = still_silo.grain(Worker, "a")
    first = asyncio.create_task(ref.wait("first"))
    await spin()
    assert await garbage_of(lambda: cancelled(lambda: ref.ok())) == []
    timed = with_options(ref, timeout=0.01)
    assert await garbage_of(lambda: swallowed(lambda: timed.ok())) == []
    GATES["first"].set()
    await first


async def test_with_options_leaves_nothing_to_the_garbage_collector(still_silo: Silo) -> None:
    ref = still_silo.grain(Worker, "a")
    assert await garbage_of(lambda: swallowed(lambda: with_options(ref, timeout=1).ok())) == []


# --- the runner, the budget ----------------------------------------------------------------------


async def test_context_variables_of_a_served_call_do_not_reach_the_next_one(
    cluster: LocalCluster,
) -> None:
    ref = caller(cluster, "silo")
    for _ in range(5):
        await ref.stain()
        assert await ref.look() == "clean"


async def test_a_run_of_direct_calls_does_not_starve_the_loop(silo: Silo) -> None:
    loop = asyncio.get_running_loop()
    lags: list[float] = []
    running = True

    async def metronome() -> None:
        while running:
            before_s = time.process_time()  # other processes on this machine are not the loop's lag
            await asyncio.wait([loop.create_future()], timeout=0.002)
            lags.append(time.process_time() - before_s)

    beat = asyncio.create_task(metronome())
    await silo.grain(Worker, "a").spin(100_000)
    running = False
    await beat
    assert len(lags) > 10, "the metronome hardly ran"
    assert sorted(lags)[len(lags) // 2] < 0.02


async def test_a_deadline_is_kept_by_a_run_of_calls_that_never_suspends(silo: Silo) -> None:
    with pytest.raises(CallTimeout):
        await with_options(silo.grain(Worker, "a"), timeout=SHORT).spin(10_000_000)


async def test_the_sweep_stops_when_nothing_is_pending() -> None:
    async with Silo(grains=[Worker], options=RuntimeOptions(sweep_s=0.001)) as silo:
        assert await silo.grain(Worker, "a").ok() == "ok"
        deadlines = silo.assembly.turns.deadlines
        await until(lambda: not deadlines.is_armed)
        with pytest.raises(CallTimeout):
            await with_options(silo.grain(Worker, "a"), timeout=0.01).wait("w")
        await until(lambda: not deadlines.is_armed)


async def test_a_cycle_is_no_timeout(silo: Silo) -> None:
    with pytest.raises(CallCycle):
        await silo.grain(Worker, "a").call_self()
