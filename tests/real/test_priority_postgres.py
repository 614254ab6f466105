"""A store over a real PostgreSQL server passes the tests of every store of priority queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import Phase, settings
from tests.examples import examples
from tests.providers.priority import test_store_contract as contract
from tests.providers.priority.places import PostgresPlace
from tests.providers.priority.test_store_histories import check
from tests.providers.priority.test_store_model import QUICK, StoreMachine, StoreWalk
from tests.real.postgres_server import PostgresServer, require_postgres

from millstream.providers.priority import OwnerLost, QueueSettings
from millstream.providers.priority.core.commands import Depth, Enqueue, EnqueueMany

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[PostgresServer]:
    require_postgres()
    server = PostgresServer()
    PostgresPlace.url = f"{server.url}/postgres"
    yield server
    server.close()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[contract.Desk]:
    desk = contract.Desk(PostgresPlace(tmp_path))
    yield desk
    await desk.aclose()


# the contract tests of every store
globals().update({name: one for name, one in vars(contract).items() if name.startswith("test_")})


class PostgresMachine(StoreMachine):
    kind = "postgres"


class PostgresWalk(StoreWalk):
    machine_class = PostgresMachine


# No shrinking phase, because examples take long and failing ones are small enough.
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = settings(
    QUICK, max_examples=examples(10), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


@pytest.mark.parametrize("seed", range(2))
def test_a_long_history_is_that_of_the_model(seed: int) -> None:
    walk = PostgresWalk(seed)
    try:
        walk.run(100)
    finally:
        walk.machine.teardown()


@pytest.mark.parametrize("seed", range(2))
async def test_a_history_of_many_is_that_of_one_core(seed: int, tmp_path: Path) -> None:
    history = await check("postgres", seed, 30, tmp_path)
    assert len(history.reigns) > 2


async def test_a_queue_of_several_pages_is_opened_whole(desk: contract.Desk) -> None:
    queue = await desk.queue()
    for first in range(0, 2_500, 500):
        many = tuple(Enqueue(f"m{n}", b"", 1) for n in range(first, first + 500))
        await queue.do(EnqueueMany(many))
    depth = await queue.look(Depth())
    assert await (await desk.queue()).look(Depth()) == depth


async def test_the_rows_of_a_deleted_queue_are_deleted(
    desk: contract.Desk, server: PostgresServer
) -> None:
    store = await desk.store()
    queue = await store.acquire("q", QueueSettings())
    many = tuple(Enqueue(f"m{n}", b"", 1) for n in range(2_500))
    for first in range(0, 2_500, 500):
        await queue.do(EnqueueMany(many[first : first + 500]))
    await queue.delete()
    place = desk.place
    assert isinstance(place, PostgresPlace)
    counted = f"SELECT count(*) FROM {place.options.schema}.priority_message"
    session = await psycopg.AsyncConnection.connect(PostgresPlace.url, autocommit=True)
    async with session, asyncio.timeout(10):
        while (await (await session.execute(counted.encode())).fetchone()) != (0,):
            await asyncio.sleep(0.05)


async def test_an_owner_notices_that_the_server_lost_its_last_commit(
    desk: contract.Desk, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await desk.queue()
    await queue.do(Enqueue("a", b"", 1))
    place = desk.place
    assert isinstance(place, PostgresPlace)
    row = f"{place.options.schema}.priority_queue"
    session = await psycopg.AsyncConnection.connect(PostgresPlace.url, autocommit=True)
    async with session:  # as a standby without the last commit has it
        await session.execute(f"UPDATE {row} SET commits = commits - 1".encode())
    with caplog.at_level(logging.ERROR, "millstream.priority"), pytest.raises(OwnerLost):
        await queue.do(Enqueue("b", b"", 1))
    assert "lost acknowledged commits" in caplog.text
    assert await contract.page(await desk.queue()) == ["a"]


async def test_each_outbox_of_each_schema_has_a_name_of_its_own(tmp_path: Path) -> None:
    places = [PostgresPlace(tmp_path), PostgresPlace(tmp_path)]
    names: list[str] = []
    for place in (*places, places[0]):
        store = place.store()
        await store.open()
        names += [await store.outbox_name(outbox) for outbox in (0, 7)]
        await store.aclose()
    assert names[:2] == names[4:] and len(set(names)) == 4
    assert max(map(len, names)) <= 200
