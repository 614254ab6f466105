"""Checks of input from outside: bodies of messages, filters and names.

All checks run before anything changes.

Invariant: an error names the queue, the field and the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, cast

from millstream.runtime.extending import show_value

from .errors import ExclusivityMissing, RequestInvalid
from .message import NO_TERMS, Metadata, Terms
from .settings import METADATA_MAX, TEXT_BYTES_MAX, QueueSettings

__all__ = ["MessageFields", "New", "Pairs"]

Pairs = Mapping[str, str] | Iterable[tuple[str, str]]
PRIORITY_MAX = 2**53
"""Priorities range from the negative of this number to it. A double represents them exactly."""
REASON_BYTES_MAX = 1024


class New(Protocol):
    """A message to enqueue. None means the setting of the queue.

    `floor` is the number of the latest lease in the shard where the message belonged before; None
    if that shard was not asked.
    """

    @property
    def id(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def priority(self) -> int: ...
    @property
    def metadata(self) -> Pairs: ...
    @property
    def invisible_ms(self) -> int | None: ...
    @property
    def lease_ms(self) -> int | None: ...
    @property
    def attempts(self) -> int | None: ...
    @property
    def floor(self) -> int | None: ...


class MessageFields(NamedTuple):
    """A plain implementation of `New`."""

    id: str
    payload: bytes
    priority: int
    metadata: Pairs = ()
    invisible_ms: int | None = None
    lease_ms: int | None = None
    attempts: int | None = None
    floor: int | None = None


class Body(NamedTuple):
    """A checked message. Messages of one id with equal bodies are the same message."""

    id: str
    payload: bytes
    priority: int
    metadata: Metadata
    value: str | None
    terms: Terms


def check_body(queue: str, settings: QueueSettings, new: New) -> Body:
    id, payload, priority, pairs = new.id, new.payload, new.priority, new.metadata
    invisible_ms, lease_ms, attempts = new.invisible_ms, new.lease_ms, new.attempts
    check_request_text(queue, "id", id)
    if not isinstance(payload, bytes):
        raise RequestInvalid(queue, "payload", f"is {type(payload).__name__}, not bytes")
    if len(payload) > settings.payload_bytes_max:
        size, most = len(payload), settings.payload_bytes_max
        raise RequestInvalid(queue, "payload", f"has {size} bytes, payload_bytes_max is {most}")
    check_number(queue, "priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
    metadata = () if pairs == () else check_pairs(queue, "metadata", pairs)
    wanted = settings.exclusivity_key
    value = None if wanted is None else value_of(queue, wanted, id, metadata)
    if invisible_ms is lease_ms is attempts is None:
        terms = NO_TERMS
    else:
        terms = check_terms(queue, settings, invisible_ms, lease_ms, attempts)
    return Body(id, payload, priority, metadata, value, terms)


def check_terms(
    queue: str,
    settings: QueueSettings,
    invisible_ms: int | None,
    lease_ms: int | None,
    attempts: int | None,
) -> Terms:
    if invisible_ms is not None:
        check_number(queue, "invisible_ms", invisible_ms, 0, settings.invisible_ms_max)
    if lease_ms is not None:
        check_number(queue, "lease_ms", lease_ms, 1, settings.lease_ms_max)
    if attempts is not None:
        check_number(queue, "attempts", attempts, 1, settings.attempts_max)
    return Terms(lease_ms, invisible_ms, attempts)


def value_of(queue: str, wanted: str, id: str, metadata: Metadata) -> str:
    """The exclusivity value of a message. Raises `ExclusivityMissing`."""
    for key, value in metadata:
        if key == wanted:
            return value
    what = f"of message {id!r} lacks {wanted!r}, the queue's exclusivity_key"
    raise ExclusivityMissing(queue, "metadata", what)


def check_pairs(queue: str, field: str, pairs: Pairs) -> Metadata:
    """The pairs in the order of their keys' bytes, which is the order of the texts."""
    found = list_pairs(queue, field, pairs)
    if len(found) > METADATA_MAX:
        raise RequestInvalid(queue, field, f"has {len(found)} pairs, {METADATA_MAX} at most")
    for pair in found:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RequestInvalid(
                queue, field, f"has {show_value(pair)}, which is not a pair of texts"
            )
        check_request_text(queue, f"a key of {field}", pair[0])
        check_request_text(queue, f"{field} of {pair[0]!r}", pair[1], least=0)
    keys = [pair[0] for pair in found]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RequestInvalid(queue, field, f"names the key {twice!r} twice")
    return tuple(sorted((key, value) for key, value in found))


def list_pairs(queue: str, field: str, pairs: Pairs) -> list[tuple[str, str]]:
    if isinstance(pairs, Mapping):
        return list(cast("Mapping[str, str]", pairs).items())
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise RequestInvalid(queue, field, f"is {type(pairs).__name__}, not a mapping or pairs")
    return list(pairs)


def check_request_text(
    queue: str, field: str, text: object, least: int = 1, most: int = TEXT_BYTES_MAX
) -> None:
    if not isinstance(text, str):
        raise RequestInvalid(queue, field, f"is {type(text).__name__}, not a text")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestInvalid(queue, field, "cannot be encoded in UTF-8") from error
    if not least <= size <= most:
        raise RequestInvalid(queue, field, f"has {size} bytes, not {least} to {most}")


def check_flag(queue: str, field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestInvalid(queue, field, f"is {show_value(value)}, neither True nor False")


def check_number(queue: str, field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int:
        raise RequestInvalid(queue, field, f"is {show_value(value)}, not a whole number")
    if not least <= value <= most:
        raise RequestInvalid(queue, field, f"is {show_value(value)}, not {least} to {most}")
