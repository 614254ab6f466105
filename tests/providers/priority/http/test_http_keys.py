"""`Idempotency-Key`: the queue remembers a key, so a repeat through any gateway is done once. The
server keeps no state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from tests.conditions import until
from tests.providers.priority.http.desk import TOKEN, Desk, Reply, desk_of

from millstream.providers.priority.http import PriorityApi

KEY = {"Idempotency-Key": "a-key"}
MESSAGES = "/v1/queues/q/messages"


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with desk_of(silos=2) as made:
        yield made


async def elsewhere(desk: Desk, method: str, path: str, body: object) -> Reply:
    """Send the request through another server at another silo, which knows nothing of it."""
    other = desk.cluster.silos[1]
    async with (
        PriorityApi(other, token=TOKEN, port=0) as api,
        ClientSession(headers={"Authorization": f"Bearer {TOKEN}", **KEY}) as session,
        session.request(method, api.url + path, json=body) as response,
    ):
        return Reply(response.status, response.headers, await response.read())


async def test_a_repeat_by_another_server_is_done_once(desk: Desk) -> None:
    body = {"payload": "eA=="}
    first = await desk.ask("POST", MESSAGES, json=body, headers=KEY)
    again = await elsewhere(desk, "POST", MESSAGES, body)
    assert (first.status, again.status) == (201, 201) and first.data == again.data
    assert await desk.depth("q") == {"pending": 1}


async def test_a_repeated_change_is_answered_as_the_first_time(desk: Desk) -> None:
    await desk.enqueue("q", id="m")
    path = "/v1/queues/q/messages/m"
    first = await desk.ask("PATCH", path, json={"priority": 3}, headers=KEY)
    await desk.ask("PATCH", path, json={"priority": 4})
    again = await elsewhere(desk, "PATCH", path, {"priority": 3})
    assert first.data == again.data and first.json["version"] == 2
    assert (await desk.ask("GET", path)).json["priority"] == 4, "it was not done again"


async def test_the_same_key_with_another_request_is_refused_wherever_it_comes(desk: Desk) -> None:
    await desk.ask("POST", MESSAGES, json={"payload": "eA=="}, headers=KEY)
    for body in ({"payload": "eQ=="}, {"payload": "eA==", "priority": 1}):
        for reply in (
            await desk.ask("POST", MESSAGES, json=body, headers=KEY),
            await elsewhere(desk, "POST", MESSAGES, body),
        ):
            assert (reply.status, reply.json["title"]) == (422, "KeyReused")
            assert (reply.json["field"], reply.json["queue"]) == ("Idempotency-Key", "q")
    other = await desk.ask("POST", "/v1/queues/q/leases", json={"worker": "w"}, headers=KEY)
    assert other.status == 422 and await desk.depth("q") == {"pending": 1}
    same = {"payload": "eA==", "metadata": {}}  # the same request in another form
    assert (await desk.ask("POST", MESSAGES, json=same, headers=KEY)).status == 201
    raw = {"Content-Type": "application/octet-stream", **KEY}
    assert (await desk.ask("POST", MESSAGES, data=b"x", headers=raw)).status == 201
    assert (await desk.ask("POST", "/v1/queues/r/messages", json=same, headers=KEY)).status == 201
    assert await desk.depth("q") == {"pending": 1} and await desk.depth("r") == {"pending": 1}


async def test_a_repeated_dequeue_gives_what_it_leased_and_nothing_else(desk: Desk) -> None:
    for id in "abc":
        await desk.enqueue("q", id=id)
    first = await desk.lease("q", "a-key", count=2)
    [a, b] = first
    await desk.ask("POST", f"{MESSAGES}/a/leases/{a['token']}/complete")
    again = await elsewhere(desk, "POST", "/v1/queues/q/leases", {"worker": "w", "count": 2})
    over = a | {"is_valid": False, "payload": "", "metadata": {}}
    assert again.json["leases"] == [over, b]
    assert await desk.depth("q") == {"pending": 1, "running": 1, "completed": 1}


async def test_a_dequeue_that_gave_nothing_is_a_new_one(desk: Desk) -> None:
    assert await desk.lease("q", "a-key") == []
    await desk.enqueue("q", id="m")
    [lease] = await desk.lease("q", "a-key")
    assert lease["id"] == "m" and await desk.lease("q", "a-key") == [lease]


async def test_a_repeat_that_comes_too_late_takes_no_message_twice_while_it_is_there(
    desk: Desk,
) -> None:
    body = {"payload": "eA==", "priority": 1}
    first = await desk.ask("POST", MESSAGES, json=body, headers=KEY)
    many = {"messages": [body, body | {"priority": 2}]}
    await desk.ask("POST", "/v1/queues/q/batches", json=many, headers={"Idempotency-Key": "many"})
    desk.clock.now_ms += 400_000  # answers are kept for 300 s
    again = await desk.ask("POST", MESSAGES, json=body, headers=KEY)
    assert again.status == 200 and not again.json["is_changed"]
    assert again.json["id"] == first.json["id"]
    headers = {"Idempotency-Key": "many"}
    rest = (await desk.ask("POST", "/v1/queues/q/batches", json=many, headers=headers)).json
    assert [one["message"]["is_changed"] for one in rest["results"]] == [False, False]
    # Without a priority, the time of the enqueue is the priority, so the repeat is another message.
    other = {"Idempotency-Key": "other"}
    await desk.ask("POST", MESSAGES, json={"payload": "eA=="}, headers=other)
    desk.clock.now_ms += 400_000
    late = await desk.ask("POST", MESSAGES, json={"payload": "eA=="}, headers=other)
    assert (late.status, late.json["title"]) == (409, "MessageExists")
    assert await desk.depth("q") == {"pending": 4}


async def test_as_many_keys_are_remembered_as_the_queue_remembers_sessions(desk: Desk) -> None:
    await desk.ask("PUT", "/v1/queues/q", json={"sessions_max": 2})
    for number in range(2):
        headers = {"Idempotency-Key": f"key-{number}"}
        await desk.ask("POST", MESSAGES, json={"payload": "eA=="}, headers=headers)
    reply = await desk.ask("POST", MESSAGES, json={"payload": "eA=="}, headers=KEY)
    assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
    assert reply.json["limit"] == {"value": 2, "name": "sessions_max"}
    assert await desk.depth("q") == {"pending": 2}


async def test_two_that_come_at_once_with_one_key_are_one(desk: Desk) -> None:
    body = {"payload": "eA=="}
    replies = await asyncio.gather(
        *(desk.ask("POST", MESSAGES, json=body, headers=KEY) for _ in range(10))
    )
    assert {reply.data for reply in replies} == {replies[0].data}
    assert await desk.depth("q") == {"pending": 1}


async def test_of_two_polls_with_one_key_the_later_waits_and_the_earlier_is_told_of_none(
    desk: Desk,
) -> None:
    polls = desk.api._waiting._tasks
    first = asyncio.create_task(desk.lease("q", "a-key", wait_s=20))
    await until(lambda: len(polls) == 1)
    second = asyncio.create_task(desk.lease("q", "a-key", wait_s=20))
    assert await first == []
    await desk.enqueue("q", id="m")
    [lease] = await second
    assert lease["id"] == "m"


async def test_what_was_leased_under_a_key_waits_for_the_repeat_of_a_client_that_left(
    desk: Desk,
) -> None:
    polls = desk.api._waiting._tasks
    polling = asyncio.create_task(desk.lease("q", "a-key", wait_s=20))
    await until(lambda: len(polls) == 1)
    polling.cancel()
    await until(lambda: not polls)
    await desk.enqueue("q", id="m")
    assert await desk.depth("q") == {"pending": 1}, "who left takes nothing more"
    [lease] = await desk.lease("q", "a-key", wait_s=20)
    assert lease["id"] == "m"


async def test_a_queue_of_several_shards_is_one_queue_and_knows_keys_but_of_dequeues(
    desk: Desk,
) -> None:
    made = await desk.ask("PUT", "/v1/queues/q", json={"shards": 4})
    assert made.status == 200 and made.json["settings"]["shards"] == 4
    body = {"payload": "eA=="}
    first = await desk.ask("POST", MESSAGES, json=body, headers=KEY)
    again = await elsewhere(desk, "POST", MESSAGES, body)
    assert first.data == again.data and await desk.depth("q") == {"pending": 1}
    batch = [{"payload": "eA==", "id": f"m{number}"} for number in range(20)]
    await desk.ask("POST", "/v1/queues/q/batches", json={"messages": batch})
    assert await desk.depth("q") == {"pending": 21}
    refused = await desk.ask("POST", "/v1/queues/q/leases", json={"worker": "w"}, headers=KEY)
    assert (refused.status, refused.json["field"]) == (400, "Idempotency-Key")
    had = await desk.ask("POST", "/v1/queues/q/leases", json={"worker": "w", "count": 21})
    for lease in had.json["leases"]:
        path = f"/v1/queues/q/messages/{lease['id']}/leases/{lease['token']}/complete"
        assert (await desk.ask("POST", path)).status == 200
    assert await desk.depth("q") == {"completed": 21}


async def test_many_messages_go_to_all_shards_once_by_servers_that_did_not_know_of_them(
    desk: Desk,
) -> None:
    await desk.ask("PUT", "/v1/queues/q", json={"shards": 4})
    path = "/v1/queues/q/batches"
    batch = {"messages": [{"payload": "eA==", "priority": number} for number in range(20)]}
    replies = [
        await elsewhere(desk, "POST", path, batch),
        await desk.ask("POST", path, json=batch, headers=KEY),
        await elsewhere(desk, "POST", path, batch),
    ]
    first, *again = [[one["message"] for one in reply.json["results"]] for reply in replies]
    assert all(one["is_changed"] for one in first)
    for found in again:
        assert [one["id"] for one in found] == [one["id"] for one in first]
    assert await desk.depth("q") == {"pending": 20}


@pytest.mark.parametrize(("before", "now"), [(4, 1), (3, 2), (2, 5)])
async def test_a_batch_with_a_key_is_whole_while_the_number_of_shards_changes(
    desk: Desk, before: int, now: int
) -> None:
    """A remaining shard is asked twice for one key: for its own messages, and for those of a shard
    that ends.
    """
    await desk.ask("PUT", "/v1/queues/q", json={"shards": before})
    path = "/v1/queues/q/batches"
    there = [{"payload": "eA==", "id": f"there{number}"} for number in range(20)]
    await desk.ask("POST", path, json={"messages": there})
    assert (await desk.ask("PATCH", "/v1/queues/q", json={"shards": now})).status == 200
    batch = {"messages": [{"payload": "eA==", "id": f"m{number}"} for number in range(30)]}
    replies = [
        await desk.ask("POST", path, json=batch, headers=KEY),
        await elsewhere(desk, "POST", path, batch),
        await desk.ask("POST", path, json=batch, headers=KEY),
    ]
    assert (await desk.ask("GET", "/v1/queues/q")).json["settings"]["shards"] == now
    for reply in replies:
        assert reply.status == 200, reply.data
        found = [one["message"] for one in reply.json["results"]]
        assert [one["id"] for one in found] == [f"m{number}" for number in range(30)]
    assert all(one["message"]["is_changed"] for one in replies[0].json["results"])
    assert await desk.depth("q") == {"pending": 50}
