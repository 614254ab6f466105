"""The contracts of tables and stores over PostgreSQL: the same tests as for memory and SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from inspect import signature
from itertools import count
from types import ModuleType
from typing import Any

import pytest
from tests.contract import test_membership_table, test_reminder_table, test_state_store
from tests.real.postgres_server import PostgresServer, require_postgres

from millstream.runtime import MembershipTable, ReminderTable, StateStore

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.providers.postgres import (
    PostgresMembershipTable,
    PostgresReminderTable,
    PostgresStateStore,
)

pytestmark = pytest.mark.real

numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require_postgres()
    started = PostgresServer()
    yield started
    started.close()


@pytest.fixture
def place(server: PostgresServer) -> str:
    return f"{server.url}/postgres?schema=contract_{next(numbers)}"


def contract_of(fixture: str, module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the tests of a module that take a fixture."""
    return {
        name: found
        for name, found in vars(module).items()
        if name.startswith("test_") and fixture in signature(found).parameters
    }


class TestStateStore:
    """The contract of `StateStore`."""

    @pytest.fixture
    async def store(self, place: str) -> AsyncIterator[StateStore]:
        opened = PostgresStateStore(place)
        yield opened
        await opened.aclose()

    locals().update(
        {name: staticmethod(test) for name, test in contract_of("store", test_state_store).items()}
    )


class TestMembershipTable:
    """The contract of `MembershipTable`."""

    @pytest.fixture
    async def table(self, place: str) -> AsyncIterator[MembershipTable]:
        opened = PostgresMembershipTable(place)
        yield opened
        await opened.aclose()

    locals().update(
        {
            name: staticmethod(test)
            for name, test in contract_of("table", test_membership_table).items()
        }
    )


class TestReminderTable:
    """The contract of `ReminderTable`."""

    @pytest.fixture
    async def table(self, place: str) -> AsyncIterator[ReminderTable]:
        opened = PostgresReminderTable(place)
        yield opened
        await opened.aclose()

    locals().update(
        {
            name: staticmethod(test)
            for name, test in contract_of("table", test_reminder_table).items()
        }
    )
