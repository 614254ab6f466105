"""Options of topics: those that are stored with a topic, and those of one process.

Owns: `LedgerTopicSettings`, `LedgerTopicOptions`. Invariant: values are checked when an object is
made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from millstream.providers.ledger.protocol.quorum import Quorum, check_quorum
from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields

__all__ = ["LedgerTopicOptions", "LedgerTopicSettings"]

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTopicSettings:
    """Replication and ledger sizes of a topic. They are stored with the topic.

    A change applies from the next ledger on. Ledgers that exist keep their quorum. Numbers must be
    above 0.

    Raises:
        ConfigError: a value has the wrong type or is out of range, or the quorum is impossible.
    """

    quorum: Quorum | None = None
    """How many bookies a ledger is spread over, how many store each entry, and how many must have
    the entry on disk before it is accepted. None: the default, which is `(1, 1, 1)` in one shared
    directory and `(3, 3, 2)` with a directory for each silo."""
    ledger_bytes_max: int = 256 * MIB
    """The payload bytes of a ledger. The entry that reaches the limit is the last one."""
    ledger_entries_max: int = 50_000
    """The number of entries of a ledger."""
    ledger_age_s: float = 4 * 3600.0
    """The age at which a ledger is closed, in seconds. It varies by up to 5 %, so that ledgers of
    many topics do not change at the same time."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.quorum is not None:
            check_quorum(self.quorum)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTopicOptions:
    """Limits, retention and times of a topic in one process. They are not stored.

    Acknowledged messages are deleted when they exceed `retention_s` or `retention_bytes`. To keep
    them by size alone, set `retention_s=None`. A whole ledger is deleted at a time, and the newest
    ledger with messages always stays. Numbers must be above 0, except that `retention_s` and
    `retention_bytes` may be 0.

    Raises:
        ConfigError: a value has the wrong type or is out of range, or `entry_bytes_max` is larger
            than `in_flight_bytes_max`.
    """

    entry_bytes_max: int = 7 * MIB
    """The payload bytes of one entry. A longer list of messages is split over several entries. A
    message that does not fit into one entry is refused."""
    in_flight_bytes_max: int = 32 * MIB
    """Bytes of messages that are sent and not yet confirmed. At the limit appends wait."""
    waiting_appends_max: int = 10_000
    """The number of appends that may wait. The next one fails at once with `QueueFull`."""
    waiting_bytes_max: int = 64 * MIB
    """Bytes of messages in waiting appends. An append above the limit fails at once with
    `QueueFull`."""
    enqueue_wait_s: float = 3.0
    """How long an append waits to be sent, in seconds, and then again for its confirmation."""
    producers_max: int = 10_000
    """The number of producers whose sequences are remembered, as far as one entry has room for
    them. The producer that was silent longest is forgotten first."""
    snapshot_entries: int = 1_000
    """The number of entries between two stored snapshots of the remembered producers."""
    cache_bytes_max: int = 8 * MIB
    """Bytes of the newest messages that are kept in memory."""
    cursors_max: int = 100
    """The number of named cursors (subscriptions) of a topic."""
    cursor_flush_s: float = 0.5
    """How long an acknowledgement may stay in memory before it is stored, in seconds."""
    holes_max: int = 10_000
    """The number of acknowledged ranges above a cursor's mark that are stored. Messages of further
    ranges are redelivered after a restart."""
    retention_s: float | None = field(default=0.0, metadata={"min": 0})
    """How long messages are kept after all cursors have acknowledged them, in seconds. None: no
    limit by time. A topic without a cursor keeps all messages."""
    retention_bytes: int | None = field(default=None, metadata={"min": 0})
    """How many bytes of acknowledged messages are kept. None: no limit by size."""
    tend_every_s: float = 60.0
    """How often the age of ledgers and the retention are checked, in seconds."""
    backlog_bytes_max: int | None = 16 * 1024 * MIB
    """Bytes of messages that the slowest cursor has not acknowledged; without a cursor, bytes of
    all messages. None: no limit."""
    backlog_policy: Literal["wait", "evict"] = "wait"
    """The policy at `backlog_bytes_max`. `"wait"`: appends wait, and then fail with
    `QueueFull`. `"evict"`: the slowest cursors lose their oldest messages, and their readers get
    `CursorTooOld`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.entry_bytes_max > self.in_flight_bytes_max:
            raise ConfigError(
                f"LedgerTopicOptions.entry_bytes_max is {self.entry_bytes_max}, "
                f"in_flight_bytes_max is {self.in_flight_bytes_max}: need entry_bytes_max <= "
                "in_flight_bytes_max"
            )
