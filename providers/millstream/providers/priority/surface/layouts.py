"""Hints of a process about the shards of a queue: their layout and most urgent priorities.

Owns `Layout`, `Routes` and `HeadBoard`. The calls are in `routed` and `shard_polls`.

Invariants: a hint may be wrong. Shards refuse messages that do not belong to them, and report
another layout. A head is used once, and not later than `HEADS_S`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.settings import QueueSettings
from millstream.providers.priority.core.shards import home_of

__all__ = ["HEADS_MAX", "HEADS_S", "HeadBoard", "Layout", "Plan", "Routes"]

HEADS_S = 0.1
"""Maximum age of the known heads, in seconds."""
HEADS_MAX = 16
"""Priorities that a look asks of one shard, unless more messages are wanted."""
BOARDS_MAX = 32
"""Filters whose heads are known."""


class Layout(NamedTuple):
    """The layout of a queue.

    `before` is the former number of shards while messages are left there; otherwise 0. `key` is the
    exclusivity key.
    """

    number: int = 0
    shards: int = 1
    before: int = 0
    key: str | None = None

    @classmethod
    def of(cls, settings: QueueSettings) -> Layout:
        """The layout in these settings."""
        key = settings.exclusivity_key
        return cls(settings.layout, settings.shards, settings.shards_before, key)

    @property
    def total(self) -> int:
        """The number of shards to ask."""
        return max(self.shards, self.before)

    def homes(self, key: str) -> tuple[int, ...]:
        """The shards to which a message of this value or id is offered, in order."""
        home = home_of(key, self.shards)
        before = home_of(key, self.before) if self.before else home
        return (home,) if home == before else (before, home)

    def homes_of(self, id: str, metadata: Metadata) -> tuple[int, ...]:
        """The shards to which a message is offered.

        Any shard refuses a message without the exclusivity key.
        """
        return self.homes(id if self.key is None else dict(metadata).get(self.key, id))


class Plan(NamedTuple):
    """How many messages to lease from which shards, and the least urgent priority among them."""

    counts: Mapping[int, int]
    not_above: int


class HeadBoard:
    """The priorities at the heads of all shards for one filter, the most urgent first."""

    def __init__(self) -> None:
        self._heads: dict[int, list[int]] = {}
        self._is_cut: dict[int, bool] = {}
        self._looked_s = -HEADS_S

    def note(self, heads: Sequence[Sequence[int]], asked: int, now_s: float) -> None:
        """Record the answers of the shards.

        `asked` is the requested number, and `now_s` the time of the look.
        """
        self._heads = {shard: list(found) for shard, found in enumerate(heads)}
        self._is_cut = {shard: len(found) >= asked for shard, found in enumerate(heads)}
        self._looked_s = now_s

    def knows(self, count: int, now_s: float) -> bool:
        """Whether the known heads of the shards suffice to plan this many messages. They must be
        recent, and not all empty.
        """
        if now_s - self._looked_s >= HEADS_S or not any(self._heads.values()):
            return False
        cut = (shard for shard, is_cut in self._is_cut.items() if is_cut)
        return all(len(self._heads[shard]) >= count for shard in cut)

    def plan(self, count: int) -> Plan | None:
        """Plan the `count` most urgent messages that no other plan has. Return None if there are
        none."""
        every = ((head, shard) for shard, heads in self._heads.items() for head in heads)
        chosen = nsmallest(count, every)
        if not chosen:
            return None
        counts: dict[int, int] = {}
        for _, shard in chosen:
            counts[shard] = counts.get(shard, 0) + 1
        for shard, taken in counts.items():
            del self._heads[shard][:taken]
        return Plan(counts, chosen[-1][0])

    def forget(self) -> None:
        """Mark the heads as outdated."""
        self._looked_s = -HEADS_S


class Routes:
    """The layout of one queue as this process knows it. `total` is the number of shards to ask."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.total = 1
        self.is_stale = False
        """Whether a shard has reported another layout."""
        self.learned_s: float | None = None
        self._boards: dict[Metadata, HeadBoard] = {}

    def learn(self, layout: Layout, now_s: float) -> None:
        """Record the present layout."""
        if layout != self.layout:
            self._boards.clear()
        self.layout, self.learned_s, self.is_stale = layout, now_s, False
        self.total = layout.total

    def is_other(self, known: int) -> bool:
        """Whether a layout is outdated, as far as is known."""
        return self.is_stale or self.layout.number != known

    def note(self, layout: int, known: int) -> None:
        """Record the layout of a shard, from an answer to a caller that knew the layout `known`."""
        if layout != known and known == self.layout.number:
            self.is_stale = True

    def board(self, wanted: Metadata) -> HeadBoard:
        """The heads for a filter."""
        found = self._boards.pop(wanted, None) or HeadBoard()
        self._boards[wanted] = found  # the latest used one is the last
        if len(self._boards) > BOARDS_MAX:
            del self._boards[next(iter(self._boards))]
        return found

    def on_changed(self) -> None:
        """Mark all heads as outdated, because this process has enqueued a message and may
        dequeue it next.
        """
        for board in self._boards.values():
            board.forget()
