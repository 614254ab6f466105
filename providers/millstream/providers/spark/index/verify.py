"""Is an index whole: are changes missing, and is it as the queues are? Pure, but for the SQL.

A queue numbers twice without a hole: the messages of a shard by `sequence`, and the changes of a
message by `version`. Both are checked, so the check does not trust the keys of the tables: what a
wrong key would overwrite or merge is a hole in one of the two.
Invariants: a change that history's age has deleted, or that was before the index began, is not
missing; what is compared with queues that go on meanwhile may differ, and say so again later.
Source: `spec/queues.md` C13.5 and C13.7.
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
"""A row for each life of a message in the history; those of a shard in the order of `sequence`."""


class LifeFacts(NamedTuple):
    """A life of a message, as the tables have it; `ended`: the version of its collection.

    `current`, `current_created_ms` and `current_sequence` are of one row, and None without it.
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
        """Must every change of this life be in the history?"""
        return self.created_ms > self.begins_ms and self.created_ms >= self.trimmed_before_ms


class Finding(NamedTuple):
    """What is wrong with a message, or with a shard (`id` is empty).

    `missing`: how many changes of the message, or messages of the shard, are not in the history;
    0: `what` says how `current` differs from the history.
    """

    queue: str
    shard: int
    id: str
    missing: int
    what: str


class Difference(NamedTuple):
    """A state of a queue of which the index has another number of messages."""

    queue: str
    state: str
    in_index: int
    in_queue: int


def found_wrong(lives: Iterable[LifeFacts]) -> list[Finding]:
    """What is missing, or not as it should be. `lives` come in the order of `LIFE_FACTS`."""
    found: list[Finding] = []
    before: LifeFacts | None = None
    for life in lives:
        found += _missing_before(before, life)
        found += _wrong_in(life)
        before = life
    return found


def _missing_before(before: LifeFacts | None, life: LifeFacts) -> list[Finding]:
    """Messages of a shard between two whose every change must be there."""
    if before is None or (before.queue, before.shard) != (life.queue, life.shard):
        return []
    missing = life.sequence - before.sequence - 1
    if missing <= 0 or not before.is_whole:
        return []
    what = f"no change of the messages with sequences {before.sequence + 1} to {life.sequence - 1}"
    return [Finding(life.queue, life.shard, "", missing, f"{what} is there")]


def _wrong_in(life: LifeFacts) -> list[Finding]:
    """Versions of a message that are missing; else how `current` differs."""
    name = life.queue, life.shard, life.id
    missing = life.last - life.first + 1 - life.changes
    if life.is_whole:
        missing += life.first - 1  # the index began before this life, and nothing was deleted
    if missing:
        known = f"{life.changes} of the versions up to {life.last} are there"
        return [Finding(*name, missing, known)]
    wrong = _wrong_now(life)
    return [Finding(*name, 0, wrong)] if wrong else []


def _wrong_now(life: LifeFacts) -> str:
    """How `current` differs from the latest change of a life; empty: it does not."""
    if life.current is None:
        return "" if life.ended is not None else f"version {life.last} is not in current"
    assert life.current_created_ms is not None and life.current_sequence is not None
    own, now = (life.created_ms, life.sequence), (life.current_created_ms, life.current_sequence)
    if now == own:
        if life.ended is None and life.current == life.last:
            return ""
        what = "its collection" if life.ended is not None else f"version {life.last}"
        return f"current has version {life.current}, and history {what}"
    if life.ended is not None:
        return ""
    other = f"current has the message of this id with sequence {now[1]}"
    if now > own:
        return f"{other}, and this one was not collected (was the queue deleted?)"
    return f"{other}, which is older"


def differences(
    index: Mapping[str, Mapping[str, int]], queues: Mapping[str, Mapping[str, int]]
) -> list[Difference]:
    """Where the depths of the index are not those of the queues."""
    found: list[Difference] = []
    for queue in sorted({*index, *queues}):
        here, there = index.get(queue, {}), queues.get(queue, {})
        for state in sorted({*here, *there}):
            in_index, in_queue = here.get(state, 0), there.get(state, 0)
            if in_index != in_queue:
                found.append(Difference(queue, state, in_index, in_queue))
    return found
