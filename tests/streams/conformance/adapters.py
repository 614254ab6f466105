"""The table of queue adapters that the suite runs over, with their properties.

To test another adapter, add an entry to `ADAPTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.contract.adapters.partitions import (
    PartitionedBroker,
    PartitionedQueues,
    PartitionMapper,
)
from tests.contract.adapters.pushing import PushedQueues, PushingBroker
from tests.contract.adapters.tags import LeasedQueues, LeasingBroker
from tests.contract.example import jsonl

from millstream.providers.generator import Generated, GeneratorOptions, GeneratorQueues
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.streams import (
    Capability,
    HashRingMapper,
    QueueAdapterFactory,
    QueueMapper,
    StreamNamespace,
)

NUMBERS = StreamNamespace("numbers", int)
PUBLISHES = "events can be published"
"""Not a capability of the runtime, because the generator makes its own events."""
SURVIVES = "its content survives a crash"
HOLDS = "what is read stays with its reader, however long it takes"
UNORDERED = "it promises no order"
LEAVES_POSITION = "the position of a queue is left to the runtime"
IN_ORDER = (PUBLISHES, Capability.ORDERED)
EXACT = (PUBLISHES, Capability.ORDERED, Capability.STABLE_TOKENS)
"""With these, a test may compare lists: all events come once and in order if no silo crashes."""

Need = str | Capability


@dataclass(frozen=True)
class Feed:
    """Events that a test needs in streams of NUMBERS: the items 0 to `count - 1` of each key."""

    keys: tuple[str, ...] = ("a", "b", "c")
    count: int = 20

    @property
    def items(self) -> list[int]:
        return list(range(self.count))


@dataclass(frozen=True)
class Ground:
    """The state below an adapter: one for each test and provider."""

    directory: Path
    feed: Feed
    queues: int
    partitions: PartitionedBroker
    leases: LeasingBroker
    pushes: PushingBroker

    @classmethod
    def fresh(cls, directory: Path, feed: Feed, queues: int) -> Ground:
        return cls(
            directory,
            feed,
            queues,
            PartitionedBroker(queues),
            LeasingBroker(capacity=100_000),
            PushingBroker(),
        )


@dataclass(frozen=True)
class Adapter:
    """An entry: makes the factories of all silos over a shared ground."""

    name: str
    make: Callable[[Ground], QueueAdapterFactory]
    capabilities: frozenset[Capability]
    also: frozenset[str] = frozenset({PUBLISHES})
    mapper: Callable[[int], QueueMapper] = field(default=lambda count: HashRingMapper(queues=count))

    def __str__(self) -> str:
        return self.name

    def lacks(self, needs: Iterable[Need]) -> list[str]:
        """Return the names of the needs that the adapter does not meet."""
        able: set[Need] = {*self.capabilities, *self.also}
        if Capability.DURABLE in self.capabilities:
            able.add(SURVIVES)
        if Capability.LEASED not in self.capabilities:
            able.add(HOLDS)
        if Capability.ORDERED not in self.capabilities:
            able.add(UNORDERED)
        if Capability.OWN_POSITION not in self.capabilities:
            able.add(LEAVES_POSITION)
        missing = [need for need in needs if need not in able]
        return [need.name if isinstance(need, Capability) else need for need in missing]


def _generator(ground: Ground) -> QueueAdapterFactory:
    return GeneratorQueues(
        Generated(NUMBERS, lambda key, number: number),
        options=GeneratorOptions(streams=ground.feed.keys, events_per_stream=ground.feed.count),
    )


def _lines(ground: Ground) -> QueueAdapterFactory:
    found: QueueAdapterFactory = jsonl.JsonLinesQueues(ground.directory)
    return found


ADAPTERS = (
    Adapter("memory", lambda ground: MemoryQueues(), MemoryQueues.capabilities),
    Adapter(
        "generator",
        _generator,
        GeneratorQueues.capabilities,
        also=frozenset({SURVIVES}),  # it makes the same events again
    ),
    Adapter(
        "partitions",
        lambda ground: PartitionedQueues(ground.partitions),
        PartitionedQueues.capabilities,
        mapper=PartitionMapper,
    ),
    Adapter("pushed", lambda ground: PushedQueues(ground.pushes), PushedQueues.capabilities),
    Adapter("leased", lambda ground: LeasedQueues(ground.leases), LeasedQueues.capabilities),
    Adapter("lines", _lines, jsonl.JsonLinesQueues.capabilities),
    Adapter("ledger", lambda ground: LedgerQueues("ledger"), LedgerQueues.capabilities),
)


def adapters_with(*needs: Need, row: int, only: str = "", whichever: bool = False) -> list[object]:
    """Return all adapters as parameters; one that lacks a need is skipped, with the reason.

    `row`: chooses the adapter that is not spare, so that each adapter gets its share of the rows.
    """
    chosen = [adapter for adapter in ADAPTERS if only in ("", adapter.name)]
    if whichever:
        chosen = [adapter for adapter in chosen if not adapter.lacks(needs)][:1]
    able = [adapter for adapter in chosen if not adapter.lacks(needs)]
    quick = able[row % len(able)] if able else None
    return [_parameter(one, one.lacks(needs), is_spare=one is not quick) for one in chosen]


def _parameter(adapter: Adapter, lacking: list[str], *, is_spare: bool) -> object:
    reason = f"{adapter} does not have: {', '.join(lacking)}"
    marks = [pytest.mark.skip(reason=reason)] if lacking else [pytest.mark.spare] * is_spare
    return pytest.param(adapter, id=adapter.name, marks=marks)
