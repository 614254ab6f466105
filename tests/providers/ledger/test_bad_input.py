"""Directories with bad contents, as a program that opens them sees them.

The program is refused or stopped with file, offset and advice. No file changes, and accepted
messages return with the files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conditions import until

from millstream.providers.ledger import (
    BookieOptions,
    LedgerOptions,
    LedgerTopicOptions,
    LedgerTopicSettings,
    Position,
    Quorum,
    open_topics,
)
from millstream.providers.ledger.bookie.form.envelope import FORMAT, HEAD
from millstream.providers.ledger.protocol.entry import check_of
from millstream.runtime import ConfigError, PublishUnknown, QueueUnavailable

REFUSAL = re.compile(r"^(/\S+): offset (\d+): (.+)\. What can be done: (.+)$", re.DOTALL)


async def made(directory: Path) -> None:
    """Make a topic with messages whose ledger and segment are closed."""
    async with open_topics(directory) as topics:
        orders = await topics.topic("orders")
        for number in range(3):
            await orders.produce(None, str(number).encode())


async def opens(directory: Path) -> list[str]:
    async with open_topics(directory) as topics:
        orders = await topics.topic("orders")
        return [one.value.decode() for one in await orders.read(Position(0, 1))]


async def refused(directory: Path) -> tuple[str, int, str]:
    """Check that the topics are refused with advice, and return the file, the offset and the fact.

    No file may change, except for the number of the start.
    """
    bookie = directory / "bookie"

    def content() -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in bookie.iterdir() if one.name != "identity"}

    before = content()
    with pytest.raises(ConfigError) as raised:
        await opens(directory)
    assert content() == before
    match = REFUSAL.match(str(raised.value))
    assert match is not None, raised.value
    return Path(match[1]).name, int(match[2]), match[3]


def newer(data: bytes) -> bytes:
    """Return the same data in the format of a later version."""
    magic, _, reserved, size = HEAD.unpack_from(data)
    end = HEAD.size + size
    front = HEAD.pack(magic, FORMAT + 1, reserved, size) + data[HEAD.size : end]
    return front + check_of(front).to_bytes(8, "little") + data[end + 8 :]


FIRST = "0000000000000001"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "change", "offset", "fact"),
    [
        ("identity", lambda data: b"", 0, "the file is damaged: 0 bytes"),
        ("identity", lambda data: data[:40], 0, "the file is damaged: 40 bytes"),
        (
            "identity",
            lambda data: data[:30] + b"?" + data[31:],
            0,
            "the file is damaged: the checksum",
        ),
        ("identity", lambda data: os.urandom(200), 0, "the file is damaged: the first bytes"),
        ("identity", newer, 0, "the file has format 2; this version reads formats up to 1"),
        (f"{FIRST}.seg", newer, 0, "the file has format 2; this version reads formats up to 1"),
        (f"{FIRST}.idx", newer, 0, "the file has format 2; this version reads formats up to 1"),
        (f"{FIRST}.seg", lambda data: b"", 0, "the file ends here, but had "),
        (f"{FIRST}.seg", lambda data: data[:700], 700, "the file ends here, but had "),
    ],
)
async def test_a_file_that_is_emptied_damaged_or_newer_is_refused(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], offset: int, fact: str
) -> None:
    await made(tmp_path)
    file = tmp_path / "bookie" / name
    whole = file.read_bytes()
    file.write_bytes(change(whole))
    found = await refused(tmp_path)
    assert found[:2] == (name, offset) and found[2].startswith(fact), found
    file.write_bytes(whole)
    assert await opens(tmp_path) == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["identity", f"{FIRST}.seg"])
async def test_a_file_that_was_deleted_is_missed(tmp_path: Path, name: str) -> None:
    await made(tmp_path)
    file = tmp_path / "bookie" / name
    whole = file.read_bytes()
    file.unlink()
    found = await refused(tmp_path)
    if name == "identity":
        assert found[2].startswith("the directory has no file 'identity', but other files")
    else:
        assert found == (name, 0, "the file is missing; missing files in total: 1")
    file.write_bytes(whole)
    assert await opens(tmp_path) == ["0", "1", "2"]


async def test_an_index_that_is_emptied_is_made_anew(tmp_path: Path) -> None:
    await made(tmp_path)
    (tmp_path / "bookie" / f"{FIRST}.idx").write_bytes(b"")
    assert await opens(tmp_path) == ["0", "1", "2"]
    assert (tmp_path / "bookie" / f"{FIRST}.idx").stat().st_size > 0


async def test_a_segment_whose_last_frames_are_gone_is_not_taken_for_torn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await made(tmp_path)
    file = tmp_path / "bookie" / f"{FIRST}.seg"
    data = file.read_bytes()
    end = len(data.rstrip(b"\0"))
    file.write_bytes(data[:1024].ljust(len(data), b"\0"))
    (tmp_path / "bookie" / f"{FIRST}.idx").unlink()
    assert end > 1024
    with pytest.raises(QueueUnavailable, match="ledger .*entry"):
        await opens(tmp_path)
    assert "is denied: the journal ends at" in caplog.text


@pytest.mark.spare
async def test_the_directory_of_others_is_refused(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    await made(mine)
    await made(other)
    shutil.copy(other / "bookie" / "identity", mine / "bookie" / "identity")
    found = await refused(mine)
    assert found[0] == "identity" and "the directory belongs to cluster 'topics (rows " in found[2]
    shutil.rmtree(mine)
    await made(mine)
    shutil.copy(other / "bookie" / f"{FIRST}.seg", mine / "bookie" / f"{FIRST}.seg")
    found = await refused(mine)
    assert found[:2] == (f"{FIRST}.seg", 0)
    assert re.match("the file is segment 1 of directory [0-9a-f]{32}", found[2])
    (tmp_path / "third" / "bookie").mkdir(parents=True)
    (tmp_path / "third" / "bookie" / "holiday.jpg").write_bytes(b"jpg")
    found = await refused(tmp_path / "third")
    assert found == ("holiday.jpg", 0, "the directory has no file 'identity', but other files")


async def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises((ConfigError, OSError), match="file"):
        await opens(tmp_path / "file")


@pytest.mark.spare
@pytest.mark.parametrize("name", ["identity", f"{FIRST}.seg", "the directory"])
async def test_files_that_are_deleted_while_it_runs_stop_it_and_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.ERROR)
    bookie, kept = tmp_path / "bookie", tmp_path / "kept"
    options = LedgerTopicOptions(enqueue_wait_s=0.3)
    async with open_topics(tmp_path, bookie=BookieOptions(watch_s=0.05)) as topics:
        orders = await topics.topic("orders", options=options)
        await orders.produce(None, b"0")
        if name == "the directory":
            bookie.rename(kept)
        else:
            (bookie / name).rename(kept)
        await until(lambda: "has stopped: " in caplog.text)
        missing = "identity" if name == "the directory" else name
        assert re.search(
            f"{bookie}/{missing}: offset 0: the file was removed while it was in use. What can",
            caplog.text,
        )
        if name != "the directory":  # a removed directory is created again, empty
            with pytest.raises((QueueUnavailable, PublishUnknown)):
                await orders.produce(None, b"1")
            kept.rename(bookie / name)
    if name != "the directory":
        assert (await opens(tmp_path))[0] == "0"


async def test_directories_and_files_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await made(tmp_path / "above" / "shop")
    finally:
        os.umask(before)
    above = tmp_path / "above"
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in [above, *above.rglob("*")]}
    wanted = {path: 0o700 if path.is_dir() else 0o600 for path in found}
    assert found == wanted


async def test_an_entry_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with open_topics(tmp_path) as topics:
        orders = await topics.topic("orders")
        limit = LedgerTopicOptions().entry_bytes_max
        with pytest.raises(ValueError, match=r"takes \d+ in an entry; entry_bytes_max leaves \d+"):
            await orders.produce(None, bytes(limit))
        first, end = await orders.bounds()
        assert first == end
        await orders.produce(None, bytes(limit - 1_000))
    with pytest.raises(ConfigError, match="entry_bytes_max is 9000000, bookie.entry_bytes_max is"):
        LedgerOptions(topic=LedgerTopicOptions(entry_bytes_max=9_000_000))


@pytest.mark.parametrize("quorum", [(2, 3, 2), (3, 2, 3), (1, 1, 0), (3, 3, 1)])
def test_quorums_that_cannot_be_name_the_three_values(quorum: tuple[int, int, int]) -> None:
    text = "ensemble={}, write_quorum={}, ack_quorum={}".format(*quorum)
    with pytest.raises(ConfigError, match=text):
        LedgerTopicSettings(quorum=Quorum(*quorum))


async def test_two_programs_do_not_harm_each_other(tmp_path: Path) -> None:
    await made(tmp_path)
    async with open_topics(tmp_path) as topics:
        refusals = await asyncio.gather(
            *(opens(tmp_path) for _ in range(3)), return_exceptions=True
        )
        assert {type(one) for one in refusals} == {QueueUnavailable}
        assert await (await topics.topic("orders")).produce(None, b"3") == Position(0, 4)
