"""An HTTP API over a cluster in this process, and a client of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import ClientSession
from tests.providers.priority.set_clock import Clock
from yarl import URL

from millstream.providers.priority import MemoryStore, PriorityQueues
from millstream.providers.priority.http import HttpOptions, PriorityApi
from millstream.runtime import LocalCluster

__all__ = ["TOKEN", "Desk", "Reply", "desk_of", "raw"]

TOKEN = "a-token-of-tests-0123456789"


class Reply(NamedTuple):
    status: int
    headers: Any
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Desk:
    """Sends requests to an API.

    `clock` is the store's clock, which stands still until a test sets it.
    """

    def __init__(
        self, cluster: LocalCluster, api: PriorityApi, session: ClientSession, clock: Clock
    ) -> None:
        self.cluster, self.api, self.session, self.clock = cluster, api, session, clock

    async def ask(self, method: str, path: str, **options: Any) -> Reply:
        url = URL(self.api.url + path, encoded=True)
        async with self.session.request(method, url, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def enqueue(self, queue: str, **body: Any) -> Reply:
        return await self.ask(
            "POST", f"/v1/queues/{queue}/messages", json={"payload": "eA==", **body}
        )

    async def lease(self, queue: str, key: str | None = None, **body: Any) -> list[Any]:
        """Dequeue as a worker, and return the leases."""
        headers = {} if key is None else {"Idempotency-Key": key}
        path = f"/v1/queues/{queue}/leases"
        reply = await self.ask("POST", path, json={"worker": "w", **body}, headers=headers)
        assert reply.status == 200, reply
        leases: list[Any] = reply.json["leases"]
        return leases

    async def depth(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = (await self.ask("GET", f"/v1/queues/{queue}/depth")).json
        return {state: count for state, count in found.items() if count}


@asynccontextmanager
async def desk_of(silos: int = 1, **options: Any) -> AsyncIterator[Desk]:
    """Run an API with these options over a cluster."""
    clock = Clock()
    store = MemoryStore(clock)
    parts = {"priority": lambda: PriorityQueues(store)}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        LocalCluster(grains=[], silos=silos, parts=parts) as cluster,
        PriorityApi(cluster, token=TOKEN, port=0, options=HttpOptions(**options)) as api,
        ClientSession(headers=headers) as session,
    ):
        yield Desk(cluster, api, session, clock)


async def raw(api: PriorityApi, data: bytes, *, is_whole: bool = False) -> bytes:
    """Send raw bytes, and return the answer up to the end of the connection."""
    host, _, port = api.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    if is_whole:
        writer.write_eof()
    found = await reader.read()
    writer.close()
    return found
