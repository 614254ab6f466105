"""The stored forms of a job and of its result. Pure.

A job is a message of the queue `CALLS`; its payload is a `JobRow`. A result is a message of the
same id in the queue `RESULTS`; its payload is a `JobOutcome`.

Owns the names of the queues, the stored forms, and the metadata of a job. The priority of a job is
its due time.

Invariants: the forms are frozen, because stores keep them. A field that a later release adds is the
last one and has a default.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.settings import TEXT_BYTES_MAX, YEAR_MS
from millstream.providers.priority.core.shards import JOBS
from millstream.runtime.extending import show_text

__all__ = ["JobOutcome", "JobRow", "OutcomeKind"]

CALLS = f"{JOBS}calls"
RESULTS = f"{JOBS}results"
TYPE_KEY = "type"
CALL_KEY = "call"
DUE_AHEAD_MS = 10 * YEAR_MS
"""How far ahead a job may be due, in milliseconds."""
OUTCOME_FRAME_BYTES = 64
"""Bytes of an outcome beside its data, at most."""
HAS_RESULT = "result"
"""The note of a completed job whose result is in `RESULTS`. Without it, the result is None."""


class JobRow(msgspec.Struct, frozen=True, array_like=True):
    """The call of a job.

    Attributes:
        type_name: The name of the grain type.
        key: The key of the grain.
        method: The name of the method.
        arguments: The arguments, as one MessagePack array.
        timeout_s: The deadline of the call in seconds. None: that of the method.
        headers: The headers for the callee only.
        flowing_headers: The headers for the whole chain.
        version: The version of the class or contract that the program scheduled the method of.
    """

    type_name: str
    key: str
    method: str
    arguments: bytes
    timeout_s: float | None = None
    headers: dict[str, str] = {}
    flowing_headers: dict[str, str] = {}
    version: int = 1


class OutcomeKind(IntEnum):
    """The kind of content that an outcome has."""

    VALUE = 1
    ERROR = 2
    TOO_LARGE = 3  # the data are the size of the value in bytes, as text


class JobOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The result of a job, or its last error."""

    kind: OutcomeKind
    data: bytes


pack = msgspec.msgpack.Encoder().encode
read_row = msgspec.msgpack.Decoder(JobRow).decode
read_outcome = msgspec.msgpack.Decoder(JobOutcome).decode


def outcome_of(value: bytes, bytes_max: int) -> JobOutcome:
    """The outcome that is stored for an encoded result."""
    if len(value) <= bytes_max:
        return JobOutcome(OutcomeKind.VALUE, value)
    return JobOutcome(OutcomeKind.TOO_LARGE, str(len(value)).encode())


def metadata_of(row: JobRow) -> Metadata:
    """The metadata of a job, in the order of the keys: a text for people, and the grain type."""
    call = show_text(f"{row.type_name}/{row.key}.{row.method}").encode()[:TEXT_BYTES_MAX]
    return ((CALL_KEY, call.decode(errors="ignore")), (TYPE_KEY, row.type_name))
