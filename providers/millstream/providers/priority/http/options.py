"""The limits and waits of the HTTP API.

Invariants: units are part of the names, and values are checked when the object is created.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.runtime.extending import check_fields

__all__ = ["HttpOptions"]

WAIT_S_MAX = 30.0
"""Longest wait of a dequeue, in seconds: the wait of one poll call of the queue's owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Limits and waits of a `PriorityApi`. Wrong values raise `ConfigError`.

    Attributes:
        connections_max: Open connections. Above, the oldest connection that never sent the token is
            closed; if there is none, the new one gets 503.
        polls_max: Dequeues that wait for messages. The next one gets 429.
        body_bytes_max: Bytes of one request body. A larger one gets 413.
        bodies_bytes_max: Bytes of all request bodies that are being read. Above, a request gets
            429.
        answers_bytes_max: Bytes of unread answers. An answer above this becomes 429, and its leases
            are released.
        answer_s: Time for a client to read an answer, in seconds. Then the connection is closed.
        header_bytes_max: Bytes of the request line, and of each header, at least 512. Above, a
            request gets 431 and the connection is closed.
        headers_max: Headers of one request, at least 8. Above, a request gets 400 and the
            connection is closed.
        body_s: Time for a body to arrive, in seconds. Then the request gets 408.
        idle_s: How long a connection may stay open without a complete request, in seconds.
        wait_s_max: Longest wait of a dequeue, in seconds, at most 30. A request that asks for more
            waits this long.
        patience_s: How long the server retries while the cluster does not answer, in seconds. Then
            the request gets 503.
        stop_s: Time for running requests to end when the API is closed, in seconds.
    """

    connections_max: int = 1_000
    polls_max: int = 500
    body_bytes_max: int = 1024 * 1024
    bodies_bytes_max: int = 64 * 1024 * 1024
    answers_bytes_max: int = 64 * 1024 * 1024
    answer_s: float = 30.0
    header_bytes_max: int = field(default=8_192, metadata={"min": 512})
    headers_max: int = field(default=64, metadata={"min": 8})
    body_s: float = 10.0
    idle_s: float = 60.0
    wait_s_max: float = field(default=WAIT_S_MAX, metadata={"max": WAIT_S_MAX})
    patience_s: float = 10.0
    stop_s: float = 2.0

    def __post_init__(self) -> None:
        check_fields(self)
