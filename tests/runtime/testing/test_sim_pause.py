"""A paused host does nothing, loses nothing, and continues where it was."""

from __future__ import annotations

import asyncio

import pytest

from millstream.runtime import Address
from millstream.runtime.testing import Simulation, parse_script, run


def test_a_paused_host_stands_still_and_goes_on_later() -> None:
    async def main(sim: Simulation) -> list[float]:
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1.0)
                ticks.append(round(sim.loop.time(), 1))

        sim.spawn(sim.host("a"), tick())
        await asyncio.sleep(2.5)
        sim.pause("a")
        await asyncio.sleep(10.0)
        sim.resume("a")
        await asyncio.sleep(1.6)
        return ticks

    for seed in (1, 2):
        assert run(main, seed).result == [1.0, 2.0, 12.5, 13.5]


def test_what_comes_for_a_paused_host_waits_in_order() -> None:
    async def main(sim: Simulation) -> list[int]:
        host, heard = sim.host("a"), list[int]()
        sim.pause(host)
        for number in range(3):
            sim.loop.call_soon(heard.append, number, context=host.context())
        gone = sim.loop.call_later(1.0, heard.append, 9, context=host.context())
        sim.loop.call_later(2.0, heard.append, 3, context=host.context())
        await asyncio.sleep(5.0)
        assert heard == []
        gone.cancel()
        sim.resume(host)
        await asyncio.sleep(0.1)
        return heard

    assert run(main, 1).result == [0, 1, 2, 3]


def test_a_paused_host_answers_no_probe_until_it_goes_on() -> None:
    async def main(sim: Simulation) -> bytes:
        there, port = sim.host("a"), Address("a", 7000)
        sim.transport(there).listen_probe(port, lambda: b"here")
        probe = sim.transport(sim.host("b")).probe
        assert await probe(port, 1.0) == b"here"
        sim.pause(there)
        with pytest.raises(TimeoutError):
            await probe(port, 1.0)
        waiting = asyncio.create_task(probe(port, 5.0))
        await asyncio.sleep(2.0)
        assert not waiting.done()
        sim.resume(there)
        return await waiting

    assert run(main, 1).result == b"here"


def test_a_paused_host_can_crash_and_is_not_resumed_then() -> None:
    async def main(sim: Simulation) -> bool:
        ended: list[int] = []

        async def work() -> None:
            try:
                await asyncio.sleep(1.0)
            finally:
                ended.append(1)

        sim.spawn(sim.host("a"), work())
        sim.pause("a")
        with pytest.raises(ValueError, match="is paused"):
            sim.pause("a")
        sim.kill("a")
        sim.resume("a")
        await asyncio.sleep(5.0)
        return bool(ended)

    assert run(main, 1).result is False


def test_a_script_pauses_and_resumes() -> None:
    async def main(sim: Simulation) -> list[float]:
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(1.0)
                ticks.append(round(sim.loop.time(), 1))

        sim.spawn(sim.host("a"), tick())
        await sim.nemesis(parse_script("1.5 pause a\n4 resume a\n5.5 pause a"), print)
        await asyncio.sleep(0.0)
        return ticks

    assert run(main, 1).result == [1.0, 4.0, 5.0]
