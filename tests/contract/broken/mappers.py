"""Adapters whose mapper differs between processes, or changes without a notification."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from tests.contract.broken.fault import refused_by
from tests.contract.reference import Broker, CountMapper, MappedAdapter

from millstream.streams import QueueMapper, StreamId


class HashedMapper(CountMapper):
    def queue_for(self, stream: StreamId, /) -> str:
        return f"queue-{hash(str(stream)) % self.epoch}"


@refused_by("a_mapper_answers_alike_in_every_process", "log")
class HashesTexts(MappedAdapter):
    """Maps by `hash()`, which has another seed in each process."""

    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        super().mapper(changed)
        return HashedMapper(self.broker.queue_count)


@refused_by("a_change_of_the_layout_is_told", "log")
class TellsNoChange(MappedAdapter):
    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        return super().mapper(lambda: None)


@refused_by("a_change_of_the_layout_is_told", "log")
class TellsTheFirstSilo(MappedAdapter):
    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        if not self.broker.watchers:
            self.broker.__dict__["told"] = self
        is_told = self.broker.__dict__["told"] is self
        return super().mapper(changed if is_told else lambda: None)


@refused_by("a_change_of_the_layout_is_told", "log")
class TellsAndKeepsItsMapper(MappedAdapter):
    """Notifies of a change, and still returns the former mapper."""

    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        super().mapper(changed)
        return CountMapper(2)


class LiveMapper(CountMapper):
    """A mapper that asks the broker for its present state at each use."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self.broker.queue_count


@refused_by("a_change_of_the_layout_is_told", "log")
class ChangesItsMapper(MappedAdapter):
    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        super().mapper(changed)
        return LiveMapper(self.broker)


class FirstMapper(CountMapper):
    """Maps to a number of queues, always with the first epoch."""

    def __init__(self, count: int) -> None:
        super().__init__(1)
        self.count = count

    def queues(self) -> Sequence[str]:
        return [f"queue-{number}" for number in range(self.count)]

    def queue_for(self, stream: StreamId, /) -> str:
        return f"queue-{zlib.crc32(str(stream).encode()) % self.count}"


@refused_by("a_change_of_the_layout_is_told", "log")
class KeepsItsEpoch(MappedAdapter):
    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        super().mapper(changed)
        return FirstMapper(self.broker.queue_count)
