"""The placement strategies that an author can choose. The package `cluster` chooses the silo."""

from __future__ import annotations

from enum import Enum

__all__ = ["HASHED", "LEAST_ACTIVATIONS", "PREFER_LOCAL", "RANDOM", "Placement"]


class Placement(Enum):
    """Strategies that choose the silo of a new activation, for `@grain(placement=...)`.

    Only active silos that host the grain type are candidates. Each strategy has a constant of its
    own name in `millstream.runtime`.

    Attributes:
        RANDOM: A random silo. This is the default.
        PREFER_LOCAL: The silo of the caller, if it hosts the type. Else a random silo.
        HASHED: The silo that the hash of the grain's name selects. Equal names go to the same silo
            while the membership does not change.
        LEAST_ACTIVATIONS: The silo with fewer activations, of two random silos (power of two
            choices).
    """

    RANDOM = "random"
    PREFER_LOCAL = "prefer_local"
    HASHED = "hashed"
    LEAST_ACTIVATIONS = "least_activations"


RANDOM = Placement.RANDOM
"""`Placement.RANDOM`: a random silo."""
PREFER_LOCAL = Placement.PREFER_LOCAL
"""`Placement.PREFER_LOCAL`: the silo of the caller, if it hosts the type."""
HASHED = Placement.HASHED
"""`Placement.HASHED`: the silo that the hash of the grain's name selects."""
LEAST_ACTIVATIONS = Placement.LEAST_ACTIVATIONS
"""`Placement.LEAST_ACTIVATIONS`: the silo with fewer activations, of two random silos."""
