"""`PriorityApi`: the HTTP server of priority queues.

Owns the lifetime of the server, and one answer for each request. Routes and connections have
modules of their own.

Invariants: every answer that no route makes is a problem document (RFC 9457). When the API is
closed, no request waits in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import msgspec
from aiohttp import web

from millstream.providers.priority.surface.opening import WholeOf
from millstream.runtime import ConfigError, MillstreamError, Runtime, __version__
from millstream.runtime.extending import check_kind, check_text, show_text

from .connections import Connection, Door, response_of
from .forms.answers import Answer
from .forms.problems import Limit, Problem, problem_of
from .incoming import MethodNotAllowed, Reader
from .options import HttpOptions
from .routes.asked import OpenedOf
from .routes.document import DOCUMENT_PATH, document_of
from .routes.route import Route, Site
from .routes.table import ROUTES
from .token import token_of

__all__ = ["PriorityApi"]

log = logging.getLogger("millstream.priority")
HEADERS = {"Cache-Control": "no-store", "Server": "millstream"}
PORT = 7780


class PriorityApi:
    """A server of priority queues over HTTP and JSON.

    Use `async with PriorityApi(client, token=...) as api`, or call `start` and `aclose`.
    `millstream pq serve` runs the same server.

    Several servers may serve one cluster. They keep nothing between requests, so a client may use
    any of them. A request with an `Idempotency-Key` is carried out once, whichever server gets its
    repeat.

    Every request needs the header `Authorization: Bearer TOKEN`, also for `/openapi.json`, which
    describes the API as OpenAPI 3.1. Without it, the answer is 401, and the server does not read
    the body. One token gives access to every operation on every queue. The connection is not
    encrypted. Therefore the server listens only on loopback unless `insecure` is set.

    If a client disconnects while its dequeue waits, the poll ends and no message is leased. If it
    disconnects before the answer is sent, the message is released and its attempt does not count.
    With an `Idempotency-Key` the lease stays for the repeat.

    Args:
        runtime: A client, a silo or a `LocalCluster`.
        token: The token, 16 to 1,024 printable ASCII characters without spaces. Pass a text, or the
            `Path` of a file that only its user may read. None reads the environment variable
            `MILLSTREAM_PQ_TOKEN`.
        host: The address on which the server listens.
        port: The port; 0 chooses a free port.
        part: The name under which the silos have `PriorityQueues`.
        options: Limits and waits.
        insecure: Whether the server may listen on an address that other machines can reach.

    Attributes:
        url: The address of the started server.

    Raises:
        ConfigError: There is no valid token, other users may read its file, `host` needs
            `insecure`, or an argument has another type.
        TypeError: The part's name is not a text.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        token: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = PORT,
        part: str = "priority",
        options: HttpOptions | None = None,
        insecure: bool = False,
    ) -> None:
        check_text("the name of a part", part)
        check_kind("PriorityApi(host=...)", host, str)
        check_kind("PriorityApi(port=...)", port, int)
        check_host(host, insecure)
        self.url = ""
        self._host, self._port = host, port
        self._options = HttpOptions() if options is None else options
        document = Document()
        self._reader = Reader(token_of(token, os.environ), self._options, (*ROUTES, document.route))
        self._waiting = WaitingRequests(self._options)
        self._answers = Answers(self._options)
        opened = OpenedOf(part, self._options.patience_s)
        self._site = Site(
            lambda queue: runtime.stream(opened, queue),
            lambda prefix, after: runtime.stream(WholeOf(part), "").page(prefix, after),
            self._waiting.place,
        )
        self._runner: web.ServerRunner | None = None

    # -- lifetime

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: The port is in use.
            RuntimeError: The server was started before.
        """
        if self._runner is not None or self._waiting.is_stopped:
            raise RuntimeError("a PriorityApi can be started only once")
        runner = web.ServerRunner(
            Door(self._handle, self._options), shutdown_timeout=self._options.stop_s
        )
        self._runner = runner
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except BaseException:
            await self.aclose()
            raise
        self.url = url_of(*runner.addresses[0][:2])
        log.info("priority queues are served over HTTP at %s", self.url)

    async def aclose(self) -> None:
        """Stop the server: accept no requests, answer waiting dequeues with 503, and let others
        end within `stop_s`.
        """
        self._waiting.stop()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> PriorityApi:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # -- requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        undo = None
        try:
            answer = await self._answer(request)
            undo, response = answer.undo, make_response(answer)
        except Problem as problem:
            response = response_of(problem)
        except MethodNotAllowed as other:
            response = answer_allowed(other)
        if not self._answers.has_room(response):
            response = response_of(unread(self._options))
            if undo is not None:
                undo()
                undo = None
        if self._waiting.is_stopped:
            response.force_close()
        try:
            await self._answers.send(response, request)
        except BaseException:
            if undo is not None:
                undo()
            raise
        return response

    async def _answer(self, request: web.BaseRequest) -> Answer:
        """The answer of a route. Raises Problem or MethodNotAllowed."""
        self._reader.check_token(request)
        if isinstance(request.protocol, Connection):
            request.protocol.has_token()
        found = self._reader.find(request)
        queue = found[1].get("queue", "")
        try:
            return await self._act(request, found)
        except MillstreamError as error:
            problem = problem_of(error, queue)
            if problem is None:
                raise unknown(request, error) from error
            raise problem from error
        except Problem as problem:
            problem.body.queue = problem.body.queue or show_text(queue)
            raise
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            raise unknown(request, error) from error

    async def _act(
        self, request: web.BaseRequest, found: tuple[Route[Any, Any], dict[str, str], str]
    ) -> Answer:
        route = found[0]
        if not route.takes_body:
            return await route.act(self._reader.read_request(request, self._site, found, b""))
        with self._reader.hold() as body:
            await self._reader.read(request, body)
            asked = self._reader.read_request(request, self._site, found, bytes(body))
        return await route.act(asked)


class Answers:
    """Answers that are being sent, with limits for their bytes and time."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._bytes = 0

    def has_room(self, response: web.Response) -> bool:
        """Whether the answer may be sent. Problems are small and may always be sent."""
        size = len(response.body or b"") if isinstance(response.body, bytes) else 0
        return response.status >= 400 or self._bytes + size <= self._options.answers_bytes_max

    async def send(self, response: web.Response, request: web.BaseRequest) -> None:
        """Send the answer, and wait until the client has read most of it.

        If this fails or takes longer than `answer_s`, the connection is closed. Raises the errors
        of sockets, and TimeoutError.
        """
        size = response.content_length or 0
        transport = cast("asyncio.WriteTransport | None", request.transport)
        self._bytes += size
        try:
            async with asyncio.timeout(self._options.answer_s):
                await response.prepare(request)
                await response.write_eof()
        except BaseException:
            if transport is not None:
                transport.abort()  # otherwise it would keep the data that the client does not read
            raise
        finally:
            self._bytes -= size


def unread(options: HttpOptions) -> Problem:
    """The problem for an answer that does not fit because clients do not read other answers."""
    most = options.answers_bytes_max
    what = f"clients have {most} bytes of answers to read, the maximum"
    return Problem(429, "Overloaded", what, limit=Limit(most, "answers_bytes_max"))


class WaitingRequests:
    """Requests that wait for messages, with their limit and their end."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_stopped = False

    @contextmanager
    def place(self, queue: str, wait_s: float) -> Iterator[float]:
        """Take a place for a waiting dequeue, for at most `wait_s_max`.

        A dequeue that does not wait needs no place.

        Raises:
            Problem: Too many requests wait (429), or the API is closed meanwhile (503).
        """
        most = self._options.polls_max
        if wait_s <= 0:
            yield 0.0
            return
        if self.is_stopped:
            raise make_stopped_problem(queue)
        if len(self._tasks) >= most:
            what = f"queue {queue!r}: {most} requests wait for messages, the maximum"
            raise Problem(429, "Overloaded", what, queue=queue, limit=Limit(most, "polls_max"))
        task = asyncio.current_task()
        assert task is not None, "each request has a task"
        self._tasks.add(task)
        try:
            yield min(wait_s, self._options.wait_s_max)
        except asyncio.CancelledError:
            if self.is_stopped and not task.uncancel():
                raise make_stopped_problem(queue) from None
            raise
        finally:
            self._tasks.discard(task)

    def stop(self) -> None:
        """End all waits."""
        self.is_stopped = True
        for task in self._tasks:
            task.cancel()


def make_stopped_problem(queue: str) -> Problem:
    return Problem(503, "Stopping", f"queue {queue!r}: this server is stopping", queue=queue)


class Document:
    """The OpenAPI document as a route; it is made once."""

    def __init__(self) -> None:
        self._data = msgspec.json.encode(document_of(ROUTES, __version__))
        text = "The OpenAPI document."
        self.route: Route[Any, Any] = Route(
            "GET", DOCUMENT_PATH, "getDocument", text, self._read, None
        )

    async def _read(self, asked: Any) -> Answer:
        return Answer(raw=self._data, headers={"Content-Type": "application/json"})


def make_response(answer: Answer) -> web.Response:
    """The answer as an HTTP response."""
    headers = {**HEADERS, **answer.headers}
    if answer.raw is not None:
        headers.setdefault("Content-Type", "application/octet-stream")
        return web.Response(body=answer.raw, status=answer.status, headers=headers)
    if answer.body is None:
        return web.Response(status=answer.status, headers=headers)
    data = msgspec.json.encode(answer.body)
    kind = "application/json"
    return web.Response(body=data, status=answer.status, headers=headers, content_type=kind)


def answer_allowed(other: MethodNotAllowed) -> web.Response:
    """The answer that lists the methods of a path."""
    headers = {"Allow": other.allowed}
    if other.is_asked:
        return web.Response(status=204, headers={**HEADERS, **headers})
    what = f"the path allows {other.allowed}"
    return response_of(Problem(405, "MethodNotAllowed", what, headers=headers))


def unknown(request: web.BaseRequest, error: Exception) -> Problem:
    """The problem for an unexpected error, which is written to the log."""
    path = show_text(repr(request.raw_path.partition("?")[0]))
    log.error("http: %s %s failed: %r", request.method, path, error, exc_info=error)
    return Problem(500, "InternalError", "the server failed; its log has the error")


def check_host(host: str, insecure: bool) -> None:
    """Raise ConfigError if other machines can reach the host and `insecure` is not set."""
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        is_loopback = host.lower() == "localhost"
    if not is_loopback and not insecure:
        raise ConfigError(
            f"PriorityApi(host=...): {show_text(repr(host))} can be reached from other machines, "
            "and the connection is not encrypted, not even the token: listen on 127.0.0.1 or ::1, "
            "or set insecure=True in a network that you trust"
        )


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
