"""Changes of messages as rows of the index, and what of a batch of them is new. Pure.

Owns: `ChangeRow`, what is `fresh`, what is `latest`, days. Not: where rows are kept (`tables`).
Invariants: (queue, shard, id, created_ms, sequence, version) names a change, so that a change that
comes twice is one row; `place` orders the changes of an id in its shard, those of an earlier life
first. A queue makes an id unique within a shard only: two messages of an exclusive queue that have
one id and different exclusivity values may be in different shards at the same time.
Source: `spec/queues.md` C13, `spec/spark.md` 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

__all__ = [
    "COLUMNS",
    "DAY_MS",
    "ChangeRow",
    "day_of",
    "day_start_ms",
    "era_of",
    "fresh",
    "latest",
    "metadata_text",
    "rows_of",
]

DAY_MS = 86_400_000
ERA_LETTERS = 8  # of a token as text


MessageName = tuple[str, int, str]
"""Queue, shard, id."""


class ChangeRow(NamedTuple):
    """A change, as `PriorityChange` has it; `metadata` as JSON with sorted names, `token` its place
    in the stream."""

    queue: str
    shard: int
    id: str
    created_ms: int
    sequence: int
    version: int
    from_state: str | None
    to_state: str | None
    time_ms: int
    step: str
    attempt: int
    priority: int
    metadata: str
    worker: str
    reason: str
    due_ms: int
    payload_bytes: int
    token: str

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands among the changes of its message."""
        return self.created_ms, self.sequence, self.version

    @property
    def message(self) -> MessageName:
        """Which message it is a change of, among those that are not collected."""
        return self.queue, self.shard, self.id


COLUMNS = ChangeRow._fields
_json = msgspec.json.Encoder(order="deterministic").encode


def metadata_text(pairs: Mapping[str, str]) -> str:
    """Metadata as they are stored: equal ones are equal texts."""
    return _json(dict(pairs)).decode()


def rows_of(table: Any) -> list[ChangeRow]:
    """The rows of an Arrow table with a column for each field; `metadata` is a map in it."""
    columns = [
        [metadata_text(dict(pairs or ())) for pairs in table.column(name).to_pylist()]
        if name == "metadata"
        else table.column(name).to_pylist()
        for name in COLUMNS
    ]
    return [ChangeRow(*values) for values in zip(*columns, strict=True)]


def era_of(token: str) -> str:
    """The era of a token, as text: within one, the tokens of a queue's changes only rise."""
    return token[:ERA_LETTERS]


def fresh(
    rows: Iterable[ChangeRow], low_water: Mapping[tuple[str, str], str]
) -> Sequence[ChangeRow]:
    """Changes that may be put in, each once: above the token up to which history was deleted.

    Args:
        low_water: of (queue, era), the highest token of a change that was deleted for its age. What
            is not above it was put in before.
    """
    found: dict[tuple[MessageName, tuple[int, int, int]], ChangeRow] = {}
    for row in rows:
        if row.token > low_water.get((row.queue, era_of(row.token)), ""):
            found.setdefault((row.message, row.place), row)
    return list(found.values())


def latest(rows: Iterable[ChangeRow]) -> set[ChangeRow]:
    """Of each message its latest change, among changes of which none comes twice."""
    newest: dict[MessageName, ChangeRow] = {}
    for row in rows:
        known = newest.get(row.message, row)
        newest[row.message] = max(known, row, key=lambda one: one.place)
    return set(newest.values())


def day_of(time_ms: int) -> str:
    """The day (UTC) of a time, such as `2026-01-31`."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")


def day_start_ms(time_ms: int) -> int:
    """When the day of a time began."""
    return time_ms - time_ms % DAY_MS
