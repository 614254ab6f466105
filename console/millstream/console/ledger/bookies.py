"""`millstream ledger bookies`: lists bookies with their states, and starts their draining."""

from __future__ import annotations

import argparse
from typing import Any

from millstream.console.dead_letters import plain
from millstream.providers.ledger.inspection import (
    BookieRecord,
    Content,
    RecoveryReport,
    ScrubReport,
    bookies_of,
    mark_draining,
    path_of,
)

from .lines import age, damage_lines, print_json, print_lines, size, table, when
from .source import source_of

__all__ = ["show_bookies"]

STUCK_MAX = 20  # faults that are printed


async def show_bookies(arguments: argparse.Namespace) -> int:
    """Mark a bookie if requested, and print all bookies; returns 1 if rows are damaged.

    Raises LookupError, LedgerError, StorageError.
    """
    async with source_of(arguments) as source:
        content = await source.content()
        wanted = arguments.keep if arguments.drain is None else arguments.drain
        if wanted is not None:
            record = content.bookie(wanted)
            await mark_draining(source.metadata, record.bookie, arguments.drain is not None)
            content = await source.content()
        now_s = source.process.clock.wall_s()
    found = [bookie_facts(content, one, now_s) for one in content.bookies.values()]
    if arguments.json:
        reports = list(map(report_facts, content.reports))
        scrubs = [scrub_facts(one) for one in content.scrubs]
        values = {"bookies": found, "copies": reports, "scrubs": scrubs}
        print_json({"cluster": source.scope, **values, "damaged_rows": list(content.damaged)})
        return int(bool(content.damaged))
    print_lines([*lines_of(found), *damage_lines(content)])
    for report in content.reports:
        print_lines(["", *lines_of_report(report, now_s)])
    for scrub in content.scrubs:
        print_lines(["", *lines_of_scrub(scrub, now_s)])
    return int(bool(content.damaged))


def scrub_facts(report: ScrubReport) -> dict[str, Any]:
    """Return the scrub report of a bookie, as plain values."""
    names = [name for name in report.__struct_fields__ if name not in {"faults", "operation"}]
    facts: dict[str, Any] = {name: getattr(report, name) for name in names}
    facts["faults"] = [
        {name: getattr(fault, name) for name in fault.__struct_fields__} for fault in report.faults
    ]
    return facts


def lines_of_scrub(report: ScrubReport, now_s: float) -> list[str]:
    """Return the last full pass of a bookie, and the damage that it found."""
    passed = when(report.passed_s) if report.passes else "never"
    running = ""
    if report.began_s:
        running = f"; reads segment {report.segment} ({report.segments} in total) since "
        running += f"{when(report.began_s)}, {size(report.pass_bytes)} so far"
    lines = [
        f"damage in bookie {report.bookie}: last full pass {passed}{running}",
        f"  {report.damaged:,} damaged and {report.missing:,} missing replicas found, "
        f"{report.repaired:,} repaired, {report.failed:,} could not be repaired, since "
        f"{when(report.since_s)} (reported {age(now_s - report.said_s)} ago)",
    ]
    lines += [f"  {fault}" for fault in report.faults[:STUCK_MAX]]
    if report.failed > STUCK_MAX:
        lines.append(f"  ... and {report.failed - STUCK_MAX} more; --json prints up to 100")
    return list(map(plain, lines))


def report_facts(report: RecoveryReport) -> dict[str, Any]:
    """Return an auditor's report as plain values."""
    names = [name for name in report.__struct_fields__ if name not in {"bookies", "operation"}]
    facts: dict[str, Any] = {name: getattr(report, name) for name in names}
    facts["stuck"] = [
        {"ledger": one.ledger, "is_lost": one.is_lost, "why": one.why} for one in report.stuck
    ]
    return facts


def lines_of_report(report: RecoveryReport, now_s: float) -> list[str]:
    """Return the progress of re-replication."""
    said = f"{report.auditor}, {age(now_s - report.said_s)} ago"
    lacking = (
        f"{report.lacking} of {report.ledgers} ledgers lack replicas, in {report.places} places"
    )
    done = f"{report.filled} places filled, {report.entries:,} entries copied"
    lines = [
        f"replicas in {report.place}: {lacking}",
        f"  {done} ({size(report.size_bytes)}), {report.checked:,} checked, {report.ended} "
        f"ledgers closed, since {when(report.since_s)} (reported by {said})",
    ]
    lines += [f"  ledger {one.ledger}: {one.why}" for one in report.stuck[:STUCK_MAX]]
    if len(report.stuck) > STUCK_MAX:
        lines.append(f"  ... and {len(report.stuck) - STUCK_MAX} more; --json prints all")
    return list(map(plain, lines))


def bookie_facts(content: Content, record: BookieRecord, now_s: float) -> dict[str, Any]:
    """Return a bookie as plain values. `ledgers` counts those whose rows name this bookie."""
    holds = [one.ledger for one in content.ledgers.values() if record.bookie in bookies_of(one)]
    return {
        "bookie": record.bookie,
        "silo": record.silo,
        "state": state_of(content, record, len(holds)),
        "free_bytes": record.free_bytes,
        "boot": record.boot,
        "frame": record.high_water,
        "ledgers": len(holds),
        "said_age_s": round(now_s - record.said_s, 1),
        "directory": path_of(record),
    }


def state_of(content: Content, record: BookieRecord, ledgers: int) -> str:
    """Return the state of a bookie, from its own row or from reports of others."""
    standings = {one.bookie: one.standing for report in content.reports for one in report.bookies}
    if standings.get(record.bookie) == "lost":
        state = "lost"
    elif not record.silo:
        state = "away"
    elif record.is_draining:
        state = "draining"
    else:
        state = "writable" if record.is_writable else "read-only"
    if record.is_draining:
        unknown = content.count_damaged("ledgers/")
        if ledgers or not unknown:
            state += f", {ledgers} ledgers to move" if ledgers else ", empty: may be removed"
        else:
            state += f", {unknown} ledgers cannot be read: keep the bookie"
    return state


def lines_of(found: list[dict[str, Any]]) -> list[str]:
    head = ("BOOKIE", "SILO", "STATE", "FREE", "BOOT", "LEDGERS", "CHANGED", "DIRECTORY")
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
