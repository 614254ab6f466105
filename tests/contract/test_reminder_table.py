"""The contract of `ReminderTable`, for each table that runs without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.providers.sqlite import SqliteReminderTable
from millstream.runtime import MemoryReminderTable, ReminderTable
from millstream.runtime.testing import REMINDER_TABLE_CHECKS, FailingReminderTable

TABLES: dict[str, Callable[[Path], ReminderTable]] = {
    "memory": lambda directory: MemoryReminderTable(),
    "failing": lambda directory: FailingReminderTable(),
    "sqlite": lambda directory: SqliteReminderTable(directory),
}


@pytest.fixture(params=TABLES)
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ReminderTable]:
    opened = TABLES[request.param](tmp_path)
    yield opened
    await opened.aclose()


@pytest.mark.parametrize("check", REMINDER_TABLE_CHECKS, ids=lambda check: check.__name__)
async def test_the_table_keeps_the_contract(check: Any, table: ReminderTable) -> None:
    await check(table)
