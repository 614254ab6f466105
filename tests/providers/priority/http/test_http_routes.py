"""The effect of each route of the HTTP API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, get_args
from urllib.parse import quote

import pytest
from tests.providers.priority.http.desk import TOKEN, Desk, desk_of

from millstream.providers.priority import PriorityClass, PriorityQueueError, QueueSettings
from millstream.providers.priority.http.forms.bodies import ClassName
from millstream.providers.priority.http.forms.problems import STATUS, status_of
from millstream.providers.priority.http.routes.leases import LEASE_HEADER
from millstream.providers.priority.http.routes.table import ROUTES
from millstream.providers.priority.surface import opening

RAW = {"Content-Type": "application/octet-stream"}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with desk_of() as made:
        yield made


async def test_a_message_goes_in_and_out(desk: Desk) -> None:
    made = await desk.enqueue("q", id="m", priority=5, metadata={"a": "b"}, attempts=2)
    assert made.status == 201 and made.headers["Location"] == "/v1/queues/q/messages/m"
    assert made.json == {"id": "m", "state": "pending", "version": 1, "is_changed": True}
    again = await desk.enqueue("q", id="m", priority=5, metadata={"a": "b"}, attempts=2)
    assert again.status == 200 and not again.json["is_changed"]
    [lease] = await desk.lease("q", lease_s=10)
    assert lease == {
        "id": "m",
        "token": "1.2",
        "payload": "eA==",
        "priority": 5,
        "metadata": {"a": "b"},
        "deadline_ms": 11_000,
        "attempt": 1,
        "attempts_left": 1,
        "is_valid": True,
    }
    path = "/v1/queues/q/messages/m/leases/1.2"
    extended = await desk.ask("POST", f"{path}/extend", json={"lease_s": 60})
    assert extended.json["due_ms"] == 61_000
    for is_changed in (True, False):
        done = await desk.ask("POST", f"{path}/complete")
        assert (done.status, done.json["state"]) == (200, "completed")
        assert done.json["is_changed"] is is_changed
    view = (await desk.ask("GET", "/v1/queues/q/messages/m")).json
    assert (view["state"], view["token"], view["worker"]) == ("completed", "1.2", "w")


async def test_a_payload_may_be_the_body_both_ways(desk: Desk) -> None:
    payload = bytes(range(256))
    query = "?id=m&priority=-5&metadata=a=b&metadata=c=d%3De&lease_s=2.5&attempts=4"
    made = await desk.ask("POST", f"/v1/queues/q/messages{query}", data=payload, headers=RAW)
    assert made.status == 201
    got = await desk.ask("GET", "/v1/queues/q/messages/m/payload")
    assert got.data == payload and got.headers["Content-Type"] == RAW["Content-Type"]
    view = (await desk.ask("GET", "/v1/queues/q/messages/m")).json
    assert view["metadata"] == {"a": "b", "c": "d=e"} and view["priority"] == -5
    accept = {"Accept": "application/octet-stream"}
    body = {"worker": "w"}
    leased = await desk.ask("POST", "/v1/queues/q/leases", json=body, headers=accept)
    told = json.loads(leased.headers[LEASE_HEADER])
    assert leased.data == payload and (told["id"], told["token"]) == ("m", "1.2")
    assert told["deadline_ms"] == 3_500 and "payload" not in told
    none = await desk.ask("POST", "/v1/queues/q/leases", json=body, headers=accept)
    assert (none.status, none.data) == (204, b"")
    many = await desk.ask("POST", "/v1/queues/q/leases", json=body | {"count": 2}, headers=accept)
    assert (many.status, many.json["field"]) == (400, "count")


async def test_classes_of_work_are_names(desk: Desk) -> None:
    assert list(get_args(ClassName)) == [one.name for one in PriorityClass]
    for name in ("LOW", "URGENT"):
        await desk.enqueue("q", id=name, priority=name)
    await desk.enqueue("q", id="usual")
    found = await desk.lease("q", count=5)
    assert [one["id"] for one in found] == ["URGENT", "usual", "LOW"]
    assert found[1]["priority"] == desk.clock.now_ms


async def test_many_go_in_at_once_and_each_is_told_what_became_of_it(desk: Desk) -> None:
    body = {"messages": [{"payload": "eA==", "id": "a"}, {"payload": "eHh4" * 20_000, "id": "b"}]}
    made = await desk.ask("POST", "/v1/queues/q/batches", json=body)
    first, second = made.json["results"]
    assert first["message"]["is_changed"] and "problem" not in first
    assert second["problem"]["type"] == "urn:millstream:priority:request-invalid"
    limit = {"value": 32_768, "name": "payload_bytes_max"}
    assert second["problem"]["limit"] == limit and second["problem"]["field"] == "payload"
    whole = await desk.ask("POST", "/v1/queues/r/batches", json=body | {"all_or_nothing": True})
    assert whole.status == 413 and whole.json["limit"] == limit
    assert await desk.depth("q") == {"pending": 1} and await desk.depth("r") == {}


async def test_a_filter_is_a_conjunction(desk: Desk) -> None:
    await desk.ask("PUT", "/v1/queues/q", json={"shapes": [["a", "b"]]})
    for id, metadata in (("1", {"a": "x"}), ("2", {"a": "x", "b": "y"}), ("3", {"b": "y"})):
        await desk.enqueue("q", id=id, priority=int(id), metadata=metadata)
    assert (await desk.ask("GET", "/v1/queues/q/depth?wanted=a=x&wanted=b=y")).json["pending"] == 1
    head = (await desk.ask("GET", "/v1/queues/q/head?count=5&wanted=b=y&payload=false")).json
    assert [(one["id"], one["payload"]) for one in head["messages"]] == [("2", None), ("3", None)]
    [lease] = await desk.lease("q", count=5, wanted={"a": "x", "b": "y"})
    assert lease["id"] == "2"


async def test_messages_are_paged(desk: Desk) -> None:
    for id in "abcde":
        await desk.enqueue("q", id=id)
    await desk.lease("q")
    first = (await desk.ask("GET", "/v1/queues/q/messages?count=3")).json
    assert [one["id"] for one in first["messages"]] == ["a", "b", "c"]
    rest = (await desk.ask("GET", f"/v1/queues/q/messages?count=3&after={first['after']}")).json
    assert [one["id"] for one in rest["messages"]] == ["d", "e"] and rest["after"] is None
    running = (await desk.ask("GET", "/v1/queues/q/messages?state=running")).json
    assert [one["id"] for one in running["messages"]] == ["a"]


async def test_what_is_done_with_a_message_by_who_has_no_lease(desk: Desk) -> None:
    await desk.enqueue("q", id="m", priority=1)
    moved = await desk.ask("PATCH", "/v1/queues/q/messages/m", json={"priority": 7})
    assert moved.json["version"] == 2
    done = await desk.ask("POST", "/v1/queues/q/messages/m/cancel", json={"reason": "late"})
    assert done.json["state"] == "canceled"
    again = await desk.ask("POST", "/v1/queues/q/messages/m/requeue", json={"new_id": "n"})
    assert again.status == 201 and again.json["id"] == "n"
    made = await desk.ask("POST", "/v1/queues/q/messages/m/requeue")
    assert made.status == 201 and made.json["id"] not in ("m", "n")
    for key in ({}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "l"}):
        same = await desk.ask("POST", "/v1/queues/q/messages/m/requeue", headers=key)
        assert same.status == 200 and same.json["id"] == made.json["id"]
    odd = await desk.ask("POST", "/v1/queues/q/messages/m/requeue", json={"new_id": ""})
    assert (odd.status, odd.json["field"]) == (400, "new_id")


@pytest.mark.parametrize(
    ("act", "body", "state"),
    [
        ("fail", {"reason": "bad"}, "errored"),
        ("cancel", {}, "canceled"),
        ("release", {"refund": True}, "pending"),
        ("release", {"delay_s": 5}, "invisible"),
    ],
)
async def test_a_lease_ends_in_each_way(
    desk: Desk, act: str, body: dict[str, Any], state: str
) -> None:
    await desk.enqueue("q", id="m", attempts=2)
    [lease] = await desk.lease("q")
    path = f"/v1/queues/q/messages/m/leases/{lease['token']}/{act}"
    assert (await desk.ask("POST", path, json=body)).json["state"] == state
    view = (await desk.ask("GET", "/v1/queues/q/messages/m")).json
    assert view["attempts_left"] == (2 if body.get("refund") else 1)


async def test_queues_are_made_changed_listed_and_deleted(desk: Desk) -> None:
    settings = {"exclusivity_key": "project", "lease_ms": 5_000}
    made = await desk.ask("PUT", "/v1/queues/b", json=settings)
    assert made.json["settings"] == json.loads(json.dumps(asdict(QueueSettings()) | settings))
    assert (await desk.ask("PUT", "/v1/queues/b", json=settings)).status == 200
    assert (await desk.ask("PUT", "/v1/queues/b")).status == 409
    changed = await desk.ask("PATCH", "/v1/queues/b", json={"exclusivity_key": None})
    assert changed.json["version"] == 2
    assert changed.json["settings"]["exclusivity_key"] is None
    assert changed.json["settings"]["lease_ms"] == 5_000, "what is not given stays"
    stale = await desk.ask("PATCH", "/v1/queues/b?version=1", json={"attempts": 7})
    assert (stale.status, stale.json["title"]) == (409, "SettingsConflict")
    for name in ("a", "c"):
        await desk.ask("PUT", f"/v1/queues/{name}")
    first = (await desk.ask("GET", "/v1/queues?limit=2")).json
    assert first == {"queues": ["a", "b"], "after": "b"}
    assert (await desk.ask("GET", "/v1/queues?after=b")).json == {"queues": ["c"], "after": None}
    assert (await desk.ask("GET", "/v1/queues?prefix=b")).json["queues"] == ["b"]
    assert (await desk.ask("DELETE", "/v1/queues/b")).status == 204
    assert (await desk.ask("DELETE", "/v1/queues/b")).status == 404
    assert (await desk.ask("GET", "/v1/queues/b")).json["queue"] == "b"


async def paged(desk: Desk, limit: int) -> list[list[str]]:
    """Return all pages of the queues' names."""
    pages, after = [], ""
    while True:
        found = (await desk.ask("GET", f"/v1/queues?limit={limit}&after={after}")).json
        pages.append(found["queues"])
        if found["after"] is None:
            return pages
        assert found["after"] == found["queues"][-1]
        after = found["after"]


async def test_every_page_of_names_but_the_last_is_full_whatever_shards_there_are(
    desk: Desk,
) -> None:
    names = [f"q{number:02}" for number in range(12)]
    for number, name in enumerate(names):
        await desk.ask("PUT", f"/v1/queues/{name}", json={"shards": 1 + number % 3 * 4})
        await desk.enqueue(name)
    for limit in (1, 5, 11, 12, 13, 1_000):
        parts = [names[at : at + limit] for at in range(0, len(names), limit)]
        assert await paged(desk, limit) == parts


async def test_the_names_of_more_queues_than_a_look_shows_are_paged(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "NAMES_MAX", 3)
    names = [f"q{number}" for number in range(9)]
    for name in names:
        await desk.ask("PUT", f"/v1/queues/{name}")
    assert await paged(desk, 7) == [names[:7], names[7:]]
    assert await paged(desk, 9) == [names]


async def test_work_of_one_value_is_held_and_counted(desk: Desk) -> None:
    await desk.ask("PUT", "/v1/queues/q", json={"exclusivity_key": "project"})
    for priority, project in enumerate(["foo", "foo", "bar"]):
        await desk.enqueue("q", priority=priority, metadata={"project": project})
    found = await desk.lease("q", count=5)
    assert [one["metadata"]["project"] for one in found] == ["foo", "bar"]
    values = (await desk.ask("GET", "/v1/queues/q/values")).json["values"]
    assert (values["foo"]["running"], values["foo"]["pending"]) == (1, 1)
    assert (await desk.ask("GET", "/v1/queues/q/depth?value=bar")).json["running"] == 1
    lacks = await desk.enqueue("q")
    assert (lacks.status, lacks.json["title"]) == (400, "ExclusivityMissing")


ODD = ["a/b", "ä ö?#%", "..", "%2F", "\u6f22\u5b57", "\x00\n", "batches", "+"]


@pytest.mark.parametrize("name", ODD)
async def test_names_may_have_any_sign(desk: Desk, name: str) -> None:
    told = quote(name, safe="")
    made = await desk.enqueue(told, id=name)
    assert made.status == 201
    assert made.headers["Location"] == f"/v1/queues/{told}/messages/{told}"
    assert (await desk.ask("GET", made.headers["Location"])).json["id"] == name
    assert (await desk.ask("GET", "/v1/queues")).json["queues"] == [name]
    [lease] = await desk.lease(told)
    assert lease["id"] == name
    path = f"/v1/queues/{told}/messages/{told}/leases/{lease['token']}/complete"
    assert (await desk.ask("POST", path)).status == 200


async def test_no_route_answers_without_the_token(desk: Desk) -> None:
    paths = {(route.method, route.path) for route in ROUTES}
    paths |= {("GET", "/openapi.json"), ("GET", "/none"), ("OPTIONS", "/v1/queues")}
    wrong = ["", TOKEN, "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \u00e4"]
    for method, path in sorted(paths):
        for text in wrong:
            reply = await desk.ask(method, path, headers={"Authorization": text}, json={})
            assert reply.status == 401, (method, path, text)
            assert reply.headers["WWW-Authenticate"] == 'Bearer realm="millstream"'
    assert (
        await desk.ask("GET", "/v1/queues", headers={"Authorization": f"bearer {TOKEN}"})
    ).status == 200
    assert (await desk.ask("GET", "/v1/queues")).json["queues"] == [], "nothing was done"


def test_every_error_of_a_queue_has_a_status() -> None:
    def below(cls: type[PriorityQueueError]) -> list[type[PriorityQueueError]]:
        return [cls, *(one for child in cls.__subclasses__() for one in below(child))]

    # a key cannot cause SessionFull or RequestStale
    met = [one for one in below(PriorityQueueError) if one is not PriorityQueueError]
    missing = {one.__name__ for one in met if not status_of(one.__new__(one))}
    assert missing == {"SessionFull", "RequestStale"} and len(STATUS) > 15
