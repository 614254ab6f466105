"""Suspicion and eviction: the effect of a vote on a row. Pure.

A row is declared dead only by enough fresh votes of silos that are not dead, by its own silo, or by
a newer generation at its address. The age of a vote is measured from the newer of two times: this
silo's clock and the newest vote. Clocks that differ therefore do not evict a silo.

Source: the table protocol of Orleans.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from millstream.runtime.options import MembershipOptions
from millstream.runtime.wire.address import endpoint_of, generation_of

from .table import MemberRow, Status, TableView

__all__ = ["declare_dead", "find_superseded", "suspect", "votes_needed", "without"]

replace = msgspec.structs.replace


def votes_needed(view: TableView, now_s: float, options: MembershipOptions) -> int:
    """Return the number of fresh votes that evict.

    This is half of the live silos, but at least one and at most `votes_for_death`.
    """
    live = [
        row
        for row in view.rows
        if row.status is Status.ACTIVE and now_s - row.alive_s <= options.stale_after_s
    ]
    return min(options.votes_for_death, max(1, (len(live) + 1) // 2))


def suspect(
    view: TableView,
    target: MemberRow,
    voters: tuple[str, ...],
    now_s: float,
    options: MembershipOptions,
) -> MemberRow:
    """Return the target's row with these votes added, and dead if the votes suffice."""
    assert target.status is not Status.DEAD
    newest = max([now_s, *(time_s for _, time_s in target.suspicions)])
    living = {row.silo for row in view.rows if row.status is not Status.DEAD}
    fresh = {
        voter: time_s
        for voter, time_s in target.suspicions
        if voter in living and newest - time_s <= options.vote_expires_s
    }
    fresh.update(dict.fromkeys(voters, now_s))
    kept = tuple(sorted(fresh.items(), key=lambda vote: -vote[1])[: options.votes_for_death])
    is_dead = len(fresh) >= votes_needed(view, now_s, options)
    status = Status.DEAD if is_dead else target.status
    return replace(target, suspicions=kept, status=status)


def find_superseded(view: TableView, silo: str) -> list[MemberRow]:
    """Return the rows at this silo's address with a lower generation that are not dead."""
    return [
        row
        for row in view.rows
        if endpoint_of(row.silo) == endpoint_of(silo)
        and generation_of(row.silo) < generation_of(silo)
        and row.status is not Status.DEAD
    ]


def declare_dead(view: TableView, silo: str) -> MemberRow | None:
    """Return the silo's row as dead, or None if it is dead already or missing."""
    row = view.row(silo)
    if row is None or row.status is Status.DEAD:
        return None
    return replace(row, status=Status.DEAD)


def without(view: TableView, silos: Set[str]) -> TableView:
    """Return the view without the rows of these silos."""
    return TableView(view.version, tuple(row for row in view.rows if row.silo not in silos))
