"""Questions to an index: the state of the queues, and the history of a message.

This module owns `PriorityIndex`. `database` owns tables and views, and `verify` the check for gaps.
Each answer is of one moment, because it is one statement.
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

    Attributes:
        state: The state.
        visits: How often a message entered the state.
        total_ms: The sum of the times in the state, in ms. It counts messages that left the state,
            and with `now_ms` also those that are in the state, up to that time.
        longest_ms: The longest of these times, in ms.
    """

    state: str
    visits: int
    total_ms: int
    longest_ms: int


class ProcessingErrors(NamedTuple):
    """Numbers of attempts that were used without finishing the work.

    Attributes:
        failed: Attempts that `fail` ended.
        expired: Attempts whose lease expired.
        released: Attempts whose message was released, and whose attempt was not returned.
    """

    failed: int
    expired: int
    released: int

    @property
    def total(self) -> int:
        """The sum of all three."""
        return self.failed + self.expired + self.released


class PriorityIndex:
    """Reads an index of priority queues.

    It is a context manager: `with PriorityIndex("sqlite:data/index.db") as index: ...`. The index
    may be read while the Spark query of `start_index` writes it. Calls block: on an event loop, use
    `asyncio.to_thread`. All methods raise `StorageUnavailable` if the database cannot be read.

    Args:
        place: The database of the index, as in `start_index`: `sqlite:path` or
            `postgresql://user@host/database`.

    Raises:
        ConfigError: The database does not exist, or has other content.
        StorageUnavailable: The database cannot be opened.
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
        """Return how many messages are in each state, by queue.

        Args:
            queue: The queue. None: all queues that have messages.
            wanted: Count only messages that have all these pairs in their metadata.

        Returns:
            For each queue, the number of messages by state. The method looks at each message of the
            queue.
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
        """Return the latest change of each message that has this id and is not collected.

        A queue with one shard has at most one such message. An exclusive queue with several shards
        may have one in each shard.

        Args:
            queue: The queue.
            id: The id of the message.
        """
        rows = self._database.run(
            f"SELECT {_ALL} FROM current WHERE queue = ? AND id = ? ORDER BY shard", (queue, id)
        )
        return [ChangeRow(*row) for row in rows]

    # -- what was

    def history(self, queue: str, id: str) -> list[ChangeRow]:
        """Return every stored change of the messages that have or had this id.

        The changes are ordered by shard, and within a shard by message. An id may be used again
        after its message was collected.

        Args:
            queue: The queue.
            id: The id of the message.
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
        """Return how long messages were in each state, as far as the history is kept.

        Args:
            queue: Only messages of this queue. None: of all queues.
            id: Only messages with this id. None: all.
            now_ms: Count the time of messages that are in a state up to this time, in ms. None:
                count them only as visits.
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
        """Return how often work was begun and not finished, as far as the history is kept.

        Args:
            queue: Only messages of this queue. None: of all queues.
            id: Only messages with this id. None: all.
            since_ms: Only changes from this time on, in ms.
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
        """Find missing changes, and messages whose latest change differs in `current`.

        The check needs no queue. It finds gaps in the numbers of the messages of each shard, and in
        the versions of each message. Messages after the last known one of a shard are no gap:
        compare `depth` with the queues too (`differences`). The check looks at each change.

        Returns:
            The findings; an empty list if the index is complete.
        """
        rows: list[tuple[Any, ...]] = self._database.run(LIFE_FACTS)
        return found_wrong(LifeFacts(*row) for row in rows)
