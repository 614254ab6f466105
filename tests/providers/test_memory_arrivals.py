"""Waits for the next message of a memory queue, on asyncio and uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from millstream.providers.memory.arrivals import Arrivals

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_waits_of_any_length_end_while_others_begin(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A timer that is due at once, or fires too early, runs beside a wait that begins now."""

    async def main() -> None:
        arrivals = Arrivals()
        waits = [arrivals.wait(seconds) for seconds in (0.0, 1e-9, -1.0, 0.0005, 0.001, 0.0015)]
        again = [arrivals.wait(0.0) for _ in range(20)]
        async with asyncio.timeout(10):
            await asyncio.gather(*waits, *again)
            for _ in range(50):
                await asyncio.gather(arrivals.wait(0.0), arrivals.wait(0.0004), arrivals.wait(0.0))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
