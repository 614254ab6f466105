"""An adapter writes to the disk of its silo's machine, simulated or not."""

from __future__ import annotations

from pathlib import Path

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter
from millstream.runtime import Grain, Silo
from millstream.runtime.extending import read_file, replace_file
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import AdapterHost, PersistentStreams


class Idle(Grain):
    pass


class MarkingQueues(MemoryQueues):
    """Memory queues that create a file in a directory when they are opened."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory

    async def open(self, provider: str, host: AdapterHost, /) -> MemoryAdapter:
        host.disk.make_dir(self.directory)
        replace_file(host.disk, f"{self.directory}/mark", host.silo.encode())
        return await super().open(provider, host)


def streams(directory: str) -> PersistentStreams:
    return PersistentStreams(MarkingQueues(directory), balancer=DeploymentBalancer())


def test_the_adapter_of_a_simulated_silo_has_the_disk_of_its_host() -> None:
    async def main(simulation: Simulation) -> None:
        made = {"default": lambda: streams("data/queues")}
        async with SimCluster(simulation, silos=2, grains=[Idle], streams=made) as cluster:
            for name in cluster.names:
                mark = read_file(simulation.disk(name), "data/queues/mark", 99)
                assert mark.startswith(f"{name}:".encode())

    run(main, 1)


async def test_the_adapter_of_a_real_silo_has_the_files_of_this_machine(tmp_path: Path) -> None:
    directory = tmp_path / "queues"
    async with Silo(grains=[Idle], streams={"default": streams(directory.as_posix())}) as silo:
        assert (directory / "mark").read_text() == silo.address
