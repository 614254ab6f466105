"""What a newer view says of the others, in one line each.

Invariants: a silo that becomes active, begins to stop, leaves, or is evicted is told once; what was
so before this silo's first view is not told.
"""

from __future__ import annotations

import logging

from .table import MemberRow, Status, TableView

__all__ = ["tell_changes"]

log = logging.getLogger("millstream.member")


def tell_changes(me: str, old: TableView, new: TableView) -> None:
    """Log what happened to each member between two views."""
    if not old.version:
        return
    before = {row.silo: row for row in old.rows}
    for row in new.rows:
        known = before.get(row.silo)
        status = None if known is None else known.status
        told = what_happened(status, row)
        if told:
            is_bad = row.status is Status.DEAD and status is not Status.STOPPING
            level = logging.WARNING if is_bad else logging.INFO
            name = "" if row.name in ("", row.silo) else f" ({row.name})"
            extra = {"silo": me, "member": row.silo, "status": row.status.value}
            text = "%s%s %s (version %d)"
            log.log(level, text, row.silo, name, told, new.version, extra=extra)


def what_happened(before: Status | None, row: MemberRow) -> str:
    """In words; empty if nothing is worth a line."""
    if before is row.status or (before is None and row.status is Status.DEAD):
        return ""
    match row.status:
        case Status.ACTIVE:
            return "joined the cluster"
        case Status.STOPPING:
            return "is stopping"
        case Status.DEAD:
            voters = ", ".join(voter for voter, _ in row.suspicions)
            if before is Status.STOPPING and not voters:
                return "left the cluster"
            return f"was evicted, suspected by {voters}" if voters else "is dead"
        case _:
            return ""
