"""Queues in memory: the reference provider of streams, and a buffer between tasks.

Owns the adapter, the grain that has one queue (`queue_grain`), the content of a queue
(`queue_log`), and the partitions and segments that `buffer` uses.
Reading starts at `adapter.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .adapter import MemoryQueues, memory_streams
from .buffer.buffer_queue import MemoryBufferQueue
from .buffer.consumer import MemoryConsumer
from .buffer.errors import ConcurrentUse, TopicClosed, UnknownTopic
from .buffer.options import TopicOptions
from .buffer.producer import MemoryProducer
from .buffer.push import PushGroup, Retries
from .buffer.topic import MemoryTopic
from .offset import Offset
from .partition import NothingToCommit
from .queue_log import MemoryOptions

__all__ = [
    "ConcurrentUse",
    "MemoryBufferQueue",
    "MemoryConsumer",
    "MemoryOptions",
    "MemoryProducer",
    "MemoryQueues",
    "MemoryTopic",
    "NothingToCommit",
    "Offset",
    "PushGroup",
    "Retries",
    "TopicClosed",
    "TopicOptions",
    "UnknownTopic",
    "memory_streams",
]

publish(__name__)
