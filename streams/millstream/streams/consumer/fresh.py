"""Selects the items of a delivery that an activation has not processed. Pure.

`run.Position` keeps the last processed token.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["fresh_of"]


def fresh_of(items: Sequence[Item], last: Token | None) -> Sequence[int]:
    """Return the indexes of the items that come after `last` and after each other."""
    if len(items) == 1:
        return range(1 if last is None or items[0].token > last else 0)
    tokens = [item.token for item in items]
    if last is not None:
        tokens.insert(0, last)
    if all(map(lt, tokens, tokens[1:])):
        return range(len(items))  # the common case
    fresh: list[int] = []
    for at, item in enumerate(items):
        if last is None or item.token > last:
            last = item.token
            fresh.append(at)
    return fresh
