"""What a user of a buffer queue can do wrong. Each class says what to do next."""

from __future__ import annotations

from millstream.runtime import StreamError

__all__ = ["ConcurrentUse", "TopicClosed", "UnknownTopic"]


class UnknownTopic(StreamError):
    """No topic was made with this name and item type: make it first."""


class TopicClosed(StreamError):
    """The topic takes no more items."""


class ConcurrentUse(StreamError):
    """A consumer is in a loop already: make more consumers to go faster."""
