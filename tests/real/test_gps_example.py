"""The example GPS tracker: a browser sees devices move, also after a silo was killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.real.example_programs import ENDS_S, SILO, copied, messages_of, started

pytestmark = pytest.mark.real
DEVICES = {f"device-{number}" for number in range(5)}


async def test_a_browser_sees_all_devices_also_after_a_silo_was_killed(tmp_path: Path) -> None:
    folder = copied("gps_tracker", tmp_path)
    url = (folder / "url").read_text()
    async with AsyncExitStack() as stack:
        silos = []
        for name in ("one", "two"):
            silos.append(await stack.enter_async_context(started(folder, *SILO, name)))
            await silos[-1].until("is active at")
        web = await stack.enter_async_context(started(folder, "web.py"))
        await web.until("Running on")
        drive = await stack.enter_async_context(started(folder, "drive.py", "5"))
        await drive.until("5 devices drive")
        messages = messages_of(f"{url}/events")
        newest_s = await all_moved_after(0.0, messages)
        silos[0].process.kill()
        await silos[0].process.wait()
        await all_moved_after(newest_s + 1.0, messages)
        await messages.aclose()
        assert await web.stop() == 0
        assert await silos[1].stop() == 0


async def all_moved_after(start_s: float, messages: AsyncGenerator[tuple[str, Any], None]) -> float:
    """Wait until each device moved after a Unix time. Returns the time of the last movement."""
    seen: set[str] = set()
    newest_s = start_s
    async with asyncio.timeout(ENDS_S):
        while seen != DEVICES:
            _, movements = await anext(messages)
            times = {one["device"]: one["position"]["at_s"] for one in movements}
            seen |= {device for device, at_s in times.items() if at_s > start_s}
            newest_s = max(newest_s, *times.values())
    return newest_s
