"""Servers of peers, on a free port of loopback, with their files in a directory of the run."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["SYNCED", "free_port", "redis_lacks", "redis_process", "redis_server", "until_answering"]

START_S = 10.0
SYNCED = ("--appendonly", "yes", "--appendfsync", "always")
"""Options of a Redis server that answers when a command is on disk."""


def redis_lacks() -> str:
    """Return the reason why the server cannot run; "" if it can run."""
    return "" if shutil.which("redis-server") else "no redis-server here"


@asynccontextmanager
async def redis_process(
    work: Path, *options: str
) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """Yield the port and the process of a Redis server, which ends with the block."""
    port = free_port()
    given = ("--save", "", *options, "--bind", "127.0.0.1", "--dir", str(work), "--port", str(port))
    server = await asyncio.create_subprocess_exec(
        "redis-server", *given, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await until_answering(port)
        yield port, server
    finally:
        server.terminate()
        await server.wait()


@asynccontextmanager
async def redis_server(work: Path) -> AsyncIterator[int]:
    """Yield the port of a Redis server that has each command on disk before it answers."""
    async with redis_process(work, *SYNCED) as (port, _):
        yield port


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def until_answering(port: int) -> None:
    """Wait until the server accepts connections."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
