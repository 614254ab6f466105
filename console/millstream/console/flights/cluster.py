"""The demo's cluster: silo processes, or silos in this process.

Owns: how the silos are configured, and starting and stopping them. Invariant: whatever happens,
every process that was started is stopped.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import Client, ClusterError, LocalCluster, Silo, connect
from millstream.runtime.launcher import SiloProcess
from millstream.streams import HashRingMapper, OwnershipOptions, PersistentStreams, StreamOptions
from millstream.streams.provider import SiloStats, StreamsTarget

from .grains import Airport, Plane

__all__ = ["CLUSTER", "QUEUES", "FlightCluster", "make_silo"]

CLUSTER = "flights"
QUEUES = 8
READY_S = 60.0
LOOK_S = 0.05


def streams() -> PersistentStreams:
    """Eight queues in memory, dealt out evenly to the silos that are alive."""
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=QUEUES),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.2), enqueue_wait_s=60.0),
    )


def make_silo(work: str, name: str, reads_queues: bool) -> Silo:
    """What a silo process runs."""
    return Silo(
        grains=[Airport, Plane],
        cluster=CLUSTER,
        membership=SqliteMembershipTable(work),
        stores={"default": SqliteStateStore(work)},
        streams={"default": streams()},
        name=name,
        can_own_queues=reads_queues,
    )


class FlightCluster:
    """`async with FlightCluster(...) as cluster`: silos, and a client outside of them."""

    def __init__(self, work: Path, silos: int, is_local: bool, has_spare: bool) -> None:
        self._work = work
        self._count = silos
        self._is_local = is_local
        self._has_spare = has_spare
        self._stack = AsyncExitStack()
        self.processes: list[SiloProcess] = []
        self.gateways: list[str] = []
        self.client: Client

    async def __aenter__(self) -> FlightCluster:
        try:
            if self._is_local:
                await self._start_local()
            else:
                await self._start_processes()
            await self._wait_until_read()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start_local(self) -> None:
        local = LocalCluster(
            grains=[Airport, Plane],
            silos=self._count,
            streams={"default": streams},
            cluster=CLUSTER,
        )
        await self._stack.enter_async_context(local)
        self.gateways = [silo.gateway for silo in local.silos]
        self.client = local.client

    async def _start_processes(self) -> None:
        for number in range(self._count):
            is_spare = self._has_spare and number == self._count - 1
            arguments = {
                "work": str(self._work),
                "name": f"silo-{number}",
                "reads_queues": not is_spare,
            }
            log = self._work / f"silo-{number}.log"
            process = SiloProcess(f"{__name__}:make_silo", arguments, log)
            self.processes.append(process)
            self._stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in self.processes))
        readers = self.processes[:-1] if self._has_spare else self.processes
        self.gateways = [process.gateway for process in readers]
        self.client = await self._stack.enter_async_context(
            connect(*self.gateways, cluster=CLUSTER)
        )

    async def stats(self) -> list[SiloStats]:
        """Every silo with the queues that it reads."""
        spec: Any = StreamsTarget.cluster_stats.__millstream_spec__  # type: ignore[attr-defined]
        found: list[SiloStats] = await self.client.host.ask_gateway(
            "", "$streams", "default", spec, ()
        )
        return found

    async def _wait_until_read(self) -> None:
        """Until every queue has an owner that reads, and the owners have even shares."""
        readers = self._count - self._has_spare
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            stats = await self.stats()
            sizes = sorted(len(s.queues) for s in stats if s.queues)
            reading = sum(queue.is_reading for s in stats for queue in s.queues)
            is_even = len(sizes) == min(readers, QUEUES) and sizes[-1] - sizes[0] <= 1
            if reading == QUEUES and is_even:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise ClusterError(f"after {READY_S:g} s the queues are not read: {stats}")
            await asyncio.sleep(LOOK_S)
