"""`millstream ledger bookies`: who they are, where they run, and whether they are being emptied."""

from __future__ import annotations

import argparse
from typing import Any

from millstream.providers.ledger.metadata.bookies import BookieRecord
from millstream.providers.ledger.metadata.draining import mark_draining

from .files import path_of
from .lines import age, print_json, print_lines, size, table
from .source import Content, source_of

__all__ = ["show_bookies"]


async def show_bookies(arguments: argparse.Namespace) -> int:
    """Mark one, if asked to, and print all. Raises LookupError, LedgerError, StorageError."""
    async with source_of(arguments) as source:
        content = await source.content()
        wanted = arguments.drain or arguments.keep
        if wanted:
            record = content.bookie(wanted)
            await mark_draining(source.metadata, record.bookie, bool(arguments.drain))
            content = await source.content()
        now_s = source.process.clock.wall_s()
    found = [bookie_facts(content, one, now_s) for one in content.bookies.values()]
    if arguments.json:
        print_json({"cluster": source.scope, "bookies": found})
    else:
        print_lines(lines_of(found))
    return 0


def bookie_facts(content: Content, record: BookieRecord, now_s: float) -> dict[str, Any]:
    """A bookie in values. `ledgers`: how many have entries there, as rows say."""
    holds = [
        one.ledger
        for one in content.ledgers.values()
        if any(record.bookie in fragment.bookies for fragment in one.fragments)
    ]
    return {
        "bookie": record.bookie,
        "silo": record.silo,
        "state": state_of(record, len(holds)),
        "free_bytes": record.free_bytes,
        "boot": record.boot,
        "frame": record.high_water,
        "ledgers": len(holds),
        "said_age_s": round(now_s - record.said_s, 1),
        "directory": path_of(record),
    }


def state_of(record: BookieRecord, ledgers: int) -> str:
    """What it does, as it last said."""
    running = "writable" if record.is_writable else "read-only"
    state = running if record.silo else "away"
    if record.is_draining:
        state += ", empty: may be removed" if not ledgers else f", {ledgers} ledgers to move"
    return state


def lines_of(found: list[dict[str, Any]]) -> list[str]:
    head = ("BOOKIE", "SILO", "STATE", "FREE", "START", "LEDGERS", "CHANGED", "DIRECTORY")
    rows = [
        (
            one["bookie"],
            one["silo"] or "-",
            one["state"],
            size(one["free_bytes"]),
            str(one["boot"]),
            str(one["ledgers"]),
            f"{age(one['said_age_s'])} ago",
            one["directory"],
        )
        for one in found
    ]
    return table(head, rows) if rows else ["no bookies"]
