"""Where the first activation of a grain goes: the strategies that an author names.

Not: the choice among silos (`cluster`).
"""

from __future__ import annotations

from enum import Enum

__all__ = ["HASHED", "LEAST_ACTIVATIONS", "PREFER_LOCAL", "RANDOM", "Placement"]


class Placement(Enum):
    """Strategies for the first placement of an activation."""

    RANDOM = "random"
    PREFER_LOCAL = "prefer_local"
    HASHED = "hashed"
    LEAST_ACTIVATIONS = "least_activations"


RANDOM = Placement.RANDOM
PREFER_LOCAL = Placement.PREFER_LOCAL
HASHED = Placement.HASHED
LEAST_ACTIVATIONS = Placement.LEAST_ACTIVATIONS
