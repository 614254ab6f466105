"""Three silo processes with a bookie each, which are killed and restarted.

This module owns the configuration of a silo, and `Silos`, the processes by number.
"""

from __future__ import annotations

from pathlib import Path

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import Silo
from millstream.runtime.run import SiloProcess, SiloProcesses
from millstream.streams import HashRingMapper, PersistentStreams, StreamNamespace, StreamOptions

__all__ = ["CLUSTER", "RECORDS", "SILOS", "Silos", "make_silo", "streams"]

CLUSTER = "chaos"
SILOS = 3
QUEUES = 8
RECORDS = StreamNamespace("records", bytes)
KEEP = LedgerOptions(topic=LedgerTopicOptions(retention_s=None))
CHANGED = " instead of "


def streams(work: str) -> PersistentStreams:
    """Return queues that keep their events, so that they can be counted at the end."""
    return PersistentStreams(
        LedgerQueues(f"{work}/ledger/{{silo}}", KEEP),
        mapper=HashRingMapper(queues=QUEUES),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
        options=StreamOptions(enqueue_wait_s=60.0),
    )


def make_silo(
    work: str, name: str, address: str = "127.0.0.1:0", provider: PersistentStreams | None = None
) -> Silo:
    """Return a silo without grains, for the ledger only."""
    return Silo(
        grains=[],
        name=name,
        address=address,
        cluster=CLUSTER,
        membership=SqliteMembershipTable(work),
        stores={"default": SqliteStateStore(work)},
        streams={"default": provider or streams(work)},
        can_own_queues=provider is None,
    )


class Silos:
    """`async with Silos(work) as silos`: processes by number."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._processes = SiloProcesses([self._process(number) for number in range(SILOS)])

    def _process(self, number: int, address: str = "127.0.0.1:0") -> SiloProcess:
        arguments = {"work": str(self._work), "name": f"silo-{number}", "address": address}
        return SiloProcess(f"{__name__}:make_silo", arguments, self._log(number))

    def _log(self, number: int) -> Path:
        return self._work / f"silo-{number}.log"

    async def __aenter__(self) -> Silos:
        await self._processes.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._processes.stop()

    @property
    def gateways(self) -> list[str]:
        """The addresses for clients; a restarted silo has its old address."""
        return [process.gateway for process in self._processes]

    async def kill(self, number: int, /) -> str:
        """Kill with SIGKILL; return the name of the silo."""
        await self._processes[number].kill()
        return f"silo-{number} (pid {self._processes[number].pid})"

    async def start_again(self, number: int, /) -> None:
        """Restart a silo at its old address. Raises ClusterError."""
        again = self._process(number, self._processes[number].gateway)
        await self._processes.replace(number, again)

    def changes(self) -> int:
        """Return how often the writer of a ledger continued with other bookies, by the logs."""
        return sum(self._log(number).read_text().count(CHANGED) for number in range(SILOS))
