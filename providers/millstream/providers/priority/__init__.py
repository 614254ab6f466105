"""Priority queues of messages that workers lease, the most urgent message first.

A queue can be exclusive: messages with the same value of a key are then not processed in parallel.

`PriorityQueues` is the part of a silo that owns priority queues. `priority_queue(runtime, name)`
returns a handle with which programs and grains use one queue. The queues are stored in an
`EmbeddedStore` (SQLite files of one machine), in a `PostgresStore` or `RedisStore` (several
machines; in `millstream.providers.priority.postgres` and `.redis`), or in a `MemoryStore` (tests).
The idea comes from Timestone, the priority queue of Netflix.

Owns priority queues, from the call of a program down to the row in a store. Reading starts at
`part.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .adapter.form import PRIORITY_HEADER
from .adapter.options import DeadlineOptions
from .adapter.queues import DeadlineQueues
from .core.errors import (
    EnqueueBlocked,
    ExclusivityMissing,
    FilterNotReady,
    LeaseForeign,
    LeaseLost,
    MessageExists,
    MessageFinished,
    MessageNotFound,
    Moved,
    OwnerLost,
    PriorityQueueError,
    PriorityQueueFull,
    PriorityQueueNotFound,
    RequestInvalid,
    RequestStale,
    SessionFull,
    SettingsConflict,
)
from .core.message import LeaseToken, State
from .core.results import Done, Enqueued, MessageView
from .core.settings import QueueSettings, SettingsRow, Template
from .owner.options import PriorityOptions
from .part import PriorityQueues
from .relay.change import PRIORITY_CHANGES, PriorityChange
from .store.contract import ClockReading, PriorityStore
from .store.embedded import EmbeddedStore
from .store.limits import StoreLimits
from .store.memory import MemoryStore
from .surface.given import NewMessage
from .surface.lease import Lease
from .surface.opening import QueuesOf, changes_lag_s, priority_queue, priority_queues
from .surface.priorities import PriorityClass
from .surface.queue import PriorityQueue

__all__ = [
    "PRIORITY_CHANGES",
    "PRIORITY_HEADER",
    "ClockReading",
    "DeadlineOptions",
    "DeadlineQueues",
    "Done",
    "EmbeddedStore",
    "EnqueueBlocked",
    "Enqueued",
    "ExclusivityMissing",
    "FilterNotReady",
    "Lease",
    "LeaseForeign",
    "LeaseLost",
    "LeaseToken",
    "MemoryStore",
    "MessageExists",
    "MessageFinished",
    "MessageNotFound",
    "MessageView",
    "Moved",
    "NewMessage",
    "OwnerLost",
    "PriorityChange",
    "PriorityClass",
    "PriorityOptions",
    "PriorityQueue",
    "PriorityQueueError",
    "PriorityQueueFull",
    "PriorityQueueNotFound",
    "PriorityQueues",
    "PriorityStore",
    "QueueSettings",
    "QueuesOf",
    "RequestInvalid",
    "RequestStale",
    "SessionFull",
    "SettingsConflict",
    "SettingsRow",
    "State",
    "StoreLimits",
    "Template",
    "changes_lag_s",
    "priority_queue",
    "priority_queues",
]

publish(__name__)
