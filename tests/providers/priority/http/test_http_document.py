"""The OpenAPI document lists exactly the routes of the server, and all answers follow it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.providers.priority.http.desk import Desk, Reply, desk_of
from tests.providers.priority.http.from_document import Call, calls, complaint

from millstream.providers.priority import QueueSettings
from millstream.providers.priority.http.routes.document import document_of
from millstream.providers.priority.http.routes.table import ROUTES

DOCUMENT: dict[str, Any] = json.loads(json.dumps(document_of(ROUTES, "1")))
AS_IT_COMES = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)


class Bench:
    """A server for many calls on its own event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = desk_of(wait_s_max=0.001, patience_s=5.0)
        self.desk: Desk = self.loop.run_until_complete(self._context.__aenter__())

    def ask(self, call: Call) -> Reply:
        return self.loop.run_until_complete(
            self.desk.ask(call.method, call.path, data=call.body, headers=call.headers)
        )

    def close(self) -> None:
        self.loop.run_until_complete(self._context.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def check(call: Call, reply: Reply) -> None:
    """Check that the document has the answer's status, and that the answer has its form."""
    assert reply.status < 500 or reply.status == 503, (call, reply)
    found = call.operation["responses"].get(str(reply.status))
    assert found is not None, (call, reply)
    if reply.status == 204:
        assert not reply.data
        return
    kind = reply.headers["Content-Type"].partition(";")[0]
    schema = found["content"][kind]["schema"]
    if schema.get("format") != "binary":
        assert complaint(DOCUMENT, schema, reply.json) == "", (call, reply)


@AS_IT_COMES
@given(data=st.data())
def test_what_is_asked_as_the_document_says_is_answered_so(bench: Bench, data: Any) -> None:
    call = data.draw(calls(DOCUMENT, is_right=True))
    check(call, bench.ask(call))


@AS_IT_COMES
@given(data=st.data())
def test_what_is_asked_in_any_other_way_is_answered_so_too(bench: Bench, data: Any) -> None:
    call = data.draw(calls(DOCUMENT, is_right=False))
    reply = bench.ask(call)
    if reply.status != 404 and reply.status != 405:  # some names change the path
        check(call, reply)


def test_the_document_has_all_routes_and_itself() -> None:
    named = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
    }
    assert named == {(one.method, one.path) for one in ROUTES} | {("GET", "/openapi.json")}
    ids = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids) == 23
    assert DOCUMENT["openapi"] == "3.1.0" and DOCUMENT["security"] == [{"token": []}]


def test_every_reference_leads_somewhere_and_nothing_is_described_for_nobody() -> None:
    def refs(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from [value["$ref"]] if "$ref" in value else []
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from refs(one)

    named = {ref.rpartition("/")[2] for ref in refs(DOCUMENT)}
    assert named <= DOCUMENT["components"]["schemas"].keys()
    queries = {"AfterName", "AfterSequence", "DepthQuery", "Peek", "RawMessage", "Version"}
    assert DOCUMENT["components"]["schemas"].keys() - named == queries


def test_descriptions_do_not_have_the_indentation_of_the_source() -> None:
    described = {
        name: schema["description"]
        for name, schema in DOCUMENT["components"]["schemas"].items()
        if "description" in schema
    }
    assert sum("\n" in text for text in described.values()) > 5
    indented = re.compile(r"^\s|\n[ \t]|\s$")
    assert [name for name, text in described.items() if indented.search(text)] == []


async def test_the_document_says_what_becomes_of_settings_that_are_left_out() -> None:
    async with desk_of() as desk:
        made = await desk.ask("PUT", "/v1/queues/q", json={"lease_ms": 5_000})
        put = await desk.ask("PUT", "/v1/queues/q", json={"attempts": 7})
        kept = await desk.ask("PATCH", "/v1/queues/q", json={"attempts": 7})
    usual = QueueSettings()
    assert (made.json["settings"]["lease_ms"], made.json["settings"]["attempts"]) == (
        5_000,
        usual.attempts,
    )
    assert put.status == 409, "these settings have another lease_ms, the default"
    assert (kept.json["settings"]["lease_ms"], kept.json["settings"]["attempts"]) == (5_000, 7)
    assert DOCUMENT["components"]["schemas"]["Settings"]["description"] == (
        "Settings of a queue. "
        "PATCH keeps the settings that the body omits; PUT uses their defaults."
    )


async def test_the_server_gives_the_document_that_it_serves_by() -> None:
    async with desk_of() as desk:
        reply = await desk.ask("GET", "/openapi.json")
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.json["paths"] == DOCUMENT["paths"]
