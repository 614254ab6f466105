"""Options of topics: what is stored with one, and what holds in one process.

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
    """What is stored with a topic; a change holds from its next ledger on. Raises ConfigError."""

    quorum: Quorum | None = None
    """How many bookies a ledger is spread over, hold each entry, and acknowledge it; None: what is
    usual where it is, (1, 1, 1) in one directory, (3, 3, 2) with one for each silo."""
    ledger_bytes_max: int = 256 * MIB
    """Payloads of a ledger; the entry that reaches it is the last one."""
    ledger_entries_max: int = 50_000
    """Entries of a ledger."""
    ledger_age_s: float = 4 * 3600.0
    """Age of a ledger, give or take a twentieth, so that not all end at once."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.quorum is not None:
            check_quorum(self.quorum)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTopicOptions:
    """How one process writes and reads a topic. Raises ConfigError."""

    entry_bytes_max: int = 7 * MIB
    """Payload of an entry: of what is appended at once, or of one message."""
    in_flight_bytes_max: int = 32 * MIB
    """Messages that are sent and not confirmed; above, appends wait."""
    waiting_appends_max: int = 10_000
    """Appends that wait; above, `QueueFull` at once."""
    waiting_bytes_max: int = 64 * MIB
    """Messages of appends that wait; the same."""
    enqueue_wait_s: float = 3.0
    """How long an append waits for room or a ledger, and once it is sent, for its fate."""
    producers_max: int = 10_000
    """Producers whose sequences are remembered, if they fit into an entry; who was silent longest
    is forgotten."""
    snapshot_entries: int = 1_000
    """Entries from one snapshot of producers to the next."""
    cache_bytes_max: int = 8 * MIB
    """Newest messages that are kept in memory."""
    cursors_max: int = 100
    """Named cursors of a topic."""
    cursor_flush_s: float = 0.5
    """How long what was acknowledged may be unstored."""
    holes_max: int = 10_000
    """Ranges above a cursor's position that are stored as acknowledged; more come again."""
    retention_s: float | None = field(default=0.0, metadata={"min": 0})
    """How long messages are kept that all cursors have acknowledged; None: for ever. A topic
    without a cursor keeps everything."""
    retention_bytes: int | None = field(default=None, metadata={"min": 0})
    """How much of them is kept; None: however much it is."""
    tend_every_s: float = 60.0
    """How often age and retention are looked at."""
    backlog_bytes_max: int | None = 16 * 1024 * MIB
    """Messages that the slowest cursor has not acknowledged; None: without a limit."""
    backlog_policy: Literal["hold", "evict"] = "hold"
    """Above it: appends wait, then `QueueFull`; or the slowest cursors lose their oldest."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.entry_bytes_max > self.in_flight_bytes_max:
            raise ConfigError(
                f"LedgerTopicOptions.entry_bytes_max is {self.entry_bytes_max}, "
                f"in_flight_bytes_max is {self.in_flight_bytes_max}: need entry_bytes_max <= it"
            )
