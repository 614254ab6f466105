"""The pytest plug-in of Millstream: the fixtures `local_cluster` and `sim_cluster`.

Pytest finds it by the entry point group `pytest11` in every project where Millstream is installed.
So the module is beside `millstream.runtime`, not in it, and imports nothing of it before a test
uses a fixture. The option `--sim-seed N` lets `sim_cluster` run one seed.
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
    """Add the option `--sim-seed N`: `sim_cluster` then runs this seed only."""
    group = parser.getgroup("millstream")
    group.addoption("--sim-seed", type=int, help="run the fixture sim_cluster with this seed only")


def async_fixture(function: Any) -> Any:
    """Make a fixture in the test's own loop. Without pytest-asyncio it fails with an
    explanation.
    """
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
    """A fixture that starts a `LocalCluster`, and stops it when the test ends.

    ```python
    async def test_landing(local_cluster):
        cluster = await local_cluster(silos=2, grains=[Airport])
        await cluster.grain(Airport, "BOS").land("MS 12")
    ```

    The function takes the arguments of `LocalCluster`, and may be called several times. The fixture
    needs pytest-asyncio.
    """
    from millstream.runtime import LocalCluster

    async with AsyncExitStack() as stack:

        async def start(**arguments: Any) -> LocalCluster:
            return await stack.enter_async_context(LocalCluster(**arguments))

        yield start


class SimRunner:
    """Runs a program against simulated clusters, one for each seed. The fixture `sim_cluster` gives
    it.
    """

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
        """For each seed: start a cluster, run the program, and stop the cluster.

        Args:
            program: An async function of the cluster. It runs as the driver of the simulation, on
                no host.
            seeds: A number of seeds, beginning with 1, or the seeds themselves. The option
                `--sim-seed` replaces both.
            max_virtual_s: A program that waits beyond this virtual time fails, in seconds.
            arguments: The arguments of `SimCluster`.

        Returns:
            The results of the program, in the order of the seeds.

        Raises:
            SimulationFailed: The program failed. The message has the seed, and the command that
                runs it again.
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
    """A fixture that runs a program against simulated clusters, one for each seed.

    ```python
    def test_landing(sim_cluster):
        async def program(cluster):
            ...
        sim_cluster(program, silos=3, grains=[Airport], seeds=20)
    ```

    See `SimRunner` for the arguments.
    """
    return SimRunner(request.config.getoption("--sim-seed"))
