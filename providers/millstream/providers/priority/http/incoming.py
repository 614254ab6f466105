"""An incoming request: its token, path, key and body, each checked before the next.

Owns `Reader`. Routes carry out requests, and `server` sends the answers.

Invariants: without the token, nothing is answered, read or looked up. A body is read only up to its
limits of size and time, and all bodies together have a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from .forms.bodies import NoFields
from .forms.problems import Limit, Problem
from .forms.strict import read_json, read_path, read_query
from .options import HttpOptions
from .routes.asked import request_of
from .routes.route import Asked, Matcher, Route, Site
from .token import Token

__all__ = ["Reader"]

KEY_BYTES_MAX = 256
JSON, RAW = "application/json", "application/octet-stream"


class Reader:
    """Reads requests.

    Args:
        routes: All routes of the API.
    """

    def __init__(
        self, token: Token, options: HttpOptions, routes: Sequence[Route[Any, Any]]
    ) -> None:
        self._token = token
        self._options = options
        self._matcher = Matcher(routes)
        self._bodies_bytes = 0

    def check_token(self, request: web.BaseRequest) -> None:
        """Raise Problem (401) if the request does not have the token."""
        if not self._token.is_in(request.headers.getall("Authorization", [])):
            what = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
            headers = {"WWW-Authenticate": 'Bearer realm="millstream"'}
            raise Problem(401, "Unauthorized", what, headers=headers)

    def find(self, request: web.BaseRequest) -> tuple[Route[Any, Any], dict[str, str], str]:
        """The route, the variables of the path, and the query. Raises Problem (400, 404, 405)."""
        target, _, query = request.raw_path.partition("?")
        found = self._matcher.at(read_path(target)) if target.startswith("/") else {}
        if not found:
            raise Problem(404, "PathNotFound", "there is no such path: see /openapi.json")
        if request.method not in found:
            allowed = ", ".join(sorted({*found, "OPTIONS"}))
            raise MethodNotAllowed(allowed, request.method == "OPTIONS")
        route, named = found[request.method]
        return route, named, query.partition("#")[0]

    @contextmanager
    def hold(self) -> Iterator[bytearray]:
        """Return a buffer for a body, which counts towards the common limit until it is decoded."""
        body = bytearray()
        try:
            yield body
        finally:
            self._bodies_bytes -= len(body)

    async def read(self, request: web.BaseRequest, body: bytearray) -> None:
        """Append the body of a request to `body`.

        Raises Problem: 400 (the body does not match its headers), 408 (it took too long), 413 (it
        is too large), 415 (it is encoded), 429 (the server is reading too many bytes of bodies).
        """
        most, options = self._options.body_bytes_max, self._options
        if "Content-Encoding" in request.headers:
            what = "Content-Encoding: encoded bodies are not supported"
            raise Problem(415, "EncodedBody", what, field="Content-Encoding")
        if (request.content_length or 0) > most:
            raise too_large(most)
        await go_on(request)
        try:
            async with asyncio.timeout(options.body_s):
                async for chunk in request.content.iter_any():
                    self._add(body, chunk)
        except TimeoutError:
            what = f"the body did not arrive within {options.body_s:g} s"
            limit = Limit(round(options.body_s), "body_s")
            raise Problem(408, "BodyTimeout", what, limit=limit) from None
        except web.RequestPayloadError:
            raise Problem(400, "Malformed", "the body does not match its headers") from None

    def _add(self, body: bytearray, chunk: bytes) -> None:
        options = self._options
        if len(body) + len(chunk) > options.body_bytes_max:
            raise too_large(options.body_bytes_max)
        if self._bodies_bytes + len(chunk) > options.bodies_bytes_max:
            limit = Limit(options.bodies_bytes_max, "bodies_bytes_max")
            what = f"this server is reading {options.bodies_bytes_max} bytes of bodies, the maximum"
            raise Problem(429, "Overloaded", what, limit=limit)
        body += chunk
        self._bodies_bytes += len(chunk)

    def read_request(
        self,
        request: web.BaseRequest,
        site: Site,
        found: tuple[Route[Any, Any], dict[str, str], str],
        data: bytes,
    ) -> Asked[Any, Any]:
        """The decoded request. Raises Problem (400, 415)."""
        route, path, text = found
        body, query = decode(request, route, text, data)
        key = key_in(request) if route.is_keyed else None
        what = [route.name, path, body]
        return Asked(
            site,
            path,
            query,
            body,
            None if key is None else request_of(key, what),
            route.gives_raw and RAW in request.headers.get("Accept", ""),
        )


class MethodNotAllowed(Exception):
    """The path has other methods.

    `allowed` lists the methods. `is_asked` says whether the request asked for this list with
    `OPTIONS`.
    """

    def __init__(self, allowed: str, is_asked: bool) -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.is_asked = is_asked


def too_large(most: int) -> Problem:
    what = f"the body has more than {most} bytes"
    return Problem(413, "BodyTooLarge", what, limit=Limit(most, "body_bytes_max"))


async def go_on(request: web.BaseRequest) -> None:
    """Tell a client that waits for `100 Continue` to send the body."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def decode(
    request: web.BaseRequest, route: Route[Any, Any], text: str, data: bytes
) -> tuple[Any, Any]:
    """Return the decoded body and query. Raises Problem."""
    lists = list_fields(route.raw or route.query)
    if not route.takes_body:
        return NoFields(), read_query(text, route.query, lists)
    kind = request.content_type if "Content-Type" in request.headers else ""
    if route.raw is not None and kind == RAW:
        return read_query(text, route.raw, lists).with_payload(data), NoFields()
    if data and kind != JSON:
        wanted = f"{JSON} or {RAW}" if route.raw is not None else JSON
        what = f"Content-Type: the body must be {wanted}"
        raise Problem(415, "ContentType", what, field="Content-Type")
    return read_json(data or b"{}", route.body), read_query(text, route.query, lists)


def list_fields(kind: type[Any]) -> list[str]:
    """The fields that may occur more than once."""
    fields = msgspec.structs.fields(kind)
    return [one.name for one in fields if one.name in ("metadata", "wanted")]


def key_in(request: web.BaseRequest) -> str | None:
    """Return the `Idempotency-Key`; None if there is none. Raises Problem (400)."""
    given = request.headers.getall("Idempotency-Key", [])
    if not given:
        return None
    key = given[0]
    is_plain = key.isascii() and key.isprintable() and " " not in key
    if len(given) > 1 or not is_plain or not 1 <= len(key) <= KEY_BYTES_MAX:
        what = f"Idempotency-Key: send one, of 1 to {KEY_BYTES_MAX} ASCII characters without spaces"
        limit = Limit(KEY_BYTES_MAX, "KEY_BYTES_MAX")
        raise Problem(400, "RequestInvalid", what, field="Idempotency-Key", limit=limit)
    return key
