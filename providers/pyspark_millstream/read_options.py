"""The options of `spark.read` and `spark.readStream`, parsed and checked once, in the driver.

This module owns the names, defaults and limits of the options for reading, and shares some with
`options`. Any task can use a `ReadOptions` as it is. Every error names the option and a valid
value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from millstream.streams import QueueId, Token
from millstream.streams.rewinding.retain_target import READER_CHARS_MAX

from .columns import MODES
from .offsets import ReadSource, parse, restore
from .options import check_names, count, gateways, require, seconds

__all__ = ["ReadOptions", "StatedOffset", "parse_read"]

MESSAGES_MAX = 1 << 40
BYTES_MAX = 1 << 50
SPLIT_MAX = 1 << 30
SPARKS = {"columnnameofcorruptrecord": "column_name_of_corrupt_record"}
"""Options that may also be spelled as in Spark's own sources."""
BOOLEANS = {"true": True, "false": False}


class StatedOffset(NamedTuple):
    """The start that a user gave; `source` is None if the positions have no source."""

    source: ReadSource | None
    positions: dict[QueueId, Token]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of `format("millstream")` for reading, each given as `.option(name, text)`.

    Attributes:
        gateways: As for writing.
        namespace: As for writing.
        cluster: As for writing.
        provider: As for writing.
        starting_offsets: The start of a query without a checkpoint: "earliest", "latest", a time in
            ISO 8601 with its zone, or JSON. The JSON is `{queue: token}`, or an offset from a
            query's progress. Default: "latest" for a stream, "earliest" for `spark.read`.
        max_messages_per_batch: The approximate messages of a micro-batch. A message has as many
            rows as items were published at once.
        max_bytes_per_batch: The approximate bytes of items in a micro-batch. None: no limit of
            bytes. Only for streams.
        split_messages: The approximate messages that one task reads.
        consumer: A name under which the cluster keeps the events that the query has not processed.
            "": the cluster keeps what it keeps anyway. Queries that run at the same time need
            different names. Only for streams.
        mode: The treatment of an item that does not fit the schema, as in Spark's JSON source.
            "failfast" ends the query. "permissive" makes unfitting values null, and describes them
            in `column_name_of_corrupt_record`. "dropmalformed" leaves the row out.
        column_name_of_corrupt_record: With "permissive", the column for malformed items, if the
            schema has it: a string column gets the reason, a binary column the item.
            `columnNameOfCorruptRecord` is the same option.
        fail_on_data_loss: True ends a query if unread messages were dropped, or if its offset
            belongs to another source. False continues after the lost messages, with a warning.
        patience_s: As for writing.
    """

    gateways: tuple[str, ...]
    namespace: str
    cluster: str = "dev"
    provider: str = "default"
    starting_offsets: str | float | StatedOffset = "latest"
    max_messages_per_batch: int = 50_000
    max_bytes_per_batch: int | None = None
    split_messages: int = 10_000
    consumer: str = ""
    mode: str = "failfast"
    column_name_of_corrupt_record: str = "_corrupt_record"
    fail_on_data_loss: bool = True
    patience_s: float = 60.0


def parse_read(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of Spark. Raises ValueError."""
    lowered = {name.lower(): text.strip() for name, text in given.items()}
    texts = {SPARKS.get(name, name): text for name, text in lowered.items()}
    check_names(texts, ReadOptions)
    return ReadOptions(
        gateways=gateways(require(texts, "gateways", "127.0.0.1:7700,127.0.0.1:7701")),
        namespace=require(texts, "namespace", "arrivals"),
        cluster=texts.get("cluster") or "dev",
        provider=texts.get("provider") or "default",
        starting_offsets=_starting(texts.get("starting_offsets", ""), is_stream),
        max_messages_per_batch=count(texts, "max_messages_per_batch", 50_000, MESSAGES_MAX),
        max_bytes_per_batch=_bytes(texts, is_stream),
        split_messages=count(texts, "split_messages", 10_000, SPLIT_MAX),
        consumer=_consumer(texts.get("consumer", ""), is_stream),
        mode=_mode(texts.get("mode") or "failfast"),
        column_name_of_corrupt_record=texts.get("column_name_of_corrupt_record")
        or "_corrupt_record",
        fail_on_data_loss=_boolean(texts, "fail_on_data_loss"),
        patience_s=seconds(texts, "patience_s"),
    )


def _starting(text: str, is_stream: bool) -> str | float | StatedOffset:
    """Return a word, a wall time in seconds, or an offset."""
    if not text:
        return "latest" if is_stream else "earliest"
    if text in ("earliest", "latest"):
        if text == "latest" and not is_stream:
            raise ValueError(
                "option 'starting_offsets' is 'latest': spark.read would return no rows; write "
                "'earliest', a time or tokens"
            )
        return text
    try:
        if text.startswith("{"):
            return _read_stated(json.loads(text))
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("it has no time zone")
        return when.timestamp()
    except ValueError as error:
        raise ValueError(
            f"option 'starting_offsets' is {text!r} ({error}): write earliest, latest, a time such "
            'as 2026-01-31T12:00:00Z, or a token for each queue, {"queue": "token"}'
        ) from None


def _read_stated(given: dict[str, Any]) -> StatedOffset:
    """Return positions by queue, or an offset with its source. Raises ValueError."""
    if isinstance(given.get("queues"), dict):
        return StatedOffset(*restore(given))
    return StatedOffset(None, parse(given))


def _consumer(text: str, is_stream: bool) -> str:
    if text and not is_stream:
        raise ValueError(
            f"option 'consumer' is {text!r}: only streaming queries have one; remove the option "
            "for spark.read"
        )
    if len(text) > READER_CHARS_MAX:
        raise ValueError(
            f"option 'consumer' has {len(text)} characters, at most {READER_CHARS_MAX}"
        )
    return text


def _bytes(texts: Mapping[str, str], is_stream: bool) -> int | None:
    if not texts.get("max_bytes_per_batch"):
        return None
    if not is_stream:
        raise ValueError(
            "option 'max_bytes_per_batch': only streaming queries have one; spark.read reads all "
            "in one batch"
        )
    return count(texts, "max_bytes_per_batch", 1, BYTES_MAX)


def _mode(text: str) -> str:
    if text.lower() not in MODES:
        raise ValueError(f"option 'mode' is {text!r}: write {', '.join(MODES)}")
    return text.lower()


def _boolean(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name) or "true"
    if text.lower() not in BOOLEANS:
        raise ValueError(f"option {name!r} is {text!r}: write true or false")
    return BOOLEANS[text.lower()]
