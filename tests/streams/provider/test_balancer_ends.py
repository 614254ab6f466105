"""A balancer that was started is closed once, for any end of its silo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from millstream.providers.memory import MemoryQueues
from millstream.runtime import MemoryMembershipTable, MemoryStateStore, Silo
from millstream.streams import HashRingMapper, PersistentStreams, QueueId, SiloSet


class NotedBalancer:
    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.noted: list[str] = []

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[frozenset[QueueId]], None],
        /,
    ) -> None:
        self.noted.append("start")
        if self.failure is not None:
            raise self.failure
        wanted(frozenset(queues))

    async def aclose(self) -> None:
        self.noted.append("close")
        if self.failure is not None:
            raise self.failure


def silo_with(balancer: NotedBalancer, *, reads: bool = True) -> Silo:
    streams = PersistentStreams(MemoryQueues(), mapper=HashRingMapper(queues=2), balancer=balancer)
    return Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        stores={"default": MemoryStateStore()},
        streams={"default": streams},
        can_own_queues=reads,
    )


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_balancer_is_closed_once(end: str) -> None:
    balancer = NotedBalancer()
    silo = silo_with(balancer)
    await silo.start()
    await getattr(silo, end)()
    await silo.kill()
    await asyncio.sleep(0)
    assert balancer.noted == ["start", "close"]


async def test_a_balancer_that_fails_is_closed_and_its_own_failure_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    balancer = NotedBalancer(RuntimeError("cannot balance"))
    with pytest.raises(RuntimeError, match="cannot balance"):
        await silo_with(balancer).start()
    assert balancer.noted == ["start", "close"]
    assert "the balancer could not be closed" in caplog.text


async def test_a_silo_that_reads_no_queues_has_no_balancer_to_close() -> None:
    balancer = NotedBalancer()
    async with silo_with(balancer, reads=False):
        pass
    assert balancer.noted == []
