"""The turn rule and the way of a call: direct turns, waiting, overtaking, cycles, depth."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.conditions import spin, until
from tests.runtime.callers import runtime_of

from millstream.runtime import (
    PREFER_LOCAL,
    CallCycle,
    CallError,
    CallTimeout,
    Grain,
    LocalCluster,
    Overloaded,
    RuntimeOptions,
    Silo,
    always_interleave,
    grain,
    one_way,
    read_only,
    shielded,
    timeout,
    with_options,
)
from millstream.runtime.extending import show_text

LOG: list[str] = []
GATES: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@pytest.fixture(autouse=True)
def fresh_board() -> Iterator[None]:
    LOG.clear()
    GATES.clear()
    yield


async def stay(name: str) -> None:
    LOG.append(f"+{name}")
    await GATES[name].wait()
    LOG.append(f"-{name}")


@grain(placement=PREFER_LOCAL)
class Room(Grain):
    async def plain(self, name: str) -> str:
        await stay(name)
        return name

    async def quick(self, name: str) -> str:
        LOG.append(name)
        return name

    @read_only
    async def read(self, name: str) -> str:
        await stay(name)
        return name

    @always_interleave
    async def peek(self, name: str) -> str:
        await stay(name)
        return name

    @one_way
    async def tell(self, name: str) -> None:
        LOG.append(name)

    @one_way
    async def tell_badly(self) -> None:
        raise ValueError("bad tidings")

    @one_way
    async def tell_slowly(self, name: str) -> None:
        await stay(name)

    @shielded
    async def solid(self, name: str) -> str:
        await stay(name)
        return name

    async def where(self) -> str:
        return self.context.silo

    async def is_same_task(self, expected: int) -> bool:
        return id(asyncio.current_task()) == expected


@grain(reentrant=True, placement=PREFER_LOCAL)
class OpenHouse(Grain):
    async def plain(self, name: str) -> str:
        await stay(name)
        return name

    async def call_self(self, depth: int) -> int:
        if not depth:
            return 0
        return 1 + await self.grain(OpenHouse, self.key).call_self(depth - 1)


@grain(placement=PREFER_LOCAL)
class Hopper(Grain):
    """Calls grains along a path of keys, each from the one before."""

    async def follow(self, path: list[str]) -> str:
        if not path:
            return self.key
        return await self.grain(Hopper, path[0]).follow(path[1:])

    async def follow_in_child(self, key: str) -> str:
        (found,) = await asyncio.gather(self.grain(Hopper, key).follow([]))
        return str(found)

    async def meet(self, other: str, name: str) -> str:
        LOG.append(f"+{name}")
        await GATES["meet"].wait()
        return await self.grain(Hopper, other).follow([])

    async def down(self, depth: int) -> int:
        if not depth:
            return 0
        return 1 + await self.grain(Hopper, f"{self.key.split('-')[0]}-{depth}").down(depth - 1)

    async def down_then_wait(self, depth: int) -> int:
        if not depth:
            await stay("bottom")
            return 0
        return 1 + await self.grain(Hopper, f"d-{depth}").down_then_wait(depth - 1)

    @always_interleave
    async def side_door(self) -> str:
        return "in"

    async def call_back_by_side_door(self, key: str) -> str:
        return await self.grain(Hopper, key).call_side_door(self.key)

    async def call_side_door(self, key: str) -> str:
        return await self.grain(Hopper, key).side_door()

    @read_only
    async def read_circle(self, other: str) -> str:
        return await self.grain(Hopper, other).read_back(self.key)

    async def read_back(self, key: str) -> str:
        return await self.grain(Hopper, key).read_only_leaf()

    @read_only
    async def read_only_leaf(self) -> str:
        return "leaf"

    @one_way
    async def poke_back(self, key: str) -> None:
        LOG.append(await self.grain(Hopper, key).follow([]))

    async def poke(self, other: str) -> str:
        await self.grain(Hopper, other).poke_back(self.key)
        await GATES["poked"].wait()
        return "done"


@grain(direct=False)
class Apart(Grain):
    async def colour(self) -> str:
        return COLOUR.get()

    async def paint(self, colour: str) -> None:
        COLOUR.set(colour)

    async def task_id(self) -> int:
        return id(asyncio.current_task())


class Painter(Grain):
    async def colour(self) -> str:
        return COLOUR.get()


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Room, OpenHouse, Hopper, Apart, Painter]) as started:
        yield started


@pytest.fixture
async def pair() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(silos=3, grains=[Room, OpenHouse, Hopper, Painter]) as cluster:
        yield cluster


# --- direct turns --------------------------------------------------------------------------------


async def test_a_local_call_runs_in_the_task_of_its_caller(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    assert await room.is_same_task(id(asyncio.current_task()))
    assert await room.is_same_task(id(asyncio.current_task()))


async def test_a_waiting_call_is_handed_the_turn_in_its_own_task(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    first = asyncio.create_task(room.plain("one"))
    await until(lambda: "+one" in LOG)

    async def ask() -> bool:
        return await room.is_same_task(id(asyncio.current_task()))

    second = asyncio.create_task(ask())
    await spin()
    assert not second.done()
    GATES["one"].set()
    assert await second and await first == "one"


def context_values() -> dict[contextvars.ContextVar[Any], object]:
    """Return the context variables of the running task."""
    found = contextvars.copy_context().items()
    return {variable: value for variable, value in found if value is not None}


async def test_the_request_of_a_turn_does_not_stay_in_the_callers_context(silo: Silo) -> None:
    room, before = silo.grain(Room, "a"), context_values()
    await room.quick("one")
    assert context_values() == before
    with pytest.raises(TypeError):
        await room.quick(5)  # type: ignore[arg-type]
    assert context_values() == before


async def test_calls_of_one_grain_never_overlap(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    first = asyncio.create_task(room.plain("one"))
    second = asyncio.create_task(room.plain("two"))
    await spin()
    assert LOG == ["+one"]
    GATES["one"].set()
    await first
    await until(lambda: len(LOG) > 2)
    assert LOG == ["+one", "-one", "+two"]
    GATES["two"].set()
    assert await second == "two"


async def test_different_keys_run_side_by_side(silo: Silo) -> None:
    tasks = [asyncio.create_task(silo.grain(Room, key).plain(key)) for key in "ab"]
    await until(lambda: len(LOG) == 2)
    for key in "ab":
        GATES[key].set()
    assert await asyncio.gather(*tasks) == ["a", "b"]


# --- interleaving --------------------------------------------------------------------------------


async def test_readers_share_and_a_writer_waits_for_all_of_them(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    readers = [asyncio.create_task(room.read(name)) for name in ("r1", "r2", "r3")]
    await until(lambda: len(LOG) == 3)
    writer = asyncio.create_task(room.plain("w"))
    await spin()
    GATES["r1"].set()
    GATES["r2"].set()
    await spin()
    assert "+w" not in LOG
    GATES["r3"].set()
    await until(lambda: "+w" in LOG)
    late = asyncio.create_task(room.read("late"))
    await spin()
    assert "+late" not in LOG
    GATES["w"].set()
    GATES["late"].set()
    assert await asyncio.gather(*readers, writer, late) == ["r1", "r2", "r3", "w", "late"]


async def test_a_reader_overtakes_a_waiting_writer(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    first = asyncio.create_task(room.read("r1"))
    await spin()
    writer = asyncio.create_task(room.plain("w"))
    await spin()
    second = asyncio.create_task(room.read("r2"))
    await spin()
    assert LOG == ["+r1", "+r2"]
    for name in ("r1", "r2", "w"):
        GATES[name].set()
    await asyncio.gather(first, writer, second)
    assert LOG.index("+w") > LOG.index("-r2")


async def test_always_interleave_starts_beside_an_exclusive_turn(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    first = asyncio.create_task(room.plain("one"))
    await spin()
    peek = asyncio.create_task(room.peek("peek"))
    await until(lambda: LOG == ["+one", "+peek"])
    GATES["one"].set()
    await first
    # all running turns are always-interleave, so an ordinary request starts
    assert await room.quick("q") == "q"
    assert not peek.done()
    GATES["peek"].set()
    assert await peek == "peek"


async def test_an_interleaving_call_overtakes_without_reordering_the_rest(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    tasks = [asyncio.create_task(room.plain("one"))]
    await spin()
    for name in ("w1", "w2"):
        tasks.append(asyncio.create_task(room.quick(name)))
    tasks.append(asyncio.create_task(room.peek("peek")))
    for name in ("w3", "w4"):
        tasks.append(asyncio.create_task(room.quick(name)))
    await spin()
    assert LOG == ["+one", "+peek"]
    GATES["one"].set()
    GATES["peek"].set()
    await asyncio.gather(*tasks)
    assert [name for name in LOG if name[0] == "w"] == ["w1", "w2", "w3", "w4"]


async def test_readers_that_wait_start_together_and_the_writers_keep_their_order(
    silo: Silo,
) -> None:
    room = silo.grain(Room, "a")
    tasks = [asyncio.create_task(room.plain("one"))]
    await spin()
    tasks.append(asyncio.create_task(room.read("r1")))
    tasks.append(asyncio.create_task(room.quick("w1")))
    tasks.append(asyncio.create_task(room.read("r2")))
    tasks.append(asyncio.create_task(room.quick("w2")))
    await spin()
    GATES["one"].set()
    await until(lambda: "+r1" in LOG and "+r2" in LOG)
    assert "w1" not in LOG
    GATES["r1"].set()
    GATES["r2"].set()
    await asyncio.gather(*tasks)
    assert LOG.index("w1") < LOG.index("w2")


async def test_a_reentrant_grain_starts_every_call_at_once(silo: Silo) -> None:
    house = silo.grain(OpenHouse, "a")
    tasks = [asyncio.create_task(house.plain(name)) for name in ("x", "y", "z")]
    await until(lambda: LOG == ["+x", "+y", "+z"])
    for name in ("z", "y", "x"):
        GATES[name].set()
    assert await asyncio.gather(*tasks) == ["x", "y", "z"]


async def test_a_reentrant_grain_may_call_itself(silo: Silo) -> None:
    assert await silo.grain(OpenHouse, "a").call_self(5) == 5


async def test_interleaving_holds_for_calls_from_other_silos(pair: LocalCluster) -> None:
    await pair.silos[0].grain(Room, "a").where()
    room = pair.silos[1].grain(Room, "a")
    first = asyncio.create_task(room.plain("one"))
    await until(lambda: "+one" in LOG)
    second = asyncio.create_task(room.quick("w1"))
    peek = asyncio.create_task(room.peek("peek"))
    await until(lambda: "+peek" in LOG)
    assert "w1" not in LOG
    GATES["one"].set()
    GATES["peek"].set()
    await asyncio.gather(first, second, peek)


# --- limits and order ----------------------------------------------------------------------------


async def test_a_full_mailbox_refuses_with_overloaded_and_leaves_the_rest_alone() -> None:
    options = RuntimeOptions(waiting_calls_max=3)
    async with Silo(grains=[Room], options=options) as silo:
        room = silo.grain(Room, "a")
        tasks = [asyncio.create_task(room.plain("one"))]
        await spin()
        tasks += [asyncio.create_task(room.quick(f"w{i}")) for i in range(3)]
        await spin()
        with pytest.raises(Overloaded, match="waiting_calls_max is 3") as caught:
            await room.quick("too many")
        assert (caught.value.limit_name, caught.value.limit) == ("waiting_calls_max", 3)
        GATES["one"].set()
        await asyncio.gather(*tasks)
        assert LOG == ["+one", "-one", "w0", "w1", "w2"]
        assert await room.quick("again") == "again"


async def test_withdrawn_calls_do_not_count_against_the_limit() -> None:
    options = RuntimeOptions(waiting_calls_max=3)
    async with Silo(grains=[Room], options=options) as silo:
        room = silo.grain(Room, "a")
        first = asyncio.create_task(room.plain("one"))
        await spin()
        gone = [asyncio.create_task(room.quick(f"gone{i}")) for i in range(3)]
        await spin()
        for task in gone[1:]:
            task.cancel()
        await spin()
        kept = [asyncio.create_task(room.quick(f"kept{i}")) for i in range(2)]
        await spin()
        with pytest.raises(Overloaded):
            await room.quick("too many")
        GATES["one"].set()
        await asyncio.gather(first, gone[0], *kept)
        assert LOG == ["+one", "-one", "gone0", "kept0", "kept1"]


async def test_a_full_mailbox_refuses_remote_callers_too() -> None:
    options = RuntimeOptions(waiting_calls_max=2)
    async with LocalCluster(silos=2, grains=[Room], options=options) as cluster:
        await cluster.silos[0].grain(Room, "a").where()
        room = cluster.silos[1].grain(Room, "a")
        first = asyncio.create_task(room.plain("one"))
        await until(lambda: "+one" in LOG)
        tasks = [asyncio.create_task(room.quick(f"w{i}")) for i in range(4)]
        await until(lambda: sum(task.done() for task in tasks) == 2)
        with pytest.raises(Overloaded, match="waiting_calls_max is 2"):
            await tasks[3]
        GATES["one"].set()
        await asyncio.gather(first, *tasks[:2])
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_requests_of_one_sender_start_in_the_order_sent(silo: Silo) -> None:
    room = silo.grain(Room, "fresh")
    names = [f"{i}" for i in range(50)]
    await asyncio.gather(*(room.quick(name) for name in names))
    assert LOG == names


async def test_requests_start_in_the_order_sent_to_a_grain_that_is_not_placed_yet(
    pair: LocalCluster,
) -> None:
    for silo in pair.silos:
        LOG.clear()
        room = silo.grain(Room, f"fresh-{silo.address}")
        tasks: list[asyncio.Task[str]] = []
        for i in range(40):
            tasks.append(asyncio.create_task(room.quick(f"{i}")))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert LOG == [f"{i}" for i in range(40)]


@pytest.mark.parametrize("key", ["a", "b", "c", "d", "e", "f"])
async def test_requests_start_in_the_order_sent_while_the_connection_opens(
    pair: LocalCluster, key: str
) -> None:
    # One request per loop iteration, so some are sent just as the connection becomes ready.
    room = pair.client.grain(Room, key)
    tasks: list[asyncio.Task[str]] = []
    while not any(task.done() for task in tasks) and len(tasks) < 2000:
        tasks.append(asyncio.create_task(room.quick(f"{len(tasks)}")))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert LOG == [f"{i}" for i in range(len(tasks))]


# --- cycles --------------------------------------------------------------------------------------


async def test_a_self_call_is_a_cycle_at_once(silo: Silo) -> None:
    with pytest.raises(CallCycle) as caught:
        await silo.grain(Hopper, "a").follow(["a"])
    assert caught.value.path == ("Hopper/a", "Hopper/a")
    assert await silo.grain(Hopper, "a").follow([]) == "a"


async def test_a_cycle_of_two_names_the_whole_path(silo: Silo) -> None:
    with pytest.raises(CallCycle) as caught:
        await silo.grain(Hopper, "a").follow(["b", "a"])
    assert caught.value.path == ("Hopper/a", "Hopper/b", "Hopper/a")
    for key in "ab":
        assert await silo.grain(Hopper, key).follow([]) == key


async def test_a_cycle_leaves_out_the_turns_before_it(silo: Silo) -> None:
    with pytest.raises(CallCycle) as caught:
        await silo.grain(Hopper, "z").follow(["a", "b", "a"])
    assert caught.value.path == ("Hopper/a", "Hopper/b", "Hopper/a")


async def test_a_cycle_over_two_silos_is_found_at_once(pair: LocalCluster) -> None:
    for silo, key in zip(pair.silos, "abc", strict=True):
        await silo.grain(Hopper, key).follow([])
    with pytest.raises(CallCycle) as caught:
        await with_options(pair.silos[0].grain(Hopper, "a"), timeout=5).follow(["b", "a"])
    assert caught.value.path == ("Hopper/a", "Hopper/b", "Hopper/a")


async def test_a_cycle_is_named_alike_whatever_the_keys_of_its_grains(pair: LocalCluster) -> None:
    keys = ("a#1", "b\n2", "c" * 300)
    for silo, key in zip(pair.silos, keys, strict=True):
        await silo.grain(Hopper, key).follow([])
    for number, key in enumerate(keys):
        others = [*keys[number + 1 :], *keys[:number]]
        with pytest.raises(CallCycle) as caught:
            await with_options(pair.grain(Hopper, "before"), timeout=5).follow([key, *others, key])
        names = [show_text(f"Hopper/{one}") for one in (key, *others, key)]
        assert caught.value.path == tuple(names)


async def test_a_grain_that_the_call_itself_started_has_the_same_name_in_a_cycle(
    pair: LocalCluster,
) -> None:
    for number in range(10):
        keys = [f"{name}\n{number}" for name in "abc"]
        with pytest.raises(CallCycle) as caught:
            await with_options(pair.grain(Hopper, "first"), timeout=5).follow([*keys, keys[0]])
        assert caught.value.path == tuple(show_text(f"Hopper/{key}") for key in (*keys, keys[0]))


async def test_a_cycle_over_three_silos_from_a_client_is_found_at_once(pair: LocalCluster) -> None:
    for silo, key in zip(pair.silos, "abc", strict=True):
        await silo.grain(Hopper, key).follow([])
    with pytest.raises(CallCycle) as caught:
        await with_options(pair.grain(Hopper, "a"), timeout=5).follow(["b", "c", "a"])
    assert caught.value.path == ("Hopper/a", "Hopper/b", "Hopper/c", "Hopper/a")
    for key in "abc":
        assert await pair.grain(Hopper, key).follow([]) == key


async def test_a_remote_self_call_is_a_cycle(pair: LocalCluster) -> None:
    await pair.silos[1].grain(Hopper, "a").follow([])
    with pytest.raises(CallCycle) as caught:
        await with_options(pair.silos[0].grain(Hopper, "a"), timeout=5).follow(["a"])
    assert caught.value.path == ("Hopper/a", "Hopper/a")


async def test_a_call_from_a_child_task_is_no_proof_of_a_cycle_and_ends_by_deadline(
    silo: Silo,
) -> None:
    ref = with_options(silo.grain(Hopper, "a"), timeout=0.06)
    with pytest.raises(CallTimeout, match="Hopper/a"):
        await ref.follow_in_child("a")
    assert await silo.grain(Hopper, "a").follow([]) == "a"


async def test_mutual_waiting_ends_by_deadline_and_says_who_waited_for_whom(silo: Silo) -> None:
    a = with_options(silo.grain(Hopper, "a"), timeout=0.06)
    b = with_options(silo.grain(Hopper, "b"), timeout=0.12)
    first = asyncio.create_task(a.meet("b", "a"))
    second = asyncio.create_task(b.meet("a", "b"))
    await until(lambda: len(LOG) == 2)
    GATES["meet"].set()
    with pytest.raises(CallTimeout) as caught:
        await first
    assert "Hopper/a" in str(caught.value) and "Hopper/b" in str(caught.value)
    assert await second == "a"


async def test_an_always_interleave_method_breaks_a_cycle(silo: Silo) -> None:
    assert await silo.grain(Hopper, "a").call_back_by_side_door("b") == "in"


async def test_read_only_calls_back_into_a_read_only_turn_are_no_cycle(silo: Silo) -> None:
    assert await silo.grain(Hopper, "a").read_circle("b") == "leaf"


async def test_a_one_way_call_begins_a_chain_of_its_own(silo: Silo) -> None:
    task = asyncio.create_task(silo.grain(Hopper, "a").poke("b"))
    await spin()
    assert not task.done() and LOG == []  # b waits for a, without a cycle
    GATES["poked"].set()
    assert await task == "done"
    await until(lambda: LOG == ["a"])


# --- depth ---------------------------------------------------------------------------------------


async def test_a_hundred_nested_calls_return(silo: Silo) -> None:
    assert await silo.grain(Hopper, "d").down(100) == 100
    assert await silo.grain(Hopper, "d").down(100) == 100


async def test_a_hundred_nested_calls_over_silos_return(pair: LocalCluster) -> None:
    assert await pair.grain(Hopper, "d").down(100) == 100


async def test_a_chain_that_is_too_long_is_refused_and_everything_works_again() -> None:
    options = RuntimeOptions(chain_turns_max=50)
    async with Silo(grains=[Hopper], options=options) as silo:
        assert await silo.grain(Hopper, "d").down(49) == 49
        for _ in range(2):  # first on new activations, then on idle ones
            with pytest.raises(CallError, match="chain_turns_max 50"):
                await silo.grain(Hopper, "d").down(60)
        assert await silo.grain(Hopper, "d").down(49) == 49


async def test_a_cycle_is_found_across_a_hop_to_a_new_task(silo: Silo) -> None:
    path = [f"p{i}" for i in range(70)]
    with pytest.raises(CallCycle) as caught:
        await with_options(silo.grain(Hopper, "a"), timeout=5).follow([*path, "p3"])
    assert caught.value.path[0] == caught.value.path[-1] == "Hopper/p3"
    assert len(caught.value.path) == 68


async def test_cancelling_a_deep_chain_frees_every_grain_in_it(silo: Silo) -> None:
    task = asyncio.create_task(silo.grain(Hopper, "top").down_then_wait(80))
    await until(lambda: "+bottom" in LOG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for depth in (1, 40, 80):
        assert await silo.grain(Hopper, f"d-{depth}").follow([]) == f"d-{depth}"


# --- one-way and shielded ------------------------------------------------------------------------


async def test_a_one_way_call_does_not_wait_for_the_method(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    first = asyncio.create_task(room.plain("one"))
    await spin()
    await room.tell("told")
    assert LOG == ["+one"]
    GATES["one"].set()
    await first
    await until(lambda: "told" in LOG)


async def test_a_one_way_error_is_logged_and_not_raised(
    silo: Silo, caplog: pytest.LogCaptureFixture
) -> None:
    room = silo.grain(Room, "a")
    with caplog.at_level(logging.ERROR, "millstream"):
        await room.tell_badly()
        await until(lambda: bool(caplog.records))
    assert "tell_badly" in caplog.text and "bad tidings" in caplog.text
    assert await room.quick("again") == "again"


async def test_a_remote_one_way_error_is_logged_and_not_raised(
    pair: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await pair.silos[0].grain(Room, "a").where()
    with caplog.at_level(logging.ERROR, "millstream"):
        await pair.silos[1].grain(Room, "a").tell_badly()
        await until(lambda: bool(caplog.records))
    assert "tell_badly" in caplog.text and "bad tidings" in caplog.text


@pytest.mark.parametrize("caller", ["local", "silo", "client"])
async def test_one_way_calls_and_later_calls_start_in_the_order_sent(
    pair: LocalCluster, caller: str
) -> None:
    await pair.silos[0].grain(Room, "a").where()
    runtime = runtime_of(pair, caller)
    room = runtime.grain(Room, "a")
    for i in range(10):
        await room.tell(f"t{i}")
        await room.quick(f"q{i}")
    assert LOG == [name for i in range(10) for name in (f"t{i}", f"q{i}")]


async def test_a_one_way_call_waits_its_turn_like_any_other(silo: Silo) -> None:
    room = silo.grain(Room, "a")
    await room.tell_slowly("slow")
    call = asyncio.create_task(room.quick("after"))
    await until(lambda: "+slow" in LOG)
    await spin()
    assert "after" not in LOG
    GATES["slow"].set()
    assert await call == "after"


@pytest.mark.parametrize("where", ["local", "remote"])
async def test_a_shielded_method_runs_to_its_end_though_its_caller_is_cancelled(
    pair: LocalCluster, where: str
) -> None:
    await pair.silos[0].grain(Room, "a").where()
    room = pair.silos[0 if where == "local" else 1].grain(Room, "a")
    task = asyncio.create_task(room.solid("solid"))
    await until(lambda: "+solid" in LOG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    later = asyncio.create_task(room.quick("later"))
    await spin()
    assert "later" not in LOG
    GATES["solid"].set()
    assert await later == "later"
    assert LOG == ["+solid", "-solid", "later"]


@pytest.mark.parametrize("where", ["local", "remote"])
async def test_a_shielded_method_runs_to_its_end_though_its_deadline_passes(
    pair: LocalCluster, where: str
) -> None:
    await pair.silos[0].grain(Room, "a").where()
    room = pair.silos[0 if where == "local" else 1].grain(Room, "a")
    with pytest.raises(CallTimeout):
        await with_options(room, timeout=0.05).solid("solid")
    later = asyncio.create_task(room.quick("later"))
    await spin()
    GATES["solid"].set()
    assert await later == "later"
    assert LOG == ["+solid", "-solid", "later"]


# --- direct=False --------------------------------------------------------------------------------


async def test_a_grain_that_is_not_direct_runs_in_a_task_of_its_own(silo: Silo) -> None:
    ids = {await silo.grain(Apart, "a").task_id() for _ in range(3)}
    assert id(asyncio.current_task()) not in ids


async def test_context_variables_of_a_grain_that_is_not_direct_never_meet_its_callers(
    silo: Silo,
) -> None:
    apart = silo.grain(Apart, "a")
    await apart.paint("blue")
    assert COLOUR.get() == "none"
    COLOUR.set("red")
    assert await apart.colour() == "none"


async def test_context_variables_do_not_travel_to_another_silo(pair: LocalCluster) -> None:
    COLOUR.set("red")
    seen = {await silo.grain(Painter, f"{i}").colour() for silo in pair.silos for i in range(6)}
    assert await pair.grain(Painter, "x").colour() == "none"
    assert seen <= {"red", "none"}


async def test_a_method_timeout_mark_is_the_deadline() -> None:
    class Slow(Grain):
        @timeout(0.05)
        async def wait(self) -> None:
            await asyncio.Event().wait()

    async with Silo(grains=[Slow]) as silo:
        with pytest.raises(CallTimeout, match=r"Slow\.wait .*0\.05 s"):
            await silo.grain(Slow, "a").wait()
