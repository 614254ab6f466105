"""Headers that flow along a chain of calls, in virtual time.

The cases are those of RequestContextTest of Orleans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from millstream.runtime import (
    ConfigError,
    Grain,
    Role,
    RuntimeOptions,
    one_way,
    timer,
    with_options,
)
from millstream.runtime.definition.headers import (
    CLIENT,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    stamp_client,
)
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.runtime.wire.message import Call, decode_messages

CALLERS = ("a silo", "a client")
SEEN: dict[str, dict[str, str]] = {}


class Link(Grain):
    """Passes a call on, along the keys of a path."""

    async def pass_on(self, path: list[str]) -> list[dict[str, str]]:
        here = dict(self.context.headers)
        if not path:
            return [here]
        return [here, *await self.grain(Link, path[0]).pass_on(path[1:])]

    async def override(self, path: list[str]) -> list[dict[str, str]]:
        following = with_options(self.grain(Link, path[0]), flowing_headers={"trace": "second"})
        inner = await following.pass_on(path[1:])
        return [dict(self.context.headers), *inner]

    async def gather(self, keys: list[str]) -> list[list[dict[str, str]]]:
        return list(await asyncio.gather(*(self.grain(Link, key).pass_on([]) for key in keys)))

    @one_way
    async def note(self, path: list[str]) -> None:
        SEEN[self.key] = dict(self.context.headers)
        if path:
            await self.grain(Link, path[0]).note(path[1:])

    @timer(every=1.0)
    async def tick(self) -> None:
        SEEN[f"tick of {self.key}"] = dict(self.context.headers)

    async def in_background(self, key: str) -> None:
        self.context.create_task(self.later(key))

    async def later(self, key: str) -> None:
        await asyncio.sleep(1.0)
        await self.grain(Link, key).note([])


def ask(caller: str, main: Callable[[Any], Awaitable[Any]], silos: int = 3) -> Any:
    """Run a program in a silo or a client, and return its result."""
    found: list[Any] = []

    async def driver(sim: Simulation) -> None:
        options = RuntimeOptions(call_timeout_s=5.0)
        async with SimCluster(sim, silos=silos, grains=[Link], options=options) as cluster:

            async def program() -> None:
                try:
                    if caller == "a client":
                        async with cluster.client(sim.host("laptop")) as client:
                            found.append(await main(client))
                    else:
                        found.append(await main(cluster.silo(cluster.names[0])))
                except Exception as error:
                    found.append(error)

            at = "laptop" if caller == "a client" else cluster.names[0]
            await sim.call(sim.host(at), program())

    SEEN.clear()
    run(driver, seed=1)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def link(program: Any, key: str, **options: Any) -> Any:
    return with_options(program.grain(Link, key), **options)


PATH = [f"k{i}" for i in range(12)]  # with three silos, hops are local and remote


@pytest.mark.parametrize("caller", CALLERS)
def test_flowing_headers_reach_every_grain_of_the_chain_and_own_headers_only_the_first(
    caller: str,
) -> None:
    async def main(program: Any) -> Any:
        first = link(
            program, "a", headers={"own": "1"}, flowing_headers={"trace": "t", "user": "u"}
        )
        return await first.pass_on(PATH)

    first, *others = ask(caller, main)
    assert first == {"own": "1", "trace": "t", "user": "u"}
    assert others == [{"trace": "t", "user": "u"}] * len(PATH)


@pytest.mark.parametrize("silos", [1, 3])
def test_a_grain_overrides_a_header_for_its_own_calls_only(silos: int) -> None:
    async def main(program: Any) -> Any:
        first = link(program, "a", flowing_headers={"trace": "first", "user": "u"})
        return await first.override(PATH), await first.pass_on([])

    chain, after = ask("a silo", main, silos)
    assert chain[0] == {"trace": "first", "user": "u"}
    assert chain[1:] == [{"trace": "second", "user": "u"}] * len(PATH)
    assert after == [{"trace": "first", "user": "u"}]


@pytest.mark.parametrize("caller", CALLERS)
def test_tasks_of_a_turn_carry_the_headers_on(caller: str) -> None:
    async def main(program: Any) -> Any:
        return await link(program, "a", flowing_headers={"trace": "t"}).gather(PATH)

    assert ask(caller, main) == [[{"trace": "t"}]] * len(PATH)


@pytest.mark.parametrize("caller", CALLERS)
def test_one_way_calls_carry_the_headers_on(caller: str) -> None:
    async def main(program: Any) -> None:
        await link(program, "a", flowing_headers={"trace": "t"}).note(PATH)
        await asyncio.sleep(2.0)

    ask(caller, main)
    assert [SEEN[key] for key in ["a", *PATH]] == [{"trace": "t"}] * (1 + len(PATH))


def test_timers_and_tasks_that_outlive_the_turn_begin_without_headers() -> None:
    async def main(program: Any) -> None:
        await link(program, "a", flowing_headers={"trace": "t"}).in_background("b")
        await asyncio.sleep(3.0)

    ask("a silo", main)
    assert SEEN["tick of a"] == {}
    assert SEEN["b"] == {}


def test_nothing_flows_back_or_into_the_next_call() -> None:
    async def main(program: Any) -> Any:
        await link(program, "a", flowing_headers={"trace": "t"}).pass_on(["b"])
        return await program.grain(Link, "a").pass_on(["b"])

    assert ask("a silo", main) == [{}, {}]


@pytest.mark.parametrize("name", ["millstream.sections", "millstream."])
def test_a_reserved_name_is_refused(name: str) -> None:
    async def main(program: Any) -> None:
        link(program, "a", flowing_headers={name: "x"})

    with pytest.raises(ConfigError, match="has a reserved name: choose a name"):
        ask("a silo", main)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("silos", [1, 3])
def test_headers_of_the_call_and_of_the_chain_have_one_limit(caller: str, silos: int) -> None:
    async def main(program: Any) -> Any:
        many = {f"h{i}": "x" for i in range(HEADERS_MAX)}
        first = link(program, "a", flowing_headers=many)
        return await first.override(["b"])

    with pytest.raises(ConfigError, match=f"101 headers: HEADERS_MAX is {HEADERS_MAX}"):
        ask(caller, main, silos)


def test_both_kinds_of_one_reference_have_one_limit() -> None:
    async def main(program: Any) -> None:
        half = "x" * (HEADERS_BYTES_MAX // 2)
        link(program, "a", headers={"own": half}, flowing_headers={"flows": half})

    with pytest.raises(ConfigError, match=f"HEADERS_BYTES_MAX is {HEADERS_BYTES_MAX}"):
        ask("a silo", main)


def test_a_call_of_an_older_process_has_no_flowing_headers() -> None:
    """The field is the last one of the array, so both sides may lack it."""
    older = [1, 1, "A", "k", "m", [], 1.0, "", [], 0, None, 1, Role.SILO]
    (read,) = decode_messages(msgspec.msgpack.encode([older]))
    assert isinstance(read, Call)
    assert read.flowing is None
    (read,) = decode_messages(msgspec.msgpack.encode([[*older, {"trace": "t"}, "a later field"]]))
    assert isinstance(read, Call)
    assert read.flowing == {"trace": "t"}


@pytest.mark.parametrize(
    ("received", "name", "stamped"),
    [
        (None, "", None),
        ({}, "", {}),
        ({"a": "1"}, "", {"a": "1"}),
        ({"a": "1", CLIENT: "root"}, "", {"a": "1"}),
        (None, "web", {CLIENT: "web"}),
        ({"a": "1", CLIENT: "root"}, "web", {"a": "1", CLIENT: "web"}),
    ],
)
def test_a_silo_stamps_the_name_in_the_certificate_of_a_client(
    received: dict[str, str] | None, name: str, stamped: dict[str, str] | None
) -> None:
    assert stamp_client(received, name) == stamped
