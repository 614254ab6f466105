"""The form of routes, and which one a request is for: pure.

Owns: `Route`, `Asked`, `Matcher`. Not: the table of them (`table`), what they do.
Invariants: a segment of a path is decoded by itself, so a name may have slashes; the table that
answers here is the one that the OpenAPI document is made of.
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
    """What every request is answered from.

    `open` gives a queue; `names` the names that begin so, after one; `waiting` a place among the
    polls that wait, and for how long.
    """

    open: Callable[[str], Opened]
    names: Callable[[str, str], Awaitable[list[str]]]
    waiting: Callable[[str, float], AbstractContextManager[float]]


@dataclass(frozen=True, slots=True)
class Asked(Generic[B, Q]):
    """One request, decoded.

    `path`: by name. `request`: the id that its `Idempotency-Key` stands for. `wants_raw`: the
    payload is wanted as the body of the answer.
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
    """One operation: `name` is that of the document, `text` says what it does.

    `answer`: None: the answer has no body; bytes: it is a payload. `statuses`: of success.
    `raw`: the query where the body is a payload. `is_keyed`: it takes an `Idempotency-Key`.
    `gives_raw`: it gives a payload as the body to whoever accepts no JSON.
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
        return self.method in ("POST", "PUT", "PATCH")

    @property
    def segments(self) -> list[str]:
        return self.path.split("/")[1:]


class Matcher:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route[Any, Any]]) -> None:
        self._routes = [(route.segments, route) for route in routes]

    def at(self, segments: Sequence[str]) -> dict[str, tuple[Route[Any, Any], dict[str, str]]]:
        """The routes of a path by their methods, with what the path names; empty: there is no such
        path. `HEAD` is where `GET` is."""
        found = {}
        for pattern, route in self._routes:
            named = fitting(pattern, segments)
            if named is not None:
                found[route.method] = (route, named)
        if "GET" in found:
            found["HEAD"] = found["GET"]
        return found


def fitting(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    """What a path names, if it has the form."""
    if len(pattern) != len(segments):
        return None
    named = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            named[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return named
