"""The decision whether the clock of a silo is near enough to that of the membership table's server.

This module owns `ClockVerdict` and `judge_clock`. `limited_table` reads the clocks.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["CLOCK_REFUSED_S", "CLOCK_WARNED_S", "ClockVerdict", "judge_clock"]

CLOCK_WARNED_S = 5.0
"""A silo whose clock differs by more than this logs a warning when it joins."""
CLOCK_REFUSED_S = 60.0
"""A silo whose clock differs by more than this does not join."""


class ClockVerdict(Enum):
    """The action for a difference of two clocks."""

    FINE = "fine"
    WARN = "warn"
    REFUSE = "refuse"


def judge_clock(before_s: float, table_s: float, after_s: float) -> tuple[float, ClockVerdict]:
    """Judge the difference between a silo's clock and that of its table.

    The table read its clock at some moment between the two readings of the silo, so the difference
    is known up to half of that time. A slow answer is never a reason to refuse.

    Args:
        before_s: The silo's wall time before it asked the table, in seconds.
        table_s: The table's wall time.
        after_s: The silo's wall time when the answer arrived.

    Returns:
        The seconds by which the silo's clock is ahead, with a negative sign if it is behind, and
        the verdict.
    """
    ahead_s = (before_s + after_s) / 2 - table_s
    certain_s = abs(ahead_s) - abs(after_s - before_s) / 2
    if certain_s > CLOCK_REFUSED_S:
        return ahead_s, ClockVerdict.REFUSE
    return ahead_s, ClockVerdict.WARN if certain_s > CLOCK_WARNED_S else ClockVerdict.FINE
