"""What the HTTP API lets others do at once, and how long it waits for them.

Invariants: units are in the names; values are checked when the object is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["HttpOptions"]

WAIT_S_MAX = 30.0
"""How long a dequeue may wait for messages: one poll of the queue's owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How an HTTP API serves. Raises ConfigError."""

    connections_max: int = 1_000
    """Connections that are open. For one more, the oldest that never sent the token is closed; if
    there is none, the new one is told 503 and closed."""
    polls_max: int = 500
    """Dequeues that wait for messages at once."""
    body_bytes_max: int = 1024 * 1024
    """The body of one request."""
    bodies_bytes_max: int = 64 * 1024 * 1024
    """The bodies of all requests that are under way."""
    answers_bytes_max: int = 64 * 1024 * 1024
    """The answers that clients have not read; one that does not fit is told 429 instead."""
    answer_s: float = 30.0
    """How long a client may take to read an answer; then its connection is closed."""
    header_bytes_max: int = field(default=8_192, metadata={"min": 512})
    """The request line, and each header."""
    headers_max: int = field(default=64, metadata={"min": 8})
    """Headers of one request."""
    body_s: float = 10.0
    """How long a body may take to arrive."""
    idle_s: float = 60.0
    """How long a connection may be open without a whole request."""
    wait_s_max: float = field(default=WAIT_S_MAX, metadata={"max": WAIT_S_MAX})
    """How long a dequeue may wait for messages."""
    patience_s: float = 10.0
    """How long the cluster is asked again while it does not answer; then 503."""
    stop_s: float = 2.0
    """How long requests that are under way may take to end, when the API is closed."""

    def __post_init__(self) -> None:
        check_fields(self)
