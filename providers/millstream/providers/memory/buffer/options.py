"""Options of a topic and of a group. Combinations that cannot work are refused at creation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millstream.runtime import ConfigError
from millstream.runtime.extending import check_fields
from millstream.streams.contracts.buffer import AutoCommit

__all__ = ["GroupOptions", "TopicOptions"]

FullMode = Literal["wait", "fail"]
WithoutGroup = Literal["retain", "drop_oldest", "block"]
PARTITIONS_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The arguments of `MemoryBufferQueue.topic` as an object.

    Attributes:
        partitions: Independent sequences, from 1 to 65,536. A group has at most as many consumers.
        segment_size: Slots of one array of a partition, at least 1.
        spare_max: Emptied arrays of a partition that are kept for reuse, at least 1.
        capacity: Items, over all partitions, that some group has not committed, at least 1. None:
            no limit.
        full_mode: At the capacity, `"wait"` makes producers wait, and `"fail"` raises `QueueFull`.
        key: Returns the key of an item. Items of one key share a partition and keep their order.
            The hash function never changes. None: round robin.
        on_no_group: While the topic has no group, `"retain"` keeps all items. `"drop_oldest"` keeps
            at most two arrays of `segment_size` items in each partition. `"block"` works like
            `"retain"` and requires a `capacity`. The log has one line when producers wait because
            the topic has no group.
        handover_max: Items from other threads that wait for the topic's loop, at least 1.

    Raises:
        ConfigError: A value has the wrong type or is outside its limits, or `on_no_group="block"`
            has no `capacity`.
    """

    partitions: int = 1
    segment_size: int = 1024
    spare_max: int = 1
    capacity: int | None = None
    full_mode: FullMode = "wait"
    key: Callable[..., str] | None = None
    on_no_group: WithoutGroup = "retain"
    handover_max: int = 100_000

    def __post_init__(self) -> None:
        check_fields(self)
        if self.partitions > PARTITIONS_MAX:
            raise ConfigError(f"partitions is {self.partitions}, at most {PARTITIONS_MAX}")
        if self.on_no_group == "block" and self.capacity is None:
            raise ConfigError("on_no_group='block' needs a capacity: nothing else would block")


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How one group takes batches. Raises ConfigError for a value that is not valid.

    `auto_commit`: with False, the consumer calls `commit()`. With True, a batch is committed before
    it is delivered, so a failure loses it. With "after", it is committed when the next one is
    requested.
    """

    batch_size: int = 100
    auto_commit: AutoCommit = False

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise ConfigError(f"batch_size is {self.batch_size!r}, it must be a whole number")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}, it must be at least 1")
        if self.auto_commit not in (False, True, "after"):
            raise ConfigError(f"auto_commit is {self.auto_commit!r}: write False, True or 'after'")
