"""Headers that flow along a chain of calls, and the sections of call-chain reentrancy.

Owns the flowing headers of a turn, and the blocks in which a turn admits the calls of its own
chain. Such a block is a section. Its id flows along the chain as a header, and `turn_rule` admits a
request that carries the id of the running turn's section.

Source: `RequestContext` of Orleans, with `AllowCallChainReentrancy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.runtime.definition.headers import SECTIONS, HeaderSet, check_size, show_headers

from .request import Request

__all__ = [
    "flowing_of",
    "header_set_of",
    "headers_of",
    "hide_sections",
    "is_in_section",
    "open_section",
]


def flowing_of(request: Request | None) -> dict[str, str]:
    """Return the flowing headers of a turn: its own, or those of the turn that waits for it."""
    while request is not None:
        headers = request.headers
        if headers is not None and headers.flowing is not None:
            found: dict[str, str] = headers.flowing
            return found
        request = request.parent
    return {}


def header_set_of(request: Request | None) -> HeaderSet:
    """Return the headers of a turn, with those of the runtime."""
    own = {} if request is None or request.headers is None else request.headers.own
    return HeaderSet(own, flowing_of(request))


def headers_of(request: Request | None) -> dict[str, str]:
    """Return the headers that the code of a turn sees."""
    return show_headers(header_set_of(request))


def is_in_section(request: Request, running: Request) -> bool:
    """Return True if a running turn lets a request start, because the turn waits for it."""
    return (
        bool(running.section) and running.section in flowing_of(request).get(SECTIONS, "").split()
    )


@contextmanager
def open_section(request: Request, new_id: Callable[[], int]) -> Iterator[None]:
    """Let the calls of a running turn's chain back into its grain. A nested block changes nothing.

    Raises ConfigError if the ids of the chain exceed a limit of headers.
    """
    section, flowing = request.section or f"{new_id():x}", flowing_of(request)
    ids = [*flowing.get(SECTIONS, "").split(), section]
    with _flowing(request, {**flowing, SECTIONS: " ".join(dict.fromkeys(ids))}):
        before, request.section = request.section, section
        try:
            yield
        finally:
            request.section = before


@contextmanager
def hide_sections(request: Request) -> Iterator[None]:
    """Let a running turn make calls that carry no section of their chain."""
    flowing = {name: text for name, text in flowing_of(request).items() if name != SECTIONS}
    with _flowing(request, flowing):
        yield


@contextmanager
def _flowing(request: Request, flowing: dict[str, str]) -> Iterator[None]:
    check_size(flowing)
    before = request.headers
    request.headers = HeaderSet({} if before is None else before.own, flowing)
    try:
        yield
    finally:
        request.headers = before
