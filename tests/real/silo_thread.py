"""Silos in their own thread, for tests that block. Their grains record the items that they
receive."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, MemoryStateStore
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    subscribe,
)

__all__ = ["SiloThread"]

FLIGHTS = StreamNamespace("staged_flights", dict[str, Any])
SEEN: dict[str, list[dict[str, Any]]] = defaultdict(list)


class FlightTable(Grain):
    @subscribe(FLIGHTS)
    async def on_flight(self, event: Event[dict[str, Any]]) -> None:
        SEEN[self.key].append(event.item)


def streams_of(queues: Callable[[], Any]) -> Callable[[], PersistentStreams]:
    return lambda: PersistentStreams(
        queues(), mapper=HashRingMapper(queues=4), balancer=DeploymentBalancer()
    )


class SiloThread:
    """Two silos that run inside the `with` block."""

    namespace = FLIGHTS.name

    def __init__(self, queues: Callable[[], Any] = MemoryQueues) -> None:
        self._store = MemoryStateStore()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._cluster = LocalCluster(
            silos=2,
            grains=[FlightTable],
            streams={"default": streams_of(queues)},
            stores={"default": self._store},
        )
        self.gateways = ""

    def __enter__(self) -> SiloThread:
        SEEN.clear()
        self._thread.start()
        self._run(self._cluster.__aenter__())
        self.gateways = ",".join(silo.gateway for silo in self._cluster.silos)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._cluster.__aexit__(kind, error, trace))
        self._run(self._hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _hang_up(self) -> None:
        """Close all connections, because idle Spark workers may have reconnected during the
        stop.
        """
        loop: Any = self._loop
        for transport in list(loop._transports.values()):
            transport.abort()
        await asyncio.sleep(0.1)  # the loop closes sockets in its next iteration

    def _run(self, coro: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(60)

    def chunks(self) -> list[str]:
        """List the keys of the stored chunks."""
        found = self._run(self._store.scan("staged/default/chunk/", "", 1_000))
        return [key for key, _ in found]

    def seen(self, count: int) -> dict[str, list[dict[str, Any]]]:
        """Return the items of the grains by key, once there are `count`. Raises TimeoutError."""
        return dict(self._run(wait_until_seen(count)))


async def wait_until_seen(count: int) -> dict[str, list[dict[str, Any]]]:
    async with asyncio.timeout(30):
        while sum(map(len, SEEN.values())) < count:
            await asyncio.sleep(0.01)
    return SEEN
