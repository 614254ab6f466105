from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.providers.sqlite import SqliteStateStore, WriterOptions, storage
from millstream.providers.sqlite.schema import STATE
from millstream.providers.sqlite.storage import file_index
from millstream.runtime import ConfigError, Conflict, Env, StorageUnavailable
from millstream.runtime.database import Writer, open_writer
from millstream.runtime.database.database import why_failed
from millstream.runtime.database.worker import Worker

Work = Callable[[sqlite3.Connection], Any]


class Held:
    """Keeps the writer's thread inside an operation until `open`, and counts its commits."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.statements: list[str] = []
        self._door = threading.Event()
        self._is_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self.first = writer.submit(self._work)

    def _work(self, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(self.statements.append)
        self._loop.call_soon_threadsafe(self._is_in.set_result, None)
        assert self._door.wait(60)

    async def entered(self) -> None:
        await self._is_in

    def open(self) -> None:
        self._door.set()

    @property
    def commits(self) -> int:
        return self.statements.count("COMMIT")


def open_file(
    directory: Path, options: WriterOptions | None = None, env: Env | None = None
) -> Writer:
    return open_writer(directory / "state-0.db", STATE, env or Env(1), options or WriterOptions())


async def open_and_close(directory: Path) -> None:
    writer = open_file(directory)
    await writer.submit(lambda connection: None)
    await writer.release()


def insert(key: str) -> Work:
    return lambda connection: storage.insert(key, b"x", 0, connection)


def stored(directory: Path) -> list[str]:
    connection = sqlite3.connect(directory / "state-0.db")
    keys = [key for (key,) in connection.execute("SELECT key FROM rows ORDER BY key")]
    connection.close()
    return keys


async def hold(writer: Writer) -> Held:
    held = Held(writer)
    await held.entered()
    return held


async def test_writer_commits_all_that_waits_in_one_transaction(tmp_path: Path) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    waiting = [writer.submit(insert(f"{number:03}")) for number in range(100)]
    held.open()
    await asyncio.gather(held.first, *waiting)
    assert held.commits == 1
    assert len(stored(tmp_path)) == 100
    await writer.release()


async def test_writer_wakes_the_loop_once_per_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    waiting = [writer.submit(insert(f"{number:03}")) for number in range(100)]
    loop, wakes = asyncio.get_running_loop(), []
    wake = loop.call_soon_threadsafe

    def counted(*args: Any) -> asyncio.Handle:
        wakes.append(args)
        return wake(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    held.open()
    await asyncio.gather(held.first, *waiting)
    assert len(wakes) == 1
    monkeypatch.undo()
    await writer.release()


async def test_writer_begins_a_new_transaction_when_batch_max_is_reached(tmp_path: Path) -> None:
    writer = open_file(tmp_path, WriterOptions(batch_max=10))
    held = await hold(writer)
    waiting = [writer.submit(insert(f"{number:03}")) for number in range(39)]
    held.open()
    await asyncio.gather(held.first, *waiting)
    # The operation that holds the thread is one of the forty.
    assert held.commits == 4
    await writer.release()


class TickingEnv(Env):
    """An Env whose clock advances by 10 ms with each read."""

    def __init__(self) -> None:
        super().__init__(1)
        self.now_s = 0.0

    def wall_s(self) -> float:
        self.now_s += 0.01
        return self.now_s


async def test_writer_begins_a_new_transaction_after_batch_s_of_work(tmp_path: Path) -> None:
    writer = open_file(tmp_path, WriterOptions(batch_s=0.05), TickingEnv())
    held = await hold(writer)
    waiting = [writer.submit(insert(f"{number:03}")) for number in range(24)]
    held.open()
    await asyncio.gather(held.first, *waiting)
    assert held.commits == 5
    await writer.release()


async def test_conflict_of_one_operation_leaves_the_others_of_its_batch(tmp_path: Path) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    waiting = [writer.submit(insert(key)) for key in ("a", "b", "a", "c")]
    held.open()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(outcome, Conflict) for outcome in outcomes] == [False, False, True, False]
    assert stored(tmp_path) == ["a", "b", "c"]
    assert held.commits == 1
    await held.first
    await writer.release()


def spoil(connection: sqlite3.Connection) -> None:
    insert("spoilt")(connection)
    raise ZeroDivisionError("after a change")


def break_statement(connection: sqlite3.Connection) -> None:
    insert("spoilt")(connection)
    connection.execute("INSERT INTO nowhere VALUES (1)")


@pytest.mark.parametrize(
    ("bad", "error"), [(spoil, ZeroDivisionError), (break_statement, StorageUnavailable)]
)
async def test_operation_that_fails_after_a_change_is_undone_alone(
    tmp_path: Path, bad: Work, error: type[Exception]
) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    waiting = [writer.submit(work) for work in (insert("a"), bad, insert("b"), insert("a"))]
    held.open()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [str, error, str, Conflict]
    assert stored(tmp_path) == ["a", "b"]
    await held.first
    await writer.release()


def forbid_commit(connection: sqlite3.Connection) -> None:
    def allow(action: int, name: str | None, *_: object) -> int:
        is_commit = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if is_commit else sqlite3.SQLITE_OK

    connection.set_authorizer(allow)


async def test_failed_commit_fails_its_batch_and_not_the_next(tmp_path: Path) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    waiting = [writer.submit(work) for work in (insert("a"), insert("a"), forbid_commit)]
    held.open()
    outcomes = await asyncio.gather(held.first, *waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 4
    assert len(set(map(id, outcomes))) == 4
    assert stored(tmp_path) == []
    await writer.submit(insert("a"))
    assert stored(tmp_path) == ["a"]
    await writer.release()


async def test_writer_refuses_at_once_when_pending_max_operations_wait(tmp_path: Path) -> None:
    writer = open_file(tmp_path, WriterOptions(pending_max=3))
    held = await hold(writer)
    waiting = [writer.submit(insert(key)) for key in "abc"]
    with pytest.raises(StorageUnavailable, match="pending_max is 3"):
        writer.submit(insert("d"))
    held.open()
    await asyncio.gather(held.first, *waiting)
    await writer.submit(insert("e"))
    assert stored(tmp_path) == ["a", "b", "c", "e"]
    await writer.release()


async def test_cancelled_operation_does_not_run_when_it_has_not_begun(tmp_path: Path) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    waiting = [writer.submit(insert(key)) for key in "abc"]
    waiting[1].cancel()
    held.open()
    await asyncio.gather(held.first, waiting[0], waiting[2])
    assert stored(tmp_path) == ["a", "c"]
    await writer.release()


class PausesEnv(Env):
    """An Env that records the bounds of each pause, and calls back at a given one."""

    def __init__(self, at: int, then: Callable[[], None]) -> None:
        super().__init__(1)
        self.bounds: list[tuple[float, float]] = []
        self._at, self._then = at, then

    def uniform(self, low: float, high: float) -> float:
        self.bounds.append((low, high))
        if len(self.bounds) == self._at:
            self._then()
        return super().uniform(low, high)


async def lock(directory: Path) -> sqlite3.Connection:
    """Return another program's connection that holds the write lock."""
    writer = open_file(directory)
    await writer.submit(insert("a"))
    await writer.release()
    other = sqlite3.connect(directory / "state-0.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


async def test_writer_tries_again_after_random_pauses_while_the_file_is_locked(
    tmp_path: Path,
) -> None:
    other = await lock(tmp_path)
    env = PausesEnv(20, other.rollback)
    writer = open_file(tmp_path, env=env)
    await writer.submit(insert("b"))
    assert env.bounds == [(0.0002, 0.002)] * 20
    assert stored(tmp_path) == ["a", "b"]
    await writer.release()
    other.close()


async def test_writer_fails_all_that_waits_when_lock_wait_s_is_over(tmp_path: Path) -> None:
    other = await lock(tmp_path)
    writer = open_file(tmp_path, WriterOptions(lock_wait_s=0.01))
    waiting = [writer.submit(insert(key)) for key in "bcd"]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all("lock_wait_s is 0.01" in str(outcome) for outcome in outcomes)
    # They waited for the lock together, so they share a cause but not an error.
    causes = {id(outcome.__cause__) for outcome in outcomes if isinstance(outcome, Exception)}
    assert len(causes) == 1 and len(set(map(id, outcomes))) == 3
    other.execute("ROLLBACK")
    await writer.submit(insert("e"))
    assert stored(tmp_path) == ["a", "e"]
    await writer.release()
    other.close()


async def test_release_flushes_what_was_submitted(tmp_path: Path) -> None:
    writer = open_file(tmp_path)
    waiting = [writer.submit(insert(f"{number:03}")) for number in range(500)]
    await writer.release()
    assert all(future.done() for future in waiting)
    assert len(stored(tmp_path)) == 500
    with pytest.raises(StorageUnavailable, match="closed"):
        writer.submit(insert("late"))


async def test_writer_refuses_what_comes_while_it_closes(tmp_path: Path) -> None:
    writer = open_file(tmp_path)
    held = await hold(writer)
    before = writer.submit(insert("a"))
    closing = asyncio.create_task(writer.release())
    await asyncio.sleep(0)
    with pytest.raises(StorageUnavailable, match="closed"):
        writer.submit(insert("late"))
    held.open()
    await closing
    assert before.done() and held.first.done()
    assert stored(tmp_path) == ["a"]


async def test_file_has_one_writer_in_a_process(tmp_path: Path) -> None:
    one, two = open_file(tmp_path), open_file(tmp_path)
    assert one is two
    late = one.submit(insert("a"))
    await one.release()
    assert late.done()
    await two.submit(insert("b"))
    await two.release()
    three = open_file(tmp_path)
    assert three is not one
    await three.submit(insert("c"))
    await three.release()
    assert stored(tmp_path) == ["a", "b", "c"]


async def test_writer_answers_each_event_loop_on_its_own(tmp_path: Path) -> None:
    writer = open_file(tmp_path)

    async def write(prefix: str) -> int:
        etags = [await writer.submit(insert(f"{prefix}{number}")) for number in range(20)]
        return len(etags)

    elsewhere = asyncio.to_thread(lambda: asyncio.run(write("b")))
    assert sum(await asyncio.gather(write("a"), elsewhere)) == 40
    assert len(stored(tmp_path)) == 40
    await writer.release()


async def test_connection_is_durable_and_never_waits_in_sqlite(tmp_path: Path) -> None:
    writer = open_file(tmp_path)

    def pragmas(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "busy_timeout")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await writer.submit(pragmas) == ["wal", 2, 0]
    await writer.release()


async def test_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    await open_and_close(tmp_path)
    connection = sqlite3.connect(tmp_path / "state-0.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    writer = open_file(tmp_path)
    with pytest.raises(ConfigError, match="99"):
        await writer.submit(insert("a"))
    await writer.release()


async def test_tables_are_left_alone_when_another_process_made_them_first(tmp_path: Path) -> None:
    path = tmp_path / "state-0.db"
    writer = open_file(tmp_path)
    await writer.submit(insert("a"))
    # The last check before the tables are made happens under the lock.
    await writer.release()
    connection = sqlite3.connect(path, isolation_level=None)
    STATE.make(connection, path, Env(1), "another")
    connection.close()
    assert stored(tmp_path) == ["a"]


async def test_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    store = SqliteStateStore(tmp_path)
    for index in range(8):
        (tmp_path / f"state-{index}.db").write_bytes(b"not a database" * 1000)
    for refused in (store.write("a", b"", None, 0), store.read("a")):
        with pytest.raises(StorageUnavailable, match=r"state-7.db: .*not a database.* restore"):
            await refused
    await store.aclose()


async def test_worker_answers_what_waits_when_its_thread_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door, raised = threading.Event(), list[type[BaseException]]()
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))

    def serve(*_: object) -> None:
        assert door.wait(60)
        raise ZeroDivisionError

    worker = Worker[None]("w", 10, serve, lambda: None)
    waiting = [worker.submit(lambda _: None) for _ in range(4)]
    door.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 4
    with pytest.raises(StorageUnavailable):
        worker.submit(lambda _: None)
    await worker.stop()
    assert raised == [ZeroDivisionError]


async def test_store_refuses_use_after_close_and_closes_twice(tmp_path: Path) -> None:
    store = SqliteStateStore(tmp_path)
    await store.write("a", b"1", None, 0)
    await store.aclose()
    await store.aclose()
    for refused in (store.read("a"), store.write("b", b"", None, 0), store.scan("", "", 1)):
        with pytest.raises(StorageUnavailable, match="closed"):
            await refused
    again = SqliteStateStore(tmp_path)
    row = await again.read("a")
    assert row is not None and row.data == b"1"
    await again.aclose()


def test_file_index_is_frozen() -> None:
    keys = ("", "a", "grain/1", "grain/2", "orders/é", "queue/flights/7")
    assert [file_index(key) for key in keys] == [2, 7, 0, 4, 0, 2]


def test_what_sqlite_says_is_told_with_the_file_and_what_to_do() -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY  # type: ignore[attr-defined, unused-ignore]
    assert why_failed("/data/state-1.db", error).startswith("/data/state-1.db: attempt to write")
    assert "writable for this user" in why_failed("/data/state-1.db", error)
