"""The pages about HTTP are right: the guide's `curl` commands answer as shown, and the reference
lists all routes."""

from __future__ import annotations

import re
import shlex
from typing import Any

from tests.imports import ROOT
from tests.providers.priority.http.desk import TOKEN, Desk, desk_of

from millstream.providers.priority.http.routes.table import ROUTES

GUIDE = (ROOT / "docs" / "guides" / "priority.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "priority_http.md").read_text()
LINES = re.search(r"^```console\n(\$ curl.*?)^```", GUIDE, re.M | re.S)


async def curl(desk: Desk, line: str) -> str:
    """Return the text that `curl` would print."""
    told = line.replace("$API", "/v1/queues").replace("$AUTH", f"Authorization: Bearer {TOKEN}")
    words = iter(shlex.split(told)[2:])
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    method, path = "", ""
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-X":
            method = next(words)
        elif word in ("--json", "--data-binary"):
            options["data"] = next(words).encode()
            method = method or "POST"
            if word == "--json":
                headers["Content-Type"] = "application/json"
        elif word != "-s":
            path = word
    reply = await desk.ask(method or "GET", path, headers=headers, **options)
    assert reply.status in (200, 201, 409), (line, reply)
    return reply.data.decode()


async def test_the_lines_of_the_guide_answer_as_it_shows() -> None:
    assert LINES is not None
    shown = re.findall(r"^\$ (curl.*)\n((?:[^$].*\n)*)", LINES[1], re.M)
    assert len(shown) == 8
    async with desk_of() as desk:
        for line, wanted in shown:
            found = await curl(desk, line)
            assert not wanted or found == wanted.rstrip("\n"), line


def test_the_reference_has_all_routes() -> None:
    rows = re.findall(r"^\| `([A-Z]+)` \| `(\S+)` \| (.+?) \|$", REFERENCE, re.M)
    assert rows == [(route.method, route.path, route.text) for route in ROUTES]
