"""The contract of `MembershipTable`, for each table that runs without a server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import (
    Env,
    MemberRow,
    MembershipTable,
    MemoryMembershipTable,
    Status,
    TableView,
)

TABLES: dict[str, Callable[[Path], MembershipTable]] = {
    "memory": lambda directory: MemoryMembershipTable(),
    "sqlite": lambda directory: SqliteMembershipTable(directory),
}
A = MemberRow("host:1@10", Status.JOINING, "a", 11, started_s=1.5, alive_s=1.25)
B = MemberRow(
    "host:2@20",
    Status.ACTIVE,
    "b",
    12,
    is_gateway=False,
    can_own_queues=False,
    grain_types=("One", "Two"),
    started_s=0.1,
    alive_s=1e9 + 0.1,
    suspicions=(("host:1@10", 3.75),),
)


@pytest.fixture(params=TABLES)
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MembershipTable]:
    opened = TABLES[request.param](tmp_path)
    yield opened
    await opened.aclose()


async def rows_of(table: MembershipTable) -> list[MemberRow]:
    return sorted((await table.read()).rows, key=lambda row: row.silo)


async def fill(table: MembershipTable, *rows: MemberRow) -> int:
    version = (await table.read()).version
    for row in rows:
        assert await table.write(row, version)
        version += 1
    return version


async def test_read_gives_the_same_empty_view_twice_when_the_table_is_new(
    table: MembershipTable,
) -> None:
    view = await table.read()
    assert view == TableView(view.version)
    assert await table.read() == view


async def test_write_inserts_rows_with_all_their_fields(table: MembershipTable) -> None:
    first = (await table.read()).version
    version = await fill(table, A, B)
    assert await rows_of(table) == [A, B]
    assert (await table.read()).version == version == first + 2


async def test_write_replaces_the_row_of_the_same_silo(table: MembershipTable) -> None:
    version = await fill(table, A, B)
    active = msgspec.structs.replace(A, status=Status.ACTIVE, alive_s=9.5)
    assert await table.write(active, version)
    assert await rows_of(table) == [active, B]


@pytest.mark.parametrize("off", [-1, 1])
async def test_write_changes_nothing_when_the_version_differs(
    table: MembershipTable, off: int
) -> None:
    version = await fill(table, A)
    before = await table.read()
    assert not await table.write(B, version + off)
    assert not await table.forget(A.silo, version + off)
    assert await table.read() == before


async def test_write_lets_one_of_two_win_when_they_write_different_rows(
    table: MembershipTable,
) -> None:
    version = (await table.read()).version
    won = await asyncio.gather(table.write(A, version), table.write(B, version))
    assert sorted(won) == [False, True]
    assert await rows_of(table) == [A if won[0] else B]
    assert (await table.read()).version == version + 1


async def test_heartbeat_stores_the_stamp_and_nothing_else(table: MembershipTable) -> None:
    version = await fill(table, A, B)
    await table.heartbeat(B.silo, 77.125)
    assert await rows_of(table) == [A, msgspec.structs.replace(B, alive_s=77.125)]
    assert (await table.read()).version == version


async def test_heartbeat_has_no_effect_when_the_silo_is_not_in_the_table(
    table: MembershipTable,
) -> None:
    await fill(table, A)
    before = await table.read()
    await table.heartbeat(B.silo, 77.0)
    assert await table.read() == before


async def test_forget_deletes_the_row_and_raises_the_version(table: MembershipTable) -> None:
    version = await fill(table, A, B)
    assert await table.forget(A.silo, version)
    assert await rows_of(table) == [B]
    assert (await table.read()).version == version + 1


async def test_forget_and_write_exclude_each_other_when_both_see_one_version(
    table: MembershipTable,
) -> None:
    version = await fill(table, A)
    won = await asyncio.gather(table.forget(A.silo, version), table.write(B, version))
    assert sorted(won) == [False, True]


async def test_a_read_sees_each_change_that_was_made_before_it(table: MembershipTable) -> None:
    version = (await table.read()).version
    for number in range(20):
        assert await table.write(MemberRow(f"h:{number}@1", Status.JOINING), version + number)
        assert (await table.read()).version == version + number + 1


async def test_read_gives_a_consistent_snapshot_while_others_write(table: MembershipTable) -> None:
    """Each change adds one row, so in a snapshot the version equals the number of rows."""
    first = (await table.read()).version
    total = 40

    async def join() -> None:
        for number in range(total):
            assert await table.write(MemberRow(f"h:{number}@1", Status.JOINING), first + number)

    joining = asyncio.create_task(join())
    seen = 0
    while seen < total:
        view = await table.read()
        assert seen <= len(view.rows) == view.version - first
        seen = len(view.rows)
        await asyncio.sleep(0)
    await joining


class FixedEnv(Env):
    """An Env whose clock does not move."""

    def wall_s(self) -> float:
        return 1_700_000_000.25


async def test_sqlite_table_starts_at_unix_milliseconds(tmp_path: Path) -> None:
    table = SqliteMembershipTable(tmp_path, FixedEnv(1))
    assert (await table.read()).version == 1_700_000_000_250
    await table.aclose()


async def test_sqlite_table_keeps_its_rows_and_version_when_it_is_opened_again(
    tmp_path: Path,
) -> None:
    table = SqliteMembershipTable(tmp_path, FixedEnv(1))
    version = await fill(table, A, B)
    await table.aclose()
    again = SqliteMembershipTable(tmp_path)
    assert await again.read() == TableView(version, (A, B))
    await again.aclose()


async def test_sqlite_tables_of_one_directory_see_each_others_changes(tmp_path: Path) -> None:
    one, two = SqliteMembershipTable(tmp_path), SqliteMembershipTable(tmp_path)
    version = await fill(one, A)
    assert await two.read() == TableView(version, (A,))
    assert sorted(await asyncio.gather(one.write(B, version), two.write(B, version))) == [
        False,
        True,
    ]
    await one.aclose()
    assert (await two.read()).version == version + 1
    await two.aclose()


# --- the identity --------------------------------------------------------------------------------


async def check_identity(opened: Callable[[Path], MembershipTable], place: Path) -> None:
    """Raise AssertionError if an identity does not tell tables apart, or changes for one table."""
    original, copy, link = place / "original", place / "copy", place / "link"
    first = opened(original)
    await fill(first, A)
    said = await first.identity()
    await fill(first, B)
    assert said and await first.identity() == said, "it changes while the table is in use"
    shutil.copytree(original, copy)
    link.symlink_to(original)
    for path, is_same in ((original, True), (link, True), (copy, False)):
        other = opened(path)
        found = await other.read(), await other.identity()
        await other.aclose()
        assert found[0] == await first.read(), "it is no copy"
        assert (found[1] == said) is is_same, f"{path.name}: {found[1]}"
    await first.aclose()


async def test_a_copy_of_a_sqlite_table_has_another_identity_and_a_link_to_it_has_not(
    tmp_path: Path,
) -> None:
    await check_identity(SqliteMembershipTable, tmp_path)


async def test_files_that_are_hard_links_in_another_directory_are_another_table(
    tmp_path: Path,
) -> None:
    first = SqliteMembershipTable(tmp_path / "original")
    await fill(first, A)
    said = await first.identity()
    await first.aclose()  # writing one file under two names at once would destroy it
    (tmp_path / "copy").mkdir()
    for found in (tmp_path / "original").iterdir():
        (tmp_path / "copy" / found.name).hardlink_to(found)
    second = SqliteMembershipTable(tmp_path / "copy")
    assert await second.identity() != said
    await second.aclose()


async def test_each_table_in_memory_has_an_identity_of_its_own() -> None:
    one, two = MemoryMembershipTable(1), MemoryMembershipTable(1)
    assert await one.identity() == await one.identity() != await two.identity()


class KnownByWhatIsStored(SqliteMembershipTable):
    """A wrong table: a copy has the same identity."""

    async def identity(self) -> str:
        return self._folder.id


class KnownByItsPath(SqliteMembershipTable):
    """A wrong table: a link has another identity."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._given = directory

    async def identity(self) -> str:
        return f"{self._given}"


class KnownByItsContent(SqliteMembershipTable):
    """A wrong table: each change gives another identity."""

    async def identity(self) -> str:
        return f"{await super().identity()} {(await self.read()).version}"


class KnownByTheObject(SqliteMembershipTable):
    """A wrong table: two silos never have the same identity."""

    async def identity(self) -> str:
        return f"{id(self)}"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (KnownByWhatIsStored, "copy: "),
        (KnownByItsPath, "link: "),
        (KnownByItsContent, "it changes"),
        (KnownByTheObject, "original: "),
    ],
)
async def test_a_table_with_a_wrong_identity_is_refused(
    broken: Callable[[Path], MembershipTable], said: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=said):
        await check_identity(broken, tmp_path)
