"""How many examples a property gets: a share of what the profile of the run allows."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

USUAL = 100


def examples(usual: int) -> int:
    """So many in the whole suite; fewer in `make test-fast`, as its profile has fewer."""
    return max(1, usual * settings().max_examples // USUAL)
