"""Checks whether an index is complete and agrees with the queues. Pure, except for the SQL.

A queue numbers twice without gaps: the messages of a shard by `sequence`, and the changes of a
message by `version`. The check looks at both numbers, so it does not trust the keys of the tables:
if a wrong key overwrites or merges rows, one of the numbers has a gap. Changes that were deleted
for their age, or that are older than the index, are not missing. A comparison with queues in use
may show differences, which a later comparison must confirm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["LIFE_FACTS", "Difference", "Finding", "LifeFacts", "differences", "found_wrong"]

_TRIMMED = (
    "coalesce((SELECT max(CAST(value AS BIGINT)) FROM marks WHERE name = 'trimmed_before_ms'), 0)"
)
_LIFE = "queue, shard, id, created_ms, sequence"
_SAME = "{0}.queue = lives.queue AND {0}.shard = lives.shard AND {0}.id = lives.id"
LIFE_FACTS = (
    "SELECT lives.*, begins.time_ms, "
    f"{_TRIMMED}, current.version, current.created_ms, current.sequence, ended.version"
    f" FROM (SELECT {_LIFE}, min(version) AS first, max(version) AS last,"
    f" count(*) AS changes FROM historic GROUP BY {_LIFE}) AS lives"
    " JOIN begins ON begins.queue = lives.queue AND begins.shard = lives.shard"
    f" LEFT JOIN current ON {_SAME.format('current')}"
    f" LEFT JOIN historic ended ON {_SAME.format('ended')}"
    " AND ended.created_ms = lives.created_ms AND ended.sequence = lives.sequence"
    " AND ended.version = lives.last AND ended.to_state IS NULL"
    " ORDER BY lives.queue, lives.shard, lives.sequence"
)
"""A row for each message life in the history; those of a shard in the order of `sequence`."""


class LifeFacts(NamedTuple):
    """The life of a message, as the tables have it; `ended`: the version of its collection.

    `current`, `current_created_ms` and `current_sequence` belong to one row, and are None without
    it.
    """

    queue: str
    shard: int
    id: str
    created_ms: int
    sequence: int
    first: int
    last: int
    changes: int
    begins_ms: int
    trimmed_before_ms: int
    current: int | None
    current_created_ms: int | None
    current_sequence: int | None
    ended: int | None

    @property
    def is_whole(self) -> bool:
        """Whether every change of this life must be in the history."""
        return self.created_ms > self.begins_ms and self.created_ms >= self.trimmed_before_ms


class Finding(NamedTuple):
    """A fault in the index, of a message or of a shard.

    Attributes:
        queue: The queue.
        shard: The number of the shard.
        id: The id of the message; empty for a shard.
        missing: How many changes of the message, or messages of the shard, are not in the history.
            0: the table `current` differs from the history.
        what: A description of the fault.
    """

    queue: str
    shard: int
    id: str
    missing: int
    what: str


class Difference(NamedTuple):
    """A state of a queue for which the index has another number of messages than the queue.

    Attributes:
        queue: The queue.
        state: The state.
        in_index: The number of messages in the index.
        in_queue: The number of messages in the queue.
    """

    queue: str
    state: str
    in_index: int
    in_queue: int


def found_wrong(lives: Iterable[LifeFacts]) -> list[Finding]:
    """Return missing and differing changes. `lives` are in the order of `LIFE_FACTS`."""
    found: list[Finding] = []
    before: LifeFacts | None = None
    for life in lives:
        found += _missing_before(before, life)
        found += _wrong_in(life)
        before = life
    return found


def _missing_before(before: LifeFacts | None, life: LifeFacts) -> list[Finding]:
    """Return missing messages of a shard between two lives whose changes must all exist."""
    if before is None or (before.queue, before.shard) != (life.queue, life.shard):
        return []
    missing = life.sequence - before.sequence - 1
    if missing <= 0 or not before.is_whole:
        return []
    what = f"messages with sequences {before.sequence + 1} to {life.sequence - 1}"
    return [
        Finding(life.queue, life.shard, "", missing, f"the history has no change of the {what}")
    ]


def _wrong_in(life: LifeFacts) -> list[Finding]:
    """Return missing versions of a message; else how `current` differs."""
    name = life.queue, life.shard, life.id
    missing = life.last - life.first + 1 - life.changes
    if life.is_whole:
        missing += life.first - 1  # the index began before this life, and no change was deleted
    if missing:
        known = f"the history has {life.changes} of the versions up to {life.last}"
        return [Finding(*name, missing, known)]
    wrong = _wrong_now(life)
    return [Finding(*name, 0, wrong)] if wrong else []


def _wrong_now(life: LifeFacts) -> str:
    """Return how `current` differs from the latest change of a life; empty if it does not."""
    if life.current is None:
        return "" if life.ended is not None else f"version {life.last} is not in current"
    assert life.current_created_ms is not None and life.current_sequence is not None
    own, now = (life.created_ms, life.sequence), (life.current_created_ms, life.current_sequence)
    if now == own:
        if life.ended is None and life.current == life.last:
            return ""
        what = "its collection" if life.ended is not None else f"version {life.last}"
        return f"current has version {life.current}, but the history has {what}"
    if life.ended is not None:
        return ""
    other = f"current has the message of this id with sequence {now[1]}"
    if now > own:
        return (
            f"{other}, but no change says that this message was collected (was the queue deleted?)"
        )
    return f"{other}, which is older"


def differences(
    index: Mapping[str, Mapping[str, int]], queues: Mapping[str, Mapping[str, int]]
) -> list[Difference]:
    """Compare the depths of the index with those of the queues.

    A change needs a moment to reach the index. Compare again if the queues are in use.

    Args:
        index: The result of `PriorityIndex.depth()`.
        queues: The depths of the queues: for each queue, the number of messages by state.

    Returns:
        The states with different numbers, ordered by queue and state.
    """
    found: list[Difference] = []
    for queue in sorted({*index, *queues}):
        here, there = index.get(queue, {}), queues.get(queue, {})
        for state in sorted({*here, *there}):
            in_index, in_queue = here.get(state, 0), there.get(state, 0)
            if in_index != in_queue:
                found.append(Difference(queue, state, in_index, in_queue))
    return found
