"""SQLite files that several real processes share."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore

pytestmark = pytest.mark.real

WRITE_OWN_ROWS = """
import asyncio, sys
from millstream.providers.sqlite import SqliteStateStore

async def main(directory, name):
    store = SqliteStateStore(directory)
    await asyncio.gather(*(
        store.write(f"{name}/{number:03}", name.encode(), None, 1) for number in range(200)
    ))
    await store.aclose()

asyncio.run(main(*sys.argv[1:]))
"""

INCREMENT_ONE_ROW = """
import asyncio, sys
from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime.errors import Conflict

async def main(directory):
    store = SqliteStateStore(directory)
    done = 0
    while done < 50:
        row = await store.read("count")
        count, etag = (0, None) if row is None else (int(row.data), row.etag)
        try:
            await store.write("count", b"%d" % (count + 1), etag, 1)
            done += 1
        except Conflict:
            pass
    await store.aclose()

asyncio.run(main(*sys.argv[1:]))
"""

JOIN_THE_TABLE = """
import asyncio, sys
from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime.cluster.table import MemberRow, Status

async def main(directory, name):
    table = SqliteMembershipTable(directory)
    version, won = (await table.read()).version, []
    last = version + 30
    while version < last:
        row = MemberRow(f"{name}:{version}@1", Status.JOINING)
        if await table.write(row, version):
            won.append(str(version))
        await table.heartbeat(row.silo, 1.5)
        version = (await table.read()).version
    print(" ".join(won))
    await table.aclose()

asyncio.run(main(*sys.argv[1:]))
"""

WRITE_UNTIL_KILLED = """
import asyncio, sys
from millstream.providers.sqlite import SqliteStateStore

async def main(directory):
    store = SqliteStateStore(directory)

    async def write(writer):
        etag, number = None, 0
        while True:
            etag = await store.write(f"row/{writer}", b"%d" % number, etag, 1)
            sys.stdout.write(f"{writer} {number} {etag}\\n")
            sys.stdout.flush()
            number += 1

    await asyncio.gather(*(write(writer) for writer in range(20)))

asyncio.run(main(*sys.argv[1:]))
"""

FORK_WITH_AN_OPEN_STORE = """
import asyncio, os, sys
from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime.errors import StorageUnavailable

async def write(store, key):
    await store.write(key, b"", None, 1)

async def write_in_child(store):
    for refused in (store.write("parent", b"", None, 1), store.read("parent")):
        try:
            await refused
            return 1
        except StorageUnavailable:
            pass
    return 0

store = SqliteStateStore(sys.argv[1])

async def before():
    for number in range(32):
        await write(store, f"before/{number}")
    await store.read("parent")

asyncio.run(before())
child = os.fork()
if child == 0:
    os._exit(asyncio.run(write_in_child(store)))
assert os.waitpid(child, 0)[1] == 0
asyncio.run(write(store, "parent"))
asyncio.run(store.aclose())
"""


async def start(script: str, *args: object) -> asyncio.subprocess.Process:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        *map(str, args),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )


async def run(script: str, *args: object) -> str:
    """Run the script to its end, and return its output."""
    process = await start(script, *args)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def test_three_processes_write_to_one_store(tmp_path: Path) -> None:
    await asyncio.gather(*(run(WRITE_OWN_ROWS, tmp_path, name) for name in "abc"))
    store = SqliteStateStore(tmp_path)
    rows = await store.scan("", "", 1000)
    await store.aclose()
    assert [key for key, _ in rows] == [f"{n}/{i:03}" for n in "abc" for i in range(200)]
    assert all(row.data == key[:1].encode() for key, row in rows)


async def test_three_processes_lose_no_increment_of_one_row(tmp_path: Path) -> None:
    await asyncio.gather(*(run(INCREMENT_ONE_ROW, tmp_path) for _ in range(3)))
    store = SqliteStateStore(tmp_path)
    row = await store.read("count")
    await store.aclose()
    assert row is not None and row.data == b"150"


async def test_one_of_three_processes_wins_each_version_of_the_table(tmp_path: Path) -> None:
    table = SqliteMembershipTable(tmp_path)
    first = (await table.read()).version
    printed = await asyncio.gather(*(run(JOIN_THE_TABLE, tmp_path, name) for name in "abc"))
    won = sorted(int(version) for text in printed for version in text.split())
    view = await table.read()
    await table.aclose()
    assert won == list(range(first, view.version))
    assert len(view.rows) == len(won) >= 30
    assert {row.alive_s for row in view.rows} == {1.5}


async def test_killed_process_keeps_every_acknowledged_write(tmp_path: Path) -> None:
    process = await start(WRITE_UNTIL_KILLED, tmp_path)
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(500)]
    process.kill()
    lines += [line for line in (await process.stdout.read()).splitlines(True)]
    assert await process.wait() == -9
    acknowledged = [line.split() for line in lines if line.endswith(b"\n")]
    last = {int(writer): int(number) for writer, number, _ in acknowledged}
    assert len(last) == 20
    store = SqliteStateStore(tmp_path)
    for writer, number in last.items():
        row = await store.read(f"row/{writer}")
        assert row is not None
        # The process may have committed one more write than it acknowledged.
        assert number <= int(row.data) <= number + 1
    await store.aclose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no `fork`")
async def test_forked_child_is_refused_and_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    await run(FORK_WITH_AN_OPEN_STORE, tmp_path)
    store = SqliteStateStore(tmp_path)
    assert await store.read("parent") is not None
    await store.aclose()
