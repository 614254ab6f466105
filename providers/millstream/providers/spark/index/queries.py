"""What people ask an index: how the queues are, and what became of a message.

Owns: `PriorityIndex`. Not: tables and views (`database`), gaps (`verify`). Invariant: an answer is
of one moment: it is one statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from millstream.runtime import ConfigError

from .changes import COLUMNS, ChangeRow
from .database import check_version
from .place import open_database
from .verify import LIFE_FACTS, Finding, LifeFacts, found_wrong

__all__ = ["PriorityIndex", "ProcessingErrors", "StateTime"]

_ALL = ", ".join(COLUMNS)
_BOTH = "(CAST(? AS TEXT) IS NULL OR queue = ?) AND (CAST(? AS TEXT) IS NULL OR id = ?)"


class StateTime(NamedTuple):
    """How long messages were in a state.

    `visits`: how often one came into it; `total_ms` and `longest_ms` of those that have left it,
    and, if a time was given, of those that are in it, up to then.
    """

    state: str
    visits: int
    total_ms: int
    longest_ms: int


class ProcessingErrors(NamedTuple):
    """Attempts that were used up without the work being done: by `fail`, because a lease ended, or
    because it was given back."""

    failed: int
    expired: int
    released: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.failed + self.expired + self.released


class PriorityIndex:
    """An index, for reading. Calls block: on an event loop, use `asyncio.to_thread`.

    Args:
        place: as the job was told: `sqlite:path` or `postgresql://user@host/database`.
    Raises: ConfigError: nothing is there, or something else; StorageUnavailable, of all calls.
    """

    def __init__(self, place: str) -> None:
        self._database = open_database(place, writes=False)
        try:
            if not check_version(self._database):
                raise ConfigError(f"{self._database.name}: there is no index yet")
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> PriorityIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    # -- now

    def depth(
        self, queue: str | None = None, *, wanted: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, int]]:
        """How many messages are in each state, by queue.

        Args:
            queue: this one; None: all that have messages.
            wanted: only messages that have all of these pairs in their metadata. Without it, and
                with it, a look at each message of the queue.
        """
        pairs, values = self._database.with_pairs(dict(wanted or {}))
        rows = self._database.run(
            "SELECT queue, to_state, count(*) FROM current"
            f" WHERE (CAST(? AS TEXT) IS NULL OR queue = ?) AND {pairs} GROUP BY 1, 2 ORDER BY 1",
            (queue, queue, *values),
        )
        found: dict[str, dict[str, int]] = {}
        for name, state, count in rows:
            found.setdefault(name, {})[state] = count
        return found

    def messages(self, queue: str, id: str) -> list[ChangeRow]:
        """The latest change of each message that has this id and is not collected.

        A queue with one shard has one such message or none. An exclusive queue with several shards
        may have one in each shard.
        """
        rows = self._database.run(
            f"SELECT {_ALL} FROM current WHERE queue = ? AND id = ? ORDER BY shard", (queue, id)
        )
        return [ChangeRow(*row) for row in rows]

    # -- what was

    def history(self, queue: str, id: str) -> list[ChangeRow]:
        """Every change that is kept of the messages that have or had this id.

        The changes are in order by shard, and within a shard by message: an id may be used again
        once its message was collected.
        """
        rows = self._database.run(
            f"SELECT {_ALL} FROM historic WHERE queue = ? AND id = ?"
            " ORDER BY shard, created_ms, sequence, version",
            (queue, id),
        )
        return [ChangeRow(*row) for row in rows]

    def time_in_state(
        self, queue: str | None = None, id: str | None = None, *, now_ms: int | None = None
    ) -> list[StateTime]:
        """How long messages were in each state, as far as history is kept.

        Args:
            queue, id: of this queue, or of this message of it.
            now_ms: count those that are in a state up to this time; None: count them as visits
                only.
        """
        rows = self._database.run(
            "SELECT state, count(*), coalesce(sum(ms), 0), coalesce(max(ms), 0) FROM"
            " (SELECT state, coalesce(until_ms, CAST(? AS BIGINT)) - since_ms AS ms"
            f" FROM time_in_state WHERE {_BOTH}) AS visits GROUP BY state ORDER BY state",
            (now_ms, queue, queue, id, id),
        )
        return [StateTime(row[0], *map(int, row[1:])) for row in rows]

    def processing_errors(
        self, queue: str | None = None, id: str | None = None, *, since_ms: int = 0
    ) -> ProcessingErrors:
        """How often work was begun and not done, as far as history is kept.

        Args:
            queue, id: of this queue, or of this message of it. since_ms: only from this time on.
        """
        rows = self._database.run(
            "SELECT step, count(*) FROM processing_errors WHERE time_ms >= ?"
            f" AND {_BOTH} GROUP BY step",
            (since_ms, queue, queue, id, id),
        )
        counts: dict[str, int] = dict(rows)
        return ProcessingErrors(
            counts.get("failed", 0), counts.get("expired", 0), counts.get("released", 0)
        )

    # -- is it whole?

    def verify(self) -> list[Finding]:
        """Messages and versions that are missing, and messages whose latest change is not what
        `current` has.

        The check needs no queue: it finds holes in the numbers of the messages of each shard and in
        the versions of each message. Messages behind the last known one of a shard are no hole:
        compare `depth` with the queues, too (`differences`). Cost: a look at each change.
        """
        rows: list[tuple[Any, ...]] = self._database.run(LIFE_FACTS)
        return found_wrong(LifeFacts(*row) for row in rows)
