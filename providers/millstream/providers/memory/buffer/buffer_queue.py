"""Topics in memory, by name and item type: a buffer between tasks of one program.

Owns: `MemoryBufferQueue`. Not: the topics' work (`topic`). Source: Mocha's MemoryBufferQueue
(spec/queues.md A). Invariant: a topic is another one under another name, or for another type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_text
from millstream.streams.contracts.buffer import AutoCommit

from .consumer import MemoryConsumer
from .errors import UnknownTopic
from .options import FullMode, TopicOptions, WithoutGroup
from .topic import MemoryTopic

__all__ = ["MemoryBufferQueue"]

T = TypeVar("T")


class MemoryBufferQueue:
    """Topics in the memory of this program (`BufferQueue`); each is used in one event loop.

    spans = MemoryBufferQueue().topic("otlp-span", Span, partitions=8)
    """

    def __init__(self) -> None:
        self._topics: dict[tuple[str, type[Any]], MemoryTopic[Any]] = {}

    def topic(
        self,
        name: str,
        item: type[T],
        /,
        *,
        partitions: int = 1,
        segment_size: int = 1024,
        spare_max: int = 1,
        capacity: int | None = None,
        full_mode: FullMode = "wait",
        key: Callable[[T], str] | None = None,
        on_no_group: WithoutGroup = "retain",
        handover_max: int = 100_000,
    ) -> MemoryTopic[T]:
        """Make a topic; the arguments are those of `TopicOptions`.

        Raises ConfigError: it exists, or an argument cannot work.
        """
        check_text("the name of a topic", name)
        if not name:
            raise ConfigError("the name of a topic is empty")
        if not isinstance(item, type):
            raise ConfigError(f"topic {name!r}: {item!r} is no class, but items are of one")
        if (name, item) in self._topics:
            raise ConfigError(f"topic {name!r} of {item.__qualname__} exists: use find()")
        options = TopicOptions(
            partitions=partitions,
            segment_size=segment_size,
            spare_max=spare_max,
            capacity=capacity,
            full_mode=full_mode,
            key=key,
            on_no_group=on_no_group,
            handover_max=handover_max,
        )
        made = self._topics[name, item] = MemoryTopic(name, item, options)
        return made

    def find(self, name: str, item: type[T], /) -> MemoryTopic[T]:
        """A topic that was made. Raises UnknownTopic, which names those that there are."""
        found = self._topics.get((name, item))
        if found is None:
            known = ", ".join(map(repr, self._topics.values())) or "none"
            what = getattr(item, "__qualname__", repr(item))
            raise UnknownTopic(f"there is no topic {name!r} of {what}; made were: {known}")
        return found

    def consumers(
        self,
        topic: MemoryTopic[T],
        group: str,
        count: int = 1,
        *,
        batch_size: int = 100,
        auto_commit: AutoCommit = False,
    ) -> Sequence[MemoryConsumer[T]]:
        """The consumers of a new group: `topic.consumers(...)`."""
        return topic.consumers(group, count, batch_size=batch_size, auto_commit=auto_commit)

    def close(self) -> None:
        """Close every topic."""
        for topic in self._topics.values():
            topic.close()
