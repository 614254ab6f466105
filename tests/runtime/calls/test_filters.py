"""Call filters in virtual time: their order, what they may change, and what is refused.

The cases are those of GrainCallFilterTests of Orleans, each for a caller in the grain's silo, in
another silo and in a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest
from tests.runtime.callers import CALLERS
from tests.runtime.callers import ask as ask_at

from millstream.runtime import (
    PREFER_LOCAL,
    CallFilter,
    CallFilters,
    CallTimeout,
    ConfigError,
    Grain,
    GrainCall,
    Observer,
    Occurrence,
    Overloaded,
    Proceed,
    RuntimeOptions,
    grain,
    one_way,
    reminder,
    timer,
    with_options,
)
from millstream.runtime.definition.headers import HEADERS_MAX

LOG: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    yield


@grain(placement=PREFER_LOCAL)
class Tea(Grain):
    def __init__(self) -> None:
        self.poured = 0

    async def pour(self, cups: int) -> int:
        LOG.append(f"pour {cups}")
        self.poured += cups
        return self.poured

    async def fill(self, cups: list[str]) -> list[str]:
        LOG.append(f"fill {cups}")
        cups.append("spoilt by the method")
        if LOG.count("fill ['a']") == 1:
            raise OSError("the first attempt fails")
        return cups

    async def headers(self) -> dict[str, str]:
        return dict(self.context.headers)

    @one_way
    async def splash(self, cups: int) -> None:
        LOG.append(f"splash {cups}")

    async def nap(self, seconds: float) -> str:
        LOG.append("nap")
        await asyncio.sleep(seconds)
        return "rested"


class Kettle(Tea):
    @timer(every=1.0)
    async def steam(self) -> None:
        LOG.append("steam")


class Waiter(Grain):
    async def serve(self, key: str) -> int:
        return await self.grain(Tea, key).pour(1)


def noting(name: str) -> CallFilter:
    """Return a filter that notes when it begins and ends."""

    async def note(call: GrainCall, proceed: Proceed) -> object:
        LOG.append(f"+{name} {call.method}")
        try:
            return await proceed()
        finally:
            LOG.append(f"-{name}")

    return note


def ask(
    caller: str,
    main: Callable[[Any], Awaitable[Any]],
    *grains: type[Grain],
    filters: CallFilters | None = None,
    options: RuntimeOptions | None = None,
) -> Any:
    """Run a program at one place, with the grain `Tea/k` in the first silo. Return its result."""

    async def activate(silo: Any) -> None:
        await silo.grain(Tea, "k").headers()
        LOG.clear()

    return ask_at(
        caller,
        main,
        *(grains or (Tea, Waiter)),
        activate=None if grains else activate,
        filters=filters,
        options=options,
    )


async def pour(program: Any) -> Any:
    return await program.grain(Tea, "k").pour(2)


@pytest.mark.parametrize("caller", CALLERS)
def test_filters_run_in_their_order(caller: str) -> None:
    filters = CallFilters(
        incoming=[noting("in1"), noting("in2")], outgoing=[noting("out1"), noting("out2")]
    )
    assert ask(caller, pour, filters=filters) == 2
    begun = ["+out1 pour", "+out2 pour", "+in1 pour", "+in2 pour", "pour 2"]
    assert LOG == [*begun, "-in2", "-in1", "-out2", "-out1"]


def test_filters_of_a_class_run_nearest_to_the_grain() -> None:
    @grain(
        name="Tea", filters=CallFilters(incoming=[noting("own in")], outgoing=[noting("own out")])
    )
    class Own(Tea):
        async def ask_waiter(self) -> int:
            return await self.grain(Plain, "p").add()

    class Plain(Grain):
        async def add(self) -> int:
            return 5

    async def main(program: Any) -> int:
        return cast(int, await program.grain(Own, "k").ask_waiter())

    filters = CallFilters(incoming=[noting("in")], outgoing=[noting("out")])
    assert ask("another silo", main, Own, Plain, filters=filters) == 5
    begun = ["+out ask_waiter", "+in ask_waiter", "+own in ask_waiter"]
    assert LOG[:6] == [*begun, "+own out add", "+out add", "+in add"]


def test_filters_of_a_class_need_no_filters_of_the_silo() -> None:
    @grain(name="Tea", filters=CallFilters(outgoing=[noting("own out")]))
    class Own(Tea):
        async def ask_waiter(self) -> int:
            return await self.grain(Plain, "p").add()

    class Plain(Grain):
        async def add(self) -> int:
            return 5

    async def main(program: Any) -> int:
        return cast(int, await program.grain(Own, "k").ask_waiter())

    assert ask("its own silo", main, Own, Plain) == 5
    assert LOG == ["+own out add", "-own out"]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_filter_tries_again_with_a_fresh_copy_of_the_arguments(caller: str, side: str) -> None:
    async def again(call: GrainCall, proceed: Proceed) -> object:
        try:
            return await proceed()
        except OSError:
            return await proceed()

    async def main(program: Any) -> Any:
        cups = ["a"]
        return cups, await program.grain(Tea, "k").fill(cups)

    given, result = ask(caller, main, filters=CallFilters(**{side: [again]}))
    assert LOG == ["fill ['a']", "fill ['a']"]
    assert (given, result) == (["a"], ["a", "spoilt by the method"])


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_filter_that_changes_an_argument_in_place_does_not_change_the_caller(
    caller: str, side: str
) -> None:
    async def add(call: GrainCall, proceed: Proceed) -> object:
        cast(list[str], call.arguments["cups"]).append("by the filter")
        return await proceed()

    async def main(program: Any) -> Any:
        cups = ["b"]
        return cups, await program.grain(Tea, "k").fill(cups)

    given, result = ask(caller, main, filters=CallFilters(**{side: [add]}))
    assert (given, result) == (["b"], ["b", "by the filter", "spoilt by the method"])


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_an_error_of_a_filter_reaches_the_caller_and_the_method_does_not_run(
    caller: str, side: str
) -> None:
    async def refuse(call: GrainCall, proceed: Proceed) -> object:
        raise PermissionError(f"{call.caller or 'a program'} may not {call.method}")

    with pytest.raises(PermissionError, match="a program may not pour"):
        ask(caller, pour, filters=CallFilters(**{side: [refuse]}))
    assert not LOG


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_filter_may_answer_without_the_method(caller: str, side: str) -> None:
    async def answer(call: GrainCall, proceed: Proceed) -> object:
        return 77

    assert ask(caller, pour, filters=CallFilters(**{side: [answer]})) == 77
    assert not LOG


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_result_of_another_type_is_an_error_that_names_the_method(caller: str, side: str) -> None:
    async def answer(call: GrainCall, proceed: Proceed) -> object:
        await proceed()
        return "two"

    with pytest.raises(TypeError, match=r"Tea\.pour: result"):
        ask(caller, pour, filters=CallFilters(**{side: [answer]}))


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_filter_may_replace_an_argument(caller: str, side: str) -> None:
    async def double(call: GrainCall, proceed: Proceed) -> object:
        call.arguments["cups"] = cast(int, call.arguments["cups"]) * 2
        return await proceed()

    assert ask(caller, pour, filters=CallFilters(**{side: [double]})) == 4


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_an_argument_of_another_type_is_refused_by_name(caller: str, side: str) -> None:
    async def spoil(call: GrainCall, proceed: Proceed) -> object:
        call.arguments["cups"] = "many"
        return await proceed()

    with pytest.raises(TypeError, match=r"Tea\.pour: argument `cups`"):
        ask(caller, pour, filters=CallFilters(**{side: [spoil]}))
    assert not LOG


@pytest.mark.parametrize("change", ["more", "fewer"])
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_other_names_of_arguments_are_refused(change: str, side: str) -> None:
    async def spoil(call: GrainCall, proceed: Proceed) -> object:
        if change == "fewer":
            del call.arguments["cups"]
        else:
            call.arguments["sugar"] = 1
        return await proceed()

    with pytest.raises(ConfigError, match=r"takes \['cups'\]: replace values only"):
        ask("another silo", pour, filters=CallFilters(**{side: [spoil]}))
    assert not LOG


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_filter_that_neither_proceeds_nor_answers_is_an_error_of_the_call(
    caller: str, side: str
) -> None:
    async def forget(call: GrainCall, proceed: Proceed) -> object:
        return None

    with pytest.raises(ConfigError, match=r"forget returned None and did not proceed"):
        ask(caller, pour, filters=CallFilters(**{side: [forget]}))
    assert not LOG


def test_a_filter_that_drops_the_result_is_an_error_that_names_the_method() -> None:
    async def forget(call: GrainCall, proceed: Proceed) -> object:
        await proceed()
        return None

    with pytest.raises(TypeError, match=r"Tea\.pour: result"):
        ask("a client", pour, filters=CallFilters(incoming=[forget]))


def test_the_method_does_not_run_twice_at_the_same_time() -> None:
    async def hasty(call: GrainCall, proceed: Proceed) -> object:
        first = asyncio.ensure_future(proceed())
        await asyncio.sleep(0)
        try:
            return await proceed()
        finally:
            await first

    async def main(program: Any) -> str:
        return cast(str, await program.grain(Tea, "k").nap(1.0))

    with pytest.raises(ConfigError, match="proceeded while the call runs already"):
        ask("another silo", main, filters=CallFilters(incoming=[hasty]))
    assert LOG.count("nap") == 1


def test_the_method_does_not_run_after_its_turn() -> None:
    kept: list[Proceed] = []

    async def late(call: GrainCall, proceed: Proceed) -> object:
        kept.append(proceed)
        return 1

    async def main(program: Any) -> str:
        assert await program.grain(Tea, "k").pour(2) == 1
        with pytest.raises(ConfigError, match="proceeded while the call has ended"):
            await kept[0]()
        return "refused"

    assert ask("its own silo", main, filters=CallFilters(incoming=[late])) == "refused"
    assert not LOG


def test_a_filter_belongs_to_the_turn_so_no_other_turn_runs_meanwhile() -> None:
    async def slow(call: GrainCall, proceed: Proceed) -> object:
        LOG.append("begin")
        await asyncio.sleep(1.0)
        result = await proceed()
        LOG.append("end")
        return result

    async def main(program: Any) -> list[int]:
        tea = program.grain(Tea, "k")
        return list(await asyncio.gather(tea.pour(1), tea.pour(1)))

    assert ask("a client", main, filters=CallFilters(incoming=[slow])) == [1, 2]
    assert LOG == ["begin", "pour 1", "end"] * 2


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_a_one_way_call_is_filtered(caller: str, side: str) -> None:
    async def main(program: Any) -> None:
        await program.grain(Tea, "k").splash(3)
        await asyncio.sleep(0.5)

    ask(caller, main, filters=CallFilters(**{side: [noting("f")]}))
    assert LOG[0] == "+f splash"
    assert set(LOG) == {"+f splash", "splash 3", "-f"}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_deadline_ends_a_filter(caller: str) -> None:
    async def hang(call: GrainCall, proceed: Proceed) -> object:
        try:
            await asyncio.sleep(100)
        finally:
            LOG.append("ended")
        return await proceed()

    async def main(program: Any) -> int:
        return cast(int, await with_options(program.grain(Tea, "k"), timeout=2.0).pour(1))

    with pytest.raises(CallTimeout):
        ask(caller, main, filters=CallFilters(incoming=[hang]))
    assert LOG == ["ended"]


@pytest.mark.parametrize("caller", CALLERS)
def test_headers_that_a_filter_sets_arrive(caller: str) -> None:
    async def outgoing(call: GrainCall, proceed: Proceed) -> object:
        call.headers["from"] = "outgoing"
        return await proceed()

    async def incoming(call: GrainCall, proceed: Proceed) -> object:
        assert call.headers["from"] == "outgoing"
        call.headers["at"] = "incoming"
        return await proceed()

    async def main(program: Any) -> Any:
        return await with_options(program.grain(Tea, "k"), headers={"own": "1"}).headers()

    filters = CallFilters(incoming=[incoming], outgoing=[outgoing])
    found = ask(caller, main, filters=filters)
    assert found == {"own": "1", "from": "outgoing", "at": "incoming"}


def test_a_filter_sees_the_call() -> None:
    seen: list[tuple[Any, ...]] = []

    async def look(call: GrainCall, proceed: Proceed) -> object:
        where = (call.grain_id, call.method, dict(call.arguments), call.caller)
        seen.append((*where, type(call.grain).__name__, call.is_one_way))
        return await proceed()

    async def main(program: Any) -> int:
        return cast(int, await program.grain(Waiter, "w").serve("k"))

    both = CallFilters(incoming=[look], outgoing=[look])
    assert ask("a client", main, filters=both) == 1
    assert seen == [
        ("Waiter/w", "serve", {"key": "k"}, "", "NoneType", False),
        ("Waiter/w", "serve", {"key": "k"}, "", "Waiter", False),
        ("Tea/k", "pour", {"cups": 1}, "Waiter/w", "NoneType", False),
        ("Tea/k", "pour", {"cups": 1}, "Waiter/w", "Tea", False),
    ]


def test_timers_are_not_filtered() -> None:
    async def main(program: Any) -> None:
        await program.grain(Kettle, "k").pour(1)
        await asyncio.sleep(3.5)

    ask("its own silo", main, Kettle, filters=CallFilters(incoming=[noting("f")]))
    assert LOG.count("steam") >= 3
    assert LOG.count("+f pour") == sum(line.startswith("+f") for line in LOG) == 1


def test_a_filter_may_call_grains_and_a_mailbox_still_has_its_limit() -> None:
    """A filter that awaits keeps its activation, so requests wait and are counted."""

    async def slow(call: GrainCall, proceed: Proceed) -> object:
        await asyncio.sleep(5)
        return await proceed()

    async def main(program: Any) -> list[str]:
        tea = program.grain(Tea, "k")
        ended = await asyncio.gather(*(tea.pour(1) for _ in range(4)), return_exceptions=True)
        return [type(one).__name__ for one in ended]

    found = ask(
        "its own silo",
        main,
        filters=CallFilters(incoming=[slow]),
        options=RuntimeOptions(waiting_calls_max=2),
    )
    assert found == ["int", "int", "int", Overloaded.__name__]


async def wrong_count(call: GrainCall) -> object:
    return None


def not_async(call: GrainCall, proceed: Proceed) -> object:
    return None


class AsFilter:
    async def __call__(self, call: GrainCall, proceed: Proceed) -> object:
        LOG.append("object")
        return await proceed()


@pytest.mark.parametrize("given", [not_async, AsFilter, 7])
def test_a_filter_that_is_not_async_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"CallFilters\(incoming=...\): .* is not an async func"):
        CallFilters(incoming=[given])


def test_a_filter_with_other_arguments_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"wrong_count: too many .*: write `async def audit"):
        CallFilters(outgoing=[cast(Any, wrong_count)])


@pytest.mark.parametrize("given", ["audit", noting("f"), {noting("f")}])
def test_filters_that_are_no_list_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="pass a list of filters"):
        CallFilters(incoming=given)


def test_filters_that_are_no_call_filters_are_refused_by_the_silo_and_the_class() -> None:
    with pytest.raises(ConfigError, match=r"@grain\(filters=...\)"):
        grain(filters=cast(Any, [noting("f")]))


def test_an_object_with_an_async_call_is_a_filter() -> None:
    assert ask("a client", pour, filters=CallFilters(incoming=[AsFilter()])) == 2
    assert LOG == ["object", "pour 2"]


def test_a_list_that_changes_later_does_not_change_the_filters() -> None:
    given = [noting("f")]
    filters = CallFilters(incoming=given)
    given.append(noting("later"))
    assert ask("a client", pour, filters=CallFilters(incoming=filters.incoming)) == 2
    assert LOG == ["+f pour", "pour 2", "-f"]


@pytest.mark.parametrize("side", ["incoming", "outgoing"])
def test_too_many_headers_of_a_filter_are_refused(side: str) -> None:
    async def flood(call: GrainCall, proceed: Proceed) -> object:
        call.headers.update({f"h{i}": "x" for i in range(HEADERS_MAX + 1)})
        return await proceed()

    with pytest.raises(ConfigError, match=f"HEADERS_MAX is {HEADERS_MAX}"):
        ask("its own silo", pour, filters=CallFilters(**{side: [flood]}))
    assert not LOG


class Guest(Observer):
    async def served(self, cups: int) -> str:
        LOG.append(f"served {cups}")
        return "thank you"


class Host(Grain):
    async def serve(self, guest: Guest) -> str:
        return await guest.served(2)


def test_filters_run_around_calls_of_observers() -> None:
    async def main(client: Any) -> str:
        async with client.observe(Guest()) as guest:
            return cast(str, await client.grain(Host, "h").serve(guest))

    filters = CallFilters(incoming=[noting("in")], outgoing=[noting("out")])
    assert ask("a client", main, Host, filters=filters) == "thank you"
    begun = ["+out serve", "+in serve", "+out served", "+in served", "served 2"]
    assert LOG == [*begun, "-in", "-out", "-in", "-out"]


class Clock(Grain):
    async def arm(self) -> None:
        await self.context.reminders.set("ring", every=60.0)

    @reminder
    async def ring(self, occurrence: Occurrence) -> None:
        LOG.append(f"ring {occurrence.number}")


def test_incoming_filters_run_around_reminders() -> None:
    async def main(program: Any) -> None:
        await program.grain(Clock, "c").arm()
        await asyncio.sleep(90)

    ask("its own silo", main, Clock, filters=CallFilters(incoming=[noting("in")]))
    assert LOG == ["+in arm", "-in", "+in ring", "ring 1", "-in"]
