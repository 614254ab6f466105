"""Streamed results in virtual time: order, back-pressure, errors, ends and deadlines.

The cases are those of AsyncEnumerableGrainCallTests of Orleans, each for a caller in the grain's
silo, in another silo and in a client.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.runtime.callers import CALLERS, ask
from tests.runtime.pinned import pin

from millstream.runtime import (
    PREFER_LOCAL,
    CallFilters,
    CallTimeout,
    Client,
    ConfigError,
    Contract,
    DeactivationReason,
    Grain,
    GrainCall,
    NotHosted,
    NotInCluster,
    Overloaded,
    Proceed,
    ResultsAborted,
    RuntimeOptions,
    grain,
    state,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run

LOG: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    yield


@grain(placement=PREFER_LOCAL)
class Sheet(Grain):
    async def wake(self) -> None:
        pass

    async def rows(self, count: int, every_s: float = 0.0) -> AsyncGenerator[int, None]:
        LOG.append("begun")
        try:
            for number in range(count):
                if every_s:
                    await asyncio.sleep(every_s)
                LOG.append(f"made {number}")
                yield number
            LOG.append("complete")
        finally:
            LOG.append("closed")

    async def failing(self, count: int) -> AsyncGenerator[int, None]:
        for number in range(count):
            yield number
        raise LookupError(f"row {count} is missing")

    async def lists(self) -> AsyncGenerator[list[int], None]:
        row: list[int] = []
        for number in range(5):
            row.append(number)
            yield row

    async def wrong(self) -> AsyncGenerator[int, None]:
        yield 1
        yield "two"  # type: ignore[misc]

    async def texts(self, sizes: list[int]) -> AsyncGenerator[str, None]:
        for size in sizes:
            yield "x" * size
            LOG.append(f"after {size}")

    async def silent(self) -> AsyncGenerator[int, None]:
        try:
            await asyncio.Event().wait()
            yield 0
        finally:
            LOG.append("closed")

    async def clumsy(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(1_000):
                yield number
        finally:
            await asyncio.sleep(1.0)
            raise OSError("the file cannot be closed")

    async def clumsy_and_wrong(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield "two"  # type: ignore[misc]
        finally:
            raise OSError("the file cannot be closed")

    async def stubborn(self) -> AsyncGenerator[int, None]:
        yield 1
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(5)

    async def cancelled_inside(self) -> AsyncGenerator[int, None]:
        yield 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.cancel()
        yield await future

    async def leaving(self) -> AsyncGenerator[int, None]:
        yield 1
        raise SystemExit(3)

    async def heard(self) -> AsyncGenerator[dict[str, str], None]:
        yield dict(self.context.headers)
        yield await self.grain(Echo, "e").headers()

    async def nested(self, count: int) -> AsyncGenerator[int, None]:
        async for number in self.grain(Sheet, self.key).rows(count):
            yield number * 10

    async def asks_itself(self) -> AsyncGenerator[str, None]:
        yield await self.grain(Sheet, self.key).name()

    async def name(self) -> str:
        return self.key

    async def block(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        LOG.append("unblocked")

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        LOG.append(f"deactivated: {reason.value}")


class Echo(Grain):
    async def headers(self) -> dict[str, str]:
        return dict(self.context.headers)


def small(**options: Any) -> RuntimeOptions:
    return RuntimeOptions(results_batch_items=3, **options)


def read(
    caller: str,
    main: Callable[[Any], Awaitable[Any]],
    *,
    filters: CallFilters | None = None,
    options: RuntimeOptions | None = None,
) -> Any:
    """Run a program at one place, with the grain `Sheet/k` in the first silo."""

    async def activate(program: Any) -> None:
        await program.grain(Sheet, "k").wake()

    grains = (Sheet, Echo, Ledger)
    return ask(caller, main, *grains, activate=activate, filters=filters, options=options)


def sheet(program: Any) -> Sheet:
    found: Sheet = program.grain(Sheet, "k")
    return found


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 100])
def test_all_items_arrive_in_order(caller: str, count: int) -> None:
    async def main(program: Any) -> list[int]:
        return [number async for number in sheet(program).rows(count)]

    assert read(caller, main, options=small()) == list(range(count))
    made = [f"made {number}" for number in range(count)]
    assert LOG == ["begun", *made, "complete", "closed", "deactivated: silo_stops"]


@pytest.mark.parametrize("caller", CALLERS)
def test_nothing_is_called_before_the_first_item_is_asked_for(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(3)
        await asyncio.sleep(5)
        assert LOG == []
        assert await anext(rows) == 0
        assert LOG[0] == "begun"
        await rows.aclose()
        unread = sheet(program).rows(3)
        LOG.clear()
        await unread.aclose()
        await asyncio.sleep(5)
        assert LOG == []

    read(caller, main)


def test_wrong_arguments_are_refused_when_the_method_is_called() -> None:
    async def main(program: Any) -> None:
        with pytest.raises(TypeError, match=r"Sheet.rows: argument `count`"):
            sheet(program).rows("three")  # type: ignore[arg-type]

    read("its own silo", main)


def test_arguments_are_those_of_the_moment_of_the_call() -> None:
    async def main(program: Any) -> None:
        sizes = [1, 2]
        texts = sheet(program).texts(sizes)
        sizes.append(3)
        assert [len(text) async for text in texts] == [1, 2]

    for caller in CALLERS:
        read(caller, main)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_slow_producer_is_waited_for_longer_than_a_deadline(caller: str) -> None:
    async def main(program: Any) -> list[int]:
        slow = with_options(sheet(program), timeout=2.0)
        return [number async for number in slow.rows(3, every_s=30.0)]

    assert read(caller, main) == [0, 1, 2]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_slow_consumer_holds_the_producer_back(caller: str) -> None:
    async def main(program: Any) -> None:
        read_count = 0
        async for _ in sheet(program).rows(30):
            read_count += 1
            await asyncio.sleep(1.0)
            made = sum(entry.startswith("made") for entry in LOG)
            # the batch that is read, the one that waits, and the item that does not fit into it
            assert made <= (read_count + 2) // 3 * 3 + 3 + 1
        assert read_count == 30

    read(caller, main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_items_wait_until_they_are_asked_for_and_are_not_computed_again(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(4)
        assert await anext(rows) == 0
        await asyncio.sleep(20)
        assert [number async for number in rows] == [1, 2, 3]

    read(caller, main, options=small())
    assert LOG.count("begun") == 1


@pytest.mark.parametrize("caller", CALLERS)
def test_a_generator_without_requests_is_closed_after_the_idle_time(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(20)
        assert [await anext(rows) for _ in range(3)] == [0, 1, 2]
        await asyncio.sleep(4.0)
        assert "closed" not in LOG
        assert await anext(rows) == 3
        await asyncio.sleep(5.5)
        assert LOG[-1] == "closed"
        assert [await anext(rows) for _ in range(2)] == [4, 5]  # these have arrived before
        with pytest.raises(ResultsAborted, match="results_idle_s"):
            await anext(rows)
        with pytest.raises(StopAsyncIteration):
            await anext(rows)

    read(caller, main, options=small(results_idle_s=5.0))


def test_the_idle_time_begins_with_the_last_request() -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(20)
        assert [await anext(rows) for _ in range(3)] == [0, 1, 2]
        await asyncio.sleep(0.6)
        assert await anext(rows) == 3
        await asyncio.sleep(4.6)
        assert "closed" not in LOG
        await asyncio.sleep(0.6)
        assert LOG[-1] == "closed"

    read("a client", main, options=small(results_idle_s=5.0))


def test_a_generator_that_ignores_its_end_delays_no_consumer() -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).stubborn()
        assert await anext(rows) == 1
        waiting = asyncio.ensure_future(anext(rows))
        await asyncio.sleep(1.0)
        await sheet(program).leave()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ResultsAborted, match="requested"):
            await waiting
        assert asyncio.get_running_loop().time() - began_s < 0.5

    read("a client", main)


@pytest.mark.parametrize("caller", CALLERS)
def test_many_slow_consumers_get_all_items_of_generators_that_have_ended(caller: str) -> None:
    async def slow(program: Any) -> list[int]:
        got: list[int] = []
        async for number in sheet(program).rows(5):
            got.append(number)
            await asyncio.sleep(4.0)
        return got

    async def main(program: Any) -> None:
        read = await asyncio.gather(*(slow(program) for _ in range(60)))
        assert read == [list(range(5))] * 60

    read(caller, main, options=small(results_idle_s=15.0))


def test_unread_items_of_a_generator_that_has_ended_are_dropped_after_the_idle_time() -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(5)
        assert await anext(rows) == 0
        assert LOG[-1] == "closed"
        await asyncio.sleep(5.5)
        assert [await anext(rows), await anext(rows)] == [1, 2]
        with pytest.raises(ResultsAborted, match="results_idle_s"):
            await anext(rows)
        assert await anext(sheet(program).rows(1)) == 0  # its place is free

    read("a client", main, options=small(results_idle_s=5.0, results_open_max=1))


def test_unread_items_count_as_an_open_generator_until_they_are_read() -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(5)
        assert await anext(rows) == 0
        with pytest.raises(Overloaded):
            await anext(sheet(program).rows(5))
        assert [number async for number in rows] == [1, 2, 3, 4]
        assert [number async for number in sheet(program).rows(5)] == [0, 1, 2, 3, 4]

    read("a client", main, options=small(results_open_max=1))


@pytest.mark.parametrize("caller", CALLERS)
def test_an_error_that_the_consumer_has_not_reached_is_none_of_its_end(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).failing(5)
        assert await anext(rows) == 0
        await rows.aclose()

    read(caller, main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_a_short_streamed_result_takes_one_call(
    caller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(program: Any) -> None:
        assert [number async for number in sheet(program).rows(3)] == [0, 1, 2]
        assert [number async for number in sheet(program).rows(0)] == []
        with pytest.raises(LookupError):
            await anext(sheet(program).failing(0))

    async def refuse(*_: object) -> None:
        raise AssertionError("a second call")

    monkeypatch.setattr("millstream.runtime.turns.results.GrainResults.take", refuse)
    read(caller, main, options=small())


def test_the_last_batches_of_generators_are_kept_for_a_short_time() -> None:
    async def main(silo: Any) -> None:
        for _ in range(40):
            assert [number async for number in sheet(silo).rows(5)] == [0, 1, 2, 3, 4]
            assert [number async for number in sheet(silo).rows(2)] == [0, 1]  # one batch
        results = silo.assembly.catalog.find("Sheet", "k").mailbox.extensions["$results"].results
        assert (len(results._all), len(results._read)) == (0, 16)
        assert all(one._idle_timer.cancelled() for one in results._read.values())
        await asyncio.sleep(11.0)
        assert not results._read

    read("its own silo", main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_a_request_that_waits_longer_than_the_idle_time_is_no_idleness(caller: str) -> None:
    async def main(program: Any) -> None:
        assert [number async for number in sheet(program).rows(2, every_s=60.0)] == [0, 1]

    read(caller, main, options=small(results_idle_s=5.0))


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("count", [0, 2, 3, 7])
def test_an_error_arrives_after_the_items_before_it(caller: str, count: int) -> None:
    async def main(program: Any) -> list[int]:
        got: list[int] = []
        with pytest.raises(LookupError, match=f"row {count} is missing"):
            async for number in sheet(program).failing(count):
                got.append(number)
        return got

    assert read(caller, main, options=small()) == list(range(count))


@pytest.mark.parametrize("caller", CALLERS)
def test_an_item_is_sent_as_it_was_when_it_was_yielded(caller: str) -> None:
    async def main(program: Any) -> list[list[int]]:
        rows: list[list[int]] = []
        async for row in sheet(program).lists():
            rows.append(list(row))
            row.append(99)  # the consumer's copy
        return rows

    assert read(caller, main) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("caller", CALLERS)
def test_an_item_of_another_type_is_an_error_after_the_items_before_it(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).wrong()
        assert await anext(rows) == 1
        with pytest.raises(TypeError, match=r"Sheet.wrong: item"):
            await anext(rows)

    read(caller, main)


def test_an_error_of_the_clean_up_after_another_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).clumsy_and_wrong()
        assert await anext(rows) == 1
        with pytest.raises(TypeError, match=r"Sheet.clumsy_and_wrong: item"):
            await anext(rows)

    read("a client", main)
    (line,) = [one for one in caplog.messages if "while it was closed" in one]
    assert line.startswith("Sheet/k: Sheet.clumsy_and_wrong raised while it was closed: OSError(")


@pytest.mark.parametrize("caller", CALLERS)
def test_a_batch_is_limited_in_bytes(caller: str) -> None:
    async def main(program: Any) -> None:
        texts = sheet(program).texts([10, 500, 10, 10, 10])
        assert len(await anext(texts)) == 10
        await asyncio.sleep(1.0)
        # 500 fills the batch that waits, and the next item does not fit
        assert LOG == ["after 10", "after 500"]
        assert [len(text) async for text in texts] == [500, 10, 10, 10]

    read(caller, main, options=RuntimeOptions(results_batch_bytes=40))


@pytest.mark.parametrize("caller", CALLERS)
def test_aclose_reaches_the_grain_before_it_returns(caller: str) -> None:
    async def main(program: Any) -> None:
        async with aclosing(sheet(program).rows(1_000)) as rows:
            async for number in rows:
                if number == 5:
                    break
        assert LOG[-1] == "closed" and "complete" not in LOG

    read(caller, main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_aclose_raises_the_error_of_the_clean_up(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).clumsy()
        await anext(rows)
        with pytest.raises(OSError, match="cannot be closed"):
            await rows.aclose()

    read(caller, main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_a_generator_that_is_dropped_is_closed_when_it_is_collected(caller: str) -> None:
    async def main(program: Any) -> None:
        async for _ in sheet(program).rows(1_000):
            break
        gc.collect()
        await asyncio.sleep(1.0)
        assert LOG[-1] == "closed"

    read(caller, main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_a_cancelled_consumer_ends_a_generator_that_has_yielded_nothing(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).silent()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await anext(rows)
        await asyncio.sleep(1.0)
        assert LOG == ["closed"]
        with pytest.raises(StopAsyncIteration):
            await anext(rows)

    read(caller, main)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_cancelled_consumer_ends_a_generator_that_has_yielded(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(10, every_s=10.0)
        assert await anext(rows) == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await anext(rows)
        await asyncio.sleep(1.0)
        assert LOG[-1] == "closed" and "made 1" not in LOG

    read(caller, main)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("method", ["rows", "silent"])
def test_a_deactivation_ends_a_generator_with_a_typed_error(caller: str, method: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).silent() if method == "silent" else sheet(program).rows(9, 1.0)
        asyncio.get_running_loop().call_later(
            0.5, lambda: leaving.append(asyncio.ensure_future(sheet(program).leave()))
        )
        leaving: list[asyncio.Future[None]] = []
        with pytest.raises(ResultsAborted, match="requested"):
            async for _ in rows:
                pass
        await asyncio.sleep(1.0)
        assert LOG[-2:] == ["closed", "deactivated: requested"]
        assert [number async for number in sheet(program).rows(2)] == [0, 1]

    read(caller, main)


@pytest.mark.parametrize("caller", CALLERS)
def test_items_of_an_activation_that_has_ended_are_lost_with_a_typed_error(caller: str) -> None:
    async def main(program: Any) -> None:
        rows = sheet(program).rows(20)
        assert await anext(rows) == 0
        await sheet(program).leave()
        await asyncio.sleep(1.0)
        assert LOG[-2:] == ["closed", "deactivated: requested"]
        assert [await anext(rows), await anext(rows)] == [1, 2]
        with pytest.raises(ResultsAborted, match="Sheet/k"):
            await anext(rows)

    read(caller, main, options=small())


def test_a_generator_keeps_its_activation_alive_until_it_is_idle_itself() -> None:
    async def main(program: Any) -> None:
        slow = sheet(program).rows(10, every_s=15.0)
        assert [number async for number in slow] == list(range(10))
        LOG.clear()
        rows = sheet(program).rows(100)
        assert await anext(rows) == 0
        await asyncio.sleep(19.0)
        assert LOG[-1].startswith("made")
        await asyncio.sleep(10.0)
        assert LOG[-2:] == ["closed", "deactivated: idle"]
        await rows.aclose()

    options = small(idle_after_s=2.0, collect_every_s=1.0, results_idle_s=20.0)
    read("a client", main, options=options)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_generator_interleaves_with_other_turns(caller: str) -> None:
    async def main(program: Any) -> None:
        blocking = asyncio.create_task(sheet(program).block(10.0))
        await asyncio.sleep(1.0)
        assert [number async for number in sheet(program).rows(4, every_s=0.5)] == [0, 1, 2, 3]
        assert "unblocked" not in LOG
        await blocking

    read(caller, main)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_generator_may_call_its_own_grain(caller: str) -> None:
    async def main(program: Any) -> None:
        assert [text async for text in sheet(program).asks_itself()] == ["k"]
        assert [number async for number in sheet(program).nested(5)] == [0, 10, 20, 30, 40]

    read(caller, main, options=small())


@pytest.mark.parametrize("caller", CALLERS)
def test_a_generator_sees_the_headers_of_its_call(caller: str) -> None:
    async def main(program: Any) -> None:
        called = with_options(sheet(program), headers={"own": "1"}, flowing_headers={"flows": "2"})
        heard = [headers async for headers in called.heard()]
        assert heard == [{"own": "1", "flows": "2"}, {"flows": "2"}]

    read(caller, main)


@pytest.mark.parametrize("caller", CALLERS)
def test_filters_see_the_start_of_a_generator(caller: str) -> None:
    async def note(call: GrainCall, proceed: Proceed) -> object:
        if call.method != "rows":
            return await proceed()
        call.arguments["count"] = 2
        result = await proceed()
        LOG.append(f"{call.method} gave {result}")
        return result

    async def main(program: Any) -> None:
        assert [number async for number in sheet(program).rows(5)] == [0, 1]
        assert LOG.count("rows gave None") == 2

    read(caller, main, filters=CallFilters(incoming=[note], outgoing=[note]))


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("place", ["incoming", "outgoing"])
def test_filters_cannot_replace_a_generator(caller: str, place: str) -> None:
    async def replace(call: GrainCall, proceed: Proceed) -> object:
        if call.method == "rows":
            return [1, 2]
        if call.method == "failing":
            await proceed()
        return await proceed()

    async def main(program: Any) -> None:
        with pytest.raises(ConfigError, match="starts a generator: proceed and return None"):
            await anext(sheet(program).rows(5))
        with pytest.raises(ConfigError, match="proceed once"):
            await anext(sheet(program).failing(5))

    filters = CallFilters(incoming=[replace]) if place == "incoming" else None
    read(caller, main, filters=filters or CallFilters(outgoing=[replace]))


@pytest.mark.parametrize("caller", CALLERS)
def test_the_number_of_generators_of_one_activation_is_limited(caller: str) -> None:
    async def main(program: Any) -> None:
        open_ones = [sheet(program).rows(50) for _ in range(2)]
        for rows in open_ones:
            await anext(rows)
        with pytest.raises(Overloaded, match="results_open_max is 2"):
            await anext(sheet(program).rows(50))
        await open_ones[0].aclose()
        assert await anext(sheet(program).rows(1)) == 0
        await open_ones[1].aclose()

    read(caller, main, options=small(results_open_max=2))


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("method", "text"),
    [("cancelled_inside", "asyncio.CancelledError"), ("leaving", "SystemExit")],
)
def test_a_generator_that_is_cancelled_or_exits_is_an_error(
    caller: str, method: str, text: str
) -> None:
    async def main(program: Any) -> None:
        rows = getattr(sheet(program), method)()
        assert await anext(rows) == 1
        with pytest.raises(Exception, match=text):
            await anext(rows)
        assert await sheet(program).name() == "k"

    read(caller, main)


@grain(name="Sheet")
class SheetCalls(Contract):
    def rows(self, count: int, every_s: float = 0.0) -> AsyncGenerator[float, None]:
        raise NotImplementedError


@grain(name="Sheet")
class WrongCalls(Contract):
    async def rows(self, count: int, every_s: float = 0.0) -> list[int]:
        raise NotImplementedError


@pytest.mark.parametrize("caller", CALLERS)
def test_a_contract_is_written_without_async(caller: str) -> None:
    async def main(program: Any) -> None:
        got = [number async for number in program.grain(SheetCalls, "k").rows(2)]
        assert got == [0.0, 1.0] and all(type(number) is float for number in got)

    read(caller, main)


def test_a_contract_without_the_generator_is_refused() -> None:
    async def main(program: Any) -> None:
        with pytest.raises(NotHosted, match="Sheet.rows is an async generator, and Wrong"):
            program.grain(WrongCalls, "k")

    read("its own silo", main)


@grain(placement=PREFER_LOCAL)
class Ledger(Grain):
    total = state(int, write="turn")

    async def count_up(self, upto: int) -> AsyncGenerator[int, None]:
        for number in range(upto):
            self.total.value += 1
            yield number

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def sum(self) -> int:
        return self.total.value


@pytest.mark.parametrize("caller", CALLERS)
def test_states_that_are_written_after_each_turn_are_written_at_the_end(caller: str) -> None:
    async def main(program: Any) -> None:
        counter = program.grain(Ledger, "l")
        assert len([number async for number in counter.count_up(7)]) == 7
        await counter.leave()
        await asyncio.sleep(1.0)
        assert await counter.sum() == 7

    read(caller, main, options=small())


@pytest.mark.parametrize("is_client", [False, True])
@pytest.mark.parametrize("fault", ["crash", "stop", "partition", "short partition"])
def test_the_silo_of_a_generator_may_be_lost(fault: str, is_client: bool) -> None:
    """The items before the fault are right. Only a short partition loses none."""

    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=3, grains=[Sheet], options=small()) as cluster:
            first, second, third = cluster.names

            async def activate() -> None:
                silo = cluster.silo(first)
                assert silo is not None
                await silo.grain(Sheet, "k").wake()

            async def consume(program: Any) -> None:
                got: list[int] = []
                try:
                    async for number in sheet(program).rows(12, every_s=1.0):
                        got.append(number)
                    assert fault == "short partition", fault
                    assert got == list(range(12))
                except ResultsAborted:
                    assert fault != "short partition"
                LOG.append("ended")
                assert got == list(range(len(got))) and len(got) > 2
                assert [number async for number in sheet(program).rows(2)] == [0, 1]

            async def from_client() -> None:
                async with cluster.client(sim.host("laptop")) as client:
                    gateway = cluster.silo(second)
                    assert gateway is not None
                    pin(client, gateway.gateway)
                    await consume(client)

            async def from_silo() -> None:
                await consume(cluster.silo(second))

            await sim.call(sim.host(first), activate())
            at = "laptop" if is_client else second
            consuming = asyncio.ensure_future(
                sim.call(sim.host(at), from_client() if is_client else from_silo())
            )
            await asyncio.sleep(5.0)
            if fault == "crash":
                sim.crash(first)
            elif fault == "stop":
                await cluster.stop_silo(first)
            else:
                for other in (second, third):
                    sim.network.partition(first, other)
                await asyncio.sleep(1.5 if fault == "short partition" else 30.0)
                sim.network.repair()
            async with asyncio.timeout(90):
                await consuming
            assert "ended" in LOG

    run(driver, seed=1)


def test_a_batch_that_does_not_arrive_in_time_is_a_timeout() -> None:
    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=1, grains=[Sheet], options=small()) as cluster:

            async def consume() -> None:
                async with cluster.client(sim.host("laptop")) as client:
                    rows = with_options(sheet(client), timeout=2.0).rows(9, every_s=1.0)
                    assert await anext(rows) == 0
                    sim.network.hold("laptop", cluster.names[0])
                    began_s = sim.loop.time()
                    with pytest.raises(CallTimeout, match="take did not end within its deadline"):
                        while True:
                            await anext(rows)
                    assert sim.loop.time() - began_s == pytest.approx(2.0, abs=0.1)
                    sim.network.release("laptop", cluster.names[0])
                    await asyncio.sleep(1.0)
                    assert LOG[-1] == "closed"

            await sim.call(sim.host("laptop"), consume())

    run(driver, seed=1)


@pytest.mark.parametrize("is_client", [False, True])
def test_a_consumer_whose_own_silo_or_client_has_ended_gets_an_error_at_once(
    is_client: bool,
) -> None:
    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=2, grains=[Sheet], options=small()) as cluster:
            first, second = cluster.names

            async def consume() -> None:
                silo = cluster.silo(second)
                assert silo is not None
                program = cluster.client(sim.host("laptop")) if is_client else silo
                if is_client:
                    await program.__aenter__()
                rows = sheet(program).rows(20)
                assert await anext(rows) == 0
                if isinstance(program, Client):
                    await program.aclose()
                else:
                    await program.stop()
                began_s = sim.loop.time()
                with pytest.raises(NotInCluster, match="closed" if is_client else "stopped"):
                    while True:
                        await anext(rows)
                assert sim.loop.time() == began_s
                LOG.append("refused")

            await sim.call(sim.host(first), sheet(cluster.silo(first)).wake())
            await sim.call(sim.host("laptop" if is_client else second), consume())
            assert "refused" in LOG

    run(driver, seed=1)
