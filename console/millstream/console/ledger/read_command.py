"""`millstream ledger read`: prints messages of a topic or entries of a ledger from directories.

This module owns the output. It prints only messages and entries that the files show as confirmed.
It changes nothing, whether silos run or not.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from millstream.console.dead_letters import item_text, plain
from millstream.providers.ledger.inspection import (
    STREAM_CONTENT,
    TOPIC_CONTENT,
    BookieLedgers,
    Content,
    EntriesGivenUp,
    Entry,
    EntryDamaged,
    EntryKind,
    Source,
    StoredMessage,
    file_ledgers,
    head_of,
    places_of,
    topic_reader,
)
from millstream.runtime import CursorTooOld

from .lines import print_json, size, when
from .source import source_of

__all__ = ["read_entries"]

PAGE_BYTES = 4 * 2**20
TEXT_MAX = 400  # characters of one message that are printed

Facts = dict[str, Any]


async def read_entries(arguments: argparse.Namespace) -> int:
    """Print the entries of a ledger, if `name` is a number and no topic has this name. Otherwise
    print the messages of the topic `name`. Return the exit code.

    Raises LookupError (no such ledger or topic), LedgerError.
    """
    async with source_of(arguments) as source:
        content = await source.content()
        name: str = arguments.name
        is_ledger = name.isdecimal() and name not in content.topics
        if is_ledger:
            content.ledger(int(name))
        else:
            content.topic(name)
        places = places_of(content, arguments.directory)
        with file_ledgers(source, places, say_left_out) as ledgers:
            if is_ledger:
                return await print_entries(ledgers, content, arguments)
            return await print_messages(source, ledgers, arguments)


async def print_entries(
    ledgers: BookieLedgers, content: Content, arguments: argparse.Namespace
) -> int:
    """Print the entries of a ledger, one per line."""
    first, left = max(0, arguments.first or 0), arguments.count
    reader = await ledgers.reader(int(arguments.name))
    found: list[Entry] = []
    while left > 0:
        try:
            page = await reader.read(first, left, PAGE_BYTES)
        except EntriesGivenUp as lost:
            say_lost(lost)
            first = lost.last + 1
            continue
        if not page:
            break
        found += page
        first, left = first + len(page), left - len(page)
    tell([entry_facts(one) for one in found], entry_line, arguments.json)
    if not found or left > 0:
        say_end(content.ledger(int(arguments.name)).last, first)
    return 0


def say_left_out(why: Exception) -> None:
    print(f"millstream ledger: skipped a directory: {plain(str(why))}", file=sys.stderr)


def say_lost(lost: Exception) -> None:
    print(f"millstream ledger read: {plain(str(lost))}", file=sys.stderr)


def say_end(last: int, first: int) -> None:
    what = f"the ledger ends with entry {last}" if last >= first - 1 >= 0 or last >= 0 else ""
    what = what or f"no entry from {first} on is known to be confirmed: the ledger is open"
    print(f"millstream ledger read: {what}", file=sys.stderr)


async def print_messages(
    source: Source, ledgers: BookieLedgers, arguments: argparse.Namespace
) -> int:
    """Print the messages of a topic, one per line."""
    reader = topic_reader(source, ledgers, arguments.name)
    try:
        oldest, end = await reader.bounds()
        first, left = max(oldest, arguments.first or oldest), arguments.count
        found: list[StoredMessage] = []
        while left > 0:
            try:
                page = await reader.read(first, left, PAGE_BYTES)
            except CursorTooOld as lost:
                say_lost(lost)
                first = max(first + 1, lost.first)
                continue
            if not page:
                break
            found += page
            first, left = page[-1].number + 1, left - len(page)
    finally:
        await reader.aclose()
    tell([message_facts(one) for one in found], message_line, arguments.json)
    if not found or left > 0:
        kept = f"messages {oldest} to {end - 1}" if end > oldest else "no messages"
        print(f"millstream ledger read: the files have {kept}", file=sys.stderr)
    return 0


def tell(found: list[Facts], line: Any, is_json: bool) -> None:
    if is_json:
        print_json(found)
        return
    for one in found:
        print(plain(line(one)))


def entry_facts(entry: Entry) -> Facts:
    """Return an entry as plain values, with its meaning for a topic."""
    facts: Facts = {
        "entry": entry.head.entry,
        "bytes": entry.head.size_bytes,
        "confirmed": entry.head.confirmed,
        "complete": entry.head.complete,
        "length": entry.head.length,
    }
    try:
        head = head_of(entry.payload)
    except EntryDamaged:
        return facts | {"what": "not an entry of a topic"}
    if head.kind == EntryKind.SNAPSHOT:
        what = "producers"
    else:
        what = f"messages {head.first} to {head.end - 1}"
    return facts | {"what": what, "time_s": head.time_ms / 1000}


def entry_line(one: Facts) -> str:
    at = f"  {when(one['time_s'])}" if "time_s" in one else ""
    confirmed = f"confirmed {one['confirmed']}, complete {one['complete']}"
    return f"{one['entry']}{at}  {size(one['bytes'])}  {one['what']}  ({confirmed})"


def message_facts(stored: StoredMessage) -> Facts:
    """Return a message as plain values, in the terms of its stream or program."""
    payload, producer, seq = stored.message
    facts: Facts = {"number": stored.number, "time_s": stored.time_ms / 1000}
    if producer:
        facts |= {"producer": producer, "sequence": seq}
    return facts | content_of(payload)


def content_of(payload: bytes) -> Facts:
    """Return the content of a message: of a stream, of a topic of `open_topics`, or bytes."""
    try:
        namespace, key, items, headers = STREAM_CONTENT.decode(payload)
    except msgspec.MsgspecError:
        return content_alone(payload)
    facts: Facts = {"stream": f"{namespace}/{key}", "items": [text_of(item) for item in items]}
    return facts | ({"headers": headers} if headers else {})


def content_alone(payload: bytes) -> Facts:
    try:
        key, value = TOPIC_CONTENT.decode(payload)
    except msgspec.MsgspecError:
        return {"bytes": repr(payload)}
    try:
        return {"key": key, "value": value.decode()}
    except UnicodeDecodeError:
        return {"key": key, "value": repr(value)}


def text_of(item: bytes) -> str:
    """Return an item as JSON if it is MessagePack."""
    try:
        return item_text(item)
    except msgspec.MsgspecError:
        return repr(item)


def message_line(one: Facts) -> str:
    mark = f"  {one['producer']}:{one['sequence']}" if "producer" in one else ""
    if "stream" in one:
        text = f"{one['stream']}  {' '.join(one['items'])}"
    elif "value" in one:
        text = f"{'-' if one['key'] is None else one['key']}  {one['value']}"
    else:
        text = one["bytes"]
    text = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text):,} characters)"
    return f"{one['number']}  {when(one['time_s'])}{mark}  {text}"
