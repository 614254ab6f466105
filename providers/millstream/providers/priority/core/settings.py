"""The settings of a queue, and the templates for queues that are created on first use.

Owns `QueueSettings` with its checks, and `Template`. The rules for changing settings are in `core`.

Invariant: existing settings are valid.
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
"""Maximum number of pairs in the metadata of a message, and in a filter."""
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
    """The settings of one queue, which are stored with the queue.

    Change them with `PriorityQueue.configure`. A change applies to later operations. Values outside
    of the limits raise `ConfigError`.

    Attributes:
        exclusivity_key: Makes the queue exclusive: every message must have this key in its
            metadata. None makes a simple queue.
        limit: Valid leases of one exclusivity value at a time, 1 to 1,000,000. More than 1 needs
            `exclusivity_key`.
        lease_ms: Length of a lease, in milliseconds, unless the message or the dequeue gives
            another.
        invisible_ms: How long no worker can lease a new message, in milliseconds, unless the
            message gives another time.
        attempts: How often a message may be leased, unless the message gives another number.
        retention_ms: How long a finished message can be read and its id stays in use, in
            milliseconds, at most ten years.
        enqueue_blocked: Whether the queue refuses messages, with `EnqueueBlocked`.
        dequeue_blocked: Whether the queue gives no leases.
        payload_bytes_max: Bytes of a payload, at most 16 MiB.
        lease_ms_max: Longest lease that a program may request, in milliseconds, at most 366 days.
        invisible_ms_max: Longest invisibility and delay, in milliseconds, at most ten years.
        attempts_max: Most attempts that a message may request, at most 1,000,000.
        messages_max: Messages that are not collected, at most 1,000,000,000. Above, an enqueue
            raises `PriorityQueueFull`.
        bytes_max: Payload bytes of all messages except completed ones. The owner keeps them in
            memory. Above, an enqueue raises `PriorityQueueFull`.
        shapes: Up to 8 sets of 1 to 4 metadata keys. Filters with one of these sets find messages
            in O(log n).
        sessions_max: Request sessions whose answers the queue remembers, at most 1,000,000. Above,
            requests raise `Overloaded`.
        answers_kept_ms: How long a silent session can repeat a request, in milliseconds, at most a
            day.
        shards: Number of owners that share the queue, 1 to 64. `messages_max`, `bytes_max` and
            `sessions_max` apply to each shard.
        shards_before: Set by the queue: the former number of shards while messages still move from
            them; 0 otherwise. Your value is ignored.
        layout: Set by the queue: rises with each change of a queue with several shards. Your value
            is ignored.
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
            raise ConfigError(f"limit is {limit}; without exclusivity_key, 1 at most")
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
    """The settings with changed fields.

    Raises `RequestInvalid`, which names the queue and the field.
    """
    try:
        return replace(settings, **cast(Any, changes))
    except ConfigError as error:
        name, _, what = str(error).partition(" ")
        is_named = name in {one.name for one in fields(QueueSettings)}
        field, what = (name, what) if is_named else ("shapes", str(error))
        raise RequestInvalid(queue, field, what) from error


class SettingsRow(NamedTuple):
    """Stored settings with their version.

    Attributes:
        version: Rises by one with each change.
        settings: The settings.
    """

    version: int
    settings: QueueSettings


class Template(NamedTuple):
    """Settings for queues that are created on first use.

    Attributes:
        prefix: The beginning of the names to which the template applies. The longest prefix wins.
        settings: The settings of these queues.
    """

    prefix: str
    settings: QueueSettings


def settings_for(queue: str, templates: Sequence[Template] = ()) -> QueueSettings:
    """The settings for a queue that is created on first use: those of the longest fitting
    prefix, or the defaults.
    """
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
    """The shapes without duplicates, each with its keys in order."""
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
