"""Connections of the HTTP API: their number, and the answers to input that is not HTTP.

Owns `Door` and `Connection`. Requests are in `server`.

Invariant: malformed input is neither logged nor sent back, because it may contain a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from .forms.problems import Limit, Problem
from .options import HttpOptions

__all__ = ["Connection", "Door", "response_of"]

log = logging.getLogger("millstream.priority")

LINGERING_S = 1.0
"""How long the server reads the rest of an unwanted body before it closes the connection, in
seconds.
"""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)


class Door(web.Server):
    """Accepts connections up to the maximum number."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        options: HttpOptions,
    ) -> None:
        self.options = options
        self._open: set[Connection] = set()  # aiohttp also counts connections that are being closed
        # connections that never sent the token, the oldest first
        self._strangers: dict[Connection, None] = {}
        super().__init__(handler, handler_cancellation=True)

    def __call__(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> bool:
        """Whether the connection may open.

        Above the limit, the oldest connection that never sent the token is closed.
        """
        if len(self._open) >= self.options.connections_max and self._strangers:
            oldest = next(iter(self._strangers))
            self.forget(oldest)
            oldest.force_close()
        if len(self._open) >= self.options.connections_max:
            return False
        self._open.add(connection)
        self._strangers[connection] = None
        return True

    def know(self, connection: Connection) -> None:
        """Record that the connection has sent the token."""
        self._strangers.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """Record that the connection is closed."""
        self._open.discard(connection)
        self._strangers.pop(connection, None)


class Connection(web.RequestHandler):
    """One connection."""

    def __init__(self, door: Door) -> None:
        options = door.options
        self._door = door
        super().__init__(
            door,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as aiohttp takes it, though it does not say
            keepalive_timeout=options.idle_s,
            lingering_time=LINGERING_S,
            max_line_size=options.header_bytes_max,
            max_field_size=options.header_bytes_max,
            max_headers=options.headers_max,
            auto_decompress=False,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the connection, or answer 503 if there are too many."""
        if self._door.admit(self):
            super().connection_made(transport)
            return
        # uvloop's transport has no class of asyncio
        refused = cast(asyncio.WriteTransport, transport)
        refused.write(FULL)
        refused.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Record that the connection is closed."""
        self._door.forget(self)
        super().connection_lost(exc)

    def has_token(self) -> None:
        """Record that a request with the token came over this connection."""
        self._door.know(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to input that is not HTTP or too long."""
        if isinstance(exc, LineTooLong):
            most = self._door.options.header_bytes_max
            what = f"the request line or a header has more than {most} bytes"
            problem = Problem(431, "HeaderTooLong", what, limit=Limit(most, "header_bytes_max"))
        else:
            problem = Problem(400, "Malformed", "the input is not an HTTP/1.1 request")
        log.debug("http: a connection did not send an HTTP/1.1 request: %s", type(exc).__name__)
        response = response_of(problem)
        response.force_close()
        return response


def response_of(problem: Problem) -> web.Response:
    """Return the HTTP response for a problem."""
    headers = {"Cache-Control": "no-store", "Server": "millstream", **problem.headers}
    return web.Response(
        body=msgspec.json.encode(problem.body),
        status=problem.body.status,
        headers=headers,
        content_type="application/problem+json",
    )
