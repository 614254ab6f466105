"""A store over a real Redis passes the tests of every store of priority queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from tests.examples import examples
from tests.providers.priority import test_store_contract as contract
from tests.providers.priority.places import RedisPlace
from tests.providers.priority.test_store_histories import check
from tests.providers.priority.test_store_model import QUICK, StoreMachine, StoreWalk
from tests.providers.priority.test_store_vectors import Case, every_case
from tests.real.redis_server import RedisServer, require_redis

from millstream.providers.priority.core.commands import Enqueue, EnqueueMany

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    RedisPlace.address = server.address
    yield server
    server.kill()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[contract.Desk]:
    desk = contract.Desk(RedisPlace(tmp_path))
    yield desk
    await desk.aclose()


# the contract tests of every store
globals().update({name: one for name, one in vars(contract).items() if name.startswith("test_")})


@every_case()
def test_a_case_of_the_core_holds_of_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.holds_of("redis", monkeypatch)


class RedisMachine(StoreMachine):
    kind = "redis"


class RedisWalk(StoreWalk):
    machine_class = RedisMachine


# No shrinking phase, because examples take long and failing ones are small enough.
TestRedis = RedisMachine.TestCase
TestRedis.settings = settings(
    QUICK, max_examples=examples(60), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


@pytest.mark.parametrize("seed", range(4))
def test_a_long_history_is_that_of_the_model(seed: int) -> None:
    walk = RedisWalk(seed)
    try:
        walk.run(150)
    finally:
        walk.machine.teardown()


@pytest.mark.parametrize("seed", range(4))
async def test_a_history_of_many_is_that_of_one_core(seed: int, tmp_path: Path) -> None:
    history = await check("redis", seed, 40, tmp_path)
    assert len(history.reigns) > 2


async def test_names_of_outboxes_stay_until_the_lane_is_begun_anew(
    server: RedisServer, tmp_path: Path
) -> None:
    place = RedisPlace(tmp_path)
    names: list[str] = []
    for _ in range(2):
        store = place.store()
        await store.open()
        names += [await store.outbox_name(outbox) for outbox in (0, 7)]
        await store.aclose()
    assert names[:2] == names[2:] and len(set(names)) == 2
    store = RedisPlace(tmp_path).store()
    await store.open()
    assert await store.outbox_name(0) not in names
    await store.aclose()


async def test_positions_of_events_are_not_given_again_though_the_outbox_was_lost(
    server: RedisServer, tmp_path: Path
) -> None:
    desk = contract.Desk(RedisPlace(tmp_path))
    queue = await desk.queue()
    await queue.do(Enqueue("a", b"", 1))
    store = await desk.store()
    outbox = await contract.outbox_of(store)
    [before] = await store.events(outbox, 0, 9)
    server.command("FLUSHALL")
    queue = await desk.queue()
    await queue.do(EnqueueMany((Enqueue("a", b"", 1), Enqueue("b", b"", 1))))
    after = await store.events(outbox, 0, 9)
    assert before.position < after[0].position == after[1].position - 1
    await desk.aclose()
