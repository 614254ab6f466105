"""`millstream ledger ls`: topics and ledgers, a line each."""

from __future__ import annotations

import argparse
from typing import Any

from millstream.providers.ledger.inspection import (
    Content,
    LedgerRecord,
    LedgerState,
    TopicRecord,
    bookies_of,
)

from .lines import age, damage_lines, print_json, print_lines, size, table
from .source import source_of

__all__ = ["ledger_facts", "show_list", "topic_facts"]

Facts = dict[str, Any]
SHORT = 8
"""The characters of a UUID that are printed in a list."""


async def show_list(arguments: argparse.Namespace) -> int:
    """Print topics and ledgers; returns 1 if rows are damaged."""
    async with source_of(arguments) as source:
        content = await source.content()
        now_s = source.process.clock.wall_s()
    topics = [topic_facts(content, one) for one in content.topics.values()]
    ledgers = [ledger_facts(content, one, now_s) for one in content.ledgers.values()]
    if arguments.json:
        values = {"topics": topics, "ledgers": ledgers, "damaged_rows": list(content.damaged)}
        print_json({"cluster": source.scope, **values})
        return int(bool(content.damaged))
    tables = [*topic_table(topics), "", *ledger_table(content, ledgers)]
    print_lines([*tables, *damage_lines(content)])
    return int(bool(content.damaged))


def topic_facts(content: Content, record: TopicRecord) -> Facts:
    """Return a topic as plain values. Rows do not have the size of an open ledger."""
    cursors = content.cursors.get(record.topic, [])
    known = [cursor for cursor in cursors if cursor.cursor in record.cursors]
    return {
        "topic": record.topic,
        "epoch": record.epoch,
        "ledgers": len(record.spans),
        "messages": sum(span.count - span.left_out for span in record.spans),
        "bytes": sum(span.size_bytes for span in record.spans),
        "is_open": bool(record.spans) and not record.spans[-1].is_sealed,
        "first": record.trimmed,
        "next": record.next,
        "cursors": len(record.cursors),
        "backlog": max((record.backlog(one.mark, record.next) for one in known), default=0),
    }


def topic_table(topics: list[Facts]) -> list[str]:
    head = ("TOPIC", "EPOCH", "LEDGERS", "MESSAGES", "BYTES", "FIRST", "CURSORS", "BACKLOG")
    rows = [
        (
            one["topic"],
            str(one["epoch"]),
            f"{one['ledgers']}{' (one open)' if one['is_open'] else ''}",
            f"{one['messages']:,}{'+' if one['is_open'] else ''}",
            size(one["bytes"]),
            str(one["first"]),
            str(one["cursors"]),
            f"{one['backlog']:,}{'+' if one['is_open'] and one['cursors'] else ''}",
        )
        for one in topics
    ]
    return table(head, rows) if rows else ["no topics"]


def ledger_facts(content: Content, record: LedgerRecord, now_s: float) -> Facts:
    """Return a ledger as plain values; entries and bytes of an open one are None."""
    is_closed = record.state is LedgerState.CLOSED
    bookies = sorted({name for fragment in record.fragments for name in fragment.bookies})
    return {
        "ledger": record.ledger,
        "state": record.state.value,
        "topic": record.topic,
        "entries": record.last + 1 if is_closed else None,
        "bytes": record.length if is_closed else None,
        "ensemble": record.quorum.ensemble,
        "write_quorum": record.quorum.write,
        "ack_quorum": record.quorum.ack,
        "bookies": bookies,
        "age_s": round(now_s - record.created_s, 1),
        "under_replicated": why_short(content, record),
    }


def why_short(content: Content, record: LedgerRecord) -> str:
    """Return why a ledger has too few replicas; "" if rows show no lack."""
    for stuck in (stuck for report in content.reports for stuck in report.stuck):
        if stuck.ledger == record.ledger:
            return stuck.why
    lost = bookies_of(record) - content.bookies.keys()
    if lost:
        return f"no row of bookie {', '.join(sorted(lost))}"
    if record.wanted is not None:
        return f"created with {record.quorum.write} of {record.wanted.write} replicas"
    leaving = {one.bookie for one in content.bookies.values() if one.is_draining}
    held = leaving & bookies_of(record)
    return f"{', '.join(sorted(held))} is being drained" if held else ""


def shorten(content: Content, ledger: Facts) -> str:
    """Return why a ledger has too few replicas, with the short names of bookies."""
    why: str = ledger["under_replicated"]
    for name in {*ledger["bookies"], *content.bookies}:
        why = why.replace(name, name[:SHORT])
    return f"under-replicated: {why}" if why else ""


def ledger_table(content: Content, ledgers: list[Facts]) -> list[str]:
    head = ("LEDGER", "STATE", "ENTRIES", "BYTES", "QUORUM", "AGE", "TOPIC", "BOOKIES", "")
    rows = [
        (
            str(one["ledger"]),
            one["state"],
            "-" if one["entries"] is None else f"{one['entries']:,}",
            "-" if one["bytes"] is None else size(one["bytes"]),
            f"{one['ensemble']}/{one['write_quorum']}/{one['ack_quorum']}",
            age(one["age_s"]),
            one["topic"],
            " ".join(name[:SHORT] for name in one["bookies"]),
            shorten(content, one),
        )
        for one in ledgers
    ]
    return table(head, rows) if rows else ["no ledgers"]
