"""Refusals of the HTTP API: no request is done in part, and each refusal names the fault."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from tests.providers.priority.http.desk import TOKEN, Desk, desk_of, raw

from millstream.providers.priority import MemoryStore, PriorityQueues
from millstream.providers.priority.http import TOKEN_VARIABLE, HttpOptions, PriorityApi
from millstream.runtime import ConfigError, LocalCluster

JSON = {"Content-Type": "application/json"}
MESSAGES = "/v1/queues/q/messages"
LEASES = "/v1/queues/q/leases"
DEEP = b"[" * 200_000


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with desk_of() as made:
        yield made


BODIES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", ""),
    "not an object": (b"[]", ""),
    "nothing": (b"", "payload"),
    "a text that is not UTF-8": (b'{"payload":"","id":"\xff"}', ""),
    "half a surrogate pair": (b'{"payload":"","id":"\\ud800"}', ""),
    "a field that half a pair names": (b'{"payload":"","\\ud800":1}', ""),
    "nested without end": (b'{"payload":"","metadata":' + DEEP, ""),
    "NaN": (b'{"payload":"","lease_s":NaN}', ""),
    "infinity": (b'{"payload":"","lease_s":1e999}', "lease_s"),
    "below nothing": (b'{"payload":"","lease_s":-1}', "lease_s"),
    "a huge number": (b'{"payload":"","priority":1%s}' % (b"0" * 40), "priority"),
    "a number without end": (b'{"payload":"","priority":%s}' % (b"1" * 9_000), "priority"),
    "half a number": (b'{"payload":"","attempts":1.5}', "attempts"),
    "true for a number": (b'{"payload":"","attempts":true}', "attempts"),
    "no base64": (b'{"payload":"@@"}', "payload"),
    "base64 that is cut": (b'{"payload":"eA"}', "payload"),
    "a field that nobody knows": (b'{"payload":"","prio":1}', "prio"),
    "a field within one": (b'{"payload":"","metadata":{"a":{}}}', "metadata[...]"),
    "a key that comes twice": (b'{"payload":"","id":"a","id":"b"}', "id"),
    "a pair that comes twice": (b'{"payload":"","metadata":{"k":"a","k":"b"}}', "k"),
    "too many pairs": (
        b'{"payload":"","metadata":{"a":"","b":"","c":"","d":"","e":""}}',
        "metadata",
    ),
    "an id that is too long": (json.dumps({"payload": "", "id": "x" * 257}).encode(), "id"),
    "an empty id": (b'{"payload":"","id":""}', "id"),
    "a class that is none": (b'{"payload":"","priority":"SOON"}', "priority"),
}


@pytest.mark.parametrize(("body", "field"), BODIES.values(), ids=BODIES)
async def test_a_body_that_cannot_be_is_refused(desk: Desk, body: bytes, field: str) -> None:
    reply = await desk.ask("POST", MESSAGES, data=body, headers=JSON)
    assert reply.status == 400, reply
    assert reply.headers["Content-Type"] == "application/problem+json"
    told = reply.json
    assert told["type"] == "urn:millstream:priority:request-invalid" and told["status"] == 400
    assert told["queue"] == "q" and told.get("field", "") == field and told["detail"]
    assert (await desk.ask("GET", "/v1/queues")).json["queues"] == [], "nothing was done"


MET: dict[str, tuple[str, bytes, str, dict[str, Any]]] = {
    "a number without end": (
        MESSAGES,
        b'{"payload":"","priority":%s}' % (b"9" * 9_000),
        "priority",
        {"value": 2**53},
    ),
    "one below all": (
        MESSAGES,
        b'{"payload":"","priority":-%s}' % (b"9" * 9_000),
        "priority",
        {"value": -(2**53)},
    ),
    "a wait without end": (
        LEASES,
        b'{"worker":"w","wait_s":%s}' % (b"9" * 400),
        "wait_s",
        {"value": 9007199254740},
    ),
    "an infinite wait": (
        LEASES,
        b'{"worker":"w","wait_s":1e999}',
        "wait_s",
        {"value": 9007199254740},
    ),
    "no wait": (LEASES, b'{"worker":"w","wait_s":-1}', "wait_s", {"value": 0}),
    "a long lease": (
        LEASES,
        b'{"worker":"w","lease_s":1e9}',
        "lease_s",
        {"value": 86_400_000, "name": "lease_ms_max"},
    ),
    "no lease": (
        MESSAGES,
        b'{"payload":"","lease_s":0}',
        "lease_s",
        {"value": 86_400_000, "name": "lease_ms_max"},
    ),
    "too many attempts": (
        MESSAGES,
        b'{"payload":"","attempts":5000}',
        "attempts",
        {"value": 1_000},
    ),
}


@pytest.mark.parametrize("what", MET)
async def test_a_number_that_cannot_be_is_told_with_its_limit(desk: Desk, what: str) -> None:
    path, body, field, limit = MET[what]
    told = (await desk.ask("POST", path, data=body, headers=JSON)).json
    assert (told["status"], told["queue"], told["field"], told["limit"]) == (400, "q", field, limit)
    assert len(told["detail"]) < 300


async def test_numbers_without_end_are_told_with_their_limits_everywhere(desk: Desk) -> None:
    digits = "9" * 5_000
    told = (await desk.ask("GET", f"{MESSAGES}?count={digits}")).json
    assert (told["field"], told["limit"]) == ("count", {"value": 1_000})
    body = f'{{"lease_ms":{digits}}}'.encode()
    told = (await desk.ask("PUT", "/v1/queues/q", data=body, headers=JSON)).json
    assert (told["field"], told["limit"]) == ("lease_ms", {"value": 86_400_000})
    many = b'{"messages":[{"payload":"","lease_s":1e9}]}'
    reply = await desk.ask("POST", "/v1/queues/q/batches", data=many, headers=JSON)
    [result] = reply.json["results"]
    assert result["problem"]["field"] == "lease_s"
    assert result["problem"]["limit"] == {"value": 86_400_000, "name": "lease_ms_max"}


PLACES: dict[str, tuple[str, str, int, str]] = {
    "an unknown path": ("GET", "/v1/none", 404, ""),
    "a path that goes on": ("GET", "/v1/queues/q/depth/more", 404, ""),
    "a slash at the end": ("GET", "/v1/queues/q/", 404, ""),
    "an empty name": ("GET", "/v1/queues/", 400, "queue"),
    "a name that is too long": ("GET", f"/v1/queues/{'x' * 257}", 400, "queue"),
    "a name that is not UTF-8": ("GET", "/v1/queues/%FF", 400, ""),
    "a query that is not UTF-8": ("GET", "/v1/queues?prefix=%FF", 400, ""),
    "a field that nobody knows": ("GET", "/v1/queues?first=1", 400, "first"),
    "a field that comes twice": ("GET", "/v1/queues?after=a&after=b", 400, "after"),
    "too many fields": ("GET", "/v1/queues?" + "&".join(f"f{n}=1" for n in range(65)), 400, ""),
    "a count that is none": ("GET", f"{MESSAGES}?count=many", 400, "count"),
    "a count beyond the most": ("GET", f"{MESSAGES}?count=1001", 400, "count"),
    "a state that is none": ("GET", f"{MESSAGES}?state=lost", 400, "state"),
    "a wish that is no pair": ("GET", f"{MESSAGES}?wanted=us", 400, "wanted"),
    "a wish twice": ("GET", f"{MESSAGES}?wanted=a=1&wanted=a=2", 400, "wanted"),
    "a token that is none": ("POST", f"{MESSAGES}/m/leases/1/complete", 400, "token"),
    "a token that is too long": ("POST", f"{MESSAGES}/m/leases/{'9' * 5_000}.1/fail", 400, "token"),
    "a query of a route without one": ("POST", f"{MESSAGES}/m/cancel?reason=x", 400, "reason"),
    "a queue that is not there": ("GET", "/v1/queues/q", 404, ""),
    "a message that is not there": ("POST", f"{MESSAGES}/m/cancel", 404, ""),
}


@pytest.mark.parametrize(("method", "path", "status", "field"), PLACES.values(), ids=PLACES)
async def test_a_place_that_cannot_be_is_refused(
    desk: Desk, method: str, path: str, status: int, field: str
) -> None:
    reply = await desk.ask(method, path)
    assert (reply.status, reply.json.get("field", "")) == (status, field), reply


async def test_every_route_refuses_a_field_that_it_does_not_know(desk: Desk) -> None:
    paths = (await desk.ask("GET", "/openapi.json")).json["paths"]
    routes = [(path, method) for path in paths for method in paths[path] if path != "/openapi.json"]
    assert len(routes) > 20
    for route in routes:
        path, method = route[0].format(queue="q", id="m", token="1.2"), route[1].upper()
        told = {"json": {"nobody": 1}} if method in ("POST", "PUT", "PATCH") else {}
        reply = await desk.ask(method, path if told else f"{path}?nobody=1", **told)
        assert (reply.status, reply.json.get("field")) == (400, "nobody"), route
        if told:
            reply = await desk.ask(method, f"{path}?nobody=1")
            assert reply.status == 400, route
    assert (await desk.ask("GET", "/v1/queues")).json["queues"] == []


async def test_a_method_that_a_path_has_not_is_told_which_it_has(desk: Desk) -> None:
    for method in ("PUT", "TRACE"):
        reply = await desk.ask(method, "/v1/queues/q/depth")
        assert reply.status == 405 and reply.headers["Allow"] == "GET, HEAD, OPTIONS"
    asked = await desk.ask("OPTIONS", MESSAGES)
    assert (asked.status, asked.headers["Allow"]) == (204, "GET, HEAD, OPTIONS, POST")
    await desk.enqueue("q")
    head, got = [await desk.ask(method, "/v1/queues/q/depth") for method in ("HEAD", "GET")]
    assert (head.status, head.data) == (200, b"")
    assert head.headers["Content-Length"] == str(len(got.data))


async def test_a_body_in_another_form_is_refused(desk: Desk) -> None:
    kinds = ["text/plain", "application/x-www-form-urlencoded", "application/problem+json", ""]
    for kind in kinds:
        told = {"Content-Type": kind}
        assert (await desk.ask("POST", LEASES, data=b"{}", headers=told)).status == 415, kind
    packed = JSON | {"Content-Encoding": "gzip"}
    reply = await desk.ask("POST", LEASES, data=b"{}", headers=packed)
    assert (reply.status, reply.json["field"]) == (415, "Content-Encoding")
    utf8 = {"Content-Type": "application/json; charset=utf-8"}
    body = b'{"worker":"w"}'
    assert (await desk.ask("POST", LEASES, data=body, headers=utf8)).status == 200


@pytest.mark.parametrize("key", ["", "a b", "x" * 257, "ä"])
async def test_a_key_that_cannot_be_is_refused(desk: Desk, key: str) -> None:
    reply = await desk.ask("POST", MESSAGES, json={}, headers={"Idempotency-Key": key})
    assert (reply.status == 400 and "payload" in reply.json["field"]) or key is not None
    reply = await desk.ask("POST", LEASES, json={"worker": "w"}, headers={"Idempotency-Key": key})
    assert (reply.status, reply.json["field"]) == (400, "Idempotency-Key")


async def test_each_refusal_of_a_lease_has_its_own_type(desk: Desk) -> None:
    await desk.enqueue("q", id="m")
    [lease] = await desk.lease("q", lease_s=5)
    path = "/v1/queues/q/messages/m/leases"
    foreign = await desk.ask("POST", f"{path}/9.2/complete")
    desk.clock.now_ms += 5_000
    old = await desk.ask("POST", f"{path}/{lease['token']}/complete")
    [later] = await desk.lease("q")
    await desk.ask("POST", f"{path}/{later['token']}/complete")
    finished = await desk.ask("POST", f"{path}/{later['token']}/fail")
    await desk.ask("PATCH", "/v1/queues/q", json={"messages_max": 1})
    full = await desk.enqueue("q")
    await desk.ask("PATCH", "/v1/queues/q", json={"enqueue_blocked": True})
    blocked = await desk.enqueue("q")
    told = [(one.status, one.json["title"]) for one in (foreign, old, finished, full, blocked)]
    assert told == [
        (404, "LeaseForeign"),
        (410, "LeaseLost"),
        (409, "MessageFinished"),
        (429, "PriorityQueueFull"),
        (503, "EnqueueBlocked"),
    ]
    assert full.json["limit"] == {"value": 1, "name": "messages_max"}
    assert full.headers["Retry-After"] == "1" and blocked.headers["Retry-After"] == "10"


# -- sizes and times


async def test_bodies_have_limits_alone_and_together() -> None:
    async with desk_of(body_bytes_max=1_000, bodies_bytes_max=1_500) as desk:
        large = await desk.ask("POST", MESSAGES, data=b"x" * 1_001, headers=JSON)
        limit = {"value": 1_000, "name": "body_bytes_max"}
        assert (large.status, large.json["limit"]) == (413, limit)

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 500

        unsaid = await desk.ask("POST", MESSAGES, data=chunks(), headers=JSON)
        assert (unsaid.status, unsaid.json["limit"]) == (413, limit)
        reader = desk.api._reader
        reader._bodies_bytes += 1_400
        crowded = await desk.ask("POST", MESSAGES, data=b"x" * 200, headers=JSON)
        assert crowded.status == 429 and crowded.headers["Retry-After"] == "1"
        assert crowded.json["limit"] == {"value": 1_500, "name": "bodies_bytes_max"}
        assert reader._bodies_bytes == 1_400, "what was read is given back"
        reader._bodies_bytes = 0
        assert (await desk.enqueue("q")).status == 201 and reader._bodies_bytes == 0


def request(path: str, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    async with desk_of(body_s=0.05) as desk:
        length = "Content-Length: 100"
        found = await raw(desk.api, request(MESSAGES, length, "Content-Type: application/json"))
        assert b" 408 " in found.partition(b"\r\n")[0] and b"body_s" in found


async def test_a_connection_without_a_request_is_closed() -> None:
    async with desk_of(idle_s=0.05) as desk:
        assert await raw(desk.api, b"") == b""
        assert await raw(desk.api, b"GET /v1/queues HTTP/1.1\r\nX: ") == b""


async def test_who_waits_for_it_is_told_that_the_body_may_come(desk: Desk) -> None:
    body = b'{"worker":"w"}'
    headers = (f"Content-Length: {len(body)}", "Content-Type: application/json")
    head = request(LEASES, *headers, "Expect: 100-continue", "Connection: close")
    found = await raw(desk.api, head + body)
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    stranger = head.replace(TOKEN.encode(), b"another")
    assert (await raw(desk.api, stranger)).startswith(b"HTTP/1.1 401 ")


async def test_what_is_no_http_is_refused_and_neither_logged_nor_sent_back(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    long = f"X-Long: {TOKEN}{'x' * 9_000}"
    many = [f"X-{n}: {TOKEN}" for n in range(70)]
    sent = {
        "nonsense": b"\x16\x03\x01 " + TOKEN.encode() + b"\r\n\r\n",
        "a header without a name": request(LEASES, f": {TOKEN}"),
        "a header with a space": request(LEASES, f"X {TOKEN}: a"),
        "a long header": request(LEASES, long),
        "many headers": request(LEASES, *many),
        "a long path": request("/v1/" + "x" * 9_000),
        "two lengths": request(LEASES, "Content-Length: 1", "Content-Length: 2"),
        "two ways of saying it": request(LEASES, "Content-Length: 1", "Transfer-Encoding: chunked"),
    }
    for what, data in sent.items():
        found = await raw(desk.api, data)
        status = found.split(b" ", 2)[1]
        assert status in (b"400", b"431"), (what, found)
        assert b"application/problem+json" in found and TOKEN.encode() not in found, what
    wrong_chunks = request(LEASES, "Transfer-Encoding: chunked", "Content-Type: application/json")
    assert b" 400 " in (await raw(desk.api, wrong_chunks + b"zz\r\n")).partition(b"\r\n")[0]
    assert TOKEN not in caplog.text and not caplog.records


async def test_a_fault_is_told_to_the_log_and_to_nobody_else(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(prefix: str, after: str) -> list[str]:
        raise KeyError("the inside")

    monkeypatch.setattr(desk.api, "_site", desk.api._site._replace(names=broken))
    reply = await desk.ask("GET", "/v1/queues?prefix=secret")
    assert (reply.status, reply.json["title"]) == (500, "InternalError")
    assert b"inside" not in reply.data
    [record] = caplog.records
    assert record.getMessage() == "http: GET '/v1/queues' failed: KeyError('the inside')"
    assert "secret" not in caplog.text and TOKEN not in caplog.text


async def test_a_cluster_that_cannot_is_503() -> None:
    async with (
        LocalCluster(grains=[]) as cluster,
        PriorityApi(
            cluster.client, token=TOKEN, port=0, options=HttpOptions(patience_s=0.1)
        ) as api,
        ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.get(f"{api.url}/v1/queues/q") as response,
    ):
        told = await response.json(content_type="application/problem+json")
        assert (response.status, told["title"]) == (503, "NotHosted")
        assert response.headers["Retry-After"] == "1"


# -- access


def api_of(**options: Any) -> PriorityApi:
    silo = LocalCluster(grains=[], parts={"priority": lambda: PriorityQueues(MemoryStore())})
    return PriorityApi(silo, **options)


def test_others_than_this_machine_are_let_in_only_if_that_was_said() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.com", ""):
        with pytest.raises(ConfigError, match="insecure=True"):
            api_of(token=TOKEN, host=host)
        api_of(token=TOKEN, host=host, insecure=True)
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        api_of(token=TOKEN, host=host)


def test_the_token_comes_from_the_environment_or_a_file_that_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=f"set {TOKEN_VARIABLE}"):
        api_of()
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(ConfigError, match="5 characters; it must have 16 to 1024") as short:
        api_of()
    assert "short" not in str(short.value)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert TOKEN not in repr(vars(api_of()))
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        api_of(token=path)
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"other users have access \(mode 0644\)"):
        api_of(token=path)
    path.chmod(0o600)
    assert api_of(token=path)._reader._token.is_in([f"Bearer {TOKEN}"])


def test_options_that_cannot_be_are_refused() -> None:
    for wrong in ({"wait_s_max": 31.0}, {"polls_max": 0}, {"header_bytes_max": 100}):
        with pytest.raises(ConfigError):
            HttpOptions(**wrong)
