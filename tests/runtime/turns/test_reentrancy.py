"""The two forms of reentrancy that depend on the call: a predicate, and call chains.

The cases are those of ReentrancyTests, AllowCallChainReentrancyTests and
DisabledCallChainReentrancyTests of Orleans, for grains in one silo and in several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest

from millstream.runtime import (
    CallCycle,
    CallTimeout,
    ConfigError,
    Grain,
    GrainCall,
    NotInCluster,
    Rejected,
    RuntimeOptions,
    grain,
    one_way,
    read_only,
    with_options,
)
from millstream.runtime.definition.headers import HEADERS_MAX
from millstream.runtime.testing import SimCluster, Simulation, grain_of, run

LOG: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    yield


def decide(call: GrainCall) -> bool:
    if call.arguments.get("what") == "broken":
        raise LookupError("no such rule")
    return call.arguments.get("what") == "quick"


@grain(may_interleave=decide)
class Desk(Grain):
    async def work(self, what: str, seconds: float = 0.0) -> str:
        LOG.append(f"+{what}")
        await asyncio.sleep(seconds)
        LOG.append(f"-{what}")
        return what

    @one_way
    async def drop(self, what: str) -> None:
        LOG.append(f"+{what}")


class Node(Grain):
    """Calls other nodes, which call back."""

    async def ping(self) -> str:
        LOG.append(f"ping {self.key}")
        return self.key

    async def through(self, path: list[str]) -> str:
        """Call along a path of keys. At its end the last node is pinged."""
        following = self.grain(Node, path[0])
        return await (following.through(path[1:]) if path[1:] else following.ping())

    async def allow(self, path: list[str]) -> str:
        with self.context.allow_call_chain_reentrancy():
            return await self.through(path)

    @read_only
    async def allow_reading(self, path: list[str]) -> str:
        with self.context.allow_call_chain_reentrancy():
            return await self.through(path)

    @read_only
    async def look_slowly(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        LOG.append("looked")

    async def ask_to_allow(self, path: list[str]) -> str:
        return await self.grain(Node, path[0]).allow(path[1:])

    async def suppress(self, path: list[str]) -> str:
        with self.context.suppress_call_chain_reentrancy():
            return await self.through(path)

    async def allow_and_suppress(self, path: list[str]) -> list[str]:
        with self.context.allow_call_chain_reentrancy():
            first = await self.through(path)
            with self.context.suppress_call_chain_reentrancy():
                try:
                    second = await self.through(path)
                except CallCycle:
                    second = "a cycle"
            return [first, second, await self.through(path)]

    async def allow_twice(self, path: list[str]) -> str:
        with self.context.allow_call_chain_reentrancy():
            with self.context.allow_call_chain_reentrancy():
                await self.through(path)
            return await self.through(path)

    async def gather(self, path: list[str]) -> list[str]:
        with self.context.allow_call_chain_reentrancy():
            return list(await asyncio.gather(self.through(path), self.through(path)))

    async def after(self, path: list[str]) -> str:
        with self.context.allow_call_chain_reentrancy():
            await self.through(path)
        return await self.through(path)

    async def hold(self, seconds: float, path: list[str]) -> str:
        with self.context.allow_call_chain_reentrancy():
            LOG.append("hold")
            await asyncio.sleep(seconds)
            found = await self.through(path)
            LOG.append("held")
            return found

    async def ping_slowly(self, key: str) -> str:
        await asyncio.sleep(0.5)
        return await with_options(self.grain(Node, key), timeout=1.0).ping()

    async def leave_early(self, key: str) -> str:
        """Make a call in the block, and wait for it after the block."""
        with self.context.allow_call_chain_reentrancy():
            call = asyncio.ensure_future(self.grain(Node, key).ping_slowly(self.key))
            await asyncio.sleep(0.1)
        return await call

    async def nest_meanwhile(self, key: str) -> str:
        """Make a call in the outer block, and wait for it in the inner one."""
        with self.context.allow_call_chain_reentrancy():
            call = asyncio.ensure_future(self.grain(Node, key).ping_slowly(self.key))
            await asyncio.sleep(0.1)
            with self.context.allow_call_chain_reentrancy():
                return await call

    async def headers_of(self, key: str) -> dict[str, str]:
        with self.context.allow_call_chain_reentrancy():
            return await self.grain(Node, key).headers()

    async def headers(self) -> dict[str, str]:
        return dict(self.context.headers)

    async def outside(self) -> None:
        context = self.context

        async def wrong() -> None:
            await asyncio.sleep(1.0)
            try:
                with context.allow_call_chain_reentrancy():
                    LOG.append("opened")
            except NotInCluster:
                LOG.append("refused")

        self.context.create_task(wrong())


def ask(main: Callable[[Any], Awaitable[Any]], silos: int = 1, is_client: bool = False) -> Any:
    """Run a program in the first silo or in a client, and return its result."""
    found: list[Any] = []

    async def driver(sim: Simulation) -> None:
        options = RuntimeOptions(call_timeout_s=5.0)
        async with SimCluster(sim, silos=silos, grains=[Desk, Node], options=options) as cluster:

            async def program() -> None:
                try:
                    if is_client:
                        async with cluster.client(sim.host("laptop")) as client:
                            found.append(await main(client))
                    else:
                        found.append(await main(cluster.silo(cluster.names[0])))
                except Exception as error:
                    found.append(error)

            await sim.call(sim.host("laptop" if is_client else cluster.names[0]), program())

    run(driver, seed=1)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


# -- the predicate


@pytest.mark.parametrize("is_client", [False, True])
def test_a_call_that_the_predicate_admits_interleaves(is_client: bool) -> None:
    async def main(program: Any) -> None:
        desk = program.grain(Desk, "d")
        await asyncio.gather(desk.work("long", 1.0), desk.work("quick", 0.1))

    ask(main, is_client=is_client)
    assert LOG == ["+long", "+quick", "-quick", "-long"]


@pytest.mark.parametrize("is_client", [False, True])
def test_a_call_that_the_predicate_refuses_waits(is_client: bool) -> None:
    async def main(program: Any) -> None:
        desk = program.grain(Desk, "d")
        await asyncio.gather(desk.work("long", 1.0), desk.work("other", 0.1))

    ask(main, is_client=is_client)
    assert LOG == ["+long", "-long", "+other", "-other"]


@pytest.mark.parametrize("is_client", [False, True])
def test_a_turn_that_the_predicate_admitted_blocks_no_call(is_client: bool) -> None:
    async def main(program: Any) -> None:
        desk = program.grain(Desk, "d")
        await asyncio.gather(desk.work("quick", 1.0), desk.work("other", 0.1))

    ask(main, is_client=is_client)
    assert LOG == ["+quick", "+other", "-other", "-quick"]


@pytest.mark.parametrize("is_client", [False, True])
def test_a_predicate_that_fails_rejects_its_call_and_the_grain_goes_on(is_client: bool) -> None:
    async def main(program: Any) -> str:
        desk = program.grain(Desk, "d")
        text = "may_interleave of the class raised LookupError: no such rule; the call did not run"
        with pytest.raises(Rejected, match=text):
            await desk.work("broken")
        return cast(str, await desk.work("other"))

    assert ask(main, is_client=is_client) == "other"
    assert LOG == ["+other", "-other"]


@pytest.mark.parametrize("is_client", [False, True])
def test_the_predicate_decides_about_one_way_calls(is_client: bool) -> None:
    async def main(program: Any) -> None:
        desk = program.grain(Desk, "d")
        long = asyncio.ensure_future(desk.work("long", 1.0))
        await asyncio.sleep(0.5)
        await desk.drop("quick")
        await desk.drop("other")
        await long
        await asyncio.sleep(0.5)

    ask(main, is_client=is_client)
    assert LOG == ["+long", "+quick", "-long", "+other"]


async def decide_later(call: GrainCall) -> bool:
    return True


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (decide_later, "decide_later is async"),
        (lambda: True, "too many positional arguments"),
        (lambda call, more: True, "missing a required argument: 'more'"),
        (7, "must be a"),
    ],
)
def test_a_predicate_that_cannot_decide_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"@grain\(may_interleave=...\).*{text}"):
        grain(may_interleave=given)


# -- call chains

SILOS = pytest.mark.parametrize("silos", [1, 3])
PATHS = pytest.mark.parametrize("path", [["a"], ["b", "a"], ["b", "c", "d", "e", "a"]])


@SILOS
@PATHS
def test_a_call_of_the_chain_comes_back(silos: int, path: list[str]) -> None:
    async def main(program: Any) -> str:
        return cast(str, await program.grain(Node, "a").allow(path))

    assert ask(main, silos) == "a"
    assert LOG == ["ping a"]


@SILOS
@PATHS
def test_without_the_block_the_call_is_a_cycle(silos: int, path: list[str]) -> None:
    async def main(program: Any) -> str:
        return cast(str, await program.grain(Node, "a").through(path))

    with pytest.raises(CallCycle):
        ask(main, silos)
    assert not LOG


@SILOS
def test_the_block_of_another_grain_does_not_open_this_one(silos: int) -> None:
    async def main(program: Any) -> None:
        await program.grain(Node, "a").ask_to_allow(["b", "a"])

    with pytest.raises(CallCycle):
        ask(main, silos)
    assert not LOG


@SILOS
def test_a_call_of_the_chain_is_suppressed(silos: int) -> None:
    async def main(program: Any) -> list[str]:
        return cast(list[str], await program.grain(Node, "a").allow_and_suppress(["b", "a"]))

    assert ask(main, silos) == ["a", "a cycle", "a"]


@SILOS
def test_blocks_may_be_nested(silos: int) -> None:
    async def main(program: Any) -> str:
        return cast(str, await program.grain(Node, "a").allow_twice(["b", "a"]))

    assert ask(main, silos) == "a"
    assert LOG == ["ping a", "ping a"]


@SILOS
def test_a_call_of_the_outer_block_comes_back_in_the_inner_one(silos: int) -> None:
    async def main(program: Any) -> str:
        return cast(str, await program.grain(Node, "a").nest_meanwhile("b"))

    assert ask(main, silos) == "a"


@SILOS
def test_a_call_that_comes_back_after_the_block_waits(silos: int) -> None:
    async def main(program: Any) -> str:
        return cast(str, await program.grain(Node, "a").leave_early("b"))

    with pytest.raises(CallTimeout):
        ask(main, silos)
    assert not LOG


@SILOS
def test_grains_do_not_see_the_block(silos: int) -> None:
    async def main(program: Any) -> dict[str, str]:
        return cast(dict[str, str], await program.grain(Node, "a").headers_of("b"))

    assert ask(main, silos) == {}


@SILOS
def test_tasks_of_the_turn_belong_to_the_chain(silos: int) -> None:
    async def main(program: Any) -> list[str]:
        return cast(list[str], await program.grain(Node, "a").gather(["b", "a"]))

    assert ask(main, silos) == ["a", "a"]


@SILOS
def test_after_the_block_the_call_is_a_cycle_again(silos: int) -> None:
    async def main(program: Any) -> None:
        await program.grain(Node, "a").after(["b", "a"])

    with pytest.raises(CallCycle):
        ask(main, silos)
    assert LOG == ["ping a"]


@SILOS
def test_calls_of_other_chains_wait(silos: int) -> None:
    async def main(program: Any) -> None:
        node = program.grain(Node, "a")
        holding = asyncio.ensure_future(node.hold(1.0, ["b", "a"]))
        await asyncio.sleep(0.5)
        waiting = asyncio.ensure_future(node.ping())
        await asyncio.gather(holding, waiting)

    ask(main, silos)
    assert LOG == ["hold", "ping a", "held", "ping a"]


@SILOS
def test_a_read_only_turn_lets_its_chain_write(silos: int) -> None:
    async def main(program: Any) -> str:
        return cast(str, await program.grain(Node, "a").allow_reading(["b", "a"]))

    assert ask(main, silos) == "a"


@SILOS
def test_a_call_waits_for_a_reader_that_does_not_wait_for_it(silos: int) -> None:
    async def main(program: Any) -> None:
        node = program.grain(Node, "a")
        await asyncio.gather(node.look_slowly(1.0), node.allow_reading(["b", "a"]))

    ask(main, silos)
    assert LOG == ["looked", "ping a"]


def test_a_block_that_exceeds_the_limit_of_headers_is_refused() -> None:
    async def main(program: Any) -> None:
        full = {f"h{i}": "x" for i in range(HEADERS_MAX)}
        await with_options(program.grain(Node, "a"), flowing_headers=full).allow(["b", "a"])

    with pytest.raises(ConfigError, match=f"a call has {HEADERS_MAX + 1} headers"):
        ask(main)


def test_a_block_outside_of_a_turn_is_refused() -> None:
    async def main(program: Any) -> None:
        await program.grain(Node, "a").outside()
        await asyncio.sleep(2.0)

    ask(main)
    assert LOG == ["refused"]


def test_a_unit_test_may_use_the_blocks() -> None:
    node = grain_of(Node, "a", grains={(Node, "b"): grain_of(Node, "b")})
    assert asyncio.run(node.allow(["b"])) == "b"
    assert asyncio.run(node.suppress(["b"])) == "b"
