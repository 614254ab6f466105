"""Log lines about the changes between two membership views.

A silo that becomes active, begins to stop, leaves or is evicted is logged once. States from before
this silo's first view are not logged.
"""

from __future__ import annotations

import logging

from millstream.runtime.wire.address import generation_of

from .table import MemberRow, Status, TableView

__all__ = ["tell_changes"]

log = logging.getLogger("millstream.member")


def tell_changes(me: str, old: TableView, new: TableView) -> None:
    """Log the change of each member between two views."""
    if not old.version:
        return
    before = {row.silo: row for row in old.rows}
    for row in new.rows:
        known = before.get(row.silo)
        status = None if known is None else known.status
        told = what_happened(status, row, new)
        if told:
            is_evicted = row.status is Status.DEAD and row.suspicions
            level = logging.WARNING if is_evicted else logging.INFO
            name = "" if row.name in ("", row.silo) else f" ({row.name})"
            extra = {"silo": me, "member": row.silo, "status": row.status.value}
            text = "%s%s %s (version %d)"
            log.log(level, text, row.silo, name, told, new.version, extra=extra)


def what_happened(before: Status | None, row: MemberRow, view: TableView) -> str:
    """Describe the change of a member, or return an empty text if it needs no log line."""
    if before is row.status or (before is None and row.status is Status.DEAD):
        return ""
    match row.status:
        case Status.ACTIVE:
            return "joined the cluster"
        case Status.STOPPING:
            return "is stopping"
        case Status.DEAD:
            return how_ended(row, view)
        case _:
            return ""


def how_ended(row: MemberRow, view: TableView) -> str:
    """Describe the end of a silo: evicted by votes, replaced at its address, or left."""
    voters = ", ".join(voter for voter, _ in row.suspicions)
    if voters:
        return f"was evicted, suspected by {voters}"
    for other in view.rows:
        is_newer = generation_of(other.silo) > generation_of(row.silo)
        if other.endpoint == row.endpoint and is_newer:
            return f"was replaced by {other.silo}"
    return "left the cluster"
