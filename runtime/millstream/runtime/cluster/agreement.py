"""Configuration that all silos of a cluster must agree on. Pure.

This module compares the row of a joining silo with the rows of active silos. `silo` decides the
content of the rows.

Invariants:

- Only entries that both rows have are compared, so a silo may lack a part that other silos have.
- Rows of silos that are not active are ignored, so a cluster that is gone restricts no new one.
"""

from __future__ import annotations

from millstream.runtime.errors import ConfigError

from .table import MemberRow, Status, TableView

__all__ = ["check_agreement"]


def check_agreement(row: MemberRow, view: TableView) -> None:
    """Raise ConfigError if a joining silo's configuration differs from that of an active silo."""
    mine = dict(row.agreement)
    for other in sorted(view.rows, key=lambda other: other.silo):
        if other.status is not Status.ACTIVE or other.silo == row.silo:
            continue
        for what, theirs in other.agreement:
            if mine.get(what, theirs) != theirs:
                raise ConfigError(
                    f"{row.silo} ({row.name}) cannot join: {what} is {mine[what]!r} here and "
                    f"{theirs!r} at {other.silo} ({other.name}): all silos need the "
                    "same configuration; correct this silo, or stop the others first"
                )
