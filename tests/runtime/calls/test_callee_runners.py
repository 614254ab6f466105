"""The runners of incoming calls, when the end of a loop closes their coroutines."""

from __future__ import annotations

import asyncio

import pytest
from tests.conditions import until

from millstream.runtime import Grain, Silo, connect, grain

LOG: list[str] = []
HOLDERS: list[asyncio.Task[object]] = []


@grain(name="ClosedDesk")
class ClosedDesk(Grain):
    async def hold(self, at_close: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        HOLDERS.append(task)
        try:
            await asyncio.Event().wait()
        except GeneratorExit:
            if at_close == "returns":
                return at_close
            if at_close == "raises another error":
                raise OSError(at_close) from None
            raise
        return "never"

    async def put(self) -> str:
        LOG.append("put")
        await asyncio.sleep(0)
        return "put"


@pytest.mark.parametrize("at_close", ["goes on", "returns", "raises another error"])
async def test_a_runner_that_is_closed_begins_no_other_call(at_close: str) -> None:
    LOG.clear()
    HOLDERS.clear()
    async with Silo(grains=[ClosedDesk]) as silo, connect(silo.gateway) as client:
        desk = client.grain(ClosedDesk, "a")
        held = asyncio.ensure_future(desk.hold(at_close))
        await until(lambda: len(HOLDERS) == 1)
        put = asyncio.ensure_future(desk.put())
        await until(lambda: silo.assembly.turns.waiting_bytes.used > 0)
        # as the garbage collector or the end of a simulation does
        HOLDERS[0].get_coro().close()
        assert LOG == []
        assert await put == "put"  # in another runner
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
