"""A grain that is called in a silo that has just joined may publish at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    PREFER_LOCAL,
    Grain,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    grain,
)
from millstream.streams import (
    AdapterHost,
    HashRingMapper,
    PersistentStreams,
    QueueAdapter,
    QueueId,
    SiloSet,
    StreamNamespace,
    Token,
)

NOTES = StreamNamespace("notes", str)


@grain(placement=PREFER_LOCAL)
class Writer(Grain):
    async def write(self, text: str) -> Token | None:
        return await self.stream(NOTES, self.key).publish(text)


class CallingBalancer:
    """Calls a grain when it is started: its silo is then active, and reads no queue yet."""

    def __init__(self) -> None:
        self.silo: Silo
        self.tokens: list[Token | None] = []

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[frozenset[QueueId]], None],
        /,
    ) -> None:
        self.tokens.append(await self.silo.grain(Writer, "a").write("first"))

    async def aclose(self) -> None: ...


def streams_with(balancer: CallingBalancer) -> PersistentStreams:
    return PersistentStreams(MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=balancer)


async def test_a_grain_publishes_before_its_silo_reads() -> None:
    first, second = CallingBalancer(), CallingBalancer()
    silo = Silo(
        grains=[Writer],
        membership=MemoryMembershipTable(),
        stores={"default": MemoryStateStore()},
        streams={"early": streams_with(first), "default": streams_with(second)},
    )
    first.silo = second.silo = silo
    async with silo:
        assert None not in first.tokens + second.tokens
        assert len(first.tokens) == len(second.tokens) == 1


async def test_a_provider_that_could_not_be_opened_may_be_tried_again() -> None:
    failures = [OSError("no account yet")]

    async def queues(provider: str, context: AdapterHost) -> QueueAdapter:
        if failures:
            raise failures.pop()
        return await MemoryQueues().open(provider, context)

    vars(queues)["grains"] = MemoryQueues.grains
    streams = PersistentStreams(queues, balancer=DeploymentBalancer())

    def silo() -> Silo:
        stores = {"default": MemoryStateStore()}
        return Silo(grains=[], stores=stores, streams={"default": streams})

    with pytest.raises(OSError, match="no account yet"):
        await silo().start()
    async with silo() as second:
        assert await second.stream(NOTES, "a").publish("text") is not None
