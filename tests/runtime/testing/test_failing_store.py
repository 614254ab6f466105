"""A store that fails when a test says so, or at random by a seed."""

from __future__ import annotations

import pytest

from millstream.runtime import ConfigError, Grain, StorageUnavailable, state
from millstream.runtime.testing import FailingStore, SimCluster, Simulation, make_random, run


class Tally(Grain):
    total = state(int)

    async def add(self) -> int:
        self.total.value += 1
        await self.total.write()
        return self.total.value


def test_what_was_said_fails_and_nothing_else() -> None:
    store = FailingStore()
    store.fail("write", "a/", times=2)
    store.put("b/1", b"x", None, 0)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="write of 'a/1' has not happened"):
            store.put("a/1", b"x", None, 0)
    assert store.get("a/1") is None
    etag = store.put("a/1", b"x", None, 0)
    store.fail("clear", is_done=True)
    with pytest.raises(StorageUnavailable, match="has happened"):
        store.remove("a/1", etag, 0)
    assert store.get("a/1") is None
    store.fail("read")
    with pytest.raises(StorageUnavailable):
        store.get("b/1")
    store.fail("scan")
    with pytest.raises(StorageUnavailable):
        store.range("b", "", 9)
    assert store.get("b/1") and store.range("b", "", 9)
    assert store.failed_count == 5
    with pytest.raises(ConfigError, match="times=0"):
        store.fail("read", times=0)


def test_chance_is_the_seeds_and_ends_when_it_is_told() -> None:
    def failures(seed: int) -> list[int]:
        store = FailingStore(make_random(seed, "store"), rate=0.3)
        failed = []
        for number in range(200):
            try:
                store.put(f"{number}", b"", None, 0)
            except StorageUnavailable:
                failed.append(number)
        store.rate = 0.0
        kept = sum(store.get(f"{number}") is not None for number in failed)
        assert 0 < kept < len(failed) == store.failed_count
        return failed

    assert failures(1) == failures(1) != failures(2)
    for wrong in (-0.1, 1.1, 0.5):
        with pytest.raises(ConfigError, match="pass 0 to 1"):
            FailingStore(rate=wrong)


def test_a_grain_in_a_simulated_cluster_meets_the_failure() -> None:
    async def driver(simulation: Simulation) -> list[object]:
        store = FailingStore()
        async with SimCluster(
            simulation, silos=2, grains=[Tally], stores={"default": store}
        ) as cluster:
            host = simulation.host("client")

            async def calls() -> list[object]:
                seen: list[object] = []
                async with cluster.client(host) as client:
                    seen.append(await client.grain(Tally, "a").add())
                    store.fail("write", times=1)
                    try:
                        await client.grain(Tally, "a").add()
                    except Exception as error:
                        seen.append(type(error).__name__)
                return seen

            return await simulation.call(host, calls())

    assert run(driver, seed=1).result == [1, "StorageUnavailable"]
