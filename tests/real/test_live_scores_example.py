"""The example of live scores: a browser sees each goal once, although a silo is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.real.example_programs import ENDS_S, SILO, copied, messages_of, started

pytestmark = pytest.mark.real
FASTER = ("GOAL_EVERY_S = 1.0", "GOAL_EVERY_S = 0.1")
GOALS = 6 * 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example with a free port and short matches."""
    return copied("live_scores", tmp_path, FASTER)


def total_of(scores: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(score["home"] + score["away"] for score in scores.values())


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_browser_sees_each_goal_once_although_a_silo_is_killed(
    folder: Path, victim: int
) -> None:
    url = (folder / "url").read_text()
    async with AsyncExitStack() as stack:
        silos = []
        for name in ("one", "two"):
            silos.append(await stack.enter_async_context(started(folder, *SILO, name)))
            await silos[-1].until("is active at")
        await silos[1].until("acquired the queue")  # its share of the queues
        web = await stack.enter_async_context(started(folder, "web.py"))
        await web.until("Running on")
        messages = messages_of(f"{url}/events")
        assert await anext(messages) == ("results", {"goals": 0, "scores": {}})
        play = await stack.enter_async_context(started(folder, "play.py"))
        seen, scores = list[int](), dict[str, Mapping[str, Any]]()
        async with asyncio.timeout(ENDS_S):
            while not seen or seen[-1] < GOALS:
                name, change = await anext(messages)
                assert name == "change"
                seen.append(change["goals"])
                scores |= change["scores"]
                if seen[-1] == GOALS // 3:
                    silos[victim].process.kill()
        assert seen == list(range(1, GOALS + 1))
        assert total_of(scores) == GOALS
        assert len({score["silo"] for score in scores.values()}) == 1, "only one silo is left"
        await play.until(f"{GOALS} goals reported")

        later = messages_of(f"{url}/events")
        assert await anext(later) == ("results", {"goals": GOALS, "scores": scores})
        await messages.aclose()
        await later.aclose()
        assert await web.stop() == 0
        assert await silos[1 - victim].stop() == 0


async def test_the_server_has_the_page(folder: Path) -> None:
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    url = (folder / "url").read_text()
    async with started(folder, *SILO, "one") as silo:
        await silo.until("is active at")
        async with started(folder, "web.py") as web:
            await web.until("Running on")
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                assert response.headers["Content-Type"].startswith("text/html")
                assert 'new EventSource("/events")' in await response.text()
            assert await web.stop() == 0
