"""The example Tic Tac Toe: two players meet on a page, and play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.real.example_programs import copied, started

pytestmark = pytest.mark.real
DRAW = [0, 1, 2, 4, 3, 5, 7, 6, 8]


async def test_two_players_meet_and_play(tmp_path: Path) -> None:
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    folder = copied("tic_tac_toe", tmp_path)
    url = (folder / "url").read_text()

    async def ask(path: str, body: Any = None, status: int = 200) -> Any:
        method = "GET" if body is None else "POST"
        async with session.request(method, f"{url}{path}", json=body) as response:
            assert response.status == status, await response.text()
            return await (response.json() if status == 200 else response.text())

    async def move(game: str, player: str, cell: int, status: int = 200) -> Any:
        return await ask(f"/games/{game}/moves", {"player": player, "cell": cell}, status)

    async def meet(first: str, second: str) -> str:
        game: str = (await ask("/games", {"player": first}))["game"]
        assert (await ask("/games", {"player": first}))["game"] == game
        assert (await ask(f"/games/{game}"))["turn"] == ""
        assert (await ask("/games", {"player": second}))["game"] == game
        return game

    async with started(folder, "main.py") as program, aiohttp.ClientSession() as session:
        await program.until("Running on")
        async with session.get(url) as response:
            assert "<title>Tic Tac Toe</title>" in await response.text()
        game = await meet("ann", "bob")
        board: Any = None
        assert "not the turn of bob" in await move(game, "bob", 0, 409)
        await move(game, "ann", 4)
        assert "cell 4 is not free" in await move(game, "bob", 4, 409)
        assert "cell 9 is not free" in await move(game, "bob", 9, 409)
        for cell, player in zip([0, 2, 1, 6], ["bob", "ann", "bob", "ann"], strict=True):
            board = await move(game, player, cell)
        assert (board["winner"], board["turn"], board["cells"]) == ("ann", "", "OOX X X  ")
        assert "not the turn of bob" in await move(game, "bob", 3, 409)
        again = await meet("bob", "ann")
        assert again != game
        for at, cell in enumerate(DRAW):
            board = await move(again, ("bob", "ann")[at % 2], cell)
        assert board["winner"] == "draw"
        expected = {"games": [game, again], "won": 1, "lost": 0, "drawn": 1}
        assert await ask("/players/ann") == expected
        assert await ask("/players/bob") == expected | {"won": 0, "lost": 1}
        bodies: list[Any] = [{"player": "a b"}, {"player": "draw"}, {}, [], {"player": 7}]
        for wrong in bodies:
            await ask("/games", wrong, 400)
        await ask(f"/games/{game}/moves", {"player": "ann", "cell": "1"}, 400)
        assert await program.stop() == 0
