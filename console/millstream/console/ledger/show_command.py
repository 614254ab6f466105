"""`millstream ledger show`: all facts of one topic or ledger."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from millstream.providers.ledger.inspection import (
    ENDLESS,
    Content,
    CursorRecord,
    LedgerRecord,
    TopicRecord,
)

from .lines import facts, print_json, print_lines, size, table, when
from .list_command import ledger_facts, topic_facts
from .source import source_of

__all__ = ["show_one"]

RANGES_MAX = 5  # ranges that are printed


async def show_one(arguments: argparse.Namespace) -> int:
    """Print a topic or ledger. Raises LookupError if neither has this name."""
    async with source_of(arguments) as source:
        content = await source.content()
        now_s = source.process.clock.wall_s()
    name: str = arguments.name
    if name.isdecimal() and name not in content.topics:
        record = content.ledger(int(name))
        if arguments.json:
            print_json(ledger_facts(content, record, now_s) | raw(record))
        else:
            print_lines(lines_of_ledger(content, record, now_s))
        return 0
    topic = content.topic(name)
    if arguments.json:
        cursors = [cursor_facts(topic, one) for one in content.cursors.get(name, [])]
        print_json(topic_facts(content, topic) | raw(topic) | {"cursors": cursors})
    else:
        print_lines(lines_of_topic(content, topic))
    return 0


def show_lost_range(first: int, last: int) -> str:
    """Return a range of entries that were given up."""
    return f"all from {first} on" if last == ENDLESS else f"{first} to {last}"


def raw(record: LedgerRecord | TopicRecord) -> dict[str, Any]:
    """Return the row as plain values, by names of fields."""
    return {name: msgspec.to_builtins(getattr(record, name)) for name in record.__struct_fields__}


def lines_of_ledger(content: Content, record: LedgerRecord, now_s: float) -> list[str]:
    """Return a ledger, its fragments and their bookies."""
    found = ledger_facts(content, record, now_s)
    rows = {
        "ledger": str(record.ledger),
        "state": f"{record.state.value}, term {record.term}",
        "topic": record.topic or "none",
        "created": when(record.created_s),
        "quorum": "ensemble={}, write_quorum={}, ack_quorum={}".format(*record.quorum),
        "entries": "-" if found["entries"] is None else f"{found['entries']:,}",
        "bytes": "-" if found["bytes"] is None else size(found["bytes"]),
        "written by": record.operation,
    }
    if record.lost:
        rows["lost"] = ", ".join(show_lost_range(*one) for one in record.lost)
    if found["under_replicated"]:
        rows["under-replicated"] = found["under_replicated"]
    lines = [*facts(rows), ""]
    for fragment in record.fragments:
        lines.append(f"from entry {fragment.first} on:")
        for place, name in enumerate(fragment.bookies):
            bookie = content.bookies.get(name)
            where = "no row" if bookie is None else bookie.silo or "no silo runs it"
            lines.append(f"  place {place}: {name} ({where})")
    return lines


def lines_of_topic(content: Content, record: TopicRecord) -> list[str]:
    """Return a topic, its ledgers and its cursors."""
    found = topic_facts(content, record)
    settings = record.settings
    quorum = (
        "default: 1/1/1 in one shared directory, 3/3/2 with one for each silo"
        if settings.quorum is None
        else "/".join(map(str, settings.quorum))
    )
    rows = {
        "topic": record.topic,
        "epoch": f"{record.epoch}, opening {record.opening}, by {record.holder}",
        "messages": show_kept(record, bool(found["is_open"])),
        "quorum": quorum,
        "ledger limits": f"{size(settings.ledger_bytes_max)}, {settings.ledger_entries_max:,} "
        f"entries, {settings.ledger_age_s:g} s",
    }
    spans = [
        (
            str(span.ledger),
            "sealed" if span.is_sealed else "open",
            str(span.first),
            f"{span.count - span.left_out:,}" if span.is_sealed else "-",
            size(span.size_bytes) if span.is_sealed else "-",
            when(span.last_ms / 1000),
        )
        for span in record.spans
    ]
    head = ("LEDGER", "STATE", "FIRST", "MESSAGES", "BYTES", "NEWEST")
    lines = [*facts(rows), "", *(table(head, spans) if spans else ["no ledgers"]), ""]
    return [*lines, *cursor_lines(record, content.cursors.get(record.topic, []))]


def show_kept(record: TopicRecord, is_open: bool) -> str:
    """Return the messages that rows know; they do not have those of an open ledger."""
    if record.next > record.trimmed:
        return f"{record.trimmed} to {record.next - 1}{' and later' * is_open}"
    return f"from {record.trimmed} on" if is_open else f"none; the next is {record.next}"


def cursor_facts(topic: TopicRecord, cursor: CursorRecord) -> dict[str, Any]:
    """Return a cursor as plain values; messages of an open ledger are not counted."""
    done = sum(last - first + 1 for first, last in cursor.ranges)
    return {
        "cursor": cursor.cursor,
        "mark": cursor.mark,
        "ranges": [list(one) for one in cursor.ranges],
        "backlog": max(0, topic.backlog(cursor.mark, topic.next) - done),
        "gap": cursor.gap,
    }


def cursor_lines(topic: TopicRecord, cursors: list[CursorRecord]) -> list[str]:
    found = [cursor_facts(topic, one) for one in cursors]
    rows = [
        (
            one["cursor"],
            str(one["mark"]),
            f"{one['backlog']:,}",
            ", ".join(f"{first}-{last}" for first, last in one["ranges"][:RANGES_MAX])
            + (", ..." if len(one["ranges"]) > RANGES_MAX else ""),
        )
        for one in found
    ]
    return table(("CURSOR", "MARK", "BACKLOG", "ACKED BEYOND"), rows) if rows else ["no cursors"]
