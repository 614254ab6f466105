"""The example of live scores: a browser sees each goal once, although a silo is killed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
EXAMPLE = Path(__file__).parents[2] / "examples" / "live_scores"
FASTER = ("GOAL_EVERY_S = 1.0", "GOAL_EVERY_S = 0.1")
GOALS = 6 * 30
SILO = ("-m", "millstream.console", "run", "app:make_silo", "--name")
ENDS_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example with a free port and short matches."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    for path in EXAMPLE.iterdir():
        if path.is_file():
            text = path.read_text().replace("port=8080", f"port={port}").replace(*FASTER)
            (tmp_path / path.name).write_text(text)
    (tmp_path / "url").write_text(f"http://127.0.0.1:{port}")
    return tmp_path


class Running:
    """A program of the example, with everything that it prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = ""

    async def until(self, text: str) -> None:
        """Read the output until the text is found."""
        assert self.process.stdout is not None
        async with asyncio.timeout(ENDS_S):
            while text not in self.printed:
                line = await self.process.stdout.readline()
                assert line, f"ended before {text!r}: {self.printed}"
                self.printed += line.decode()

    async def stop(self) -> int:
        """Send SIGTERM. Returns the exit code."""
        self.process.terminate()
        async with asyncio.timeout(ENDS_S):
            self.printed += (await self.process.communicate())[0].decode()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def started(folder: Path, *words: str) -> AsyncIterator[Running]:
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def messages_of(url: str) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Names and data of server-sent events, as the browser's `EventSource` reads them."""
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        name = ""
        async for raw in response.content:
            field, _, value = raw.decode().rstrip().partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


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
