"""Mistakes of plug-in authors. A line that ends with the mark E must be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    MemberRow,
    MembershipTable,
    Row,
    Silo,
    StateStore,
    TableView,
    register_type,
)
from millstream.runtime.extending import SiloPart, SiloServices
from millstream.streams import (
    AdapterHost,
    Capability,
    DeliveryFailure,
    GiveUpDecision,
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    QueueAdapter,
    QueueAdapterFactory,
    QueueBalancer,
    QueueId,
    QueueMapper,
    QueueMessage,
    QueueReceiver,
    Rewinds,
    SiloSet,
    StreamId,
    Token,
)

BALANCER = DeploymentBalancer()
Messages = Sequence[OutMessage]
Tokens = Sequence[Token | None]


# --- receivers -----------------------------------------------------------------------------------


class Begin:
    async def start(self, after: Token | None) -> None: ...


class Read:
    async def read(self, events: int, size: int, wait_s: float) -> list[QueueMessage]:
        return []


class Ack:
    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None: ...


class End:
    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...
    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None: ...


class GoodReceiver(Begin, Read, Ack, End): ...


class WithoutAck(Begin, Read, End): ...


class ReadsWithTwoArguments(Begin, Ack, End):
    async def read(self, events: int, size: int) -> list[QueueMessage]:
        return []


class ReadsOtherThings(Begin, Ack, End):
    async def read(self, events: int, size: int, wait_s: float) -> list[Token]:
        return []


class ReadsByName(Begin, Ack, End):
    async def read(self, events: int, size: int, *, wait_s: float) -> list[QueueMessage]:
        return []


class AcksWithoutAsync(Begin, Read, End):
    def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None: ...


class AcksOneByOne(Begin, Read, End):
    async def ack(self, upto: Token | None) -> None: ...


class StartsAtNumber(Read, Ack, End):
    async def start(self, after: int) -> None: ...


class ReleasesWithoutAWord(Begin, Read, Ack):
    async def release(self, tokens: Sequence[Token], delay_s: float) -> None: ...
    async def aclose(self) -> None: ...


def take_receiver(receiver: QueueReceiver) -> None: ...


take_receiver(GoodReceiver())
take_receiver(WithoutAck())  # E
take_receiver(ReadsWithTwoArguments())  # E
take_receiver(ReadsOtherThings())  # E
take_receiver(ReadsByName())  # E
take_receiver(AcksWithoutAsync())  # E
take_receiver(AcksOneByOne())  # E
take_receiver(StartsAtNumber())  # E
take_receiver(GoodReceiver)  # E
take_receiver(ReleasesWithoutAWord())  # E
rewinds: Rewinds = GoodReceiver()  # E


# --- adapters ------------------------------------------------------------------------------------


class Enqueue:
    async def enqueue(self, queue: QueueId, messages: Messages, epoch: int) -> Tokens:
        return []


class Receiver:
    def receiver(self, queue: QueueId, epoch: int) -> GoodReceiver:
        return GoodReceiver()


class Close:
    async def aclose(self) -> None: ...


class GoodAdapter(Enqueue, Receiver, Close): ...


class WithoutEnqueue(Receiver, Close): ...


class WithoutClose(Enqueue, Receiver): ...


class EnqueuesWithoutAsync(Receiver, Close):
    def enqueue(self, queue: QueueId, messages: Messages, epoch: int) -> Tokens:
        return []


class EnqueuesWithoutEpoch(Receiver, Close):
    async def enqueue(self, queue: QueueId, messages: Messages) -> Tokens:
        return []


class EnqueuesBytes(Receiver, Close):
    async def enqueue(self, queue: QueueId, messages: Sequence[bytes], epoch: int) -> Tokens:
        return []


class GivesNumbers(Receiver, Close):
    async def enqueue(self, queue: QueueId, messages: Messages, epoch: int) -> Sequence[int]:
        return [1]


class OpensReceiverLate(Enqueue, Close):
    async def receiver(self, queue: QueueId, epoch: int) -> GoodReceiver:
        return GoodReceiver()


class GivesReceiverWithoutAck(Enqueue, Close):
    def receiver(self, queue: QueueId, epoch: int) -> WithoutAck:
        return WithoutAck()


def take_adapter(adapter: QueueAdapter) -> None: ...


take_adapter(GoodAdapter())
take_adapter(WithoutEnqueue())  # E
take_adapter(WithoutClose())  # E
take_adapter(EnqueuesWithoutAsync())  # E
take_adapter(EnqueuesWithoutEpoch())  # E
take_adapter(EnqueuesBytes())  # E
take_adapter(GivesNumbers())  # E
take_adapter(OpensReceiverLate())  # E
take_adapter(GivesReceiverWithoutAck())  # E


# --- factories -----------------------------------------------------------------------------------


class Declares:
    capabilities = frozenset({Capability.ORDERED})


class GoodFactory(Declares):
    async def open(self, provider: str, host: AdapterHost) -> GoodAdapter:
        return GoodAdapter()


class DeclaresNothing:
    async def open(self, provider: str, host: AdapterHost) -> GoodAdapter:
        return GoodAdapter()


class DeclaresTexts(DeclaresNothing):
    capabilities = frozenset({"ordered"})


class DeclaresTuple(DeclaresNothing):
    capabilities = (Capability.ORDERED,)


class OpensWithoutAsync(Declares):
    def open(self, provider: str, host: AdapterHost) -> GoodAdapter:
        return GoodAdapter()


class OpensWithoutContext(Declares):
    async def open(self, provider: str) -> GoodAdapter:
        return GoodAdapter()


class OpensIncomplete(Declares):
    async def open(self, provider: str, host: AdapterHost) -> WithoutEnqueue:
        return WithoutEnqueue()


class OpensIncompleteReceiver(Declares):
    async def open(self, provider: str, host: AdapterHost) -> GivesReceiverWithoutAck:
        return GivesReceiverWithoutAck()


def open_nothing(provider: str, host: AdapterHost) -> None:
    print(host.address)  # E
    host.grain(GoodAdapter)  # E


factory: QueueAdapterFactory = GoodFactory()
PersistentStreams(GoodFactory(), balancer=BALANCER)
PersistentStreams(DeclaresNothing(), balancer=BALANCER)  # E
PersistentStreams(DeclaresTexts(), balancer=BALANCER)  # E
PersistentStreams(DeclaresTuple(), balancer=BALANCER)  # E
PersistentStreams(OpensWithoutAsync(), balancer=BALANCER)  # E
PersistentStreams(OpensWithoutContext(), balancer=BALANCER)  # E
PersistentStreams(OpensIncomplete(), balancer=BALANCER)  # E
PersistentStreams(OpensIncompleteReceiver(), balancer=BALANCER)  # E
PersistentStreams(open_nothing, balancer=BALANCER)  # E
PersistentStreams(GoodAdapter(), balancer=BALANCER)  # E
PersistentStreams(GoodFactory, balancer=BALANCER)  # E
PersistentStreams(MemoryQueues, balancer=BALANCER)  # E
PersistentStreams(b"memory", balancer=BALANCER)  # E
PersistentStreams(queues=GoodFactory(), balancer=BALANCER)  # E
PersistentStreams(GoodFactory(), BALANCER)  # E
PersistentStreams(GoodFactory(), balancer=DeploymentBalancer)  # E
PersistentStreams(GoodFactory(), balancer=BALANCER, mapper=8)  # E
PersistentStreams(GoodFactory(), balancer=BALANCER, mapper=HashRingMapper)  # E
PersistentStreams(GoodFactory(), balancer=BALANCER, options={"store": "s"})  # E


# --- mappers and balancers -----------------------------------------------------------------------


class MapsByTwoNames:
    epoch = 1

    def queues(self) -> Sequence[QueueId]:
        return ["a"]

    def queue_for(self, namespace: str, key: str) -> QueueId:
        return "a"


class MapsToNumbers:
    epoch = 1

    def queues(self) -> Sequence[QueueId]:
        return ["a"]

    def queue_for(self, stream: StreamId) -> int:
        return 1


class MapsWithoutEpoch:
    def queues(self) -> Sequence[QueueId]:
        return ["a"]

    def queue_for(self, stream: StreamId) -> QueueId:
        return stream.nmae  # E


class MapsLate:
    epoch = 1

    def queues(self) -> Sequence[QueueId]:
        return ["a"]

    async def queue_for(self, stream: StreamId) -> QueueId:
        return "a"


def take_mapper(mapper: QueueMapper) -> None: ...


take_mapper(HashRingMapper(queues=8))
take_mapper(MapsByTwoNames())  # E
take_mapper(MapsToNumbers())  # E
take_mapper(MapsWithoutEpoch())  # E
take_mapper(MapsLate())  # E

Wanted = Callable[[frozenset[QueueId]], None]


class BalancesWithoutAsync(Close):
    def start(self, queues: Sequence[QueueId], silos: SiloSet, wanted: Wanted) -> None: ...


class BalancesWithoutClose:
    async def start(self, queues: Sequence[QueueId], silos: SiloSet, wanted: Wanted) -> None:
        wanted({"queue-0"})  # E
        wanted(silos.silos())  # E
        silos.watch(wanted)  # E
        print(silos.silos[0])  # E


class BalancesBlindly(Close):
    async def start(self, queues: Sequence[QueueId], wanted: Wanted) -> None: ...


class BalancesWithNumbers(Close):
    async def start(
        self, queues: Sequence[QueueId], silos: SiloSet, wanted: Callable[[list[int]], None]
    ) -> None: ...


def take_balancer(balancer: QueueBalancer) -> None: ...


take_balancer(DeploymentBalancer())
take_balancer(BalancesWithoutAsync())  # E
take_balancer(BalancesWithoutClose())  # E
take_balancer(BalancesBlindly())  # E
take_balancer(BalancesWithNumbers())  # E


# --- failure handlers ----------------------------------------------------------------------------


class DecidesAnything:
    async def give_up(self, failure: DeliveryFailure) -> str:
        return failure.error


class DecidesOtherwise:
    async def give_up(self, failure: DeliveryFailure) -> Literal["retry"]:
        failure.attempts = 0  # E
        return "retry"


class DecidesLoosely:
    async def give_up(self, failure: DeliveryFailure) -> GiveUpDecision:
        return "retry"  # E


class DecidesAtOnce:
    def give_up(self, failure: DeliveryFailure) -> Literal["skip"]:
        return "skip"


PersistentStreams(GoodFactory(), balancer=BALANCER, on_give_up=DecidesAnything())  # E
PersistentStreams(GoodFactory(), balancer=BALANCER, on_give_up=DecidesOtherwise())  # E
PersistentStreams(GoodFactory(), balancer=BALANCER, on_give_up=DecidesAtOnce())  # E
PersistentStreams(GoodFactory(), balancer=BALANCER, on_give_up="retry")  # E


# --- state stores and membership tables ----------------------------------------------------------


class Rows:
    async def read(self, key: str) -> Row | None:
        return None

    async def clear(self, key: str, expect: str, fence: int) -> None: ...
    async def aclose(self) -> None: ...


class Scan:
    async def scan(self, prefix: str, after: str, limit: int) -> list[tuple[str, Row]]:
        return []


class WithoutScan(Rows):
    async def write(self, key: str, data: bytes, expect: str | None, fence: int) -> str:
        return ""


class WritesWithoutFence(Rows, Scan):
    async def write(self, key: str, data: bytes, expect: str | None) -> str:
        return ""


class WritesWithoutEtag(Rows, Scan):
    async def write(self, key: str, data: bytes, expect: str | None, fence: int) -> None: ...


class WritesText(Rows, Scan):
    async def write(self, key: str, data: str, expect: str | None, fence: int) -> str:
        return ""


class WritesOnlyOver(Rows, Scan):
    async def write(self, key: str, data: bytes, expect: str, fence: int) -> str:
        return ""


def take_store(store: StateStore) -> None: ...


take_store(WithoutScan())  # E
take_store(WritesWithoutFence())  # E
take_store(WritesWithoutEtag())  # E
take_store(WritesText())  # E
take_store(WritesOnlyOver())  # E
Silo(grains=[], stores={"default": WithoutScan()})  # E


class Votes:
    async def read(self) -> TableView:
        return TableView(1)

    async def heartbeat(self, silo: str, alive_s: float) -> None: ...
    async def forget(self, silo: str, expect_version: int) -> bool:
        return False

    async def aclose(self) -> None: ...


class WritesWithoutVersion(Votes):
    async def write(self, row: MemberRow) -> bool:
        return True


class WritesWithoutAnswer(Votes):
    async def write(self, row: MemberRow, expect_version: int) -> None:
        row.silo = "a"  # E


def take_table(table: MembershipTable) -> None: ...


take_table(Votes())  # E
take_table(WritesWithoutVersion())  # E
take_table(WritesWithoutAnswer())  # E
Silo(grains=[], membership=Votes())  # E


# --- stream providers, types ---------------------------------------------------------------------


class NeverStops:
    def grains(self, name: str) -> tuple[()]:
        return ()

    async def open(self, services: SiloServices, name: str) -> None: ...
    async def start(self, services: SiloServices, name: str) -> None: ...
    async def aclose(self) -> None: ...
    def abort(self) -> None: ...


class StopsAtOnce(NeverStops):
    def stop(self) -> None: ...


def take_part(part: SiloPart) -> None: ...


take_part(NeverStops())  # E
take_part(StopsAtOnce())  # E

register_type(Path)  # E
register_type("Path", str, Path)  # E
register_type(Path, str)  # E
register_type(Path, len, Path)  # E
register_type(Path, Path.as_posix, str)  # E
# pyright finds a type that suits all three: `Path | str`
register_type(Path, str, str)  # E[mypy]
