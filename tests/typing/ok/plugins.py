"""Plug-ins as their authors write them: plain classes, parameter names of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, assert_type

from millstream.balancers import DeploymentBalancer, best_fit
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    Address,
    Conflict,
    Etag,
    Link,
    Listener,
    MemberRow,
    MembershipTable,
    Row,
    Silo,
    StateStore,
    StorageUnavailable,
    TableView,
    TcpTransport,
    Transport,
)
from millstream.runtime.extending import SiloPart, SiloServices
from millstream.streams import (
    AdapterContext,
    Capability,
    CursorTooOld,
    DeliveryFailure,
    FailureHandler,
    GiveUpDecision,
    KeepDeadLetters,
    Measurable,
    OutMessage,
    PersistentStreams,
    ProducerMark,
    QueueAdapter,
    QueueAdapterFactory,
    QueueBalancer,
    QueueFenced,
    QueueId,
    QueueMapper,
    QueueMessage,
    QueueReceiver,
    QueueUnavailable,
    Rewindable,
    SiloSet,
    StaleMapper,
    StreamId,
    Token,
)

# --- queues --------------------------------------------------------------------------------------


class ListQueues:
    """The factory. A class attribute serves as the property of the contract."""

    capabilities = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS})

    async def open(self, name: str, context: AdapterContext) -> ListAdapter:
        assert_type(context.cluster, str)
        assert_type(context.silo, str | None)
        assert_type(context.mapper, QueueMapper | None)
        assert_type(context.wall_s(), float)
        return ListAdapter(name, context)


class ListAdapter:
    def __init__(self, name: str, context: AdapterContext, echo: bool = False) -> None:
        self._messages: dict[QueueId, list[QueueMessage]] = {}
        self._wall_s = context.wall_s

    async def enqueue(self, queue_id: str, out: OutMessage, epoch: int) -> Token:
        queue = self._messages.setdefault(queue_id, [])
        if isinstance(out.mark, ProducerMark) and out.mark.seq < 0:
            raise QueueUnavailable(out.mark.producer)
        if epoch < 1:
            raise StaleMapper(f"epoch {epoch}")
        token = Token(1, len(queue) + 1)
        queue.append(QueueMessage(out.stream, token, out.items, out.headers, self._wall_s()))
        return token

    def receiver(self, queue_id: str, epoch: int) -> ListReceiver:
        return ListReceiver(self._messages.setdefault(queue_id, []))

    async def aclose(self) -> None: ...


class ListReceiver:
    """More optional parameters and narrower results than the contract has."""

    def __init__(self, messages: list[QueueMessage]) -> None:
        self._messages, self._at = messages, 0

    async def start(self, position: Token | None, verbose: bool = False) -> None:
        self._at = 0 if position is None else position.seq

    async def read(self, events: int, size: float, seconds: float) -> list[QueueMessage]:
        found = self._messages[self._at : self._at + events]
        self._at += len(found)
        return found

    async def ack(self, upto: Token | None, others: Sequence[Token] = ()) -> None:
        if upto is not None and upto.seq > self._at:
            raise QueueFenced(f"{upto} was not read here")

    async def release(self, tokens: Sequence[Token], seconds: float) -> None: ...

    async def aclose(self) -> None: ...


class RewindingReceiver(ListReceiver):
    async def read_from(
        self, position: Token | datetime, max_events: int, max_bytes: int
    ) -> Sequence[QueueMessage]:
        if isinstance(position, datetime):
            raise CursorTooOld(position.isoformat())
        return self._messages[position.seq - 1 :]

    async def backlog(self) -> int:
        return len(self._messages) - self._at


factory: QueueAdapterFactory = ListQueues()
rewindable: Rewindable = RewindingReceiver([])
measurable: Measurable = RewindingReceiver([])


def take_apart(adapter: QueueAdapter, message: QueueMessage) -> None:
    assert_type(adapter.receiver("queue-0", 1), QueueReceiver)
    assert_type(message.stream, StreamId)
    assert_type(message.stream.namespace, str)
    assert_type(message.token, Token)
    assert_type(message.items, Sequence[bytes])
    if isinstance(message, Rewindable):
        raise TypeError


# --- mapper and balancer -------------------------------------------------------------------------


class ByNamespace:
    """A mapper; `epoch` as a plain attribute."""

    def __init__(self, *namespaces: str) -> None:
        self.epoch = 1
        self._namespaces = namespaces

    def queues(self) -> tuple[QueueId, ...]:
        return self._namespaces

    def queue_for(self, stream: StreamId) -> QueueId:
        return stream.namespace


class Everything:
    """A balancer whose silo wants all."""

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[frozenset[QueueId]], None],
    ) -> None:
        assert_type(silos.me, str)
        assert_type(silos.names(), Mapping[str, str])
        self._unwatch = silos.watch(lambda: wanted(frozenset(queues)))
        wanted(frozenset(best_fit(queues, silos.silos())[silos.me]))

    async def aclose(self) -> None:
        self._unwatch()


class Pausing:
    """What becomes of events that were given up."""

    async def give_up(self, failure: DeliveryFailure) -> Literal["pause", "skip"]:
        return "pause" if failure.attempts > 3 else "skip"


class Choosing:
    """The decision as a value."""

    def __init__(self, otherwise: GiveUpDecision = "dead_letter") -> None:
        self._otherwise: GiveUpDecision = otherwise

    async def give_up(self, failure: DeliveryFailure) -> GiveUpDecision:
        return "pause" if failure.attempts > 3 else self._otherwise


class Loud(KeepDeadLetters):
    async def give_up(self, failure: DeliveryFailure) -> Literal["dead_letter"]:
        print(failure.error)
        return "dead_letter"


handlers: list[FailureHandler] = [Pausing(), Choosing("skip"), Loud(), KeepDeadLetters()]
mapper: QueueMapper = ByNamespace("a", "b")
balancer: QueueBalancer = Everything()
streams = PersistentStreams(
    ListQueues(), mapper=ByNamespace("a"), balancer=Everything(), on_give_up=Pausing()
)
mixed = PersistentStreams(MemoryQueues(), balancer=Everything())
shared = PersistentStreams(ListQueues(), balancer=DeploymentBalancer())


# --- state store, membership table, transport, stream provider -----------------------------------


class DictStore:
    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    async def read(self, name: str) -> Row | None:
        return self._rows.get(name)

    async def write(self, name: str, data: bytes, etag: Etag | None, fence: int) -> Etag:
        if len(self._rows) > 1_000:
            raise StorageUnavailable(f"{name}: 1,000 rows")
        row = self._rows.get(name)
        if (None if row is None else row.etag) != etag:
            raise Conflict(name)
        new = Row(data, str(int(etag or 0) + 1), fence)
        self._rows[name] = new
        return new.etag

    async def clear(self, name: str, etag: Etag, fence: int) -> None:
        self._rows.pop(name, None)

    async def scan(self, prefix: str, after: str, limit: int) -> list[tuple[str, Row]]:
        return [(key, row) for key, row in self._rows.items() if key.startswith(prefix)]

    async def aclose(self) -> None: ...


class ListTable:
    def __init__(self) -> None:
        self._view = TableView(1)

    async def read(self) -> TableView:
        return self._view

    async def write(self, row: MemberRow, version: int) -> bool:
        self._view = TableView(version + 1, (*self._view.rows, row))
        return True

    async def heartbeat(self, silo: str, stamp: float) -> None: ...

    async def forget(self, silo: str, version: int) -> bool:
        return self._view.row(silo) is not None

    async def aclose(self) -> None: ...


class CountingTransport:
    """TCP, with a count of the connections."""

    def __init__(self) -> None:
        self._tcp = TcpTransport(connect_timeout_s=1)
        self.count = 0

    async def connect(self, to: Address) -> Link:
        self.count += 1
        return await self._tcp.connect(Address(to.host, to.port))

    async def listen(self, at: Address, accept: Callable[[Link], None]) -> Listener:
        return await self._tcp.listen(at, accept)

    def listen_probe(self, at: Address, answer: Callable[[], bytes]) -> Listener:
        return self._tcp.listen_probe(at, answer)

    async def probe(self, to: Address, seconds: float) -> bytes:
        return await self._tcp.probe(to, seconds)


class Quiet(SiloPart):
    """A part that is none of Millstream's; what it does not say is inherited."""

    async def start(self, services: SiloServices, name: str, /) -> None: ...

    async def stop(self) -> None: ...


store: StateStore = DictStore()
table: MembershipTable = ListTable()
transport: Transport = CountingTransport()
silo = Silo(
    grains=[],
    membership=ListTable(),
    stores={"default": DictStore()},
    streams={"default": streams, "quiet": Quiet()},
    transport=CountingTransport(),
)


async def open_adapter(provider: str, context: AdapterContext) -> QueueAdapter:
    return await MemoryQueues().open(provider, context)


by_function = PersistentStreams(open_adapter, balancer="deployment")
by_name = PersistentStreams("memory", balancer="deployment")
