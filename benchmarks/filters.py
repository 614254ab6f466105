"""Calls in one silo with call filters, beside calls without them."""

from __future__ import annotations

import time
from pathlib import Path

from millstream.runtime import CallFilters, Grain, GrainCall, Proceed, Silo

__all__ = ["ours"]

CALLS = 20_000
WINDOWS = 7


class Counter(Grain):
    """The called grain."""

    async def add(self, by: int) -> int:
        return by


async def ours(work: Path) -> dict[str, float]:
    """Processor time of a call without filters, and with an empty filter on each side."""
    return {
        "none_us": await measure(CallFilters()),
        "incoming_us": await measure(CallFilters(incoming=[proceed_only])),
        "outgoing_us": await measure(CallFilters(outgoing=[proceed_only])),
    }


async def proceed_only(call: GrainCall, proceed: Proceed) -> object:
    """Do nothing but proceed."""
    return await proceed()


async def measure(filters: CallFilters) -> float:
    """Return the processor time of a call in microseconds: the best of several windows."""
    async with Silo(grains=[Counter], filters=filters) as silo:
        counter = silo.grain(Counter, "k")
        await counter.add(1)
        windows = []
        for _ in range(WINDOWS):
            began_s = time.process_time()
            for _ in range(CALLS):
                await counter.add(1)
            windows.append(time.process_time() - began_s)
        return 1e6 * min(windows) / CALLS
