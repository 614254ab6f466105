"""The number of examples of a property: a share of the limit in the profile of the run."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

USUAL = 100


def examples(usual: int) -> int:
    """Return `usual` in the whole suite, and fewer in `make test-fast`, whose profile has fewer."""
    return max(1, usual * settings().max_examples // USUAL)
