"""Programs outside of the cluster, each on a host of its own, with a client of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.streams.conformance.actors import LINES, note
from tests.streams.conformance.place import Place

from millstream.runtime import Client
from millstream.streams import StreamNamespace

Program = Callable[[Client], Coroutine[Any, Any, None]]


class Outsider:
    """A host with a program; `crash` ends it without a goodbye."""

    def __init__(self, place: Place, name: str) -> None:
        self._place, self.name = place, name
        self._simulation = place.simulation
        self._tasks: list[asyncio.Task[None]] = []

    async def do(self, program: Program) -> None:
        """Run a program to its end."""
        host = self._simulation.host(self.name)

        async def beside_a_client() -> None:
            async with self._place.cluster.client(host) as client:
                await program(client)

        await self._simulation.call(host, beside_a_client())

    async def consume(
        self, key: str, who: str = "", name: str = "", namespace: StreamNamespace[int] = LINES
    ) -> None:
        """Consume a stream from now on, as `who`; return when the program is subscribed."""
        ready = asyncio.Event()

        async def hear_all(client: Client) -> None:
            async with client.stream(namespace, key).consume(name=name) as events:
                ready.set()
                async for event in events:
                    note(who or self.name, event)

        self._tasks.append(asyncio.ensure_future(self.do(hear_all)))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait([*self._tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            await self._tasks[-1]

    async def leave(self) -> None:
        """Leave all streams gracefully."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def crash(self) -> None:
        self._simulation.crash(self.name)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
