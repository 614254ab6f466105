"""How one queue behaves, and how one that nobody created does.

Owns: `QueueSettings` and its checks, templates by name prefix. Not: when a change of them is
allowed (`core`).
Invariants: settings that exist are valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, cast

from millstream.runtime import ConfigError
from millstream.runtime.extending import show_value

from .errors import RequestInvalid

__all__ = ["METADATA_MAX", "QueueSettings", "SettingsRow", "Template", "settings_for"]

METADATA_MAX = 4
"""Pairs in a message's metadata, and in a filter."""
SHAPES_MAX = 8
SHARDS_MAX = 64
TEXT_BYTES_MAX = 256
DAY_MS = 86_400_000
YEAR_MS = 366 * DAY_MS
RETENTION_MS_MAX = 10 * YEAR_MS
MESSAGES_MAX = 1_000_000_000
BYTES_MAX = 2**50


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How one queue behaves. Changes apply to what is asked later.

    `exclusivity_key` makes the queue exclusive: every message has this key in its metadata, and of
    each of its values at most `limit` leases are valid at a time.
    `lease_ms`, `invisible_ms` and `attempts` are for messages that do not bring their own.
    `attempts`: how often a message may be leased. `retention_ms`: how long a finished message can
    be looked at, and its id is taken. `messages_max` counts these too. `bytes_max`: payloads of all
    messages but completed ones, whose payloads are freed; an owner has them in memory.
    `shapes`: sets of metadata keys by which filters find messages in O(log n); other filters look
    at every pending message.
    `answers_kept_ms`: how long a session that is silent can repeat a request.
    `shards`: over how many owners the queue is spread; `messages_max`, `bytes_max` and
    `sessions_max` are of each. The queue itself says `shards_before`, from how many its messages
    still come (0: from no others), and `layout`, which rises with each change of a queue that has
    several; what is given for these two is not looked at.
    """

    exclusivity_key: str | None = None
    limit: int = 1
    lease_ms: int = 60_000
    invisible_ms: int = 0
    attempts: int = 3
    retention_ms: int = DAY_MS
    enqueue_blocked: bool = False
    dequeue_blocked: bool = False
    payload_bytes_max: int = 32_768
    lease_ms_max: int = DAY_MS
    invisible_ms_max: int = YEAR_MS
    attempts_max: int = 1_000
    messages_max: int = 20_000_000
    bytes_max: int = 4 * 1024**3
    shapes: tuple[tuple[str, ...], ...] = ()
    sessions_max: int = 100_000
    answers_kept_ms: int = 300_000
    shards: int = 1
    shards_before: int = 0
    layout: int = 0

    def __post_init__(self) -> None:
        key = self.exclusivity_key
        if key is not None:
            check_text("exclusivity_key", key)
        elif self.limit != 1:
            limit = show_value(self.limit)
            raise ConfigError(f"limit is {limit} of a queue without exclusivity_key, 1 at most")
        for field, least, most in self._ranges():
            check_range(field, getattr(self, field), least, most)
        for field in ("enqueue_blocked", "dequeue_blocked"):
            check_flag(field, getattr(self, field))
        object.__setattr__(self, "shapes", check_shapes(self.shapes))

    def _ranges(self) -> tuple[tuple[str, int, int], ...]:
        return (
            ("limit", 1, 1_000_000),
            ("lease_ms_max", 1, YEAR_MS),
            ("lease_ms", 1, self.lease_ms_max),
            ("invisible_ms_max", 0, 10 * YEAR_MS),
            ("invisible_ms", 0, self.invisible_ms_max),
            ("attempts_max", 1, 1_000_000),
            ("attempts", 1, self.attempts_max),
            ("retention_ms", 1, RETENTION_MS_MAX),
            ("payload_bytes_max", 0, 16 * 1024 * 1024),
            ("messages_max", 1, MESSAGES_MAX),
            ("bytes_max", 1, BYTES_MAX),
            ("sessions_max", 1, 1_000_000),
            ("answers_kept_ms", 1, DAY_MS),
            ("shards", 1, SHARDS_MAX),
            ("shards_before", 0, SHARDS_MAX),
            ("layout", 0, 2**53),
        )


def settings_with(
    queue: str, settings: QueueSettings, changes: Mapping[str, object]
) -> QueueSettings:
    """Settings with those that are named. Raises `RequestInvalid`, which names queue and field."""
    try:
        return replace(settings, **cast(Any, changes))
    except ConfigError as error:
        name, _, what = str(error).partition(" ")
        is_named = name in {one.name for one in fields(QueueSettings)}
        field, what = (name, what) if is_named else ("shapes", str(error))
        raise RequestInvalid(queue, field, what) from error


class SettingsRow(NamedTuple):
    """The settings as they are stored; `version` rises by one with each change."""

    version: int
    settings: QueueSettings


class Template(NamedTuple):
    """What queues are like that are created on use, when their names begin with `prefix`."""

    prefix: str
    settings: QueueSettings


def settings_for(queue: str, templates: Sequence[Template] = ()) -> QueueSettings:
    """The settings of a queue that is created on use: of the longest prefix that fits, else of a
    simple queue with the defaults."""
    fitting = [template for template in templates if queue.startswith(template.prefix)]
    longest = max(fitting, key=lambda template: len(template.prefix), default=None)
    return longest.settings if longest else QueueSettings()


def check_range(field: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = show_value(value)
        raise ConfigError(f"{field} is {shown}, not a whole number from {least} to {most}")


def check_flag(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{field} is {show_value(value)}, neither True nor False")


def check_text(field: str, text: object) -> None:
    try:
        size = len(text.encode()) if isinstance(text, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= TEXT_BYTES_MAX:
        what = f"not a text of 1 to {TEXT_BYTES_MAX} bytes"
        raise ConfigError(f"{field} is {show_value(text)}, {what}")


def check_shapes(shapes: object) -> tuple[tuple[str, ...], ...]:
    """The shapes with their keys in order, each once."""
    if not isinstance(shapes, (tuple, list)) or len(shapes) > SHAPES_MAX:
        what = f"not a tuple of at most {SHAPES_MAX} tuples"
        raise ConfigError(f"shapes is {show_value(shapes)}, {what}")
    return tuple(dict.fromkeys(check_shape(keys) for keys in shapes))


def check_shape(keys: object) -> tuple[str, ...]:
    if not isinstance(keys, (tuple, list)) or not 0 < len(keys) <= METADATA_MAX:
        what = f"not a tuple of 1 to {METADATA_MAX} keys"
        raise ConfigError(f"a shape is {show_value(keys)}, {what}")
    for key in keys:
        check_text("a key of shapes", key)
    if len(set(keys)) != len(keys):
        raise ConfigError(f"a shape is {show_value(keys)}: it names a key twice")
    return tuple(sorted(keys, key=str.encode))
