"""The index in PostgreSQL, with Debian's server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.providers.index.kit import START_MS, change
from tests.providers.index.suite import FOR_EVER, IndexSuite, content, put
from tests.real.postgres_server import PostgresServer, require_postgres

from millstream.providers.spark.index import IndexWriter, PriorityIndex, postgres
from millstream.providers.spark.index.place import open_database
from millstream.runtime import ConfigError, StorageUnavailable

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require_postgres()
    started = PostgresServer()
    yield started
    started.close()


@pytest.fixture
def place(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(postgres, "LOCK_MS", 200)
    return server.without(postgres.SCHEMA)


class TestPostgres(IndexSuite):
    """Runs the whole suite."""


def test_a_server_that_dies_in_a_transaction_has_nothing_of_it(
    server: PostgresServer, place: str
) -> None:
    writer = put(place, [[change()]])
    before = content(place)
    with closing(open_database(place, writes=True)) as database:
        with pytest.raises(StorageUnavailable), database.transaction():
            database.run("DELETE FROM historic")
            server.kill()
            database.run("DELETE FROM current")
    with pytest.raises(StorageUnavailable):
        writer.apply("query", 1, [change(id="b")], START_MS)
    server.start()
    assert content(place) == before
    assert not writer.apply("query", 1, [change(id="b")], START_MS).is_repeat


def test_no_error_tells_a_password(place: str) -> None:
    url = place.replace("postgres@", "postgres:secret@")
    IndexWriter(url, FOR_EVER).prepare("here")
    with closing(open_database(url, writes=True)) as database:
        assert "secret" not in database.name
        with pytest.raises(ConfigError) as refused:
            open_database(url, writes=True)
        assert "secret" not in str(refused.value)
    with pytest.raises(StorageUnavailable) as failed:
        PriorityIndex(url.replace("127.0.0.1:", "127.0.0.1:1"))
    assert "secret" not in str(failed.value)
