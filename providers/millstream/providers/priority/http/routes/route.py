"""The form of routes, and the matching of requests to routes. Pure.

Owns `Route`, `Asked` and `Matcher`. The table of routes is in `table`, and their functions have
modules of their own.

Invariants: a segment of a path is decoded by itself, so a name may contain slashes. The server and
the OpenAPI document use the same table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.http.forms.answers import Answer
from millstream.providers.priority.http.forms.bodies import NoFields, RawMessage

from .asked import Opened

__all__ = ["Asked", "Matcher", "Route", "Site"]

B = TypeVar("B")
Q = TypeVar("Q")


class Site(NamedTuple):
    """The services that every request needs.

    `open` opens a queue. `names` returns names with a prefix, after a name. `waiting` reserves a
    place among the waiting polls, with its longest wait.
    """

    open: Callable[[str], Opened]
    names: Callable[[str, str], Awaitable[list[str]]]
    waiting: Callable[[str, float], AbstractContextManager[float]]


@dataclass(frozen=True, slots=True)
class Asked(Generic[B, Q]):
    """One decoded request.

    `path` has the variables of the path by name. `request` is the request id of its
    `Idempotency-Key`. `wants_raw` says whether the payload should be the body of the answer.
    """

    site: Site
    path: Mapping[str, str]
    query: Q
    body: B
    request: Request | None = None
    wants_raw: bool = False

    @property
    def queue(self) -> Opened:
        """The queue that the path names. Raises RequestInvalid."""
        return self.site.open(self.path["queue"])


@dataclass(frozen=True, slots=True)
class Route(Generic[B, Q]):
    """One operation. `name` is its id in the document, and `text` is its summary there.

    `answer` is None for an answer without a body, and bytes for a payload. `statuses` are those of
    success. `raw` is the query if the body is a payload. `is_keyed` says whether it accepts an
    `Idempotency-Key`. `gives_raw` says whether a client that accepts no JSON gets a payload as the
    body.
    """

    method: str
    path: str
    name: str
    text: str
    act: Callable[[Asked[B, Q]], Awaitable[Answer]]
    answer: type[Any] | None
    body: type[B] = NoFields  # type: ignore[assignment]
    query: type[Q] = NoFields  # type: ignore[assignment]
    raw: type[RawMessage] | None = None
    statuses: tuple[int, ...] = (200,)
    is_keyed: bool = False
    gives_raw: bool = False

    @property
    def takes_body(self) -> bool:
        """Whether requests of this method have a body."""
        return self.method in ("POST", "PUT", "PATCH")

    @property
    def segments(self) -> list[str]:
        """The segments of the path."""
        return self.path.split("/")[1:]


class Matcher:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route[Any, Any]]) -> None:
        self._routes = [(route.segments, route) for route in routes]

    def at(self, segments: Sequence[str]) -> dict[str, tuple[Route[Any, Any], dict[str, str]]]:
        """The routes of a path by method, with the variables of the path.

        The result is empty if the path does not exist. `HEAD` has the route of `GET`.
        """
        found = {}
        for pattern, route in self._routes:
            named = fitting(pattern, segments)
            if named is not None:
                found[route.method] = (route, named)
        if "GET" in found:
            found["HEAD"] = found["GET"]
        return found


def fitting(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    """The variables of a path that fits the pattern; None if it does not fit."""
    if len(pattern) != len(segments):
        return None
    named = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            named[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return named
