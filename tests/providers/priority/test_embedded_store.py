"""The files of the embedded store: contents, permissions, and damage."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.providers.priority import EmbeddedStore, OwnerLost, QueueSettings, State
from millstream.providers.priority.core.changes import MessageRow
from millstream.providers.priority.core.commands import (
    Complete,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Get,
    Page,
)
from millstream.providers.priority.store import rows
from millstream.providers.priority.store.embedded import Owners
from millstream.providers.priority.store.schema import (
    NUMBER_MAX,
    SEQUENCE_MAX,
    file_index,
    key_range,
    message_key,
)
from millstream.runtime import ConfigError, Env, StorageError, StorageUnavailable
from millstream.runtime.database import WriterOptions

SIMPLE = QueueSettings()
FILE = "priority-6.db"  # the file of queue `q`


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path, Env(1))
    await store.open()
    yield store
    await store.aclose()


def in_file(directory: Path, text: str, *values: Any) -> list[Any]:
    """Run a statement in the file, as another process would."""
    connection = sqlite3.connect(directory / FILE, isolation_level=None)
    try:
        return connection.execute(text, values).fetchall()
    finally:
        connection.close()


def test_the_file_of_a_queue_and_the_key_of_a_message_are_frozen() -> None:
    names = ["q", "encode", "ä/\n", "x" * 256, ""]
    assert [file_index(name) for name in names] == [6, 5, 6, 1, 2]
    assert message_key(3, 5) == 3 * 2**40 + 5
    assert key_range(NUMBER_MAX)[1] == 2**63 - 1 and key_range(2)[0] == key_range(1)[1] + 1


async def test_what_the_files_hold_is_this_users_alone(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    await (await store.acquire("q", SIMPLE)).do(Enqueue("a", b"x", 1))
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


async def test_a_long_payload_is_written_once_and_goes_with_its_message(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    queue = await store.acquire("q", QueueSettings(retention_ms=1))
    await queue.do(EnqueueMany((Enqueue("a", b"x" * 1_025, 1), Enqueue("b", b"y" * 1_024, 2))))
    assert in_file(tmp_path, "SELECT key & 255, length(payload) FROM payload") == [(1, 1_025)]
    assert in_file(tmp_path, "SELECT id, length(payload) FROM message") == [
        ("a", None),
        ("b", 1_024),
    ]
    for lease in (await queue.do(Dequeue("w", 2))).leases:
        await queue.do(Complete(lease.id, lease.token))
    while (await queue.look(Depth()))[State.COMPLETED]:
        await queue.sweep()
    assert in_file(tmp_path, "SELECT * FROM message") == in_file(tmp_path, "SELECT * FROM payload")


async def test_opening_says_how_many_messages_and_how_long(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "millstream.priority")
    await (await store.acquire("q", SIMPLE)).do(EnqueueMany((Enqueue("a", b"", 1),) * 3))
    await store.acquire("q", SIMPLE)
    assert caplog.messages[-1].startswith("queue 'q': opened with 1 messages in ")


async def rows_of_deleted(store: EmbeddedStore, directory: Path) -> None:
    """Wait until the rows of deleted queues are gone."""
    while in_file(directory, "SELECT * FROM dropped"):
        await store.queues("", "", 1)
    for table in ("message", "payload", "session", "answer"):
        assert not in_file(directory, f"SELECT * FROM {table} LIMIT 1"), table


async def test_the_rows_of_a_deleted_queue_go_in_steps_also_after_a_restart(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.providers.priority.store.rows.DROPPED_AT_ONCE", 7)
    queue = await store.acquire("q", SIMPLE)
    await queue.do(EnqueueMany(tuple(Enqueue(f"m{n}", bytes(2_000), 1) for n in range(20))))
    await queue.delete()
    await store.aclose()
    in_file(tmp_path, "INSERT INTO dropped VALUES (77)")
    in_file(tmp_path, "INSERT INTO session VALUES (77, 's', 0, 0)")
    await store.open()
    await rows_of_deleted(store, tmp_path)
    assert in_file(tmp_path, "SELECT number, owner FROM queue") == [(2, 1)], "another number"


async def test_a_file_that_is_taken_away_is_noticed_before_anything_is_answered(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    queue = await store.acquire("q", SIMPLE)
    await queue.do(Enqueue("a", b"x", 1))
    (tmp_path / FILE).unlink()
    with pytest.raises(StorageUnavailable, match="is gone while it is in use"):
        await queue.do(Enqueue("b", b"x", 1))
    with pytest.raises(OwnerLost, match="is gone"):
        await queue.look(Depth())
    with pytest.raises(StorageUnavailable):
        await store.acquire("q", SIMPLE)
    await store.aclose()
    with pytest.raises(StorageUnavailable, match="is gone, and its data is lost"):
        EmbeddedStore(tmp_path)


async def test_owners_that_others_cannot_see_are_none(store: EmbeddedStore, tmp_path: Path) -> None:
    """With another owners file, two processes would not see each other's epochs."""
    await store.acquire("q", SIMPLE)
    owners = (tmp_path / FILE).with_suffix(".owners")
    owners.rename(owners.with_suffix(".elsewhere"))
    owners.touch()
    with pytest.raises(StorageUnavailable, match="replaced while it is in use"):
        await store.acquire("q", SIMPLE)


async def test_a_file_that_others_lock_for_too_long_ends_owners_and_then_opens_again(
    tmp_path: Path,
) -> None:
    store = EmbeddedStore(tmp_path, Env(1), writer=WriterOptions(lock_wait_s=0.01))
    await store.open()
    queue = await store.acquire("q", SIMPLE)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageUnavailable, match="other processes held the lock"):
        await queue.do(Enqueue("a", b"x", 1))
    assert queue.is_lost
    other.execute("ROLLBACK")
    other.close()
    queue = await store.acquire("q", SIMPLE)
    assert (await queue.do(Enqueue("a", b"x", 1))).is_changed
    await store.aclose()


async def test_files_of_another_making_are_refused(tmp_path: Path) -> None:
    blocking = tmp_path / "file"
    blocking.touch()
    with pytest.raises(ConfigError, match="is a file"):
        EmbeddedStore(blocking)
    store = EmbeddedStore(tmp_path / "data")
    in_file(tmp_path / "data", "PRAGMA user_version = 99")
    await store.open()
    with pytest.raises(ConfigError, match="schema version is 99, this Millstream needs 2"):
        await store.acquire("q", SIMPLE)
    await store.aclose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no `fork`")
def test_another_users_files_are_refused(tmp_path: Path) -> None:
    EmbeddedStore(tmp_path / "data")
    tmp_path.chmod(0o500)
    child = os.fork()
    if not child:
        if os.geteuid() == 0:
            os.seteuid(65_534)  # the user `nobody`
        try:
            EmbeddedStore(tmp_path / "other")
        except ConfigError as error:
            os._exit(7 if "Make it writable for this user" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no `fork`")
def test_in_a_forked_child_nobody_owns_anything(tmp_path: Path) -> None:
    owners = Owners(tmp_path / "some.owners")
    owners.set(5, 3)
    assert owners.is_owner(5, 3) and not owners.is_owner(5, 2) and not owners.is_owner(6, 3)
    child = os.fork()
    if not child:
        os._exit(7 if not owners.is_owner(5, 3) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert owners.is_owner(5, 3)
    owners.close()
    assert not owners.is_owner(5, 3)


async def test_numbers_that_are_used_up_are_refused_and_not_given_again(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    queue = await store.acquire("q", SIMPLE)
    in_file(tmp_path, "UPDATE queue SET sequence = ?", SEQUENCE_MAX)
    queue = await store.acquire("q", SIMPLE)
    with pytest.raises(StorageError, match="1099511627775 messages, the maximum"):
        await queue.do(Enqueue("a", b"x", 1))
    in_file(tmp_path, "UPDATE sqlite_sequence SET seq = ? WHERE name = 'queue'", NUMBER_MAX)
    other = next(f"q{n}" for n in range(99) if file_index(f"q{n}") == file_index("q"))
    with pytest.raises(StorageError, match="8388607 queues, the maximum"):
        await store.acquire(other, SIMPLE)
    assert [name for (name,) in in_file(tmp_path, "SELECT name FROM queue")] == ["q"]


async def test_an_owner_reads_what_is_stored_of_one_instant(store: EmbeddedStore) -> None:
    """While other owners take over and change the queue, each one opens all of it or is refused."""
    queue = await store.acquire("q", SIMPLE)
    await queue.do(EnqueueMany(tuple(Enqueue(f"m{n}", b"x", 1) for n in range(50))))

    async def take_over() -> None:
        try:
            owner = await store.acquire("q", SIMPLE)
            core: Any = owner
            core._core.check()
            await owner.do(Dequeue("w", 3))
        except OwnerLost:
            return

    await asyncio.gather(*(take_over() for _ in range(8)))
    last = await store.acquire("q", SIMPLE)
    depth = await last.look(Depth())
    assert sum(depth.values()) == 50 and depth[State.RUNNING] % 3 == 0
    assert len(await last.look(Page())) == 50 and (await last.look(Get("m0"))).id == "m0"


async def test_a_queue_is_opened_as_it_was_at_one_instant(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner may change the queue between two of the statements."""
    queue = await store.acquire("q", SIMPLE)
    await queue.do(EnqueueMany((Enqueue("a", b"x", 1), Enqueue("b", b"x", 1))))
    read = rows._messages

    def late(number: int, connection: sqlite3.Connection) -> Iterator[MessageRow]:
        in_file(tmp_path, "DELETE FROM message WHERE id = 'a'")
        return read(number, connection)

    monkeypatch.setattr(rows, "_messages", late)
    queue = await store.acquire("q", SIMPLE)
    assert [view.id for view in await queue.look(Page())] == ["a", "b"]


async def test_a_full_disk_ends_owners_and_loses_nothing_that_was_answered(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    """SQLite reports a limit of pages in the same way as a full disk."""
    queue = await store.acquire("q", SIMPLE)
    writer = store._file(file_index("q")).writer
    await writer.submit(lambda connection: connection.execute("PRAGMA max_page_count = 40"))
    taken = []
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        for number in range(100):
            await queue.do(Enqueue(f"m{number}", bytes(9_000), 1))
            taken.append(f"m{number}")
    assert queue.is_lost and len(taken) > 3
    queue = await store.acquire("q", SIMPLE)
    assert [view.id for view in await queue.look(Page())] == taken
    await writer.submit(lambda connection: connection.execute("PRAGMA max_page_count = 9000"))
    assert (await queue.do(Enqueue("last", bytes(9_000), 1))).is_changed
