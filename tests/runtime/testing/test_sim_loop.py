"""The virtual clock, the end of a run that cannot continue, and crashes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import math
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from millstream.runtime.testing import (
    Deadlock,
    Host,
    Livelock,
    SimLoop,
    VirtualTimeExceeded,
    current_host,
)

T = TypeVar("T")


@contextmanager
def a_loop(**options: Any) -> Iterator[SimLoop]:
    loop = SimLoop(1, **options)
    try:
        yield loop
    finally:
        loop.shut_down()
        gc.collect()  # so that leftover tasks and coroutines warn in this test


def drive(main: Coroutine[Any, Any, T], **options: Any) -> T:
    with a_loop(**options) as loop:
        return loop.run_until_complete(main)


def on(loop: SimLoop, host: Host, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return loop.create_task(coro, context=host.context())


def test_time_moves_to_the_exact_time_of_the_next_timer() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        for when in (0.3, 0.1, 0.1 + 1e-9, 7e8 + 0.1):
            loop.call_at(when, lambda: fired.append(loop.time()))
        await asyncio.sleep(1e9)
        return fired

    assert drive(main()) == [0.1, 0.1 + 1e-9, 0.3, 7e8 + 0.1]


def test_timer_never_runs_early_so_rearming_it_at_the_same_deadline_is_no_livelock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        deadline = 1.0
        done: asyncio.Future[float] = loop.create_future()

        def sweep() -> None:
            if loop.time() < deadline:
                loop.call_at(deadline, sweep)
            else:
                done.set_result(loop.time())

        loop.call_at(math.nextafter(deadline, 0), sweep)
        return await done

    assert drive(main()) == 1.0


def test_timers_fire_up_to_a_millisecond_early_if_that_is_wanted() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        found = []
        for _ in range(100):
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            found.append(due - loop.time())
        return found

    found = drive(main(), early_max_s=0.001)
    assert all(0 <= early <= 0.001 for early in found)
    assert max(found) > 0.0005 and found.count(0) > 20


def test_who_waits_for_what_is_left_of_an_early_timer_gets_there() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        deadline = 1.0
        while loop.time() < deadline:
            await asyncio.sleep(deadline - loop.time())
        return loop.time()

    assert drive(main(), early_max_s=0.001, livelock_iterations_max=100) >= 1.0


def test_two_who_wait_for_what_is_left_of_early_timers_get_there() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()

        async def wait(until_s: float, shift: int) -> None:
            while loop.time() < until_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until_s):
                        await asyncio.Event().wait()
                for _ in range(shift):
                    await asyncio.sleep(0)
                shift = 0

        for number in range(1, 20):
            await asyncio.gather(*(wait(float(number), shift) for shift in range(2)))
        return loop.time()

    assert drive(main(), early_max_s=0.001) >= 19.0


def test_call_soon_stays_first_in_first_out() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_soon(order.append, number)
        await asyncio.sleep(0)
        return order

    assert drive(main()) == list(range(50))


def test_an_hour_of_a_hundred_tasks_runs_without_waiting() -> None:
    async def ticker(number: int) -> int:
        ticks = 0
        while asyncio.get_running_loop().time() < 3600:
            await asyncio.sleep(10 + number / 100)
            ticks += 1
        return ticks

    async def main() -> int:
        return sum(await asyncio.gather(*(ticker(number) for number in range(100))))

    assert 30_000 < drive(main()) < 36_001


def test_queues_conditions_timeouts_groups_threads_and_generators_work() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(1)
            yield number

    async def main() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.put(1))
            taken = group.create_task(queue.get())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        inline = await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        return [taken.result(), inline, [number async for number in numbers()]]

    assert drive(main()) == [1, True, [0, 1, 2]]


def test_executor_result_arrives_later_and_errors_are_raised() -> None:
    async def main() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        ran: list[int] = []
        future = loop.run_in_executor(None, ran.append, 1)
        was_done = future.done()
        await future
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return bool(ran) and not was_done, loop.time()

    ran_at_once, time_s = drive(main())
    assert ran_at_once and 0 < time_s < 0.002


async def _stuck_program() -> None:
    async def waits_for_godot() -> None:
        await asyncio.get_running_loop().create_future()

    await asyncio.gather(
        asyncio.create_task(waits_for_godot(), name="vladimir"),
        asyncio.create_task(waits_for_godot(), name="estragon"),
    )


def test_deadlock_names_the_waiting_tasks_and_their_lines() -> None:
    with pytest.raises(Deadlock) as caught:
        drive(_stuck_program())
    text = str(caught.value)
    assert "vladimir" in text and "estragon" in text
    assert "waits_for_godot (test_sim_loop.py:" in text


def test_deadlock_leaves_out_tasks_of_crashed_hosts() -> None:
    with a_loop() as loop:
        dead, alive = Host("dead"), Host("alive")

        async def main() -> None:
            on(loop, dead, _stuck_program())
            on(loop, alive, _stuck_program())
            await asyncio.sleep(1)
            loop.crash(dead)
            await asyncio.Event().wait()

        with pytest.raises(Deadlock) as caught:
            loop.run_until_complete(main())
        assert "alive#1: " in str(caught.value) and "dead#1" not in str(caught.value)


def test_livelock_names_what_is_ready() -> None:
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match=r"1 x .*spins \(test_sim_loop.py:"):
        drive(spins(), livelock_iterations_max=1000)


def test_many_iterations_are_no_livelock_while_time_moves() -> None:
    async def main() -> None:
        for _ in range(10):
            for _ in range(500):
                await asyncio.sleep(0)
            await asyncio.sleep(1e-6)

    drive(main(), livelock_iterations_max=1000)


def test_waiting_beyond_the_limit_is_refused() -> None:
    with pytest.raises(VirtualTimeExceeded, match="max_virtual_s is 60"):
        drive(asyncio.sleep(61), max_virtual_s=60)


def test_sockets_are_refused() -> None:
    async def main() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises(NotImplementedError, match="SimTransport"):
        drive(main())


def test_other_threads_are_refused() -> None:
    async def main() -> list[str]:
        loop, errors = asyncio.get_running_loop(), list[str]()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return errors

    assert drive(main()) == ["another thread called a simulated loop, so no seed repeats the run"]


def test_tasks_and_callbacks_know_their_host() -> None:
    with a_loop() as loop:
        host = Host("a")

        async def grandchild() -> Host | None:
            return current_host()

        async def child() -> Host | None:
            await asyncio.sleep(1)
            return await asyncio.create_task(grandchild())

        async def main() -> tuple[Host | None, Host | None]:
            return await on(loop, host, child()), current_host()

        assert loop.run_until_complete(main()) == (host, None)


class Victim:
    """A program that counts its steps and its cleanups."""

    def __init__(self) -> None:
        self.steps = 0
        self.cleanups = 0

    async def _work(self) -> None:
        try:
            while True:
                await asyncio.sleep(0.25)
                self.steps += 1
        finally:
            self.cleanups += 1

    async def _guarded(self) -> None:
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            group.create_task(self._work())
            group.create_task(self._wait_for_ever())

    async def _wait_for_ever(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        self.cleanups += 1

    async def run(self) -> None:
        try:
            await self._guarded()
        finally:
            self.cleanups += 1


def test_crash_runs_no_finally_until_the_loop_shuts_down() -> None:
    victim, host = Victim(), Host("a")

    with a_loop() as loop:

        async def main() -> tuple[int, int, int]:
            on(loop, host, victim.run())
            await asyncio.sleep(1.1)
            loop.crash(host)
            at_crash = victim.steps
            gc.collect()
            await asyncio.sleep(100)
            loop.check()
            return at_crash, victim.steps, victim.cleanups

        assert loop.run_until_complete(main()) == (4, 4, 0)
    assert victim.cleanups == 3


def test_a_crashed_host_logs_nothing_while_it_unwinds(caplog: pytest.LogCaptureFixture) -> None:
    async def blames() -> None:
        try:
            await asyncio.sleep(math.inf)
        finally:
            logging.warning("its cancellation looks like a fault of what it called")

    with a_loop() as loop:

        async def main() -> None:
            on(loop, host := Host("a"), blames())
            await asyncio.sleep(1)
            loop.crash(host)
            logging.warning("it has crashed")

        loop.run_until_complete(main())
    logging.warning("after the run")
    assert caplog.messages == ["it has crashed", "after the run"]


def test_task_that_nothing_refers_to_is_not_collected_after_a_crash() -> None:
    host, futures, ended = Host("a"), list[asyncio.Future[None]](), list[str]()

    async def waits() -> None:
        futures.append(asyncio.get_running_loop().create_future())
        try:
            await futures[0]
        finally:
            ended.append("ended")

    with a_loop() as loop:

        async def main() -> None:
            on(loop, host, waits())
            await asyncio.sleep(1)
            loop.crash(host)
            futures.clear()
            gc.collect()
            assert ended == []

        loop.run_until_complete(main())
    assert ended == ["ended"]


def test_crash_drops_what_is_ready_in_the_same_iteration() -> None:
    host, ran = Host("a"), list[str]()

    with a_loop() as loop:

        async def main() -> None:
            loop.call_soon(loop.crash, host)
            loop.call_soon(ran.append, "crashed", context=host.context())
            loop.call_soon(ran.append, "other")
            await asyncio.sleep(1)
            loop.call_soon(ran.append, "after", context=host.context())
            loop.call_later(1, ran.append, "later", context=host.context()).cancel()
            await asyncio.sleep(10)
            assert ran == ["other"]

        loop.run_until_complete(main())


def test_crash_drops_timers_and_leaves_the_others_in_order() -> None:
    host, ran = Host("a"), list[int]()

    with a_loop() as loop:

        async def main() -> None:
            for number in range(40):
                context = host.context() if number % 2 else None
                loop.call_later(40 - number, ran.append, number, context=context)
            await asyncio.sleep(0.5)
            loop.crash(host)
            loop.check()
            await asyncio.sleep(100)

        loop.run_until_complete(main())
    assert ran == list(range(38, -1, -2))


def test_task_whose_wake_up_was_dropped_does_not_hang_the_shut_down() -> None:
    host, ended = Host("a"), list[str]()

    async def waits(event: asyncio.Event) -> None:
        try:
            await event.wait()
            ended.append("woke")
        finally:
            ended.append("ended")

    with a_loop() as loop:

        async def main() -> None:
            event = asyncio.Event()
            on(loop, host, waits(event))
            await asyncio.sleep(1)
            event.set()  # the wake-up is scheduled, but never runs
            loop.crash(host)
            await asyncio.sleep(1)
            assert ended == []

        loop.run_until_complete(main())
    assert ended == ["ended"]


def test_task_made_on_a_crashed_host_leaves_no_warning() -> None:
    host, ran = Host("a"), list[int]()

    async def late() -> None:
        ran.append(1)

    with a_loop() as loop:

        async def dies() -> None:
            loop.crash(host)
            asyncio.create_task(late())  # noqa: RUF006
            await asyncio.sleep(0)
            ran.append(2)

        async def main() -> None:
            on(loop, host, dies())
            await asyncio.sleep(1)

        loop.run_until_complete(main())
    assert ran == []


def test_task_that_swallows_cancellation_does_not_hang_the_shut_down() -> None:
    async def obstinate() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async def main() -> asyncio.Task[None]:
        return asyncio.create_task(obstinate())

    loop = SimLoop(1)
    task = loop.run_until_complete(main())
    loop.shut_down()
    assert not task.done()
    assert inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CLOSED  # type: ignore[arg-type]


def test_what_cancellation_does_not_end_leaves_nothing_for_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the collector unwinds it in another test, whose loop is closed."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    begun: list[asyncio.Task[None]] = []

    async def restless(depth: int) -> None:
        try:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)
        except GeneratorExit:
            if depth:
                begun.append(asyncio.get_running_loop().create_task(restless(depth - 1)))
            asyncio.get_running_loop().call_soon(print)
            raise

    async def main() -> None:
        begun.append(asyncio.create_task(restless(3)))
        await asyncio.sleep(1)

    with a_loop() as loop:
        loop.run_until_complete(main())
    assert len(begun) == 2  # the second task was closed before it began
    begun.clear()
    gc.collect()
    assert not unraisable


@pytest.mark.parametrize("how", ["soon", "timer"])
def test_callback_of_a_closed_task_starts_no_task_after_the_last_round(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A closed turn admits the next call, and a callback starts a runner for it."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    begun: list[asyncio.Task[None]] = []

    async def never_runs() -> None:
        raise AssertionError

    def begin() -> None:
        begun.append(asyncio.get_running_loop().create_task(never_runs()))

    async def obstinate() -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)
        finally:
            if how == "soon":
                loop.call_soon(begin)
            else:
                loop.call_later(0, begin)

    async def main() -> asyncio.Task[None]:
        return asyncio.create_task(obstinate())

    with a_loop() as loop:
        task = loop.run_until_complete(main())
    del task
    begun.clear()
    gc.collect()
    assert not unraisable
