"""Changes as queues publish them, the expected contents of an index, and a process that dies.

The reference computes the contents from the list of changes alone, without tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

from millstream.providers.spark.index import ChangeRow
from millstream.providers.spark.index.changes import DAY_MS, metadata_text
from millstream.providers.spark.index.database import Database

START_MS = 20_000 * DAY_MS
STEPS: dict[str | None, list[tuple[str, str | None]]] = {
    None: [("enqueued", "pending"), ("enqueued", "invisible")],
    "invisible": [("visible", "pending"), ("canceled", "canceled")],
    "pending": [("dequeued", "running"), ("priority", "pending"), ("canceled", "canceled")],
    "running": [
        ("completed", "completed"),
        ("failed", "errored"),
        ("expired", "pending"),
        ("released", "pending"),
        ("extended", "running"),
    ],
    **{ended: [("collected", None)] for ended in ("completed", "canceled", "errored")},
}


NAMES_CHANGE = ("queue", "shard", "id", "created_ms", "sequence", "version")
assert ChangeRow._fields[: len(NAMES_CHANGE)] == NAMES_CHANGE
MessageName = tuple[str, int, str]


def change(
    queue: str = "q",
    id: str = "m",
    version: int = 1,
    source: str | None = None,
    target: str | None = "pending",
    *,
    time_ms: int = START_MS,
    step: str = "enqueued",
    attempt: int = 0,
    created_ms: int = START_MS,
    sequence: int = 1,
    seq: int | None = None,
    era: int = 1,
    metadata: dict[str, str] | None = None,
    shard: int = 0,
) -> ChangeRow:
    """Make one change. Its token has the number `seq`, or by default the version."""
    token = f"{era:08x}-{version if seq is None else seq:016x}-00000000"
    return ChangeRow(
        queue=queue,
        shard=shard,
        id=id,
        created_ms=created_ms,
        sequence=sequence,
        version=version,
        from_state=source,
        to_state=target,
        time_ms=time_ms,
        step=step,
        attempt=attempt,
        priority=7,
        metadata=metadata_text(metadata or {}),
        worker="w",
        reason="",
        due_ms=time_ms,
        payload_bytes=3,
        token=token,
    )


def lived(seed: int, *, queues: int = 2, ids: int = 6, steps: int = 120) -> list[ChangeRow]:
    """Make the changes of messages with a few ids that are created, end and are created again.

    The changes span some days. Each queue has two shards with messages of the same ids.
    """
    rng = Random(seed)
    now = {f"q{at}": START_MS for at in range(queues)}
    sequences: dict[tuple[str, int], int] = {}
    lives: dict[tuple[str, int, str], ChangeRow] = {}
    found: list[ChangeRow] = []
    for seq in range(1, steps + 1):
        queue, shard, id = rng.choice(sorted(now)), rng.randrange(2), f"m{rng.randrange(ids)}"
        now[queue] += rng.choice((0, 1, 1_000, DAY_MS // 7))
        last = lives.get((queue, shard, id))
        if last is not None and last.to_state is None:
            now[queue] += 1  # a message is collected at least a millisecond after its end
            last = None
        step, target = rng.choice(STEPS[last.to_state if last else None])
        attempt = last.attempt if last else 0
        attempt += {"dequeued": 1, "released": -rng.randrange(2)}.get(step, 0)
        if last is None:
            sequences[queue, shard] = sequences.get((queue, shard), 0) + 1
        made = change(
            queue,
            id,
            last.version + 1 if last else 1,
            last.to_state if last else None,
            target,
            time_ms=now[queue],
            step=step,
            attempt=attempt,
            created_ms=last.created_ms if last else now[queue],
            sequence=last.sequence if last else sequences[queue, shard],
            seq=seq,
            era=1 + seq * 3 // (steps + 1),
            metadata={"region": rng.choice("ab"), "size": "1"},
            shard=shard,
        )
        lives[queue, shard, id] = made
        found.append(made)
    return found


def batches_of(changes: Sequence[ChangeRow], rng: Random) -> list[list[ChangeRow]]:
    """Split the changes into batches in order. Each batch is shuffled, and some changes repeat."""
    found: list[list[ChangeRow]] = []
    at = 0
    while at < len(changes):
        count = rng.randrange(1, 40)
        batch = list(changes[at : at + count])
        batch += [one._replace(token=one.token[:-1] + "1") for one in batch if rng.random() < 0.1]
        rng.shuffle(batch)
        found.append(batch)
        at += count
    return found


def name_of(row: ChangeRow) -> MessageName:
    """The name of a message, unique until the message is collected."""
    return row.queue, row.shard, row.id


def wanted_current(changes: Iterable[ChangeRow]) -> dict[MessageName, str | None]:
    """The latest state of each message that was not collected."""
    latest = {name_of(one): one for one in sorted(changes, key=lambda one: one.place)}
    return {name: one.to_state for name, one in latest.items() if one.to_state is not None}


Contents = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]


def contents(database: Database) -> Contents:
    """Read both tables without tokens, because any token of a repeated change is right."""
    columns = [name for name in ChangeRow._fields if name != "token"]
    names, order = ", ".join(columns), ", ".join(NAMES_CHANGE)
    return (
        database.run(f"SELECT {names} FROM current ORDER BY {order}"),
        database.run(f"SELECT {names} FROM historic ORDER BY {order}"),
    )


def wanted_contents(changes: Sequence[ChangeRow], trimmed_ms: int = 0) -> Contents:
    """The contents that both tables must have after these changes."""
    known = wanted_current(changes)
    latest = {name_of(one): one for one in sorted(changes, key=lambda one: one.place)}
    current = [one[:-1] for one in latest.values() if name_of(one) in known]
    historic = [one[:-1] for one in changes if one.time_ms >= trimmed_ms]
    return sorted(current, key=lambda row: row[:6]), sorted(historic, key=lambda row: row[:6])


class Died(BaseException):
    """The process dies."""


class Dying:
    """Counts steps, and dies before the step `at`."""

    def __init__(self, at: int | None) -> None:
        self.steps = 0
        self._at = at

    def step(self) -> None:
        self.steps += 1
        if self.steps == self._at:
            raise Died


class DyingDatabase:
    """A database of a process that dies. Each call is a step."""

    def __init__(self, inner: Database, dying: Dying) -> None:
        self._inner = inner
        self._dying = dying
        self.name = inner.name
        self.transaction = inner.transaction
        self.with_pairs = inner.with_pairs
        self.is_empty = inner.is_empty
        self.close = inner.close

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._dying.step()
        return self._inner.run(sql, values)

    def load(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._dying.step()
        self._inner.load(rows)


class DyingDisk:
    """A disk of a process that dies. Each call is a step."""

    def __init__(self, inner: Any, dying: Dying) -> None:
        self._inner = inner
        self._dying = dying

    def __getattr__(self, name: str) -> Any:
        self._dying.step()
        return getattr(self._inner, name)


def numbered(batches: Sequence[Sequence[ChangeRow]]) -> Iterator[tuple[int, Sequence[ChangeRow]]]:
    """Number batches as Spark does."""
    return enumerate(batches)
