"""Durable streams in replicated logs (ledgers), modelled on Apache Pulsar and BookKeeper.

A ledger is an append-only sequence of entries that is replicated over several bookies. A bookie
stores entries in one directory. A topic is a sequence of ledgers with named cursors. `LedgerQueues`
uses topics as the queues of a stream provider. `open_topics` opens topics in a program without a
silo.

Owns everything between the queues of a stream provider and the files of a bookie. The packages,
from the lowest layer up:

- `protocol`: the stored forms and all decisions, without I/O.
- `bookie`: one directory of entries. `metadata`: the rows of ledgers, bookies and topics in a state
  store.
- `handle`: writing, reading and recovering one ledger.
- `serving`: finding and calling the bookies of a cluster.
- `recovery`: writing missing replicas again. `scrubbing`: finding and repairing damaged replicas.
- `topic`: a sequence of ledgers, with cursors.
- `queues`: topics as the queues of streams. `alone`: topics without a silo.
- `inspection`: reading and repairing ledgers from outside of a cluster.

Reading starts at `topic/topic.py`.
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
