"""One cluster, one configuration: what silos must agree on. Pure.

Owns: comparing a joining silo's row with those of active ones. Not: what is in it (`silo`).
Invariants: only what both have is compared, so a silo may lack a part that others have; nothing of
a silo that is not active counts, so a cluster that is gone binds nobody.
"""

from __future__ import annotations

from millstream.runtime.errors import ConfigError

from .table import MemberRow, Status, TableView

__all__ = ["check_agreement"]


def check_agreement(row: MemberRow, view: TableView) -> None:
    """Refuse a joining silo that differs from an active one. Raises ConfigError."""
    mine = dict(row.agreement)
    for other in sorted(view.rows, key=lambda other: other.silo):
        if other.status is not Status.ACTIVE or other.silo == row.silo:
            continue
        for what, theirs in other.agreement:
            if mine.get(what, theirs) != theirs:
                raise ConfigError(
                    f"{row.silo} ({row.name}) cannot join: {what} is {mine[what]!r} here and "
                    f"{theirs!r} at {other.silo} ({other.name}): one cluster has one "
                    "configuration; mend this silo's, or stop the others first"
                )
