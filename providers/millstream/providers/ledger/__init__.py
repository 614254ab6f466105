"""Durable streams in ledgers, after Pulsar on BookKeeper.

Packages, from the lowest layer up: `protocol` (what is stored and decided, without I/O), `bookie`
(one directory of entries) and `metadata` (rows of a state store), `handle` (writing, reading and
recovering one ledger), `serving` (which silo runs which bookie), `recovery` (missing replicas are
written again), `scrubbing` (each bookie reads what it has, and repairs damage), `topic` (a sequence
of ledgers, with cursors), `queues` (topics as queues of streams), `alone` (topics without a silo)
and `inspection` (reading and repairing ledgers from outside).

Owns everything between the queues of a stream provider and the files of a bookie. Reading starts at
`topic/topic.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .alone.buffer.consumer import LedgerBufferConsumer
from .alone.buffer.queue import LedgerBufferProducer, LedgerBufferQueue, LedgerBufferTopic
from .alone.message import LedgerMessage, Position
from .alone.subscription import LedgerSubscription
from .alone.topic import LedgerTopic
from .alone.topics import LedgerTopics, open_topics
from .bookie.options import BookieOptions
from .protocol.quorum import Quorum
from .queues.adapter import LedgerQueues
from .queues.options import LedgerOptions
from .recovery.options import RecoveryOptions
from .scrubbing.options import ScrubOptions
from .topic.options import LedgerTopicOptions, LedgerTopicSettings

__all__ = [
    "BookieOptions",
    "LedgerBufferConsumer",
    "LedgerBufferProducer",
    "LedgerBufferQueue",
    "LedgerBufferTopic",
    "LedgerMessage",
    "LedgerOptions",
    "LedgerQueues",
    "LedgerSubscription",
    "LedgerTopic",
    "LedgerTopicOptions",
    "LedgerTopicSettings",
    "LedgerTopics",
    "Position",
    "Quorum",
    "RecoveryOptions",
    "ScrubOptions",
    "open_topics",
]

publish(__name__)
