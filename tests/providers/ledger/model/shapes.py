"""The explored shapes: quick and slow ones, which are tests, and long ones for `make model`
only."""

from __future__ import annotations

from millstream.providers.ledger import Quorum

from .world import Bounds, Shape

SOLO, TWO, USUAL = Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(3, 3, 2)
STRIPED, ALL = Quorum(3, 2, 2), Quorum(3, 3, 3)

QUICK = (
    Shape(SOLO, 1, Bounds(2, 1, give_ups=1, doubts=1)),
    Shape(SOLO, 0, Bounds(2, 1, restores=1, damages=1)),
    Shape(TWO, 1, Bounds(1, 1, give_ups=1)),
    Shape(TWO, 1, Bounds(2, 1)),
    Shape(TWO, 1, Bounds(2, 0, give_ups=1, doubts=1)),
    Shape(TWO, 0, Bounds(1, 2), is_prompt=True),
    Shape(USUAL, 0, Bounds(1, 1)),
    Shape(USUAL, 0, Bounds(2, 0, give_ups=2), is_prompt=True),
    Shape(USUAL, 0, Bounds(1, 1, hangs=1), must_end=True),
    Shape(STRIPED, 1, Bounds(3, 0, give_ups=1), is_prompt=True),
    Shape(STRIPED, 0, Bounds(1, 1)),
    Shape(ALL, 1, Bounds(1, 1)),
)
"""Explored in a few seconds each, by tests and `make model`."""

SLOW = (
    Shape(SOLO, 1, Bounds(2, 1, give_ups=1, returns=1, closes=1, doubts=1)),
    Shape(SOLO, 1, Bounds(1, 2, give_ups=1, doubts=1)),
    Shape(TWO, 1, Bounds(1, 1, give_ups=1, doubts=1)),
    Shape(TWO, 0, Bounds(1, 1, restores=1, damages=1)),
    Shape(TWO, 1, Bounds(2, 1, closes=1)),
    Shape(USUAL, 1, Bounds(2, 0, give_ups=2), is_prompt=True),
    Shape(USUAL, 0, Bounds(2, 0, give_ups=2, returns=2), is_prompt=True),
    Shape(STRIPED, 1, Bounds(3, 0, give_ups=1)),
    Shape(STRIPED, 0, Bounds(2, 1), is_prompt=True),
)
"""Explored by tests with the mark `slow`, and by `make model`."""

LONG = (
    Shape(SOLO, 1, Bounds(3, 1, give_ups=1, returns=1, closes=1, doubts=1)),
    Shape(SOLO, 1, Bounds(2, 2, give_ups=1, doubts=1)),
    Shape(SOLO, 1, Bounds(1, 3, give_ups=1)),
    Shape(TWO, 1, Bounds(2, 0, give_ups=2, returns=1)),
    Shape(TWO, 1, Bounds(1, 2, give_ups=1), is_prompt=True),
    Shape(TWO, 1, Bounds(2, 1, give_ups=1), is_prompt=True),
    Shape(USUAL, 1, Bounds(1, 1, give_ups=1)),
    Shape(USUAL, 0, Bounds(1, 1, restores=1), is_prompt=True),
    Shape(USUAL, 0, Bounds(1, 1, restores=1)),
    Shape(USUAL, 1, Bounds(1, 1, fills=1)),
    Shape(USUAL, 0, Bounds(2, 1), is_prompt=True),
    Shape(USUAL, 0, Bounds(1, 2), is_prompt=True),
    Shape(STRIPED, 1, Bounds(2, 1)),
    Shape(STRIPED, 0, Bounds(1, 2), is_prompt=True),
    Shape(ALL, 1, Bounds(1, 1, give_ups=1)),
)
"""Explored by `make model` only."""

GROUPS = {"quick": QUICK, "slow": SLOW, "long": LONG}
