"""The HTTP API of priority queues: `PriorityApi`.

Owns: its life, and one answer to each request. Not: what routes do, connections.
Invariants: every answer that is not one of a route is a problem; when the API is closed, nobody
waits in it any more.
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
    """Priority queues over HTTP: `async with PriorityApi(client) as api: ...`.

    Args:
        runtime: a client, a silo, or a LocalCluster: what `priority_queue` takes.
        token: every request bears it (`Authorization: Bearer ...`): a text of 16 characters or
            more, or a file that holds one and that others cannot read; None: the environment's
            `MILLSTREAM_PQ_TOKEN`.
        host, port: where it listens; port 0 takes a free one.
        part: the name under which silos were given `PriorityQueues`.
        options: limits and waits.
        insecure: True to listen elsewhere than on loopback: nothing is encrypted yet, the token
            included.

    Attributes: `url`, once it is started. Raises ConfigError.
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

    # -- life

    async def start(self) -> None:
        """Listen. Raises OSError: the port is taken; RuntimeError: it was started before."""
        if self._runner is not None or self._waiting.is_stopped:
            raise RuntimeError("a PriorityApi is started once")
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
        """Take no more requests, answer those that wait for messages, let the others end."""
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
        """Raises Problem, MethodNotAllowed."""
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
    """Answers that are being sent: how many bytes they may have, and how long they may take."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._bytes = 0

    def has_room(self, response: web.Response) -> bool:
        """May it be sent? Problems may always be, they are small."""
        size = len(response.body or b"") if isinstance(response.body, bytes) else 0
        return response.status >= 400 or self._bytes + size <= self._options.answers_bytes_max

    async def send(self, response: web.Response, request: web.BaseRequest) -> None:
        """Send it, and wait until the client has read most of it; if that fails, or takes longer
        than `answer_s`, the connection is cut off. Raises what sockets raise, and TimeoutError."""
        size = response.content_length or 0
        transport = cast("asyncio.WriteTransport | None", request.transport)
        self._bytes += size
        try:
            async with asyncio.timeout(self._options.answer_s):
                await response.prepare(request)
                await response.write_eof()
        except BaseException:
            if transport is not None:
                transport.abort()  # or it would keep what the client does not read
            raise
        finally:
            self._bytes -= size


def unread(options: HttpOptions) -> Problem:
    """Too much was not read by those who asked for it."""
    most = options.answers_bytes_max
    what = f"answers of {most} bytes wait for clients to read them, the most"
    return Problem(429, "Overloaded", what, limit=Limit(most, "answers_bytes_max"))


class WaitingRequests:
    """Requests that wait for messages: how many there may be, and their end."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_stopped = False

    @contextmanager
    def place(self, queue: str, wait_s: float) -> Iterator[float]:
        """A place for so long, as far as that may be; a dequeue that does not wait needs none.

        Raises Problem: there are too many (429), or the API is closed meanwhile (503).
        """
        most = self._options.polls_max
        if wait_s <= 0:
            yield 0.0
            return
        if self.is_stopped:
            raise make_stopped_problem(queue)
        if len(self._tasks) >= most:
            what = f"queue {queue!r}: {most} requests wait for messages, the most"
            raise Problem(429, "Overloaded", what, queue=queue, limit=Limit(most, "polls_max"))
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
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
        """Nobody waits any more."""
        self.is_stopped = True
        for task in self._tasks:
            task.cancel()


def make_stopped_problem(queue: str) -> Problem:
    return Problem(503, "Stopping", f"queue {queue!r}: this server stops", queue=queue)


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
    """An answer as it is sent."""
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
    """Which methods a path has."""
    headers = {"Allow": other.allowed}
    if other.is_asked:
        return web.Response(status=204, headers={**HEADERS, **headers})
    what = f"the path has {other.allowed}"
    return response_of(Problem(405, "MethodNotAllowed", what, headers=headers))


def unknown(request: web.BaseRequest, error: Exception) -> Problem:
    """A fault of the program: told to the log."""
    path = show_text(repr(request.raw_path.partition("?")[0]))
    log.error("http: %s %s failed: %r", request.method, path, error, exc_info=error)
    return Problem(500, "InternalError", "the server met a fault, which its log tells")


def check_host(host: str, insecure: bool) -> None:
    """Raise ConfigError for what others than this machine can reach, unless that was said."""
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        is_loopback = host.lower() == "localhost"
    if not is_loopback and not insecure:
        raise ConfigError(
            f"PriorityApi(host=...): {show_text(repr(host))} can be reached from other machines, "
            "and nothing is encrypted yet, the token included: listen on 127.0.0.1 or ::1, or say "
            "insecure=True in a network that you trust"
        )


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
