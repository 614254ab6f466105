"""The errors that a wrong use of a buffer queue raises."""

from __future__ import annotations

from millstream.runtime import StreamError

__all__ = ["ConcurrentUse", "TopicClosed", "UnknownTopic"]


class UnknownTopic(StreamError):
    """`find` got a name and an item type without a topic: create the topic first.

    It is a `StreamError`.
    """


class TopicClosed(StreamError):
    """The topic is closed and accepts no more items.

    It is a `StreamError`. If a batch was accepted in part before the close, `accepted_events` has
    the number of accepted items.
    """


class ConcurrentUse(StreamError):
    """Two loops or tasks use one consumer: create more consumers for more throughput.

    It is a `StreamError`.
    """
