"""Queues in memory: the reference provider."""

from .adapter import MemoryQueues
from .queue_grain import MemoryOptions

__all__ = ["MemoryOptions", "MemoryQueues"]
