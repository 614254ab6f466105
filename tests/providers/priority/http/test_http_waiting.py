"""Dequeues that wait, clients that leave in the meantime, and a server that is full or closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import ClientError
from tests.conditions import until
from tests.providers.priority.http.desk import TOKEN, Desk, desk_of, raw

from millstream.providers.priority.http import PriorityApi
from millstream.providers.priority.http.forms.answers import Answer, LeaseBody
from millstream.providers.priority.http.routes import leases as lease_routes

LEASES = "/v1/queues/q/leases"


def poll(desk: Desk) -> asyncio.Task[list[Any]]:
    return asyncio.create_task(desk.lease("q", wait_s=20))


def waiting(desk: Desk) -> int:
    return len(desk.api._waiting._tasks)


async def test_a_poll_waits_for_a_message() -> None:
    async with desk_of() as desk:
        polling = poll(desk)
        await until(lambda: waiting(desk) == 1)
        await desk.enqueue("q", id="m")
        [lease] = await polling
        assert lease["id"] == "m" and waiting(desk) == 0
        assert await desk.lease("q", wait_s=0.01) == []


async def test_no_more_polls_wait_than_may_and_those_that_do_not_wait_go_on() -> None:
    async with desk_of(polls_max=2) as desk:
        polls = [poll(desk), poll(desk)]
        await until(lambda: waiting(desk) == 2)
        full = await desk.ask("POST", LEASES, json={"worker": "w", "wait_s": 5})
        assert (full.status, full.headers["Retry-After"]) == (429, "1")
        assert full.json["limit"] == {"value": 2, "name": "polls_max"}
        assert await desk.lease("q") == []
        for id in "ab":
            await desk.enqueue("q", id=id)
        found = await asyncio.gather(*polls)
        assert sorted(str(lease["id"]) for [lease] in found) == ["a", "b"]


async def test_a_client_that_leaves_while_it_waits_takes_nothing() -> None:
    async with desk_of() as desk:
        polling = poll(desk)
        await until(lambda: waiting(desk) == 1)
        polling.cancel()
        await until(lambda: waiting(desk) == 0)
        await desk.enqueue("q", id="m", attempts=1)
        [lease] = await desk.lease("q", wait_s=20)
        assert (lease["id"], lease["attempt"]) == ("m", 1)


async def test_what_was_leased_for_a_client_that_left_goes_back_with_its_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client leaves when its message is leased and the answer is not sent yet."""
    inner = lease_routes.answer_lease

    def gone(found: Sequence[LeaseBody], is_raw: bool) -> Answer:
        for connection in desk.api._runner.server.connections:  # type: ignore[union-attr]
            connection.force_close()
        return inner(found, is_raw)

    async with desk_of() as desk:
        await desk.enqueue("q", id="m", attempts=1)
        monkeypatch.setattr(lease_routes, "answer_lease", gone)
        with pytest.raises(ClientError):
            await desk.lease("q")
        monkeypatch.undo()
        [lease] = await desk.lease("q", wait_s=20)
        assert (lease["id"], lease["attempt"], lease["attempts_left"]) == ("m", 1, 0)


async def test_a_client_that_leaves_with_its_answer_in_the_socket_loses_it_by_time() -> None:
    """The server cannot know that the client did not read the answer."""
    async with desk_of() as desk:
        await desk.enqueue("q", id="m")
        body = json.dumps({"worker": "w", "lease_s": 5})
        host, _, port = desk.api.url.removeprefix("http://").rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {LEASES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        form = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{form}{body}".encode())
        async with asyncio.timeout(20):
            while "running" not in await desk.depth("q"):
                pass
        writer.transport.abort()
        desk.clock.now_ms += 5_000
        [lease] = await desk.lease("q", wait_s=20)
        assert (lease["id"], lease["attempt"]) == ("m", 2)


async def test_there_are_no_more_connections_than_may_be() -> None:
    async with desk_of(connections_max=2) as desk:
        polls = [poll(desk), poll(desk)]
        await until(lambda: waiting(desk) == 2)
        found = await raw(desk.api, b"")
        assert found.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1\r\n" in found
        for one in polls:
            one.cancel()
        await until(lambda: not desk.api._runner.server.connections)  # type: ignore[union-attr]
        assert (await desk.enqueue("q")).status == 201


async def test_who_waits_when_the_server_is_closed_is_told() -> None:
    async with desk_of() as desk:
        polling = asyncio.create_task(desk.ask("POST", LEASES, json={"worker": "w", "wait_s": 20}))
        await until(lambda: waiting(desk) == 1)
        async with asyncio.timeout(10):
            await desk.api.aclose()
            reply = await polling
        assert (reply.status, reply.json["title"]) == (503, "Stopping")
        assert reply.headers["Retry-After"] == "1" and reply.headers["Connection"] == "close"
        with pytest.raises(ClientError):
            await desk.enqueue("q")
        await desk.api.aclose()
        with pytest.raises(RuntimeError, match="started only once"):
            await desk.api.start()


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing() -> None:
    async with desk_of() as desk:
        port = int(desk.api.url.rpartition(":")[2])
        other = PriorityApi(desk.cluster, token=TOKEN, port=port)
        with pytest.raises(OSError, match="address already in use"):
            await other.start()
        assert other.url == ""
