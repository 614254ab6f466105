"""Queues in memory: the reference provider."""

from millstream.runtime.extending import publish

from .adapter import MemoryQueues
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
]

publish(__name__)
