"""What a user chooses of `LedgerQueues`.

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
    """How queues are kept in ledgers. Raises ConfigError.

    Attributes:
        store: the state store with the rows of ledgers and topics; it must be as durable as the
            queues shall be.
        publish_wait_s: so long one enqueue looks for whoever writes the queue; the publisher tries
            again up to `StreamOptions.enqueue_wait_s`.
        unowned_after_s: a queue that nobody owns for so long is written by whoever publishes first.
        look_for_lock_s: how often a silo without its directory's lock tries to get it.
        topic, settings: of each queue's topic: limits, retention, copies, size of ledgers.
        bookie: of the directory.
        recovery: how lost copies are made again, where each silo has a directory of its own.
        scrub: how a bookie looks for damage in its directory.
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
        """The largest message of a stream: it is in one entry."""
        return MessageLimits(bytes_max=max(1, self.topic.entry_bytes_max - FRAME_BYTES))

    def __post_init__(self) -> None:
        check_fields(self)
        entry, limit = self.topic.entry_bytes_max + HEAD_BYTES, self.bookie.entry_bytes_max
        if entry > limit:
            raise ConfigError(
                f"LedgerOptions.topic.entry_bytes_max is {self.topic.entry_bytes_max}, "
                f"bookie.entry_bytes_max is {limit}: need topic's + {HEAD_BYTES} <= bookie's"
            )
