"""One SQLite file of rows is restored from an older backup. The guide's repair brings all rows
back."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from millstream.providers.ledger import LedgerTopicOptions, Position, open_topics
from millstream.providers.sqlite.storage import FILES
from millstream.runtime import MillstreamError

QUICK = LedgerTopicOptions(enqueue_wait_s=1.0)
ROUNDS_MAX = 12


async def produce(place: Path, values: list[str]) -> None:
    async with open_topics(place) as topics:
        orders = await topics.topic("orders", ledger_entries_max=2, options=QUICK)
        for value in values:
            await orders.produce(None, value.encode())


async def all_of(place: Path) -> list[str]:
    found: list[str] = []
    async with open_topics(place) as topics:
        orders = await topics.topic("orders", options=QUICK)
        while page := await orders.read(Position(0, len(found) + 1)):
            found += [message.value.decode() for message in page]
    return found


def take_back(older: Path, newer: Path, key: str) -> bool:
    """Copy a row from the newer file, or delete it if that file lacks it. Return whether it
    changed.
    """
    connection = sqlite3.connect(older)
    connection.execute("ATTACH ? AS newer", (f"{newer}",))
    find = "SELECT data FROM {}rows WHERE key = ?"
    before = connection.execute(find.format("main."), (key,)).fetchone()
    after = connection.execute(find.format("newer."), (key,)).fetchone()
    connection.execute("DELETE FROM rows WHERE key = ?", (key,))
    connection.execute("INSERT INTO rows SELECT * FROM newer.rows WHERE key = ?", (key,))
    connection.commit()
    connection.close()
    return bool(before != after)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("file", range(FILES))
async def test_the_rows_that_are_named_are_taken_back_from_the_newer_file(
    file: int, tmp_path: Path
) -> None:
    place, name = tmp_path / "topics", f"state-{file}.db"
    rows, values = place / "rows", [f"m{number}" for number in range(14)]
    await produce(place, values[:6])
    shutil.copytree(rows, tmp_path / "older")
    await produce(place, values[6:12])
    shutil.copytree(rows, tmp_path / "newer")
    shutil.copyfile(tmp_path / "older" / name, rows / name)
    for _ in range(ROUNDS_MAX):
        try:
            assert await all_of(place) == values[:12]
            await produce(place, values[12:])
            break
        except MillstreamError as error:
            named = re.findall(r"row (ledger/[^\s:,;]+)", str(error))
            assert named, error
            newer = tmp_path / "newer" / name
            assert sum([take_back(rows / name, newer, key) for key in named]), error
    assert await all_of(place) == values
