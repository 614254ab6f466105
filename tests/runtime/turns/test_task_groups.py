"""Turns that use `asyncio.TaskGroup` and `asyncio.timeout` end as they would without a runtime."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from tests.conditions import spin, until
from tests.runtime.callers import runtime_of
from tests.runtime.pinned import pin

from millstream.runtime import (
    PREFER_LOCAL,
    CallTimeout,
    DeactivationReason,
    Grain,
    GrainError,
    LocalCluster,
    Role,
    RuntimeOptions,
    Silo,
    always_interleave,
    grain,
    one_way,
    open_to,
    read_only,
    shielded,
    with_options,
)
from millstream.runtime.extending import SystemTarget

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    yield


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("of a task")


async def waits() -> None:
    await asyncio.Event().wait()


async def waiting_group() -> int:
    """The task fails while its group waits at the end of the block."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    except* ValueError:
        pass
    return 1


async def working_group() -> int:
    """The task fails while the block itself still runs."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.Event().wait()
    except* ValueError:
        pass
    return 1


async def nested_groups() -> int:
    try:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(waiting_group())
            await waiting_group()
            outer.create_task(fails())
    except* ValueError:
        pass
    return await working_group()


async def group_in_a_timeout() -> int:
    async with asyncio.timeout(5):
        await waiting_group()
    return 1


async def timeouts() -> int:
    """An inner and an outer timeout that pass at the same time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                await asyncio.Event().wait()
    return 1


async def group_whose_timeout_is_over() -> int:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            async with asyncio.TaskGroup() as group:
                group.create_task(waits())
    return 1


BODIES: dict[str, Callable[[], Awaitable[int]]] = {
    body.__name__: body
    for body in (
        waiting_group,
        working_group,
        nested_groups,
        group_in_a_timeout,
        timeouts,
        group_whose_timeout_is_over,
    )
}


@grain(placement=PREFER_LOCAL)
class Worker(Grain):
    async def plain(self, body: str) -> int:
        return await BODIES[body]()

    @read_only
    async def look(self, body: str) -> int:
        return await BODIES[body]()

    @always_interleave
    async def interleave(self, body: str) -> int:
        return await BODIES[body]()

    @shielded
    async def shield(self, body: str) -> int:
        return await BODIES[body]()

    async def by_hop(self, body: str) -> int:
        return await self.grain(Worker, "other").plain(body)

    @one_way
    async def one_way(self, body: str) -> None:
        LOG.append(f"result {await BODIES[body]()}")

    async def hold(self) -> None:
        await GATES["hold"].wait()

    async def ok(self) -> str:
        return "ok"

    async def group_then_swallow(self) -> str:
        await waiting_group()
        LOG.append("waits")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            LOG.append("swallowed")
        return "late"

    async def swallow_then_group(self) -> str:
        LOG.append("waits")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            async with asyncio.TaskGroup() as group:  # nothing fails in it
                group.create_task(asyncio.sleep(0))
            LOG.append("swallowed")
        return "late"

    async def swallow_in_order(self) -> str:
        """Take the request back, as code must that swallows a cancellation on purpose."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        return "late"

    async def cancels_itself_and_stays(self) -> None:
        await self.cancels_itself()
        await waits()

    async def cancels_itself(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"


@grain(direct=False)
class Apart(Grain):
    async def plain(self, body: str) -> int:
        return await BODIES[body]()


class Hooked(Grain):
    """Its hooks run the body that its key names."""

    async def on_activate(self) -> None:
        LOG.append(f"activate {await BODIES[self.key]()}")

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append(f"deactivate {await BODIES[self.key]()}")

    async def leave(self) -> str:
        self.context.deactivate_when_idle()
        return "left"


class Clerk(SystemTarget):
    target_name = "$clerk"

    @open_to(Role.CLIENT)
    async def file(self, body: str) -> int:
        return await BODIES[body]()


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=2, grains=[Worker, Apart, Hooked]) as started:
        await started.silos[0].grain(Worker, "a").ok()
        await started.silos[0].grain(Worker, "other").ok()
        yield started


def worker(cluster: LocalCluster, where: str) -> Worker:
    return runtime_of(cluster, where).grain(Worker, "a")


async def contended(ref: Worker, body: str) -> int:
    """Call while the grain is busy, so that the turn before hands over."""
    holding = asyncio.ensure_future(ref.hold())
    await spin()
    waiting = asyncio.ensure_future(ref.plain(body))
    await spin()
    GATES["hold"].set()
    await holding
    return await waiting


DOORS: dict[str, Callable[[Worker, str], Awaitable[int]]] = {
    "plain": lambda ref, body: ref.plain(body),
    "with options": lambda ref, body: with_options(ref, timeout=5).plain(body),
    "read only": lambda ref, body: ref.look(body),
    "interleaving": lambda ref, body: ref.interleave(body),
    "shielded": lambda ref, body: ref.shield(body),
    "by a hop": lambda ref, body: ref.by_hop(body),
    "contended": contended,
}
WHERE = pytest.mark.parametrize("where", ["local", "silo", "client"])


@WHERE
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("body", BODIES)
async def test_a_turn_that_handled_its_group_or_timeout_has_its_result(
    cluster: LocalCluster, where: str, door: str, body: str
) -> None:
    ref = worker(cluster, where)
    assert await DOORS[door](ref, body) == 1
    assert await DOORS[door](ref, body) == 1
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@WHERE
@pytest.mark.parametrize("body", BODIES)
async def test_so_has_one_of_a_grain_that_is_called_in_a_task_of_its_own(
    cluster: LocalCluster, where: str, body: str
) -> None:
    assert await runtime_of(cluster, where).grain(Apart, "a").plain(body) == 1


@WHERE
@pytest.mark.parametrize("body", BODIES)
async def test_a_one_way_turn_that_handled_its_group_is_no_failure(
    cluster: LocalCluster, where: str, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    await worker(cluster, where).one_way(body)
    await until(lambda: LOG == ["result 1"])
    assert await worker(cluster, where).ok() == "ok"
    assert "one-way" not in caplog.text


@pytest.mark.parametrize("body", BODIES)
async def test_life_cycle_hooks_may_handle_groups(
    cluster: LocalCluster, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(5):
        assert await cluster.client.grain(Hooked, body).leave() == "left"
        await until(lambda: LOG == ["activate 1", "deactivate 1"])
        assert await cluster.client.grain(Hooked, body).leave() == "left"
        await until(lambda: LOG == ["activate 1", "deactivate 1"] * 2)
    assert "failed" not in caplog.text and "could not start" not in caplog.text


@pytest.mark.parametrize("body", BODIES)
async def test_a_method_of_a_system_target_may_handle_groups(
    cluster: LocalCluster, body: str
) -> None:
    silo, calls = cluster.silos[0], cluster.client.gateway
    silo.assembly.targets.add(Clerk())
    pin(cluster.client, silo.gateway)
    for _ in range(2):
        assert await calls.ask("x", "$clerk", "", Clerk.target_specs["file"], (body,)) == 1


# --- requested cancellations are kept ------------------------------------------------------------


@WHERE
@pytest.mark.parametrize("method", ["group_then_swallow", "swallow_then_group"])
async def test_a_cancellation_of_the_caller_that_the_turn_swallowed_beside_a_group_is_raised(
    cluster: LocalCluster, where: str, method: str
) -> None:
    call = asyncio.ensure_future(getattr(worker(cluster, where), method)())
    await until(lambda: LOG == ["waits"])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: LOG == ["waits", "swallowed"])


@WHERE
async def test_a_timeout_around_the_call_that_the_turn_swallowed_after_a_group_is_raised(
    cluster: LocalCluster, where: str
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await worker(cluster, where).group_then_swallow()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@WHERE
@pytest.mark.parametrize("method", ["group_then_swallow", "swallow_in_order"])
async def test_a_deadline_that_the_turn_swallowed_is_a_timeout_whatever_the_count_says(
    cluster: LocalCluster, where: str, method: str
) -> None:
    ref = worker(cluster, where)
    with pytest.raises(CallTimeout):
        await getattr(with_options(ref, timeout=0.05), method)()
    assert await ref.ok() == "ok"
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_direct_turn_that_takes_its_expired_deadline_back_is_a_timeout() -> None:
    async with Silo(grains=[Worker], options=RuntimeOptions(call_timeout_s=0.05)) as silo:
        await silo.grain(Worker, "a").ok()  # so that the next call is direct
        with pytest.raises(CallTimeout):
            await silo.grain(Worker, "a").swallow_in_order()


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_no_count_of_a_runtimes_own_task_is_taken_for_a_cancellation(
    cluster: LocalCluster, where: str
) -> None:
    ref = worker(cluster, where)
    for _ in range(3):
        assert await ref.cancels_itself() == "done"
        assert await ref.ok() == "ok"


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_a_deadline_is_a_timeout_though_the_turn_had_cancelled_its_task_itself(
    cluster: LocalCluster, where: str
) -> None:
    with pytest.raises(CallTimeout):
        await with_options(worker(cluster, where), timeout=0.05).cancels_itself_and_stays()


@pytest.mark.usefixtures("cluster")
async def test_a_group_outside_of_turns_is_left_as_it_is() -> None:
    plain = asyncio.TaskGroup.__aexit__
    before = getattr(plain, "__wrapped__", plain)

    class Uncorrected(asyncio.TaskGroup):
        __aexit__ = before

    async def counted(kind: type[asyncio.TaskGroup]) -> int:
        me = asyncio.current_task()
        assert me is not None
        with suppress(ExceptionGroup):
            async with kind() as group:
                group.create_task(fails())
        return me.cancelling()

    counts = [await asyncio.create_task(counted(k)) for k in (Uncorrected, asyncio.TaskGroup)]
    assert counts[0] == counts[1]
    assert not hasattr(before, "__wrapped__")  # corrected once


async def test_a_method_whose_own_task_was_cancelled_fails_as_itself(cluster: LocalCluster) -> None:
    async def cancelled() -> int:
        child = asyncio.get_running_loop().create_task(waits())
        child.cancel()
        await child
        return 1

    BODIES["cancelled"] = cancelled
    try:
        for where in ("local", "silo", "client"):
            for door in DOORS.values():
                with pytest.raises(GrainError, match="awaited a cancelled task or future"):
                    await door(worker(cluster, where), "cancelled")
    finally:
        del BODIES["cancelled"]
