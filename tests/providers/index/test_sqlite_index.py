"""The index in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.providers.index.suite import IndexSuite

from millstream.providers.spark.index import IndexWriter, PriorityIndex
from millstream.runtime import ConfigError


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/index/changes.db"


class TestSqlite(IndexSuite):
    """Runs the whole suite."""


def test_a_file_that_is_none_of_sqlite_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("these are my notes, and they are long enough to be read as a header" * 20)
    before = path.read_bytes()
    for use in (PriorityIndex, lambda place: IndexWriter(place).apply("q", 0, [], 1)):
        with pytest.raises(ConfigError, match="not a SQLite file"):
            use(f"sqlite:{path}")
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["", "index.db", "sqlite:", "mysql://x", "postgresql:x"])
def test_another_place_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="the place of an index is sqlite:path or postgresql://"):
        PriorityIndex(place)
