"""Spark's writer and real silos: a gateway that stops, one that returns, and two at once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from tests.conditions import until  # noqa: E402

from millstream.balancers import DeploymentBalancer  # noqa: E402
from millstream.providers.memory import MemoryQueues  # noqa: E402
from millstream.runtime import Grain, LocalCluster, NotHosted  # noqa: E402
from millstream.streams import (  # noqa: E402
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    subscribe,
)
from pyspark_millstream.background import end_background  # noqa: E402
from pyspark_millstream.options import WriteOptions  # noqa: E402
from pyspark_millstream.tokens import Origin  # noqa: E402
from pyspark_millstream.writer import Written, send_rows  # noqa: E402

pytestmark = pytest.mark.real

ROWS = StreamNamespace("rows", dict[str, int])
SEEN: dict[str, list[int]] = defaultdict(list)
COUNT = 3000
KEYS = 7


class Table(Grain):
    @subscribe(ROWS)
    async def on_row(self, event: Event[dict[str, int]]) -> None:
        SEEN[self.key].append(event.item["n"])


def streams() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=4), balancer=DeploymentBalancer()
    )


@asynccontextmanager
async def cluster() -> AsyncIterator[LocalCluster]:
    SEEN.clear()
    async with LocalCluster(silos=2, grains=[Table], streams={"default": streams}) as found:
        yield found
        await asyncio.to_thread(end_background)


def write(gateways: tuple[str, ...], pace: Any = None, **more: Any) -> Written:
    """Run a task of COUNT rows in calls of ten. It calls `pace(n)` before each batch of 100."""
    options = WriteOptions(gateways, "rows", "key", ("n",), chunk_rows=10, **more)

    def batches() -> Any:
        for first in range(0, COUNT, 100):
            if pace is not None:
                pace(first)
            numbers = list(range(first, first + 100))
            yield arrow.record_batch({"key": [f"k{n % KEYS}" for n in numbers], "n": numbers})

    return send_rows(options, Origin("w", 0, 0), batches())


def expected() -> dict[str, list[int]]:
    return {f"k{k}": [n for n in range(COUNT) if n % KEYS == k] for k in range(KEYS)}


async def assert_all_arrive_once_and_in_order() -> None:
    await until(lambda: sum(map(len, SEEN.values())) >= COUNT)
    assert dict(SEEN) == expected()


async def test_a_writer_goes_on_by_another_gateway_when_its_own_stops() -> None:
    async with cluster() as running:
        loop = asyncio.get_running_loop()
        gateways = tuple(silo.gateway for silo in running.silos)

        def stop_one(first: int) -> None:
            if first == COUNT // 2:
                asyncio.run_coroutine_threadsafe(running.silos[0].stop(), loop).result(30)

        written = await asyncio.to_thread(write, gateways, stop_one)
        assert written.rows == COUNT
        await assert_all_arrive_once_and_in_order()


async def test_two_attempts_at_once_by_two_gateways_are_one() -> None:
    """As in speculative execution, both attempts send all rows."""
    async with cluster() as running:
        gateways = [silo.gateway for silo in running.silos]
        orders = (tuple(gateways), tuple(reversed(gateways)))
        await asyncio.gather(*(asyncio.to_thread(write, order) for order in orders))
        await assert_all_arrive_once_and_in_order()


async def test_a_provider_that_no_silo_has_is_named() -> None:
    async with cluster() as running:
        gateways = tuple(silo.gateway for silo in running.silos)
        with pytest.raises(NotHosted, match=r"\$ingest/lake"):
            await asyncio.to_thread(write, gateways, provider="lake", patience_s=0.5)
