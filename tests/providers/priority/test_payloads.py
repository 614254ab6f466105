"""The payloads that a queue keeps: their bytes, and how long they stay."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from millstream.providers.priority import MessageExists, PriorityQueueFull, QueueSettings, State
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore

PAYLOAD = b"x" * 1_000


def queue(**given: Any) -> PriorityCore:
    return PriorityCore.create(0, "q", QueueSettings(**given))


def put(core: PriorityCore, id: str, payload: bytes = PAYLOAD) -> None:
    core.enqueue(0, MessageFields(id, payload, 1))


def completed(core: PriorityCore, id: str = "m", payload: bytes = PAYLOAD) -> PriorityCore:
    put(core, id, payload)
    [lease] = core.dequeue(0, "w").leases
    assert lease.payload == payload
    core.complete(0, id, lease.token)
    core.check()
    return core


def test_the_payload_of_a_completed_message_is_freed_and_its_body_is_still_known() -> None:
    core = completed(queue())
    assert core.read.get("m").payload == b""
    assert not core.enqueue(0, MessageFields("m", PAYLOAD, 1)).is_changed
    for other in (b"x" * 999, b"y" * 1_000, b""):
        with pytest.raises(MessageExists):
            core.enqueue(0, MessageFields("m", other, 1))


def test_an_empty_payload_is_known_too() -> None:
    core = completed(queue(), payload=b"")
    assert not core.enqueue(0, MessageFields("m", b"", 1)).is_changed
    with pytest.raises(MessageExists):
        core.enqueue(0, MessageFields("m", b"x", 1))


def test_each_event_of_a_message_has_the_size_of_its_payload() -> None:
    core = completed(queue(retention_ms=5))
    core.sweep(5)
    changes = core.drain()
    assert changes is not None
    assert [event.payload_bytes for event in changes.events] == [1_000] * 4


@pytest.mark.parametrize("end", ["cancel", "fail", "expire"])
def test_a_message_that_can_come_again_keeps_its_payload(end: str) -> None:
    core = queue(attempts=1, lease_ms=5)
    put(core, "m")
    [lease] = core.dequeue(0, "w").leases
    ends: dict[str, Callable[[], object]] = {
        "cancel": lambda: core.cancel(1, "m"),
        "fail": lambda: core.fail(1, "m", lease.token),
        "expire": lambda: core.sweep(5),
    }
    ends[end]()
    assert core.read.get("m").state in (State.CANCELED, State.ERRORED)
    again = core.requeue(6, "m")
    assert core.read.get(again.id).payload == PAYLOAD


def test_a_queue_takes_bytes_up_to_its_limit_and_names_it() -> None:
    core = queue(bytes_max=2_500)
    put(core, "a")
    put(core, "b")
    put(core, "c", b"x" * 500)
    text = "it has 2500 bytes of payload, and 1 more exceed the limit: bytes_max is 2500"
    with pytest.raises(PriorityQueueFull, match=text):
        put(core, "d", b"x")
    put(core, "e", b"")
    put(core, "a")  # already enqueued
    core.check()


def test_bytes_are_free_again_when_a_message_is_completed_or_collected() -> None:
    core = queue(bytes_max=1_000, retention_ms=10)
    completed(core, "a")
    put(core, "b")
    with pytest.raises(PriorityQueueFull):
        put(core, "c", b"x")
    core.cancel(0, "b")
    with pytest.raises(PriorityQueueFull):
        put(core, "c", b"x")
    core.sweep(10)
    put(core, "c")
    core.check()


def test_messages_that_come_together_are_refused_together() -> None:
    core = queue(bytes_max=1_999)
    news = [MessageFields(id, PAYLOAD, 1) for id in "ab"]
    with pytest.raises(PriorityQueueFull, match="and 2000 more exceed the limit"):
        core.enqueue_many(0, news, all_or_nothing=True)
    assert not core.read.page()
    many = core.enqueue_many(0, news)
    assert [one is not None for one in many.answers] == [True, False]
    assert many.refusals[0].kind == "PriorityQueueFull"


def test_messages_cost_the_collector_of_cycles_nothing() -> None:
    core = completed(queue())
    message = core._contents.by_id["m"]
    assert message.lease is not None
    assert not gc.is_tracked(message) and not gc.is_tracked(message.lease)
