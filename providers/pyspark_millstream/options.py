"""The options of `format("millstream")`, parsed and checked once, in the driver.

This module owns the names, defaults and limits of the options. Any task can use a `WriteOptions` as
it is. Every error names the option and a valid value. The functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from millstream.runtime import ConfigError, connect

__all__ = ["WriteOptions", "check_names", "count", "gateways", "parse", "require", "seconds"]

GATEWAYS_MAX = 64
CHUNK_ROWS_MAX = 100_000
MESSAGE_BYTES_MAX = 16 << 20
WINDOW_MAX = 256
PATIENCE_S_MAX = 3600.0
DELIVERIES = ("staged", "direct")
MAY_BE_EMPTY = ("consumer", "writer_id", "gateways", "namespace", "key_column")
"""Options whose default is empty, and options that `require` reports as missing."""
NOT_OURS = ("path", "checkpointlocation", "queryname", "mergeschema")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of `format("millstream")` for writing, each given as `.option(name, text)`.

    Attributes:
        gateways: Addresses `host:port`, separated by commas, at most 64. The executors must reach
            them, and learn the other gateways from them.
        namespace: The namespace of the streams.
        key_column: The string or integer column with the stream key.
        value_columns: The columns of an item, separated by commas. Without the option: all columns.
        cluster: The name of the cluster.
        provider: The name of the stream provider.
        writer_id: The identity for deduplication. Empty: the id of a streaming query, or a new id
            for each batch write.
        chunk_rows: The rows among which the rows of one key are grouped, up to 100,000.
        message_bytes: Rows of one key with more bytes become several messages, up to 16 MiB. A
            single row may be larger, if its queue accepts it. With `delivery` "direct", change
            neither this nor `chunk_rows` while a failed batch may be repeated.
        window: Unanswered calls of a task, up to 256.
        delivery: "staged" makes a batch visible as a whole or not at all. "direct" makes rows
            visible as they arrive.
        patience_s: The seconds for which a task retries while the cluster accepts nothing, above 0
            up to 3600.
    """

    gateways: tuple[str, ...]
    namespace: str
    key_column: str
    value_columns: tuple[str, ...]
    cluster: str = "dev"
    provider: str = "default"
    writer_id: str = ""
    chunk_rows: int = 10_000
    message_bytes: int = 256 * 1024
    window: int = 8
    delivery: str = "staged"
    patience_s: float = 60.0


def parse(given: Mapping[str, str], columns: Sequence[str]) -> WriteOptions:
    """Parse the options of Spark, for rows with these columns. Raises ValueError."""
    texts = {name.lower(): text.strip() for name, text in given.items()}
    check_names(texts, WriteOptions)
    return WriteOptions(
        gateways=gateways(require(texts, "gateways", "127.0.0.1:7700,127.0.0.1:7701")),
        namespace=require(texts, "namespace", "arrivals"),
        key_column=_column("key_column", require(texts, "key_column", "id"), columns),
        value_columns=_value_columns(texts.get("value_columns", ""), columns),
        cluster=texts.get("cluster") or "dev",
        provider=texts.get("provider") or "default",
        writer_id=texts.get("writer_id", ""),
        chunk_rows=count(texts, "chunk_rows", 10_000, CHUNK_ROWS_MAX),
        message_bytes=count(texts, "message_bytes", 256 * 1024, MESSAGE_BYTES_MAX),
        window=count(texts, "window", 8, WINDOW_MAX),
        delivery=_delivery(texts.get("delivery") or "staged"),
        patience_s=seconds(texts, "patience_s"),
    )


def check_names(texts: Mapping[str, str], options: type[Any]) -> None:
    """Refuse unknown options and empty or unprintable texts; accept those of Spark.

    Raises ValueError.
    """
    known = [field.name for field in fields(options)]
    for name, text in texts.items():
        if name in NOT_OURS:
            continue
        if name in known:
            _check_text(name, text)
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        meant = f"write option({near[0]!r}, ...)" if near else f"the options are {', '.join(known)}"
        raise ValueError(f"unknown option {name!r}: {meant}")


def _check_text(name: str, text: str) -> None:
    if not text and name not in MAY_BE_EMPTY:
        raise ValueError(f"option {name!r} is empty: write a value, or leave the option out")
    if not text.isprintable():
        raise ValueError(f"option {name!r} is {text!r}: write it without control characters")


def require(texts: Mapping[str, str], name: str, example: str) -> str:
    """Return a required option. Raises ValueError."""
    text = texts.get(name, "")
    if not text:
        raise ValueError(f"option {name!r} is missing: write option({name!r}, {example!r})")
    return text


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def gateways(text: str) -> tuple[str, ...]:
    """Return the listed addresses. Raises ValueError."""
    listed = tuple(_list(text))
    if not 1 <= len(listed) <= GATEWAYS_MAX:
        raise ValueError(
            f"option 'gateways' lists {len(listed)} addresses: write 1 to {GATEWAYS_MAX}"
        )
    try:
        connect(*listed)
    except ConfigError as error:
        raise ValueError(f"option 'gateways': {error}; write such as 127.0.0.1:7700") from None
    return listed


def _column(option: str, name: str, columns: Sequence[str]) -> str:
    if name not in columns:
        raise ValueError(
            f"option {option!r} names column {name!r}: write one of {', '.join(columns)}"
        )
    if columns.count(name) > 1:
        raise ValueError(
            f"option {option!r}: {columns.count(name)} columns are named {name!r}: rename one"
        )
    return name


def _value_columns(text: str, columns: Sequence[str]) -> tuple[str, ...]:
    names = _list(text) if text else list(columns)
    if not names:
        raise ValueError(
            f"option 'value_columns' is {text!r}: write names of columns, separated by commas"
        )
    return tuple(dict.fromkeys(_column("value_columns", name, columns) for name in names))


def count(texts: Mapping[str, str], name: str, default: int, largest: int) -> int:
    """Return a whole number from 1 up to the largest. Raises ValueError."""
    text = texts.get(name, "")
    number = int(text) if text.isascii() and text.isdigit() else 0
    if text and not 1 <= number <= largest:
        raise ValueError(f"option {name!r} is {text!r}: write a whole number from 1 to {largest}")
    return number or default


def seconds(texts: Mapping[str, str], name: str) -> float:
    """Return a time up to `PATIENCE_S_MAX`; 60 s without the option. Raises ValueError."""
    text, largest = texts.get(name, ""), PATIENCE_S_MAX
    if not text:
        return 60.0
    try:
        number = float(text) if text.isascii() else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number <= largest:
        raise ValueError(f"option {name!r} is {text!r}: write seconds, above 0 up to {largest:g}")
    return number


def _delivery(text: str) -> str:
    if text not in DELIVERIES:
        known = " or ".join(f"option('delivery', {name!r})" for name in DELIVERIES)
        raise ValueError(f"option 'delivery' is {text!r}: write {known}")
    return text
