"""Which items of a delivery an activation does not know yet. Pure.

Owns: `fresh_of`. Not: up to where it knows them (`run.Position`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["fresh_of"]


def fresh_of(items: Sequence[Item], last: Token | None) -> Sequence[int]:
    """Which items are behind `last`, and behind each other: those that are not known."""
    if len(items) == 1:
        return range(1 if last is None or items[0].token > last else 0)
    tokens = [item.token for item in items]
    if last is not None:
        tokens.insert(0, last)
    if all(map(lt, tokens, tokens[1:])):
        return range(len(items))  # as a rule
    fresh: list[int] = []
    for at, item in enumerate(items):
        if last is None or item.token > last:
            last = item.token
            fresh.append(at)
    return fresh
