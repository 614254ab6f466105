"""Parts of streams refuse arguments that cannot work, by name, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError
from millstream.streams import (
    Backoff,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
)

NUMBERS = StreamNamespace("numbers", int)


def persistent(**arguments: Any) -> PersistentStreams:
    return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer(), **arguments)


def generated(**arguments: Any) -> GeneratorOptions:
    return GeneratorOptions(**arguments)


def made(make: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[[], Any]:
    return lambda: make(*arguments, **named)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (made(Backoff, "x"), "Backoff.first_s is 'x'; it must be a number"),
        (made(Backoff, True), "Backoff.first_s is True"),
        (made(Backoff, math.nan), "Backoff.first_s is nan"),
        (made(Backoff, ceiling_s=math.inf), "Backoff.ceiling_s is inf"),
        (made(Backoff, factor="2"), "Backoff.factor is '2'; it must be a number >= 1"),
        (made(MemoryQueues, 5), r"MemoryQueues\(options\) is 5; it must be a MemoryOptions"),
        (made(MemoryQueues, {}), r"MemoryQueues\(options\) is {}"),
        (made(HashRingMapper, queues="8"), r"HashRingMapper\(queues='8'\): give a .* 1 to 65536"),
        (made(HashRingMapper, queues=True), r"HashRingMapper\(queues=True\)"),
        (made(HashRingMapper, queues=8.0), r"HashRingMapper\(queues=8.0\)"),
        (
            made(HashRingMapper, queues=8, prefix=5),
            r"HashRingMapper\(prefix=...\) must be a str, not 5",
        ),
        (made(persistent, options=5), r"PersistentStreams\(options=...\) is 5.* a StreamOptions"),
        (made(persistent, options={}), r"PersistentStreams\(options=...\) is {}"),
        (made(persistent, options=OwnershipOptions()), r"\(options=...\) is OwnershipOptions"),
        (made(persistent, on_give_up=5), r"PersistentStreams\(on_give_up=...\).*`give_up`"),
        (made(persistent, mapper=0), r"PersistentStreams\(mapper=...\).*`queue_for`"),
        (made(StreamNamespace, "a", 5), r"StreamNamespace\('a', 5\).* the type of the events"),
        (made(StreamNamespace, "a", lambda: 1), "the type of the events"),
        (made(StreamNamespace, "a", "Flight"), "the type of the events"),
        (made(StreamNamespace, "\ud800", int), "the name of a namespace.* lone surrogate"),
        (
            made(StreamNamespace, "a", int, provider=5),
            "the name of a provider must be a str, not 5",
        ),
        (made(StreamNamespace, "a", int, provider="a/b"), "provider='a/b' is not the name"),
        (made(StreamNamespace, "a", int, provider=""), "provider='' is not the name"),
        (made(GeneratorQueues, NUMBERS, options=5), r"GeneratorQueues\(options=...\) is 5"),
        (made(GeneratorQueues, 5), r"GeneratorQueues\(what\) is 5; it must be a StreamNamespace"),
        (made(DeploymentBalancer, silos=5), "silos is 5: give a list of silo names"),
        (made(DeploymentBalancer, silos=[5]), r"silos is \[5\]: give a list of silo names"),
        (made(DeploymentBalancer, weights=5), "weights is 5: give a dict"),
        (made(DeploymentBalancer, weights={5: 1}), r"weights\[5\]: the name of a silo must be"),
        (made(Generated, 5), r"Generated\(namespace\) is 5; it must be a StreamNamespace"),
        (made(Generated, NUMBERS, 5), "make must be a function of key and number"),
        (made(generated, streams=math.nan), "GeneratorOptions.streams is nan"),
        (made(generated, streams=None), "GeneratorOptions.streams is None"),
        (made(generated, events_per_stream=math.inf), "GeneratorOptions.events_per_stream is inf"),
        (made(generated, events_per_stream="x"), "GeneratorOptions.events_per_stream is 'x'"),
        (made(generated, events_per_s="x"), "GeneratorOptions.events_per_s is 'x'"),
        (made(generated, events_per_s=math.inf), "GeneratorOptions.events_per_s is inf"),
        (made(generated, batch_events_max=math.nan), "GeneratorOptions.batch_events_max is nan"),
        (made(generated, seed="x"), "GeneratorOptions.seed is 'x'; it must be a whole number$"),
        (made(generated, era=None), "GeneratorOptions.era is None"),
    ],
)
def test_an_argument_that_cannot_work_is_named(make: Callable[[], Any], text: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=text):
        make()


def test_every_sort_of_type_may_be_the_item_of_a_namespace() -> None:
    items: list[Any] = [int, int | None, list[int], dict[str, int], Any, tuple[int, ...]]
    for item in items:
        assert StreamNamespace("a", item).item is item
