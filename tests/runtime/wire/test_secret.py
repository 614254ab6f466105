"""The sources of a cluster's secret."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.runtime import ConfigError, MemoryMembershipTable
from millstream.runtime.extending import secret_in_file
from millstream.runtime.wire.secret import SECRET_BYTES, find_secret


def fresh(count: int) -> bytes:
    return bytes(range(count))


async def test_the_variable_comes_first() -> None:
    table = MemoryMembershipTable()
    assert await find_secret({"MILLSTREAM_SECRET": "s" * 16}, table, fresh) == b"s" * 16
    assert await find_secret({"MILLSTREAM_SECRET": ""}, table, fresh) == fresh(SECRET_BYTES)


async def test_a_short_secret_is_refused_and_not_told() -> None:
    with pytest.raises(ConfigError, match="MILLSTREAM_SECRET has 15 characters") as caught:
        await find_secret({"MILLSTREAM_SECRET": "hidden-password"}, None, fresh)
    assert "hidden" not in str(caught.value)


async def test_silos_that_share_a_table_in_memory_share_its_secret() -> None:
    table = MemoryMembershipTable()
    one = await find_secret({}, table, lambda count: b"1" * count)
    assert await find_secret({}, table, lambda count: b"2" * count) == one == b"1" * 32
    assert await find_secret({}, MemoryMembershipTable(), lambda count: b"2" * count) != one


async def test_a_table_that_keeps_none_needs_the_variable() -> None:
    with pytest.raises(ConfigError, match="object.* stores no secret.*MILLSTREAM_SECRET"):
        await find_secret({}, object(), fresh)


def test_a_file_is_made_for_its_user_alone_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert secret_in_file(path, b"1" * 32) == b"1" * 32
    assert secret_in_file(path, b"2" * 32) == b"1" * 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("proposals", [8, 1])
def test_of_many_that_make_it_at_once_one_comes_first_for_all(
    tmp_path: Path, proposals: int
) -> None:
    found: list[bytes] = []

    def make(number: int) -> None:
        # operators' secrets are derived, and therefore equal
        secret = bytes([number % proposals]) * 32
        found.append(secret_in_file(tmp_path / "secret", secret))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def readable(path: Path) -> None:
    path.write_text("00" * 32)
    path.chmod(0o644)


def group_readable(path: Path) -> None:
    path.write_text("00" * 32)
    path.chmod(0o640)


def short(path: Path) -> None:
    path.write_text("00" * 31)
    path.chmod(0o600)


def no_secret(path: Path) -> None:
    path.write_text("hello")
    path.chmod(0o600)


def link(path: Path) -> None:
    other = path.with_name("elsewhere")
    secret_in_file(other, b"1" * 32)
    path.symlink_to(other)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (readable, "other users can read it"),
        (group_readable, "other users can read it"),
        (short, "has no secret"),
        (no_secret, "has no secret"),
        (link, "not a regular file"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    path = tmp_path / "secret"
    spoil(path)
    with pytest.raises(ConfigError, match=text) as caught:
        secret_in_file(path, b"1" * 32)
    assert "00000" not in str(caught.value)
