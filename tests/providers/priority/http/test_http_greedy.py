"""Clients of the HTTP API that ask for much and read nothing, or connect and send nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest
from tests.conditions import until
from tests.providers.priority.http.desk import TOKEN, Desk, desk_of, raw

from millstream.providers.priority import QueueSettings, priority_queue

PAYLOAD = b"x" * 8_000_000
ASK = b"GET /v1/queues/q/messages/m/payload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"


async def put(desk: Desk) -> None:
    """Enqueue one large message."""
    queue = priority_queue(desk.cluster, "q")
    await queue.create(QueueSettings(payload_bytes_max=16 * 1024 * 1024))
    await queue.enqueue(PAYLOAD, id="m", priority=1)


class Silent:
    """A client that sends requests and does not read."""

    def __init__(self, desk: Desk) -> None:
        host, _, port = desk.api.url.removeprefix("http://").rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.connect((host, int(port)))
        self.socket.setblocking(False)

    async def read(self) -> bytes:
        """Read all answers up to the end of the connection."""
        loop, found = asyncio.get_running_loop(), b""
        try:
            while data := await loop.sock_recv(self.socket, 2**20):
                found += data
        except ConnectionError:
            pass
        return found


@pytest.fixture
def connect() -> Iterator[Callable[[Desk], Silent]]:
    made: list[Silent] = []

    def connect(desk: Desk) -> Silent:
        made.append(Silent(desk))
        return made[-1]

    yield connect
    for one in made:
        one.socket.close()


async def test_answers_that_nobody_reads_are_bounded_and_others_are_told(
    connect: Callable[[Desk], Silent],
) -> None:
    async with desk_of(answers_bytes_max=2 * len(PAYLOAD)) as desk:
        await put(desk)
        silent = [connect(desk) for _ in range(2)]
        for one in silent:
            one.socket.send(ASK % TOKEN.encode())
        await until(lambda: desk.api._answers._bytes == 2 * len(PAYLOAD))
        reply = await desk.ask("GET", "/v1/queues/q/messages/m/payload")
        assert reply.status == 429 and reply.json["limit"]["name"] == "answers_bytes_max"
        assert (await desk.ask("GET", "/v1/queues/q/depth")).status == 429
        silent[0].socket.close()
        await until(lambda: desk.api._answers._bytes == len(PAYLOAD))
        assert (await desk.ask("GET", "/v1/queues/q/messages/m/payload")).data == PAYLOAD


async def test_a_lease_whose_answer_does_not_fit_is_given_back(
    connect: Callable[[Desk], Silent],
) -> None:
    async with desk_of(answers_bytes_max=len(PAYLOAD)) as desk:
        await put(desk)
        silent = connect(desk)
        silent.socket.send(ASK % TOKEN.encode())
        await until(lambda: desk.api._answers._bytes > 0)
        reply = await desk.ask("POST", "/v1/queues/q/leases", json={"worker": "w"})
        assert reply.status == 429
        silent.socket.close()
        await until(lambda: not desk.api._answers._bytes)
        queue = priority_queue(desk.cluster, "q")
        [lease] = await queue.dequeue(worker="w", wait_s=10)
        assert lease.attempt == 1


async def test_a_client_that_reads_nothing_for_too_long_is_cut_off(
    connect: Callable[[Desk], Silent],
) -> None:
    async with desk_of(answer_s=0.3) as desk:
        await put(desk)
        silent = connect(desk)
        silent.socket.send(ASK % TOKEN.encode())
        await until(lambda: desk.api._answers._bytes > 0)
        await until(lambda: not desk.api._answers._bytes)
        assert len(await silent.read()) < len(PAYLOAD)


async def test_connections_that_never_send_the_token_make_room_for_others(
    connect: Callable[[Desk], Silent],
) -> None:
    async with desk_of(connections_max=3) as desk:
        assert (await desk.enqueue("q")).status == 201, "one that is kept"
        strangers = [connect(desk) for _ in range(12)]
        wrong = b"GET /v1/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer none\r\n\r\n"
        await until(lambda: len(desk.api._runner.server.connections) == 3)  # type: ignore[union-attr]
        strangers[-1].socket.send(wrong)
        for _ in range(5):
            found = await raw(desk.api, (ASK % TOKEN.encode()).replace(b"1.1\r", b"1.0\r"))
            assert found.startswith(b"HTTP/1.0 404 "), found[:80]
        assert (await desk.enqueue("q")).status == 201
        assert await strangers[0].read() == b""
