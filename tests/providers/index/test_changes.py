"""Changes of messages as rows: reading them from an Arrow table, and the latest of each message."""

from __future__ import annotations

from typing import Any

import pytest
from tests.providers.index.kit import START_MS, change

from millstream.providers.spark.index import ChangeRow
from millstream.providers.spark.index.changes import COLUMNS, latest, rows_of

arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")


def table_of(rows: list[ChangeRow], metadata: list[Any]) -> Any:
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    text = arrow.map_(arrow.string(), arrow.string())
    columns["metadata"] = arrow.array(metadata, text)
    return arrow.table(columns)


def test_a_table_is_read_as_rows_with_metadata_as_sorted_text() -> None:
    rows = [change(id="a", metadata={"a": "1", "b": "2"}), change(id="b"), change(id="c")]
    table = table_of(rows, [[("b", "2"), ("a", "1")], [], None])
    assert rows_of(table) == rows
    assert [row.metadata for row in rows_of(table)] == ['{"a":"1","b":"2"}', "{}", "{}"]
    assert rows_of(table.slice(3)) == []


def test_the_latest_change_of_a_message_is_of_its_last_life_whatever_came_first() -> None:
    old, later = change(version=9), change(version=1, created_ms=START_MS + 1)
    later_still = change(version=2, created_ms=START_MS + 1)
    renewed = change(version=1, created_ms=START_MS + 1, sequence=2)
    others = [change(id="other"), change(shard=1), change(queue="r")]
    for rows in ([old, later, later_still], [later_still, later, old]):
        assert latest([*rows, *others]) == {later_still, *others}
        assert latest([renewed, *rows]) == {renewed}


def test_messages_are_compared_with_themselves_only() -> None:
    """The database refuses a bad change. The search for the latest change must not fail on it."""
    good, bad = change(id="b"), change(id="bad")._replace(version="x")  # type: ignore[arg-type]
    assert latest([good, bad]) == {good, bad}
