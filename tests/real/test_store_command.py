"""`millstream store show` and `migrate` over a PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.real.postgres_server import PostgresServer, require_postgres

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.console.main import main
from millstream.providers.postgres import PostgresMembershipTable, PostgresOptions

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require_postgres()
    started = PostgresServer()
    yield started
    started.close()


def said_by(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(["store", *arguments]) == code
    found = capsys.readouterr()
    return (found.err if found.err else found.out).strip()


async def claim(url: str) -> None:
    table = PostgresMembershipTable(url, PostgresOptions(creates_schema=False))
    assert await table.claim("shop") == "shop"
    await table.aclose()


def test_a_schema_is_shown_created_and_left_alone(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{server.url}/postgres?schema=shop"
    assert "there is no schema of Millstream" in said_by(capsys, 1, "show", url)
    state = "version 2, for programs of version 1 or later"
    assert said_by(capsys, 0, "migrate", url) == f"migrated from version 0: {state}, no cluster yet"
    assert said_by(capsys, 0, "migrate", url) == f"nothing to do: {state}, no cluster yet"
    asyncio.run(claim(url))
    assert said_by(capsys, 0, "show", url) == f"{state}, cluster 'shop'"


@pytest.mark.parametrize("action", ["show", "migrate"])
def test_a_database_that_cannot_be_used_is_one_line(
    server: PostgresServer, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    for url, said in (
        ("mysql://u:hidden@h/db", "ConfigError: the URL of the database must have the form"),
        (f"postgresql://u:hidden@127.0.0.1:{server.port}/postgres", "ConfigError"),
        ("postgresql://u:hidden@127.0.0.1:1/postgres", "StorageUnavailable"),
    ):
        text = said_by(capsys, 1, action, url)
        assert said in text and text.startswith(f"millstream store {action}: ")
        assert "\n" not in text and "hidden" not in text
