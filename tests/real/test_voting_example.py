"""The example Voting: browsers vote, and see the results change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.real.example_programs import ENDS_S, copied, messages_of, started

pytestmark = pytest.mark.real
POLL = {"question": "Tea or coffee?", "options": ["tea", "coffee"]}


async def test_browsers_vote_and_see_results_also_after_a_restart(tmp_path: Path) -> None:
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    folder = copied("voting", tmp_path)
    url = (folder / "url").read_text()

    async def ask(path: str, body: Any = None, status: int = 200) -> Any:
        method = "GET" if body is None else "POST"
        async with session.request(method, f"{url}{path}", json=body) as response:
            assert response.status == status, await response.text()
            return await (response.json() if status == 200 else response.text())

    async def vote(voter: str, option: Any, status: int = 200) -> Any:
        return await ask(f"/polls/{poll}/votes", {"voter": voter, "option": option}, status)

    async with aiohttp.ClientSession() as session:
        async with started(folder, "main.py") as program:
            await program.until("Running on")
            async with session.get(url) as response:
                assert "<title>Voting</title>" in await response.text()
            poll = (await ask("/polls", POLL))["poll"]
            assert await ask("/polls") == {poll: "Tea or coffee?"}
            messages = messages_of(f"{url}/polls/{poll}/results")
            async with asyncio.timeout(ENDS_S):
                assert (await anext(messages))[1] == POLL | {"counts": [0, 0]}
                assert (await vote("ann", 0))["counts"] == [1, 0]
                assert (await anext(messages))[1]["counts"] == [1, 0]
                await vote("bob", 0)
                assert (await vote("ann", 1))["counts"] == [1, 1]  # a changed vote
                while (await anext(messages))[1]["counts"] != [1, 1]:
                    pass
            await messages.aclose()
            assert "has no option 2" in await vote("eve", 2, 409)
            for wrong in ("0", True, None):
                await vote("eve", wrong, 400)
            await vote("a b", 0, 400)
            for options in ([], ["one"], ["same", "same"], ["", "b"], ["x"] * 11):
                assert await ask("/polls", POLL | {"options": options}, 409)
            await ask("/polls", POLL | {"options": [1, 2]}, 400)
            assert await program.stop() == 0
        async with started(folder, "main.py") as program:
            await program.until("Running on")
            assert (await vote("eve", 1))["counts"] == [1, 2]
            assert await ask("/polls") == {poll: "Tea or coffee?"}
            assert await program.stop() == 0
