"""The example Stocks: a page reads prices, which timers refresh."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.real.example_programs import ENDS_S, copied, started

pytestmark = pytest.mark.real


async def test_a_page_shows_prices_that_change(tmp_path: Path) -> None:
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    folder = copied("stocks", tmp_path)
    url = (folder / "url").read_text()

    async def quotes(session: Any, symbols: str) -> list[dict[str, Any]]:
        async with session.get(f"{url}/quotes", params={"symbols": symbols}) as response:
            assert response.status == 200
            found: list[dict[str, Any]] = await response.json()
            return found

    async with started(folder, "main.py") as program, aiohttp.ClientSession() as session:
        await program.until("Running on")
        async with session.get(url) as response:
            assert "<title>Stocks</title>" in await response.text()
        first = await quotes(session, "MSFT,TSLA")
        assert [quote["symbol"] for quote in first] == ["MSFT", "TSLA"]
        assert (await quotes(session, "msft"))[0]["symbol"] == "MSFT"
        async with asyncio.timeout(ENDS_S):
            while (await quotes(session, "MSFT,TSLA"))[0]["price"] == first[0]["price"]:
                await asyncio.sleep(0.2)
        later = await quotes(session, "MSFT,TSLA")
        assert all(a["at_s"] < b["at_s"] for a, b in zip(first, later, strict=True))
        for wrong in ("a b", ",", ",".join(["A"] * 51)):
            async with session.get(f"{url}/quotes", params={"symbols": wrong}) as response:
                assert response.status == 400
        assert await program.stop() == 0
