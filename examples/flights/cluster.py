"""The cluster of the example: silo processes, or silos in this process.

This module owns the configuration, the start and the stop of the silos. Every started process is
stopped, also after an error.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import Client, ClusterError, LocalCluster, Silo, connect, operator_secret
from millstream.runtime.run import SiloProcess, SiloProcesses
from millstream.streams import (
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueAdapterFactory,
    SiloStats,
    StreamOptions,
    cluster_stats,
)

from .grains import Airport, Plane

__all__ = ["CLUSTER", "QUEUES", "FlightCluster", "make_silo"]

CLUSTER = "flights"
QUEUES = 8
ANYWHERE = "127.0.0.1:0"
OPERATOR = "MILLSTREAM_OPERATOR_SECRET"
REBALANCE_S = 0.5
SETTLED_S = 0.7  # above the balancers' delay, so that no balancer is about to change an owner
READY_S = 60.0
LOOK_S = 0.05
CHANGED = " instead of "


def streams(queues: QueueAdapterFactory | None = None) -> PersistentStreams:
    """Return eight queues, in memory by default, shared evenly by the active silos."""
    return PersistentStreams(
        MemoryQueues() if queues is None else queues,
        mapper=HashRingMapper(queues=QUEUES),
        balancer=DeploymentBalancer(rebalance_delay_s=REBALANCE_S),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.2), enqueue_wait_s=60.0),
    )


def make_silo(work: str, name: str, is_durable: bool = False, address: str = ANYWHERE) -> Silo:
    """Return the silo of a silo process. Its queues are in ledgers, so a crash loses nothing.

    `is_durable`: each silo has a bookie and a directory; otherwise all silos share one.
    """
    ledger = Path(work) / "ledger"
    return Silo(
        grains=[Airport, Plane],
        cluster=CLUSTER,
        membership=SqliteMembershipTable(work),
        stores={"default": SqliteStateStore(work)},
        streams={"default": streams(LedgerQueues(ledger / "{silo}" if is_durable else ledger))},
        name=name,
        address=address,
    )


class FlightCluster:
    """`async with FlightCluster(...) as cluster`: silos, and a client outside of them.

    Args:
        is_local: Run silos in this process, with everything in memory.
        is_durable: Run a bookie for each silo, 3/3/2; otherwise one for all.
        is_last_gateway: Use the last silo as a gateway. Choose False if that silo is killed and
            does not come back, because publishers would lose their connection.
    """

    def __init__(
        self,
        work: Path,
        silos: int,
        *,
        is_local: bool,
        is_durable: bool = False,
        is_last_gateway: bool = True,
    ) -> None:
        self._work = work
        self._count = silos
        self._is_local = is_local
        self._is_durable = is_durable
        self._is_last_gateway = is_last_gateway
        self._stack = AsyncExitStack()
        self._processes: SiloProcesses | None = None
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
        processes = SiloProcesses([self._process(number) for number in range(self._count)])
        self._processes = await self._stack.enter_async_context(processes)
        gateways = list(processes)[: None if self._is_last_gateway else -1]
        self.gateways = [process.gateway for process in gateways]
        self.client = await self._stack.enter_async_context(
            connect(*self.gateways, cluster=CLUSTER, operator_secret=self._operator_secret())
        )

    def _operator_secret(self) -> str:
        """Return the operator's secret of the silos, which inherit this environment."""
        return os.environ.get(OPERATOR) or operator_secret(self._work)

    def _process(self, number: int, address: str = ANYWHERE) -> SiloProcess:
        arguments = {
            "work": str(self._work),
            "name": f"silo-{number}",
            "is_durable": self._is_durable,
            "address": address,
        }
        return SiloProcess(f"{__name__}:make_silo", arguments, self._log(number))

    def _log(self, number: int) -> Path:
        return self._work / f"silo-{number}.log"

    async def kill(self, number: int, /) -> str:
        """Kill a silo with SIGKILL, with the queues that it reads; return its name."""
        assert self._processes is not None
        victim = self._processes[number]
        await victim.kill()
        return f"silo-{number} at {victim.address} (pid {victim.pid})"

    async def start_again(self, number: int, /) -> None:
        """Restart a silo at its old address, where clients find it, with its directory.

        Raises ClusterError.
        """
        assert self._processes is not None
        again = self._process(number, self._processes[number].gateway)
        await self._processes.replace(number, again)

    def ensemble_changes(self) -> int:
        """Return how often the writer of a ledger continued with other bookies, by the logs."""
        logs = [self._log(number) for number in range(self._count)]
        return sum(log.read_text(errors="replace").count(CHANGED) for log in logs if log.exists())

    async def stats(self) -> list[SiloStats]:
        """Return every silo with its queues. Raises MillstreamError without an answer."""
        return await cluster_stats(self.client)

    async def _wait_until_read(self) -> None:
        """Wait until every queue has an owner that reads it, in even shares that do not change.

        Silos that join one after the other may have even shares by chance, before the last change.
        """
        loop = asyncio.get_running_loop()
        settled = Settled(self._count)
        deadline = loop.time() + READY_S
        while not settled.sample(await self.stats(), loop.time()):
            if loop.time() > deadline:
                raise ClusterError(f"after {READY_S:g} s {settled} (logs are in {self._work})")
            await asyncio.sleep(LOOK_S)


class Settled:
    """Decides from samples whether the queues have their final owners, without I/O."""

    def __init__(self, readers: int) -> None:
        self._sizes_wanted = sorted(len(range(at, QUEUES, readers)) for at in range(readers))
        self._owners: dict[tuple[str, int], str] = {}
        self._since_s = 0.0

    def __str__(self) -> str:
        owned = ", ".join(f"{queue} by {silo}" for (queue, _), silo in sorted(self._owners.items()))
        return f"the queues are not spread evenly over the silos; owners: {owned or 'none'}"

    def sample(self, silos: Sequence[SiloStats], now_s: float) -> bool:
        """Add a sample of the silos; True if the samples have been equal for long enough."""
        owners = {
            (queue.queue, queue.epoch): silo.name
            for silo in silos
            for queue in silo.queues
            if queue.is_reading
        }
        if owners != self._owners:
            self._owners, self._since_s = owners, now_s
        sizes = sorted(Counter(owners.values()).values())
        is_even = sizes == [size for size in self._sizes_wanted if size]
        is_whole = len({queue for queue, _ in owners}) == QUEUES
        return is_even and is_whole and now_s - self._since_s >= SETTLED_S
