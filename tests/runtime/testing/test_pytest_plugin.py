"""The fixtures of the pytest plug-in, used as another project would use them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLUGIN = "millstream.pytest_plugin"
TESTS = """
from millstream.runtime import Grain, state

class Counter(Grain):
    total = state(int)

    async def add(self, number: int) -> int:
        self.total.value += number
        await self.total.write()
        return self.total.value

clusters = []

async def test_local(local_cluster):
    cluster = await local_cluster(silos=2, grains=[Counter])
    other = await local_cluster(grains=[Counter])
    assert len(cluster.silos) == 2 and other.silos
    clusters.extend([cluster, other])
    assert await cluster.grain(Counter, "a").add(1) == 1

async def test_local_clusters_are_stopped():
    assert len(clusters) == 2
    for cluster in clusters:
        for silo in cluster.silos:
            await silo.wait_stopped()

async def program(cluster):
    host = cluster.simulation.host("client")

    async def calls():
        async with cluster.client(host) as client:
            return await client.grain(Counter, "a").add(1)

    return cluster.simulation.seed, await cluster.simulation.call(host, calls())

def test_sim(sim_cluster, request):
    only = request.config.getoption("--sim-seed")
    expected = [(only, 1)] if only else [(1, 1), (2, 1), (3, 1)]
    assert sim_cluster(program, seeds=3, silos=2, grains=[Counter]) == expected

def test_sim_that_fails(sim_cluster):
    async def wrong(cluster):
        assert cluster.simulation.seed != 2, "not this one"
    sim_cluster(wrong, silos=1, grains=[Counter])
"""

pytestmark = pytest.mark.real


def run(folder: Path, *words: str) -> str:
    (folder / "test_theirs.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["PYTEST_PLUGINS"] = PLUGIN  # as the entry point does in an installation
    pytest_here = ["-m", "pytest", "-q", "--asyncio-mode=auto", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *pytest_here, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    return done.stdout + done.stderr


def test_fixtures_give_clusters_and_a_failure_names_its_seed(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert "1 failed, 3 passed" in told, told
    assert "not this one" in told and "replay: pytest --sim-seed 2" in told


def test_one_seed_is_run_alone(tmp_path: Path) -> None:
    assert "4 passed" in run(tmp_path, "--sim-seed", "5")


def test_the_plugin_is_declared_and_imports_nothing_of_the_runtime() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    code = f"import sys, {PLUGIN}; print([m for m in sys.modules if 'millstream.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"['{PLUGIN}']"
