"""The properties of our own providers that the checks prove."""

from __future__ import annotations

from millstream.streams import QueueAdapter

__all__ = ["expect_run", "holds_nothing"]


def expect_run(why: str, *lacking: str) -> None:
    """Check that a check ran, does not apply, or lacks one of these hooks."""
    is_open = why.startswith("not run")
    assert not is_open or any(f"`{name}`" in why for name in lacking), why


async def holds_nothing(adapter: QueueAdapter) -> None:
    """The hook `kill` for an adapter that keeps nothing beyond its calls."""
