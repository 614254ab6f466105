"""The options of `LedgerQueues`.

Owns: `LedgerOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.protocol.entry import HEAD_BYTES
from millstream.providers.ledger.recovery.options import RecoveryOptions
from millstream.providers.ledger.scrubbing.options import ScrubOptions
from millstream.providers.ledger.topic.form import FRAME_BYTES
from millstream.providers.ledger.topic.options import LedgerTopicOptions, LedgerTopicSettings
from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields
from millstream.streams import MessageLimits

__all__ = ["LedgerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """Options of `LedgerQueues`. Numbers must be above 0, unless stated otherwise.

    Attributes:
        store: the name of the silo's state store for the rows of ledgers and topics. It must be as
            durable as the queues.
        publish_wait_s: how long one enqueue looks for the writer of the queue, in seconds. The
            publisher tries again until `StreamOptions.enqueue_wait_s` is over.
        unowned_after_s: after so many seconds without an owner, a queue is written by the silo that
            publishes first; 0 or more.
        look_for_lock_s: how often a silo tries to get the lock of its directory, in seconds.
        topic: limits, retention and times of each queue's topic in this silo.
        settings: replication and ledger sizes of each queue's topic, which are stored with it.
        bookie: options of the bookie that this silo runs.
        recovery: how lost replicas are written again, where each silo has a directory of its own.
        scrub: how a bookie searches its directory for damage.

    Raises:
        ConfigError: a value has the wrong type or is out of range, or an entry of
            `topic.entry_bytes_max` bytes does not fit into `bookie.entry_bytes_max`.
    """

    store: str = "default"
    publish_wait_s: float = 2.0
    unowned_after_s: float = field(default=1.0, metadata={"min": 0})
    look_for_lock_s: float = 0.25
    topic: LedgerTopicOptions = field(default_factory=LedgerTopicOptions)
    settings: LedgerTopicSettings = field(default_factory=LedgerTopicSettings)
    bookie: BookieOptions = field(default_factory=BookieOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    scrub: ScrubOptions = field(default_factory=ScrubOptions)

    @property
    def message_limits(self) -> MessageLimits:
        """The largest message of a stream. One entry must have room for it."""
        return MessageLimits(bytes_max=max(1, self.topic.entry_bytes_max - FRAME_BYTES))

    def __post_init__(self) -> None:
        check_fields(self)
        entry, limit = self.topic.entry_bytes_max + HEAD_BYTES, self.bookie.entry_bytes_max
        if entry > limit:
            raise ConfigError(
                f"LedgerOptions.topic.entry_bytes_max is {self.topic.entry_bytes_max}, "
                f"bookie.entry_bytes_max is {limit}: need topic.entry_bytes_max + {HEAD_BYTES} <= "
                "bookie.entry_bytes_max"
            )
