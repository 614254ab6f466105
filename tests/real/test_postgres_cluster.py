"""Silos on two addresses over PostgreSQL, while its server is killed, paused, or cuts sessions.

Calls, streams, reminders and jobs go on. Nothing that was acknowledged is lost, and no silo is
evicted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from tests.real.postgres_server import PostgresServer, require_postgres

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

import psycopg

from millstream.providers.memory import memory_streams
from millstream.providers.postgres import (
    PostgresMembershipTable,
    PostgresOptions,
    PostgresReminderTable,
    PostgresStateStore,
)
from millstream.providers.priority import PriorityQueues
from millstream.providers.priority.jobs import JobOptions, Jobs, schedule
from millstream.providers.priority.postgres import PostgresStore
from millstream.runtime import (
    Client,
    Grain,
    MillstreamError,
    Occurrence,
    Silo,
    connect,
    grain,
    reminder,
    state,
)
from millstream.streams import Event, StreamNamespace, subscribe

pytestmark = pytest.mark.real

EVENTS = StreamNamespace("postgres-events", int)
ADDRESSES = ("127.0.0.1:0", "127.0.0.2:0")
KEYS = [f"k{number}" for number in range(12)]
BEFORE_S, AWAY_S, AFTER_S = 0.8, 1.0, 0.8
RECOVERED_S = 15.0
FEW = PostgresOptions(connections_max=2)  # the server allows 20 in all
RUNG: dict[str, float] = {}
WORKED: dict[str, float] = {}
numbers = count()


@grain(name="PostgresCounter")
class Counter(Grain):
    """Counts calls, and keeps the events of the stream of its key."""

    added = state(int)
    seen = state(list[int], name="seen")

    async def add(self) -> int:
        self.added.value += 1
        await self.added.write()
        return self.added.value

    async def find(self) -> tuple[int, list[int]]:
        return self.added.value, self.seen.value

    @subscribe(EVENTS, commit_with=seen)
    async def on_event(self, event: Event[int]) -> None:
        self.seen.value.append(event.item)


@grain(name="PostgresTotal")
class Total(Grain):
    """Counts calls."""

    added = state(int)

    async def add(self) -> int:
        self.added.value += 1
        await self.added.write()
        return self.added.value


@grain(name="PostgresAlarm")
class Alarm(Grain):
    async def arm(self, at: datetime) -> None:
        await self.context.reminders.set("ring", at=at)

    async def work(self) -> str:
        WORKED.setdefault(self.key, time.time())
        return self.key

    @reminder
    async def ring(self, occurrence: Occurrence) -> None:
        RUNG.setdefault(self.key, time.time())


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require_postgres()
    started = PostgresServer()
    yield started
    started.close()


@asynccontextmanager
async def cluster_of(place: str) -> AsyncIterator[tuple[list[Silo], Client]]:
    """Start a silo on each address, and a client. Each silo has tables and stores of its own."""
    async with AsyncExitStack() as opened:
        silos = []
        for address in ADDRESSES:
            table = PostgresMembershipTable(place, FEW)
            store, reminders = PostgresStateStore(place, FEW), PostgresReminderTable(place, FEW)
            for part in (table, store, reminders):
                opened.push_async_callback(part.aclose)
            queues = PriorityQueues(PostgresStore(place, options=FEW))
            silo = Silo(
                grains=[Counter, Alarm],
                address=address,
                membership=table,
                stores={"default": store},
                reminders=reminders,
                streams={"default": memory_streams()},
                parts={"priority": queues, "jobs": Jobs(options=JobOptions(lease_s=2.0))},
            )
            silos.append(await opened.enter_async_context(silo))
        yield silos, await opened.enter_async_context(connect(silos[1].gateway))


class Load:
    """Calls and publishes without a pause, and remembers what was acknowledged."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.added: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.published: dict[str, list[int]] = {key: [] for key in KEYS}
        self.failed = 0

    async def run(self) -> None:
        await asyncio.gather(*(one(key) for key in KEYS for one in (self.call, self.publish)))

    async def call(self, key: str) -> None:
        while True:
            try:
                self.added[key] = max(self.added[key], await self.client.grain(Counter, key).add())
            except MillstreamError:
                self.failed += 1
            await asyncio.sleep(0.01)

    async def publish(self, key: str) -> None:
        for number in count():
            try:
                await self.client.stream(EVENTS, key).publish(number)
                self.published[key].append(number)
            except MillstreamError:
                self.failed += 1
            await asyncio.sleep(0.02)

    async def is_complete(self) -> bool:
        """Whether the grains have all that was acknowledged."""
        for key in KEYS:
            added, seen = await self.client.grain(Counter, key).find()
            if added < self.added[key] or not set(seen) >= set(self.published[key]):
                return False
        return True


async def crash(server: PostgresServer) -> None:
    await asyncio.to_thread(server.crash)
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(server.start)


async def pause(server: PostgresServer) -> None:
    server.pause()
    await asyncio.sleep(2 * AWAY_S)
    server.resume()


async def cut_sessions(server: PostgresServer) -> None:
    """End all sessions of Millstream, ten times."""
    session = await psycopg.AsyncConnection.connect(f"{server.url}/postgres", autocommit=True)
    async with session:
        for _ in range(10):
            await session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'millstream'"
            )
            await asyncio.sleep(AWAY_S / 10)


Trouble = Callable[[PostgresServer], Awaitable[None]]


@pytest.mark.parametrize("trouble", [crash, pause, cut_sessions])
async def test_nothing_acknowledged_is_lost_and_silos_recover_alone(
    server: PostgresServer, trouble: Trouble
) -> None:
    place = f"{server.url}/postgres?schema=cluster_{next(numbers)}"
    RUNG.clear()
    WORKED.clear()
    async with cluster_of(place) as (silos, client):
        addresses = [silo.address for silo in silos]
        assert {address.partition(":")[0] for address in addresses} == {"127.0.0.1", "127.0.0.2"}
        begun = datetime.now(UTC)
        due = {key: begun + timedelta(seconds=0.3 * at) for at, key in enumerate(KEYS, 3)}
        for key, at in due.items():
            await client.grain(Alarm, key).arm(at)
        jobs = {
            key: await schedule(client, at, client.grain(Alarm, key).work)
            for key, at in due.items()
        }
        load = Load(client)
        running = asyncio.create_task(load.run())
        await asyncio.sleep(BEFORE_S)
        await trouble(server)
        recovered_s = time.time()
        await asyncio.sleep(AFTER_S)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert all(load.added.values()) and all(load.published.values())
        async with asyncio.timeout(RECOVERED_S):
            while not (await finished(load) and RUNG.keys() == WORKED.keys() == due.keys()):
                await asyncio.sleep(0.1)
            assert [await job.result() for job in jobs.values()] == list(jobs)
        assert [one.address for one in silos[0].members()] == sorted(addresses)
        for key, at in due.items():
            assert RUNG[key] - max(at.timestamp(), recovered_s) < 5.0
            assert min(RUNG[key], WORKED[key]) > at.timestamp() - 0.01


async def finished(load: Load) -> bool:
    try:
        return await load.is_complete()
    except MillstreamError:
        return False


async def test_silos_find_each_other_and_their_rows_by_the_url_alone(
    server: PostgresServer,
) -> None:
    place = f"{server.url}/postgres?schema=named"
    named: dict[str, Any] = {"membership": place, "stores": {"default": place}}
    named["grains"] = [Alarm, Total]
    async with (
        Silo(address=ADDRESSES[0], **named) as one,
        Silo(address=ADDRESSES[1], **named) as two,
        connect(membership=place) as client,
    ):
        await client.grain(Alarm, "a").arm(datetime.now(UTC) + timedelta(hours=1))
        assert await client.grain(Total, "a").add() == 1
        assert len(one.members()) == len(two.members()) == 2
    async with Silo(**named) as again:
        assert await again.grain(Total, "a").add() == 2
        table = PostgresReminderTable(place)
        assert len(await table.read("PostgresAlarm/a")) == 1
        await table.aclose()
