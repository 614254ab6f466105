"""Files that disappear, change or cannot be written, and their permissions."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import ConfigError, MemberRow, Silo, Status, StorageUnavailable

Harm = Callable[[Path], object]
KEY = "a"
FILE = "state-7.db"  # the file with the key
MANIFEST = "millstream.manifest"


def remove(path: Path) -> None:
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)
    for name in path.parent.glob(f"{path.name}-*"):
        name.unlink()


def replace(path: Path) -> None:
    """Replace the file with an equal copy."""
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


async def write(folder: Path, key: str = KEY) -> None:
    store = SqliteStateStore(folder)
    await store.write(key, b"1", None, 0)
    await store.aclose()


async def join(folder: Path) -> None:
    table = SqliteMembershipTable(folder)
    view = await table.read()
    assert await table.write(MemberRow("a:1@1", Status.JOINING), view.version)
    await table.aclose()


MADE: dict[str, Callable[[Path], Awaitable[None]]] = {FILE: write, "membership.db": join}
OPENED = {FILE: SqliteStateStore, "membership.db": SqliteMembershipTable}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("harm", [remove, empty])
async def test_a_file_that_was_there_and_is_gone_or_empty_is_an_error_at_start(
    name: str, harm: Harm, tmp_path: Path
) -> None:
    await MADE[name](tmp_path)
    harm(tmp_path / name)
    with pytest.raises(StorageUnavailable, match=f"{tmp_path / name}.*(gone|emptied).*restore"):
        OPENED[name](tmp_path)
    assert not (tmp_path / name).exists() or not (tmp_path / name).stat().st_size


@pytest.mark.parametrize("harm", [remove, empty, replace])
async def test_a_file_that_goes_while_it_is_open_fails_every_later_use(
    harm: Harm, tmp_path: Path
) -> None:
    store = SqliteStateStore(tmp_path)
    etag = await store.write(KEY, b"1", None, 0)
    assert await store.read(KEY)
    harm(tmp_path / FILE)
    for _ in range(2):
        for refused in (store.write(KEY, b"2", etag, 0), store.read(KEY)):
            with pytest.raises(StorageUnavailable, match=f"{FILE}.*in use: stop every silo"):
                await refused
    await store.aclose()


async def test_a_log_that_goes_while_it_is_open_fails_the_next_write(tmp_path: Path) -> None:
    store = SqliteStateStore(tmp_path)
    etag = await store.write(KEY, b"1", None, 0)
    (tmp_path / f"{FILE}-wal").unlink()
    with pytest.raises(StorageUnavailable, match=f"{FILE}-wal is gone"):
        await store.write(KEY, b"2", etag, 0)
    await store.aclose()


async def test_no_second_cluster_begins_beside_one_whose_table_was_deleted(tmp_path: Path) -> None:
    text = f"sqlite:{tmp_path}"
    async with Silo(grains=[], membership=text, stores={"default": text}) as first:
        remove(tmp_path / "membership.db")
        with pytest.raises(StorageUnavailable, match=r"membership\.db is gone"):
            Silo(grains=[], membership=text, stores={"default": text})
        with pytest.raises(StorageUnavailable, match="in use"):
            await first.assembly.membership.refresh()


async def test_a_file_of_another_directory_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    await write(one)
    await write(two)
    shutil.copyfile(one / FILE, two / FILE)
    store = SqliteStateStore(two)
    with pytest.raises(StorageUnavailable, match=f"{FILE} was replaced: it is {FILE} of"):
        await store.read(KEY)
    await store.aclose()


async def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    await write(tmp_path)
    await write(tmp_path, "")
    shutil.copyfile(tmp_path / "state-2.db", tmp_path / FILE)
    store = SqliteStateStore(tmp_path)
    with pytest.raises(StorageUnavailable, match="it is state-2.db"):
        await store.read(KEY)
    await store.aclose()


async def test_files_whose_manifest_is_gone_are_refused(tmp_path: Path) -> None:
    await write(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StorageUnavailable, match=f"{MANIFEST} is gone.*{FILE}"):
        SqliteStateStore(tmp_path)
    (tmp_path / MANIFEST).touch()
    with pytest.raises(StorageUnavailable, match="emptied or replaced"):
        SqliteStateStore(tmp_path)


async def test_a_file_that_a_crash_kept_off_the_manifest_is_listed_when_it_is_opened(
    tmp_path: Path,
) -> None:
    await write(tmp_path)
    manifest = tmp_path / MANIFEST
    head = manifest.read_text().splitlines()[0]
    manifest.write_text(f"{head}\nstate-")  # half a line, as after a power failure
    store = SqliteStateStore(tmp_path)
    assert await store.read(KEY)
    await store.aclose()
    assert FILE in manifest.read_text().splitlines()


async def test_many_stores_that_open_at_once_make_one_manifest(tmp_path: Path) -> None:
    await asyncio.gather(*(asyncio.to_thread(SqliteStateStore, tmp_path) for _ in range(20)))
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_directory_and_files_are_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    store = SqliteStateStore(folder)
    await store.write(KEY, b"1", None, 0)
    found = {path.name: mode_of(path) for path in folder.iterdir()}
    await store.aclose()
    assert mode_of(folder) == 0o700
    assert {f"{FILE}-wal", f"{FILE}-shm", FILE, MANIFEST} == set(found)
    assert set(found.values()) == {0o600}


async def test_what_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    await write(folder)
    folder.chmod(0o755)
    (folder / FILE).chmod(0o644)
    await join(folder)
    store = SqliteStateStore(folder)
    await store.read(KEY)
    await store.aclose()
    assert mode_of(folder) == 0o700 and mode_of(folder / FILE) == 0o600


async def test_a_directory_with_other_things_in_it_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "index.html").touch()
    await write(tmp_path)
    assert mode_of(tmp_path) == 0o755 and mode_of(tmp_path / FILE) == 0o600


@pytest.mark.parametrize("below", ["", "more/of/it"])
def test_a_directory_that_is_a_file_is_named(below: str, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path / 'data'} is a file. Name another"):
        SqliteStateStore(tmp_path / "data" / below)


def test_a_directory_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=f"{tmp_path}: Permission denied. Make it writable"):
        SqliteStateStore(tmp_path)


async def test_a_full_disk_is_named_and_the_next_write_tries_again(tmp_path: Path) -> None:
    store = SqliteStateStore(tmp_path)
    etag = await store.write(KEY, b"1", None, 0)
    writer = store._writer(7)

    def limit(pages: int) -> Callable[[sqlite3.Connection], object]:
        return lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone()

    await writer.submit(limit(1))
    with pytest.raises(
        StorageUnavailable, match=f"{tmp_path / FILE}: the disk is full.*Free space"
    ):
        await store.write(KEY, b"x" * 100_000, etag, 0)
    await writer.submit(limit(1 << 30))
    await store.write(KEY, b"x" * 100_000, etag, 0)
    await store.aclose()
