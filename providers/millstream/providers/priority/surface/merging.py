"""What shards answer, as the one answer of their queue.

Owns: `merge`, and how messages of several shards are numbered. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from millstream.providers.priority.core.commands import Depth, Look, Peek, Values
from millstream.providers.priority.core.message import State
from millstream.providers.priority.core.reading import is_large
from millstream.providers.priority.core.results import MessageView, ValueDepths

__all__ = ["SHARD_BITS", "merge", "place", "place_of"]

SHARD_BITS = 47
"""A message's number in a page is that of its shard, then its own: with `SHARDS_MAX` shards at most
2^53, which a double of JSON can say. No shard comes to have so many messages."""
Depths = dict[State, int]


def merge(look: Look, seen: Mapping[int, object]) -> object:
    """The answers of all shards that there are to one look; `Page` is asked of one at a time."""
    answers = list(seen.values())
    if isinstance(look, Depth):
        return add_depths(cast("Sequence[Depths]", answers))
    if isinstance(look, Values):
        return values_of(cast("Sequence[ValueDepths]", answers))
    assert isinstance(look, Peek), "what is asked of one shard is not merged"
    return merge_peeks(cast("Mapping[int, tuple[MessageView, ...]]", seen), look.at_most)


def add_depths(depths: Sequence[Depths]) -> Depths:
    return {state: sum(depth[state] for depth in depths) for state in State}


def values_of(seen: Sequence[ValueDepths]) -> ValueDepths:
    """A value is in two shards while messages of it that are finished are in its former one."""
    found: dict[str, list[Depths]] = {}
    for one in seen:
        for value, depths in one.values.items():
            found.setdefault(value, []).append(depths)
    return ValueDepths({value: add_depths(depths) for value, depths in found.items()})


def merge_peeks(
    seen: Mapping[int, tuple[MessageView, ...]], at_most: int
) -> tuple[MessageView, ...]:
    """The most urgent of all, as far as one answer may hold; of equals those of lower shards."""
    views = [place(shard, view) for shard, views in seen.items() for view in views]
    chosen: list[MessageView] = []
    for view in sorted(views, key=lambda one: (one.priority, one.sequence))[:at_most]:
        chosen.append(view)
        if is_large(chosen):
            break
    return tuple(chosen)


def place(shard: int, view: MessageView) -> MessageView:
    """A message as one of the whole queue."""
    return view._replace(sequence=(shard << SHARD_BITS) + view.sequence)


def place_of(after: int) -> tuple[int, int]:
    """Of which shard a number in a page is, and which one there."""
    return after >> SHARD_BITS, after & ((1 << SHARD_BITS) - 1)
