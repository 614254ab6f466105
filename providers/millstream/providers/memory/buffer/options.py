"""How one topic holds its items, and how one group takes them.

Owns: frozen options. Invariant: what cannot work together is refused when the topic is made.
"""

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
    """Raises ConfigError.

    Args:
        partitions: independent sequences; as many consumers of a group can work at once.
        segment_size: slots of one array.
        spare_max: emptied arrays of a partition that are kept for reuse.
        capacity: items that some group has not committed, over all partitions; None: unbounded.
        full_mode: at the capacity a producer waits, or gets QueueFull.
        key: of an item; items of one key are in one partition, in order. None: round robin.
        on_no_group: while no group exists, keep all items; or at most two segments of each
            partition; or keep all and, at the capacity, block (said once in the log).
        handover_max: items from other threads that wait for the topic's loop.
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
    """Raises ConfigError.

    `auto_commit`: False: `commit()` is called; True: a batch is committed before it is given, so
    a failure loses it; "after": when the next one is asked for.
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
