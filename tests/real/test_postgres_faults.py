"""Tables and stores over a PostgreSQL server that is killed, paused, full, or not the right one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest
from tests.real.postgres_server import PostgresServer, require_postgres

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

import psycopg

from millstream.providers.postgres import (
    PostgresMembershipTable,
    PostgresOptions,
    PostgresReminderTable,
    PostgresStateStore,
    SchemaState,
    migrate_schema,
    read_schema,
)
from millstream.runtime import (
    ConfigError,
    Conflict,
    MemberRow,
    ReminderRow,
    Silo,
    Status,
    StorageError,
    StorageUnavailable,
)
from millstream.runtime.postgres import ClusterDatabase

pytestmark = pytest.mark.real

numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require_postgres()
    started = PostgresServer()
    yield started
    started.close()


@pytest.fixture
def schema() -> str:
    return f"fault_{next(numbers)}"


@pytest.fixture
def place(server: PostgresServer, schema: str) -> str:
    return f"{server.url}/postgres?schema={schema}"


@asynccontextmanager
async def open_store(place: str, **options: Any) -> AsyncIterator[PostgresStateStore]:
    store = PostgresStateStore(place, PostgresOptions(**options))
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def admin(server: PostgresServer) -> AsyncIterator[Any]:
    """A session beside those of Millstream."""
    session = await psycopg.AsyncConnection.connect(f"{server.url}/postgres", autocommit=True)
    async with session:
        yield session


async def end_sessions(session: Any) -> int:
    """End the sessions of Millstream in the server. Returns how many there were."""
    cursor = await session.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'millstream'"
    )
    (found,) = await cursor.fetchone()
    return int(found)


@asynccontextmanager
async def locked(server: PostgresServer, schema: str) -> AsyncIterator[Any]:
    """Hold a lock of the table of states, so that statements of others wait."""
    async with admin(server) as session, session.transaction():
        await session.execute(f"LOCK TABLE {schema}.state")
        yield session


async def waiting(session: Any) -> int:
    await session.execute("SELECT pg_stat_clear_snapshot()")  # a transaction has one
    cursor = await session.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'millstream' AND wait_event_type = 'Lock'"
    )
    (found,) = await cursor.fetchone()
    return int(found)


async def wait_until(session: Any, statements: int) -> None:
    """Wait until so many statements of Millstream wait for a lock."""
    async with asyncio.timeout(5):
        while await waiting(session) != statements:
            await asyncio.sleep(0.01)


# --- connections ---------------------------------------------------------------------------------


async def test_sessions_that_ended_while_unused_cost_no_statement(
    server: PostgresServer, place: str
) -> None:
    async with open_store(place) as store, admin(server) as session:
        etags = await asyncio.gather(*(store.write(f"k{n}", b"1", None, 0) for n in range(8)))
        assert await end_sessions(session) >= 2
        await asyncio.sleep(0.2)
        for number, etag in enumerate(etags):
            await store.write(f"k{number}", b"2", etag, 0)


async def sessions_of(session: Any, expected: int) -> set[int]:
    """Return the sessions of Millstream when there are so many: the server ends them late."""
    asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'millstream'"
    async with asyncio.timeout(5):
        while True:
            cursor = await session.execute(asked)
            found = {pid for (pid,) in await cursor.fetchall()}
            if len(found) == expected:
                return found
            await asyncio.sleep(0.02)


async def test_connections_are_replaced_when_they_are_old_and_closed_when_they_are_unused(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with admin(server) as session:
        async with open_store(place, life_s=0.5, connections_max=1) as store:
            await store.read("a")
            first = await sessions_of(session, 1)
            await store.read("a")
            assert await sessions_of(session, 1) == first
            await asyncio.sleep(0.6)
            await store.read("a")
            await asyncio.sleep(0.1)
            assert not await sessions_of(session, 1) & first
        async with open_store(place, idle_s=0.3, connections_max=4) as store:
            await store.read("a")
            async with locked(server, schema) as holder:
                reads = [asyncio.create_task(store.read("a")) for _ in range(4)]
                await wait_until(holder, 4)
            await asyncio.gather(*reads)
            await sessions_of(session, 4)
            await asyncio.sleep(0.4)
            await store.read("a")
            await sessions_of(session, 1)


async def test_a_change_is_on_disk_although_the_database_does_not_wait_for_it(
    server: PostgresServer, place: str
) -> None:
    setting = "SELECT current_setting('synchronous_commit')"
    async with admin(server) as session:
        for asked, expected in (("off", "on"), ("remote_apply", "remote_apply")):
            await session.execute(f"ALTER DATABASE postgres SET synchronous_commit = {asked}")
            database = ClusterDatabase("test", place, None, None)
            assert (await database.run(setting)).rows == [(expected,)]
            await database.aclose()
        await session.execute("ALTER DATABASE postgres RESET synchronous_commit")


async def test_a_session_that_ends_in_a_statement_leaves_the_outcome_open(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with open_store(place) as store:
        etag = await store.write("a", b"1", None, 0)
        async with locked(server, schema) as session:
            writing = asyncio.create_task(store.write("a", b"2", etag, 0))
            await wait_until(session, 1)
            await end_sessions(session)
            with pytest.raises(StorageUnavailable, match="may have been made"):
                await writing
        row = await store.read("a")
        assert row is not None and row.data == b"1"
        await store.write("a", b"3", row.etag, 0)


async def test_a_statement_whose_caller_is_cancelled_ends_and_leaves_a_whole_connection(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with open_store(place, connections_max=1) as store:
        etag = await store.write("a", b"1", None, 0)
        async with locked(server, schema) as session:
            writing = asyncio.create_task(store.write("a", b"2", etag, 0))
            await wait_until(session, 1)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert await waiting(session) == 1
        row = await store.read("a")
        assert row is not None and row.data == b"2"


async def test_a_statement_that_the_server_cannot_finish_in_time_changes_nothing(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with open_store(place) as store:
        etag = await store.write("a", b"1", None, 0)
    async with open_store(place, timeout_s=0.3) as store:
        await store.read("a")
        async with locked(server, schema):
            with pytest.raises(StorageUnavailable, match=r"timeout_s"):
                await store.write("a", b"2", etag, 0)
        row = await store.read("a")
        assert row is not None and (row.data, row.etag) == (b"1", etag)


async def test_a_silent_server_ends_each_statement_in_time(
    server: PostgresServer, place: str
) -> None:
    loop = asyncio.get_running_loop()
    async with open_store(place, timeout_s=0.5, connect_timeout_s=0.5, connections_max=2) as store:
        await asyncio.gather(*(store.write(f"k{n}", b"1", None, 0) for n in range(4)))
        server.pause()
        begun_s = loop.time()
        try:
            tries = [store.write(f"new{n}", b"1", None, 0) for n in range(4)]
            errors = await asyncio.gather(*tries, return_exceptions=True)
        finally:
            took_s = loop.time() - begun_s
            server.resume()
        assert all(isinstance(error, StorageUnavailable) for error in errors), errors
        assert sum("may have been made" in str(error) for error in errors) == 2
        assert took_s < 2.5
        assert (await store.read("k3")) is not None


async def test_a_silent_server_is_trusted_with_no_unused_connection(
    server: PostgresServer, place: str
) -> None:
    async with admin(server) as session, open_store(place, timeout_s=0.5) as store:
        await asyncio.gather(*(store.write(f"k{n}", b"1", None, 0) for n in range(3)))
        before = await sessions_of(session, 3)
        server.pause()
        try:
            with pytest.raises(StorageUnavailable, match="timeout_s"):
                await store.read("k0")
        finally:
            server.resume()
        await sessions_of(session, 0)
        assert await store.read("k0") is not None
        assert not await sessions_of(session, 1) & before


async def test_statements_wait_while_the_server_has_no_free_connection(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with open_store(place, connections_max=40) as store:
        await store.write("a", b"1", None, 0)
        async with locked(server, schema) as session:
            tries = [asyncio.create_task(store.read("a")) for _ in range(40)]
            await asyncio.sleep(0.4)
            assert not any(task.done() for task in tries)
            assert 10 < await waiting(session) < 20
        assert all(await asyncio.gather(*tries))


async def test_a_server_that_stays_full_refuses_and_says_so(
    server: PostgresServer, place: str
) -> None:
    async with open_store(place, timeout_s=0.5) as store, AsyncExitStack() as others:
        with suppress(psycopg.OperationalError):
            while True:
                await others.enter_async_context(admin(server))
        with pytest.raises(StorageUnavailable, match="raise max_connections there"):
            await store.write("a", b"1", None, 0)
        await others.aclose()
        await store.write("a", b"1", None, 0)


async def test_callers_share_connections_and_above_the_limit_they_are_refused(place: str) -> None:
    async with open_store(place, connections_max=2, pending_max=5) as store:
        await store.write("a", b"1", None, 0)
        tries = [asyncio.create_task(store.read("a")) for _ in range(8)]
        found = await asyncio.gather(*tries, return_exceptions=True)
    assert (
        sum(isinstance(one, StorageUnavailable) and "pending_max" in str(one) for one in found) == 3
    )


async def test_a_killed_server_loses_nothing_that_was_acknowledged(
    server: PostgresServer, place: str
) -> None:
    acknowledged: dict[str, str] = {}
    async with open_store(place) as store:
        await store.write("first", b"", None, 0)

        async def write_on(number: int) -> None:
            with suppress(StorageUnavailable):
                for turn in count():
                    key = f"k{number}/{turn}"
                    acknowledged[key] = await store.write(key, key.encode(), None, 0)

        writers = [asyncio.create_task(write_on(number)) for number in range(8)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(server.crash)
        await asyncio.gather(*writers)
        with pytest.raises(StorageUnavailable, match="start the server") as away:
            await store.write("more", b"", None, 0)
        assert "nothing was changed" in str(away.value)
        await asyncio.to_thread(server.start)
        found: dict[str, str] = {}
        after = ""
        while rows := await store.scan("k", after, 1000):
            found |= {key: row.etag for key, row in rows}
            after = rows[-1][0]
        assert len(acknowledged) > 8
        assert {key: found.get(key) for key in acknowledged} == acknowledged
        new = await store.write("new", b"", None, 0)
        assert int(new) > max(map(int, found.values()))


async def test_a_closed_store_refuses_and_closing_waits_for_statements(place: str) -> None:
    async with open_store(place) as store:
        etag = await store.write("a", b"1", None, 0)
        writing = asyncio.create_task(store.write("a", b"2", etag, 0))
        await asyncio.sleep(0)
        await store.aclose()
        assert await writing
        with pytest.raises(StorageUnavailable, match="is closed"):
            await store.read("a")
        await store.aclose()


def test_a_store_goes_on_in_another_loop_when_the_first_one_has_ended(place: str) -> None:
    store = PostgresStateStore(place)

    async def write_two() -> None:
        await asyncio.gather(*(store.write(f"k{next(numbers)}", b"", None, 0) for _ in range(2)))

    asyncio.run(write_two())
    asyncio.run(write_two())

    async def use_both() -> None:
        await store.read("a")
        with pytest.raises(StorageUnavailable, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(write_two()))
        await store.aclose()

    asyncio.run(use_both())


def in_child(place: str, store: PostgresStateStore) -> None:
    async def look() -> int:
        try:
            await store.read("a")
            return 1
        except StorageUnavailable as error:
            if "before this process was forked" not in str(error):
                return 3
        own = PostgresStateStore(place)
        found = await own.read("a")
        await own.aclose()
        return 0 if found is not None else 2

    os._exit(asyncio.run(look()))


async def test_a_forked_process_uses_no_connection_of_its_parent(place: str) -> None:
    async with open_store(place) as store:
        await store.write("a", b"1", None, 0)
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(place, store))
        await asyncio.to_thread(child.start)
        await asyncio.to_thread(child.join, 10)
        assert child.exitcode == 0
        assert await store.read("a") is not None


# --- places that are not right -------------------------------------------------------------------


OPENERS: dict[str, Callable[[str], Any]] = {
    "membership": PostgresMembershipTable,
    "state": PostgresStateStore,
    "reminders": PostgresReminderTable,
}


async def refusal(place: str, kind: str = "membership") -> tuple[type[BaseException], str]:
    table = OPENERS[kind](place)
    with pytest.raises((ConfigError, StorageUnavailable)) as refused:
        await (table.read() if kind == "membership" else table.read("a"))
    await table.aclose()
    return refused.type, str(refused.value)


@pytest.mark.parametrize("kind", OPENERS)
async def test_a_database_or_user_that_is_not_there_is_refused(
    server: PostgresServer, kind: str
) -> None:
    for url, said in (
        (f"{server.url}/nodb", "has no such database"),
        (f"postgresql://nobody:hidden@127.0.0.1:{server.port}/postgres", "has no such user"),
    ):
        error, text = await refusal(url, kind)
        assert error is ConfigError and said in text and f"127.0.0.1:{server.port}" in text
        assert "hidden" not in text


async def test_no_server_is_an_outage(server: PostgresServer) -> None:
    error, text = await refusal("postgresql://u:hidden@127.0.0.1:1/db")
    assert error is StorageUnavailable and "start the server, or correct the URL" in text
    assert "hidden" not in text


async def test_a_wrong_password_is_refused_and_no_password_is_shown(
    server: PostgresServer, place: str
) -> None:
    async with admin(server) as session:
        await session.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    with server.guarding("guarded"):
        for user in ("guarded:hidden", "guarded"):
            error, text = await refusal(place.replace("postgres@", f"{user}@"))
            assert error is ConfigError and "password" in text and "hidden" not in text
        error, text = await refusal(place.replace("postgres@", "guarded:right@"))
        assert error is ConfigError and "permissions" in text
        async with open_store(place):
            pass
        table = PostgresMembershipTable(
            place.replace("postgres@", "guarded:hidden@"), PostgresOptions(password="right")
        )
        with pytest.raises(ConfigError, match="permissions"):
            await table.read()
        await table.aclose()


async def test_a_newer_schema_is_used_until_it_is_not_readable(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with open_store(place) as store:
        await store.write("a", b"1", None, 0)
    async with admin(server) as session:
        await session.execute(f"UPDATE {schema}.schema_version SET version = 99")
        async with open_store(place) as store:
            assert await store.read("a") is not None
        await session.execute(f"UPDATE {schema}.schema_version SET readable_from = 98")
    for kind in OPENERS:
        error, text = await refusal(place, kind)
        assert error is ConfigError and "needs programs of version 98" in text and schema in text
    with pytest.raises(ConfigError, match="needs programs of version 98"):
        await migrate_schema(place)


async def test_the_schema_is_made_once_by_many_and_by_nobody_who_may_not(place: str) -> None:
    assert await read_schema(place) == SchemaState()
    refused = PostgresStateStore(place, PostgresOptions(creates_schema=False))
    with pytest.raises(ConfigError, match=r"does not exist: run `millstream store migrate`"):
        await refused.read("a")
    await refused.aclose()
    stores = [PostgresStateStore(place, PostgresOptions(connections_max=1)) for _ in range(6)]
    await asyncio.gather(*(store.read("a") for store in stores))
    for store in stores:
        await store.aclose()
    assert await migrate_schema(place) == (SchemaState(2, 1), SchemaState(2, 1))


async def test_an_older_schema_is_migrated_by_the_command_while_older_silos_go_on(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with open_store(place) as earlier:
        etag = await earlier.write("a", b"1", None, 0)
        async with admin(server) as session:  # as the first version of the schema was
            for table in ("queue", "message", "session", "answer", "lane", "event", "dropped"):
                await session.execute(f"DROP TABLE {schema}.priority_{table}")
            await session.execute(f"DROP SEQUENCE {schema}.priority_numbers")
            await session.execute(f"UPDATE {schema}.schema_version SET version = 1")
        async with open_store(place) as later:
            with pytest.raises(ConfigError, match="version 1, and this program needs version 2: "):
                await later.read("a")
        assert await migrate_schema(place) == (SchemaState(1, 1), SchemaState(2, 1))
        async with open_store(place) as later:
            assert await later.read("a") is not None
        await earlier.write("a", b"2", etag, 0)


async def test_a_schema_with_other_tables_is_refused(
    server: PostgresServer, place: str, schema: str
) -> None:
    async with admin(server) as session:
        await session.execute(f"CREATE SCHEMA {schema}")
        await session.execute(f"CREATE TABLE {schema}.state (mine text)")
    error, text = await refusal(place)
    assert error is ConfigError and "other tables" in text
    async with admin(server) as session:
        cursor = await session.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        )
        assert await cursor.fetchall() == [("state",)], "the migration is undone as a whole"


async def test_a_schema_that_is_replaced_while_it_is_used_is_noticed(
    server: PostgresServer, place: str, schema: str
) -> None:
    table = PostgresMembershipTable(place)
    before = await table.identity()
    async with admin(server) as session:
        await session.execute(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(StorageUnavailable, match="lacks a table of Millstream"):
            await table.read()
        other = PostgresMembershipTable(place)
        assert await other.identity() != before
        await other.aclose()
        await end_sessions(session)
    await asyncio.sleep(0.2)
    with pytest.raises(StorageUnavailable, match="another database or a restored one"):
        await table.read()
    await table.aclose()


async def test_a_membership_table_without_its_version_is_no_empty_one(
    server: PostgresServer, place: str, schema: str
) -> None:
    table = PostgresMembershipTable(place)
    await table.read()
    async with admin(server) as session:
        await session.execute(f"DELETE FROM {schema}.membership")
    with pytest.raises(StorageUnavailable, match="has no version any more"):
        await table.read()
    assert not await table.write(MemberRow("h:1@1", Status.JOINING), 1)
    await table.aclose()


async def test_a_table_of_another_cluster_is_refused(place: str) -> None:
    async with Silo(grains=[], membership=place, stores={"default": place}, cluster="shop"):
        pass
    with pytest.raises(ConfigError, match=r"schema fault_\d+ belongs to cluster 'shop'"):
        await Silo(grains=[], membership=place, stores={"default": place}).start()


async def test_keys_above_the_limit_are_refused_and_long_ones_work(place: str) -> None:
    async with open_store(place) as store:
        for key in ("k" * 2_500, "é" * 1_250):
            etag = await store.write(key, b"1", None, 0)
            await store.clear(key, etag, 0)
        with pytest.raises(StorageError, match="the key has 2501 bytes"):
            await store.write("k" * 2_501, b"1", None, 0)
    table = PostgresReminderTable(place)
    random = os.urandom(1_200).hex()
    await table.upsert(ReminderRow(random, "n" * 100, 1, 5, b"", ""), None)
    with pytest.raises(StorageError, match="the key of a reminder has 2601 bytes"):
        await table.upsert(ReminderRow(random, "n" * 201, 1, 5, b"", ""), None)
    await table.aclose()


async def test_stores_of_one_schema_see_each_others_rows_and_others_do_not(place: str) -> None:
    async with open_store(place) as one, open_store(place) as two:
        etag = await one.write("a", b"1", None, 0)
        with pytest.raises(Conflict):
            await two.write("a", b"2", None, 0)
        await two.write("a", b"2", etag, 0)
        async with open_store(f"{place}_b") as other:
            assert await other.read("a") is None
        assert one.place == two.place != other.place
