"""What a process knows of the shards of a queue: their layout, and the priorities at their heads.

Owns: `Layout`, `Routes`, `HeadBoard`. Not: asking (`routed`, `shard_polls`).
Invariants: what is known is a hint: shards refuse what does not belong to them, and say when their
layout is another one; a head is used once, and not after `HEADS_S`.
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
"""How old what is known of a shard's heads may be."""
HEADS_MAX = 16
"""Priorities of one shard that are asked for, if no more messages are wanted at once."""
BOARDS_MAX = 32
"""Filters whose heads are known."""


class Layout(NamedTuple):
    """Where messages of a queue are; `before`: where they were, while some still are; 0: nowhere
    else. `key`: the exclusivity key."""

    number: int = 0
    shards: int = 1
    before: int = 0
    key: str | None = None

    @classmethod
    def of(cls, settings: QueueSettings) -> Layout:
        """As settings have it."""
        key = settings.exclusivity_key
        return cls(settings.layout, settings.shards, settings.shards_before, key)

    @property
    def total(self) -> int:
        """How many shards there are to ask."""
        return max(self.shards, self.before)

    def homes(self, key: str) -> tuple[int, ...]:
        """Where what a value, or an id, stands for is to be offered, in this order."""
        home = home_of(key, self.shards)
        before = home_of(key, self.before) if self.before else home
        return (home,) if home == before else (before, home)

    def homes_of(self, id: str, metadata: Metadata) -> tuple[int, ...]:
        """The same of a message; one that lacks the exclusivity key is refused by whoever."""
        return self.homes(id if self.key is None else dict(metadata).get(self.key, id))


class Plan(NamedTuple):
    """How many messages are to be had of which shards, none above a priority."""

    counts: Mapping[int, int]
    not_above: int


class HeadBoard:
    """The priorities at the heads of all shards, most urgent first, of what one filter wants."""

    def __init__(self) -> None:
        self._heads: dict[int, list[int]] = {}
        self._is_cut: dict[int, bool] = {}
        self._looked_s = -HEADS_S

    def note(self, heads: Sequence[Sequence[int]], asked: int, now_s: float) -> None:
        """What the shards have said, each for so many; `now_s`: when they were asked."""
        self._heads = {shard: list(found) for shard, found in enumerate(heads)}
        self._is_cut = {shard: len(found) >= asked for shard, found in enumerate(heads)}
        self._looked_s = now_s

    def knows(self, count: int, now_s: float) -> bool:
        """Is enough known, and lately enough, to plan so many? That there is nothing is not."""
        if now_s - self._looked_s >= HEADS_S or not any(self._heads.values()):
            return False
        cut = (shard for shard, is_cut in self._is_cut.items() if is_cut)
        return all(len(self._heads[shard]) >= count for shard in cut)

    def plan(self, count: int) -> Plan | None:
        """The most urgent so many, which are planned for no other; None: there are none."""
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
        """It is not so any more."""
        self._looked_s = -HEADS_S


class Routes:
    """The layout of one queue as one process knows it. `total`: the number of shards to ask."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.total = 1
        self.is_stale = False
        """A shard has another layout."""
        self.learned_s: float | None = None
        self._boards: dict[Metadata, HeadBoard] = {}

    def learn(self, layout: Layout, now_s: float) -> None:
        """The layout of now."""
        if layout != self.layout:
            self._boards.clear()
        self.layout, self.learned_s, self.is_stale = layout, now_s, False
        self.total = layout.total

    def is_other(self, known: int) -> bool:
        """Is a layout not that of the queue any more, as far as is known?"""
        return self.is_stale or self.layout.number != known

    def note(self, layout: int, known: int) -> None:
        """A shard has this layout, and was asked by who knew that one."""
        if layout != known and known == self.layout.number:
            self.is_stale = True

    def board(self, wanted: Metadata) -> HeadBoard:
        """The heads of what a filter wants."""
        found = self._boards.pop(wanted, None) or HeadBoard()
        self._boards[wanted] = found  # the latest used is the last
        if len(self._boards) > BOARDS_MAX:
            del self._boards[next(iter(self._boards))]
        return found

    def on_changed(self) -> None:
        """This process has put something into the queue: what it takes next may be that."""
        for board in self._boards.values():
            board.forget()
