"""Is an index whole: are versions missing, and is it as the queues are? Pure, but for the SQL.

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
LIFE_FACTS = (
    "SELECT lives.*, begins.time_ms, "
    f"{_TRIMMED}, current.version, current.created_ms, current.sequence, ended.version"
    " FROM (SELECT queue, id, created_ms, sequence, min(version) AS first, max(version) AS last,"
    " count(*) AS changes FROM historic GROUP BY queue, id, created_ms, sequence) AS lives"
    " JOIN begins ON begins.queue = lives.queue"
    " LEFT JOIN current ON current.queue = lives.queue AND current.id = lives.id"
    " LEFT JOIN historic ended ON ended.queue = lives.queue AND ended.id = lives.id"
    " AND ended.created_ms = lives.created_ms AND ended.sequence = lives.sequence"
    " AND ended.version = lives.last AND ended.to_state IS NULL"
)
"""A row for each life of a message in the history."""


class LifeFacts(NamedTuple):
    """A life of a message, as the tables have it; `ended`: the version of its collection."""

    queue: str
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


class Finding(NamedTuple):
    """What is wrong with a message: `missing` versions, or what `current` has instead."""

    queue: str
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
    """What is missing, or not as it should be."""
    found: list[Finding] = []
    for life in lives:
        missing = life.last - life.first + 1 - life.changes
        if life.created_ms > life.begins_ms and life.created_ms >= life.trimmed_before_ms:
            missing += life.first - 1  # nothing of it can have been before, or be gone
        if missing:
            known = f"{life.changes} of the versions up to {life.last} are there"
            found.append(Finding(life.queue, life.id, missing, known))
        elif wrong := _wrong_now(life):
            found.append(Finding(life.queue, life.id, 0, wrong))
    return found


def _wrong_now(life: LifeFacts) -> str:
    own = life.created_ms, life.sequence, life.last
    if life.current is None:
        return "" if life.ended is not None else f"version {life.last} is not in current"
    now = life.current_created_ms, life.current_sequence, life.current
    if now[:2] == own[:2] and (life.ended is not None or life.current != life.last):
        what = "its collection" if life.ended is not None else f"version {life.last}"
        return f"current has version {life.current}, and history {what}"
    return ""


def differences(
    index: Mapping[str, Mapping[str, int]], queues: Mapping[str, Mapping[str, int]]
) -> list[Difference]:
    """Where the depths of the index are not those of the queues."""
    found: list[Difference] = []
    for queue in sorted({*index, *queues}):
        here, there = index.get(queue, {}), queues.get(queue, {})
        for state in sorted({*here, *there}):
            if here.get(state, 0) != there.get(state, 0):
                found.append(Difference(queue, state, here.get(state, 0), there.get(state, 0)))
    return found
