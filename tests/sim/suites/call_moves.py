"""Accounts that move to another silo: the value that they take along, and the judge of their moves.

Owns: `Luggage`, `check_moves`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.runtime.testing import Activated, History

__all__ = ["Luggage", "check_moves"]


@dataclass
class Luggage:
    """The value that an account takes along: its silo and its operations."""

    silo: str
    ops: list[str]


def check_moves(
    history: History, arrivals: Mapping[tuple[str, str], list[tuple[float, str]]]
) -> list[str]:
    """Check that an activation that arrived continues the newest activation.

    Activations that were registered in a later view do not count: the silos of this move may not
    know them.
    """
    waiting = {move: list(came) for move, came in arrivals.items()}
    before = defaultdict[str, list[Activated]](list)
    found = []
    for at_s, event in history.of(Activated):
        came = waiting.get((event.grain, event.silo), [])
        if came and came[0][0] <= at_s:
            _, former = came.pop(0)
            known = (
                (one.registered_version, number, one.silo)
                for number, one in enumerate(before[event.grain])
                if one.registered_version <= event.registered_version
            )
            newest = max(known, default=(0, 0, ""))[2]
            if newest != former:
                found.append(
                    f"t={at_s:.6f}: {event.grain}: an activation continues one of {former}, and"
                    f" the newest one was in {newest}"
                )
        before[event.grain].append(event)
    return found
