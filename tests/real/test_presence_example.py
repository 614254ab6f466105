"""The example Presence: a browser sees games and players, also after a silo was killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.real.example_programs import ENDS_S, SILO, copied, messages_of, started

pytestmark = pytest.mark.real
GAMES = {f"game-{number}" for number in range(5)}


async def test_a_browser_sees_all_games_also_after_a_silo_was_killed(tmp_path: Path) -> None:
    folder = copied("presence", tmp_path)
    url = (folder / "url").read_text()
    async with AsyncExitStack() as stack:
        silos = []
        for name in ("one", "two"):
            silos.append(await stack.enter_async_context(started(folder, *SILO, name)))
            await silos[-1].until("is active at")
        web = await stack.enter_async_context(started(folder, "web.py", "5"))
        await web.until("Running on")
        load = await stack.enter_async_context(started(folder, "load.py", "5"))
        await load.until("heartbeats per second")
        messages = messages_of(f"{url}/events")
        await all_changed(messages)
        assert await game_of(f"{url}/players/player-3-0", {"", "game-3"}) == "game-3"
        silos[0].process.kill()
        await silos[0].process.wait()
        await asyncio.sleep(1.0)  # changes that were sent before are read below
        for _ in range(3):
            await all_changed(messages)
        assert await game_of(f"{url}/players/player-4-1", {"", "game-4"}) == "game-4"
        await messages.aclose()
        assert await web.stop() == 0
        assert await silos[1].stop() == 0


async def all_changed(messages: AsyncGenerator[tuple[str, Any], None]) -> None:
    """Wait until each game has changed once more."""
    seen: set[str] = set()
    async with asyncio.timeout(ENDS_S):
        while seen != GAMES:
            _, change = await anext(messages)
            number = change["game"].rpartition("-")[2]
            assert all(name.startswith(f"player-{number}-") for name in change["players"])
            seen.add(change["game"])


async def game_of(url: str, allowed: set[str]) -> str:
    """Ask for a player until the player is in a game. Players come and go."""
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    async with asyncio.timeout(ENDS_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as response:
                game: str = (await response.json())["game"] if response.status == 200 else ""
            assert game in allowed
            if game:
                return game
            await asyncio.sleep(0.1)
