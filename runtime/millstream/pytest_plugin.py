"""The pytest plug-in: fixtures with clusters.

Found by pytest through the entry point group `pytest11`, in every project where Millstream is
installed: so it is next to `millstream.runtime`, not in it, and imports nothing of it before a
test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from millstream.runtime import LocalCluster
    from millstream.runtime.testing import SimCluster, Simulation

__all__ = ["SimRunner", "pytest_addoption"]

T = TypeVar("T")

SEEDS = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sim-seed N`: `sim_cluster` runs this seed alone."""
    group = parser.getgroup("millstream")
    group.addoption("--sim-seed", type=int, help="the one seed that the fixture sim_cluster runs")


def async_fixture(function: Any) -> Any:
    """A fixture in the test's own loop; one that explains itself where pytest-asyncio is absent."""
    try:
        from pytest_asyncio import fixture
    except ImportError:

        @pytest.fixture(name=function.__name__)
        def missing() -> None:
            pytest.fail(f"the fixture {function.__name__} needs pytest-asyncio: install it")

        return missing
    return fixture(function)


@async_fixture
async def local_cluster() -> AsyncIterator[Callable[..., Awaitable[LocalCluster]]]:
    """`cluster = await local_cluster(silos=2, grains=[Airport])`: stopped when the test ends.

    Takes what `LocalCluster` takes; may be called several times.
    """
    from millstream.runtime import LocalCluster

    async with AsyncExitStack() as stack:

        async def start(**arguments: Any) -> LocalCluster:
            return await stack.enter_async_context(LocalCluster(**arguments))

        yield start


class SimRunner:
    """Runs a program against simulated clusters, one per seed."""

    def __init__(self, only_seed: int | None) -> None:
        self._only_seed = only_seed

    def __call__(
        self,
        program: Callable[[SimCluster], Awaitable[T]],
        *,
        seeds: int | Iterable[int] = SEEDS,
        max_virtual_s: float = 3600.0,
        **arguments: Any,
    ) -> list[T]:
        """Start a cluster, run the program, stop the cluster, for each seed; returns the results.

        Args:
            program: gets the cluster; runs as the simulation's driver, on no host.
            seeds: a number (from 1 on), or the seeds; `--sim-seed` takes the place of both.
            arguments: those of `SimCluster`.

        Raises SimulationFailed, with the seed, if the program fails.
        """
        from millstream.runtime.testing import SimCluster, run

        async def driver(simulation: Simulation) -> T:
            async with SimCluster(simulation, **arguments) as cluster:
                return await program(cluster)

        if self._only_seed is not None:
            seeds = [self._only_seed]
        elif isinstance(seeds, int):
            seeds = range(1, seeds + 1)
        results = []
        for seed in seeds:
            replay = f"pytest --sim-seed {seed}"
            outcome = run(driver, seed, max_virtual_s=max_virtual_s, replay=replay)
            results.append(outcome.result)
        return results


@pytest.fixture
def sim_cluster(request: pytest.FixtureRequest) -> SimRunner:
    """`sim_cluster(program, silos=3, grains=[Airport], seeds=20)`: see `SimRunner`."""
    return SimRunner(request.config.getoption("--sim-seed"))
