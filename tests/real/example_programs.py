"""Runs the programs of an example in a copy of its folder, as a reader of its README does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.imports import ROOT

__all__ = ["ENDS_S", "SILO", "Running", "copied", "messages_of", "started"]

SILO = ("-m", "millstream.console", "run", "app:make_silo", "--name")
ENDS_S = 60.0


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

    async def write(self, line: str) -> None:
        """Write a line, as a person at the terminal does."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()

    async def stop(self) -> int:
        """Send SIGTERM. Returns the exit code."""
        self.process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the end. Returns the exit code."""
        async with asyncio.timeout(ENDS_S):
            self.printed += (await self.process.communicate())[0].decode()
        assert self.process.returncode is not None
        return self.process.returncode


def copied(example: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """Copy an example with a free port in place of 8080, and with changes of its text."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    for path in (ROOT / "examples" / example).iterdir():
        if path.is_file():
            text = path.read_text().replace("port=8080", f"port={port}")
            for old, new in changes:
                text = text.replace(old, new)
            (folder / path.name).write_text(text)
    (folder / "url").write_text(f"http://127.0.0.1:{port}")
    return folder


@asynccontextmanager
async def started(folder: Path, *words: str) -> AsyncIterator[Running]:
    """Run Python with these words in the folder. The program is killed at the end."""
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def messages_of(url: str) -> AsyncGenerator[tuple[str, Any], None]:
    """Names and data of server-sent events, as the browser's `EventSource` reads them."""
    aiohttp = pytest.importorskip("aiohttp", reason="aiohttp is not installed (extra `examples`)")
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as session,
        session.get(url) as response,
    ):
        assert response.status == 200
        name = ""
        async for raw in response.content:
            field, _, value = raw.decode().rstrip().partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)
