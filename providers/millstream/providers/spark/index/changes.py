"""Changes of messages as rows of the index, and the new ones of a batch, as pure functions.

This module owns `ChangeRow`, the selection of `fresh` and `latest` rows, and days. `tables` stores
the rows. Invariants:

- (queue, shard, id, created_ms, sequence, version) identifies a change, so a repeated change is one
  row.
- `place` orders the changes of an id in its shard, beginning with those of an earlier message.
- A queue makes an id unique only within a shard. In an exclusive queue, messages with one id and
  different exclusivity values may be in different shards at the same time.
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
    """A change of a message, as the tables of the index have it.

    Attributes:
        queue: The name of the queue.
        shard: The number of the shard.
        id: The id of the message.
        created_ms: The time when the message was created, in ms. With `sequence` it identifies the
            message among those of the same id.
        sequence: The number of the message in its shard.
        version: The number of the change among those of its message: 1, 2, 3, without gaps.
        from_state: The state before; None if the message was created.
        to_state: The state after; None if the message was collected.
        time_ms: The time of the change by the queue's clock, in Unix ms; it never goes back.
        step: The cause of the change, such as `dequeued` or `expired`.
        attempt: The number of leases so far, with the present one.
        priority: The priority of the message.
        metadata: The metadata as JSON, with sorted names.
        worker: The worker that has or had the lease.
        reason: The reason of the change.
        due_ms: The time when the message leaves its new state by itself, in ms.
        payload_bytes: The size of the payload.
        token: The position of the change in the stream of changes.
    """

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
        """The position of this change among the changes of the messages with its id."""
        return self.created_ms, self.sequence, self.version

    @property
    def message(self) -> MessageName:
        """Queue, shard and id, which identify the message among those that are not collected."""
        return self.queue, self.shard, self.id


COLUMNS = ChangeRow._fields
_json = msgspec.json.Encoder(order="deterministic").encode


def metadata_text(pairs: Mapping[str, str]) -> str:
    """Return metadata in the stored form; equal metadata give equal texts."""
    return _json(dict(pairs)).decode()


def rows_of(table: Any) -> list[ChangeRow]:
    """Return the rows of an Arrow table with a column for each field; `metadata` is a map in it."""
    columns = [
        [metadata_text(dict(pairs or ())) for pairs in table.column(name).to_pylist()]
        if name == "metadata"
        else table.column(name).to_pylist()
        for name in COLUMNS
    ]
    return [ChangeRow(*values) for values in zip(*columns, strict=True)]


def era_of(token: str) -> str:
    """Return the era of a token as text. In one era, the tokens of a queue's changes only rise."""
    return token[:ERA_LETTERS]


def fresh(
    rows: Iterable[ChangeRow], low_water: Mapping[tuple[str, str], str]
) -> Sequence[ChangeRow]:
    """Return the changes that may be stored, each once: those above the token of deleted history.

    `low_water` has, for each (queue, era), the highest token of a change that was deleted for its
    age. Changes up to that token were stored before.
    """
    found: dict[tuple[MessageName, tuple[int, int, int]], ChangeRow] = {}
    for row in rows:
        if row.token > low_water.get((row.queue, era_of(row.token)), ""):
            found.setdefault((row.message, row.place), row)
    return list(found.values())


def latest(rows: Iterable[ChangeRow]) -> set[ChangeRow]:
    """Return the latest change of each message, among changes without repeats."""
    newest: dict[MessageName, ChangeRow] = {}
    for row in rows:
        known = newest.get(row.message, row)
        newest[row.message] = max(known, row, key=lambda one: one.place)
    return set(newest.values())


def day_of(time_ms: int) -> str:
    """Return the day (UTC) of a time, such as `2026-01-31`."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")


def day_start_ms(time_ms: int) -> int:
    """Return the time when the day of a time began."""
    return time_ms - time_ms % DAY_MS
