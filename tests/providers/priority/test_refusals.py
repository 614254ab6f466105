"""Impossible values from programs. Each refusal names queue, field and limit in a few words, and no
odd value is taken for another."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from typing import Any

import pytest

from millstream.providers.priority import (
    Lease,
    MemoryStore,
    NewMessage,
    PriorityOptions,
    PriorityQueue,
    PriorityQueues,
    QueueSettings,
    RequestInvalid,
    Template,
    priority_queue,
    priority_queues,
)
from millstream.runtime import ConfigError, LocalCluster

HUGE = 10**5_000
LONG = "x" * 1_000_000
LONE = "\ud800"
SHOWN_MOST = 500


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    store = MemoryStore()
    parts = {"priority": lambda: PriorityQueues(store)}
    async with LocalCluster(grains=[], parts=parts) as made:
        await priority_queue(made, "q").enqueue(b"x", id="m", priority=1)
        yield made


def new(**given: Any) -> Callable[[Any], Any]:
    return lambda queue: queue.enqueue(b"", **given)


def many(messages: Any, **given: Any) -> Callable[[Any], Any]:
    return lambda queue: queue.enqueue_many(messages, **given)


def dequeue(**given: Any) -> Callable[[Any], Any]:
    return lambda queue: queue.dequeue(**{"worker": "w", **given})


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "priority": (new(priority=HUGE), "bits.*, not -9007199254740992 to 9007199254740992$"),
    "priority text": (new(priority=LONG), "not a whole number"),
    "attempts": (new(attempts=HUGE), "bits.*, not 1 to 1000000"),
    "attempts 2**60": (new(attempts=2**60), "not 1 to 1000$"),
    "metadata 0": (new(metadata=0), "is int, not a mapping or pairs"),
    "metadata False": (new(metadata=False), "is bool, not a mapping or pairs"),
    "metadata None": (new(metadata=None), "is NoneType, not a mapping or pairs"),
    "metadata long": (new(metadata=[LONG]), "which is not a pair of texts"),
    "lease_s 0": (new(lease_s=0), "is 0, not 0.001 to 86400 seconds: lease_ms_max is 86400000$"),
    "lease_s 1e9": (new(lease_s=1e9), "lease_ms_max is 86400000$"),
    "lease_s huge": (new(lease_s=HUGE), "a number of seconds from 0"),
    "invisible_s": (new(invisible_s=1e9), "invisible_ms_max is 31622400000$"),
    "messages 5": (many(5), "is int, not iterable"),
    "messages [5]": (many([5]), "has 5, which is not a NewMessage"),
    "messages tuple": (many([(b"x",)]), "which is not a NewMessage"),
    "messages one": (many(NewMessage(b"x")), "which is not a NewMessage"),
    "messages without end": (many(repeat(NewMessage(b"x"))), "is 1001, not 0 to 1000$"),
    "all_or_nothing None": (many([], all_or_nothing=None), "neither True nor False"),
    "all_or_nothing text": (many([], all_or_nothing="no"), "is 'no', neither True nor False"),
    "count 1.0": (dequeue(count=1.0), "not a whole number"),
    "count True": (dequeue(count=True), "not a whole number"),
    "count huge": (dequeue(count=HUGE), "not 1 to 1000$"),
    "wanted 0": (dequeue(wanted=0), "not a mapping or pairs"),
    "same_value_ok": (dequeue(same_value_ok="no"), "neither True nor False"),
    "lease_s of a dequeue": (dequeue(lease_s=1e9), "lease_ms_max is 86400000$"),
    "wait_s": (dequeue(wait_s=HUGE), "a number of seconds from 0"),
    "count of a peek": (lambda queue: queue.peek(HUGE), "not 1 to 1000$"),
    "wanted of a peek": (lambda queue: queue.peek(wanted=0), "not a mapping or pairs"),
    "state": (lambda queue: queue.page(state="pending"), "is 'pending', not a State"),
    "state 1": (lambda queue: queue.page(state=1), "not a State"),
    "after": (lambda queue: queue.page(after=-1), "not 0 to"),
    "value 5": (lambda queue: queue.depth(value=5), "is int, not a text"),
    "value lone": (lambda queue: queue.depth(value=LONE), "cannot be encoded in UTF-8"),
    "settings of create": (lambda queue: queue.create("x"), "is 'x', not a QueueSettings"),
    "settings of configure": (lambda queue: queue.configure(None), "not a QueueSettings"),
    "priority of prioritise": (lambda queue: queue.prioritise("m", HUGE), "bits.*, not -9007"),
    "new_id": (lambda queue: queue.requeue("m", new_id=5), "not a text"),
}


@pytest.mark.parametrize("what", CALLS)
async def test_a_refusal_names_queue_field_and_limit(cluster: LocalCluster, what: str) -> None:
    call, text = CALLS[what]
    field = what.partition(" ")[0]
    with pytest.raises(RequestInvalid, match=rf"(?s)queue 'q': {field} .*{text}") as caught:
        await call(priority_queue(cluster, "q"))
    assert (caught.value.queue, caught.value.field) == ("q", field)
    assert len(str(caught.value)) < SHOWN_MOST


LEASES: dict[str, Callable[[Any], Any]] = {
    "reason of fail": lambda lease: lease.fail(None),
    "reason of cancel": lambda lease: lease.cancel(b"x"),
    "reason of release": lambda lease: lease.release(reason=5),
    "refund": lambda lease: lease.release(refund=5),
    "delay_s": lambda lease: lease.release(delay_s=1e9),
    "lease_s": lambda lease: lease.extend(0),
    "lease_s huge": lambda lease: lease.extend(HUGE),
}


@pytest.mark.parametrize("what", LEASES)
async def test_what_a_lease_refuses_leaves_it_as_it_was(cluster: LocalCluster, what: str) -> None:
    [lease] = await priority_queue(cluster, "q").dequeue(worker="w")
    with pytest.raises(RequestInvalid, match="queue 'q': ") as caught:
        await LEASES[what](lease)
    assert caught.value.field == what.partition(" ")[0] and not lease.is_lost
    await lease.complete()


async def test_a_lease_is_not_given_back_for_what_is_no_reason(cluster: LocalCluster) -> None:
    [lease] = await priority_queue(cluster, "q").dequeue(worker="w")
    odd: Any = None
    with pytest.raises(RequestInvalid, match="reason is NoneType"):
        lease.give_back(odd)
    async with lease:
        assert isinstance(lease, Lease)


async def test_of_many_a_refused_time_is_told_in_seconds(cluster: LocalCluster) -> None:
    odd = [NewMessage(b"", id="a"), NewMessage(b"", id="b", lease_s=0)]
    first, second = await priority_queue(cluster, "q").enqueue_many(odd)
    assert not isinstance(first, Exception)
    assert isinstance(second, RequestInvalid) and second.field == "lease_s"
    assert "lease_s is 0, not 0.001 to" in str(second)


@pytest.mark.parametrize("odd", [None, "5", -1, math.nan, True], ids=str)
async def test_a_patience_that_cannot_be_is_refused_at_once(
    cluster: LocalCluster, odd: Any
) -> None:
    with pytest.raises(RequestInvalid, match="queue 'q': patience_s is .*, not a number"):
        priority_queue(cluster, "q", patience_s=odd)
    for fits in (0, 0.5, math.inf):
        assert isinstance(priority_queue(cluster, "q", patience_s=fits), PriorityQueue)


@pytest.mark.parametrize("odd", [5, None, LONE, b"q", HUGE, LONG], ids=lambda odd: str(type(odd)))
async def test_names_and_prefixes_that_cannot_be_are_refused(
    cluster: LocalCluster, odd: Any
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        priority_queue(cluster, odd)
    assert caught.value.field == "queue" and len(str(caught.value)) < SHOWN_MOST
    with pytest.raises(RequestInvalid) as caught:
        [name async for name in priority_queues(cluster, odd)]
    assert caught.value.field == "prefix" and len(str(caught.value)) < SHOWN_MOST


SETTINGS: list[dict[str, Any]] = [
    {"exclusivity_key": LONE},
    {"exclusivity_key": LONG},
    {"exclusivity_key": HUGE},
    {"shapes": ((LONE,),)},
    {"shapes": HUGE},
    {"shapes": (LONG,)},
    {"shapes": (HUGE,)},
    {"lease_ms": HUGE},
    {"limit": HUGE},
    {"enqueue_blocked": "no"},
    {"enqueue_blocked": 0},
    {"dequeue_blocked": None},
]


@pytest.mark.parametrize(
    "given", SETTINGS, ids=[f"{n} {next(iter(s))}" for n, s in enumerate(SETTINGS)]
)
def test_settings_that_cannot_be_are_refused_in_a_few_words(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="shape" if "shapes" in given else next(iter(given))) as e:
        QueueSettings(**given)
    assert len(str(e.value)) < SHOWN_MOST


@pytest.mark.parametrize(
    "given",
    [
        {"options": 5},
        {"templates": 5},
        {"templates": [("x", QueueSettings())]},
        {"templates": [Template("x", None)]},  # type: ignore[arg-type]
        {"templates": [Template(5, QueueSettings())]},  # type: ignore[arg-type]
        {"auto_create": "no"},
    ],
    ids=str,
)
def test_a_part_says_what_it_cannot_be_made_of(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="PriorityQueues"):
        PriorityQueues(MemoryStore(), **given)


def test_options_say_what_they_cannot_be() -> None:
    with pytest.raises(ConfigError, match="waiting_polls_max is a number of 16610 bits"):
        PriorityOptions(waiting_polls_max=-HUGE)
