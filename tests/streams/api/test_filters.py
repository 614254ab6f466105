"""Filters choose the events of a subscription, before delivery if the agent's silo can."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    DefinitionError,
    Grain,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    state,
)
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    subscribe,
)

NUMBERS = StreamNamespace("numbers", int, subscriptions="implicit")
LISTS = StreamNamespace("lists", int, subscriptions="implicit")
SUMS = StreamNamespace("sums", int, subscriptions="implicit")
LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: dict[str, list[Any]] = defaultdict(list)
VAGUE = StreamNamespace("vague", int, subscriptions="implicit")
ASKED: list[int] = []
ANSWERS: list[Any] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    ASKED.clear()
    ANSWERS.clear()


@dataclass
class Sum:
    items: list[int] = field(default_factory=list)


def is_even(event: Event[int]) -> bool:
    ASKED.append(event.item)
    assert event.attempt == 1 and not event.redelivered
    return event.item % 2 == 0


def is_weak(event: Event[int]) -> bool:
    if event.item == 5:
        raise ValueError("five")
    return event.item % 2 == 1


async def later() -> bool:
    return True


def what_it_is_told(event: Event[int]) -> Any:
    return later() if ANSWERS[0] == "later" else ANSWERS[0]


class Reader(Grain):
    sums = state(Sum)

    @subscribe(NUMBERS, where=is_even)
    async def on_number(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)
        if event.item == 4 and event.attempt == 1:
            raise ValueError("once more")

    @subscribe(LISTS, batch=True, max_events=3, where=is_weak)
    async def on_list(self, events: list[Event[int]]) -> None:
        SEEN[self.key].append([event.item for event in events])

    @subscribe(SUMS, commit_with=sums, where=lambda event: event.headers.get("for") == "sum")
    async def on_sum(self, event: Event[int]) -> None:
        self.sums.value.items.append(event.item)

    @subscribe(VAGUE, where=what_it_is_told)
    async def on_vague(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)

    async def summed(self) -> list[int]:
        return self.sums.value.items

    async def listen(self, which: str) -> None:
        stream = self.stream(LINES, self.key)
        if which == "all":
            await stream.subscribe(self._on_line)
        elif which == "small":
            await stream.subscribe(self._on_line, where=self._is_small)
        else:
            await stream.subscribe(self._on_line, where=Reader._is_large)

    async def _on_line(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)

    @staticmethod
    def _is_small(event: Event[int]) -> bool:
        ASKED.append(event.item)
        return event.item < 10

    @classmethod
    def _is_large(cls, event: Event[int]) -> bool:
        assert cls is Reader
        return event.item >= 10


class Other(Grain):
    async def ping(self) -> None: ...


class Places:
    """A cluster of two silos: both host `Reader` and may read queues, or one does each."""

    def __init__(self, *, agent_hosts_it: bool) -> None:
        self.agent_hosts_it = agent_hosts_it
        self.table, self.store = MemoryMembershipTable(), MemoryStateStore()

    def silo(self, *grains: type[Grain], reads: bool) -> Silo:
        streams = PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.02),
            options=StreamOptions(
                delivery=DeliveryOptions(retries=1, backoff=Backoff(0.001, 1.0, 0.001)),
                ownership=OwnershipOptions(poll_s=0.02),
            ),
        )
        return Silo(
            grains=list(grains),
            membership=self.table,
            stores={"default": self.store},
            streams={"default": streams},
            can_own_queues=reads,
            membership_options=MembershipOptions(refresh_s=0.2),
        )

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[Silo]:
        own: tuple[type[Grain], ...] = (Reader,) if self.agent_hosts_it else (Other,)
        async with self.silo(*own, reads=True) as agent, self.silo(Reader, reads=False):
            await until(
                lambda: agents_of(agent)[0].reader.is_reading if agents_of(agent) else False
            )
            yield agent


def agents_of(silo: Silo) -> list[Any]:
    return list(silo.services.part("default").manager.agents())


@pytest.fixture(params=[True, False], ids=["agent hosts it", "consumer asks"])
def places(request: pytest.FixtureRequest) -> Places:
    return Places(agent_hosts_it=request.param)


async def test_only_events_that_fit_reach_the_handler_in_order(places: Places) -> None:
    async with places.cluster() as silo:
        await silo.stream(NUMBERS, "k").publish_many(range(10))
        await silo.stream(NUMBERS, "k").publish(10)
        await until(lambda: 10 in SEEN["k"])
        assert SEEN["k"] == [0, 2, 4, 4, 6, 8, 10]
        (agent,) = agents_of(silo)
        await until(lambda: agent.undone == 0)  # rejected events are done, too


async def test_where_nothing_fits_no_grain_is_woken(places: Places) -> None:
    async with places.cluster() as silo:
        await silo.stream(NUMBERS, "k").publish_many([1, 3, 5])
        (agent,) = agents_of(silo)
        await until(lambda: len(ASKED) == 3 and agent.undone == 0)
        hosts = silo.assembly.catalog.of("Reader") if places.agent_hosts_it else {}
        assert not hosts and SEEN["k"] == []


async def test_a_filter_that_raises_is_an_attempt_at_its_event_only(places: Places) -> None:
    async with places.cluster() as silo:
        await silo.stream(LISTS, "k").publish_many(range(12))
        await until(lambda: any(11 in part for part in SEEN["k"]))
        assert sorted({item for part in SEEN["k"] for item in part}) == [1, 3, 7, 9, 11]
        await until(lambda: agents_of(silo)[0].undone == 0)
        (letter,) = await dead_letters(silo).list()
    assert LISTS.codec.decode(letter.failure.body) == 5 and letter.failure.attempts == 2
    assert "ValueError: five" in letter.failure.error and "is_weak" in letter.failure.error


async def test_headers_are_seen_and_commit_with_holds(places: Places) -> None:
    async with places.cluster() as silo:
        stream = silo.stream(SUMS, "k")
        for number in range(6):
            await stream.publish(number, headers={"for": "sum" if number % 3 else "none"})
        await until(
            lambda: (
                agents_of(silo)[0].reader.core.read_count == 6 and agents_of(silo)[0].undone == 0
            )
        )
        assert await silo.grain(Reader, "k").summed() == [1, 2, 4, 5]


async def test_an_explicit_subscription_has_a_filter_of_its_own(places: Places) -> None:
    async with places.cluster() as silo:
        await silo.grain(Reader, "k").listen("small")
        await silo.grain(Reader, "other").listen("large")
        await silo.stream(LINES, "k").publish_many([1, 20, 2])
        await silo.stream(LINES, "other").publish_many([1, 20, 2, 30])
        await until(lambda: SEEN["k"] == [1, 2] and SEEN["other"] == [20, 30])
        await silo.grain(Reader, "k").listen("large")  # again, with another filter
        await silo.stream(LINES, "k").publish_many([3, 40])
        await until(lambda: SEEN["k"] == [1, 2, 40])
        await silo.grain(Reader, "k").listen("all")
        await silo.stream(LINES, "k").publish_many([4, 50])
        await until(lambda: SEEN["k"] == [1, 2, 40, 4, 50])


async def test_the_next_owner_asks_the_same_filter() -> None:
    places = Places(agent_hosts_it=True)
    async with places.silo(Reader, reads=True) as first:
        await first.grain(Reader, "k").listen("small")
        await first.stream(LINES, "k").publish_many([1, 20])
        await until(lambda: SEEN["k"] == [1])
    async with places.silo(Reader, reads=True) as second:
        await second.stream(LINES, "k").publish_many([30, 2])
        await until(lambda: SEEN["k"] == [1, 2])


async def test_the_agent_asks_once_and_the_consumer_not_again() -> None:
    async with Places(agent_hosts_it=True).cluster() as silo:
        await silo.stream(NUMBERS, "k").publish_many([1, 2, 3, 6])
        await until(lambda: SEEN["k"] == [2, 6])
        await spin(20)
        assert ASKED == [1, 2, 3, 6]


@pytest.mark.parametrize("answer", [None, 1, "later"])
async def test_what_is_neither_true_nor_false_is_a_failure(answer: Any, places: Places) -> None:
    ANSWERS.append(answer)
    async with places.cluster() as silo:
        await silo.stream(VAGUE, "k").publish(1)
        (agent,) = agents_of(silo)
        await until(lambda: agent.dispatch.given_up_count == 1)
        (letter,) = await dead_letters(silo).list()
    assert "not True or False" in letter.failure.error and SEEN["k"] == []


# --- valid filters -------------------------------------------------------------------------------


async def is_late(event: Event[int]) -> bool:
    return True


class Callable2:
    def __call__(self, event: Event[int]) -> bool:
        return True

    async def method(self, event: Event[int]) -> bool:
        return True


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (5, "give a function"),
        (is_late, "is async"),
        (Callable2().method, "is async"),
        (lambda: True, "must take one argument"),
        (lambda a, b: True, "must take one argument"),
        (classmethod(lambda cls, event: True), "give a function"),
    ],
    ids=range(6),
)
def test_what_is_no_filter_is_refused_where_it_is_marked(where: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=f"test_filters.py:.*on_number: where.*{text}"):

        class _Bad(Grain):
            @subscribe(NUMBERS, where=where)
            async def on_number(self, event: Event[int]) -> None: ...


def test_a_namespace_of_explicit_subscriptions_has_no_use_for_it() -> None:
    with pytest.raises(DefinitionError, match="where is for implicit subscriptions"):

        class _Bad(Grain):
            @subscribe(LINES, where=is_even)
            async def on_line(self, event: Event[int]) -> None: ...


async def test_a_callable_object_and_a_static_method_will_do() -> None:
    class Good(Grain):
        @staticmethod
        def _is_big(event: Event[int]) -> bool:
            return event.item > 1

        @subscribe(NUMBERS, where=_is_big)
        async def on_number(self, event: Event[int]) -> None:
            SEEN["big"].append(event.item)

        @subscribe(LISTS, where=Callable2())
        async def on_list(self, event: Event[int]) -> None:
            SEEN["all"].append(event.item)

    async with Places(agent_hosts_it=True).silo(Good, reads=True) as silo:
        for namespace in (NUMBERS, LISTS):
            await silo.stream(namespace, "k").publish_many([1, 2, 3])
        await until(lambda: SEEN == {"big": [2, 3], "all": [1, 2, 3]})


class Odd(Grain):
    async def listen(self, which: str) -> None:
        wheres: dict[str, Any] = {
            "function": is_even,
            "lambda": lambda event: True,
            "method": self._own,
            "async": self._late,
            "number": 5,
        }
        await self.stream(LINES, "k").subscribe(self._on_line, where=wheres[which])

    async def subscribed(self) -> int:
        return len(await self.stream(LINES, "k").subscriptions())

    async def _on_line(self, event: Event[int]) -> None: ...

    def _own(self, event: Event[int]) -> bool:
        return True

    @staticmethod
    async def _late(event: Event[int]) -> bool:
        return True


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ("function", "must be a static method of Odd"),
        ("lambda", "must be a static method of Odd"),
        ("method", "must be a static method of Odd"),
        ("async", "is async"),
        ("number", "give a function"),
    ],
)
async def test_an_explicit_filter_that_has_no_name_in_the_class_is_refused(
    which: str, text: str
) -> None:
    async with Places(agent_hosts_it=True).silo(Odd, reads=True) as silo:
        odd = silo.grain(Odd, "k")
        with pytest.raises(DefinitionError, match=text):
            await odd.listen(which)
        assert await odd.subscribed() == 0
