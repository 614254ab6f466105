"""Priority queues in a store that silo processes share, while the processes are killed."""

from __future__ import annotations

import asyncio
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.real.redis_server import RedisServer, require_redis

from millstream.providers.priority import (
    Enqueued,
    LeaseLost,
    NewMessage,
    PriorityQueue,
    State,
    priority_queue,
)
from millstream.runtime import connect
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

FACTORY = "priority_silo:make"
MODULE = """
from millstream.providers.priority import EmbeddedStore, PriorityQueues, QueueSettings, Template
from millstream.providers.priority.redis import RedisStore
from millstream.runtime import MembershipOptions, Silo

def make(directory, redis):
    settings = QueueSettings(exclusivity_key="plane", lease_ms=3_000, attempts=20)
    store = RedisStore(redis) if redis else EmbeddedStore(f"{directory}/queues")
    part = PriorityQueues(store, templates=[Template("", settings)])
    return Silo(
        grains=[], address="127.0.0.1:0", membership=f"sqlite:{directory}",
        stores={"default": f"sqlite:{directory}"}, parts={"priority": part},
        membership_options=MembershipOptions(heartbeat_s=0.5, probe_every_s=0.2),
    )
"""
MESSAGES = 120
PLANES = 10
WITHIN_S = 90.0


@pytest.fixture(autouse=True)
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "priority_silo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))


class Works:
    """The workers' record: the last epoch of each plane, and the completions of each message."""

    def __init__(self) -> None:
        self.completed: Counter[str] = Counter()
        self.epochs: dict[str, int] = {}
        self.late = 0

    async def work(self, queue: PriorityQueue, name: str) -> None:
        """Work forever. No plane may accept an order of an older lease than its last one."""
        while True:
            for lease in await queue.dequeue(worker=name, wait_s=5):
                try:
                    async with lease:
                        plane, epoch = dict(lease.metadata)["plane"], lease.token.epoch
                        assert epoch > self.epochs.get(plane, 0), "an older lease came later"
                        self.epochs[plane] = epoch
                        await asyncio.sleep(0.02)
                    self.completed[lease.id] += 1
                except LeaseLost:
                    self.late += 1


@pytest.fixture(params=["embedded", "redis"])
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a Redis server, or an empty string for the embedded store."""
    if request.param == "embedded":
        yield ""
        return
    require_redis()
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    yield server.address
    server.kill()


async def test_silos_that_are_killed_lose_no_message_and_give_no_plane_to_two(
    tmp_path: Path, redis: str
) -> None:
    arguments = {"directory": str(tmp_path / "data"), "redis": redis}
    silos = [SiloProcess(FACTORY, arguments, tmp_path / f"{n}.log") for n in range(3)]
    works = Works()
    async with SiloProcesses(silos), asyncio.timeout(WITHIN_S):
        async with connect(*(silo.gateway for silo in silos)) as client:
            queue = priority_queue(client, "legs", patience_s=60)
            news = [
                NewMessage(b"", number, str(number), {"plane": str(number % PLANES)})
                for number in range(MESSAGES)
            ]
            assert all(isinstance(one, Enqueued) for one in await queue.enqueue_many(news))
            workers = [asyncio.create_task(works.work(queue, f"w{n}")) for n in range(5)]
            for victim in silos[:2]:
                while len(works.completed) < MESSAGES // 3 * (1 + silos.index(victim)):
                    await asyncio.sleep(0.02)
                await victim.kill()
            while (await queue.depth())[State.COMPLETED] < MESSAGES:
                assert not any(worker.done() for worker in workers), "a worker failed"
                await asyncio.sleep(0.2)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    assert works.completed == {str(number): 1 for number in range(MESSAGES)}
