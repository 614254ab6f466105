"""Plug-ins as their authors write them: plain classes, parameter names of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, assert_type

from millstream.balancers import DeploymentBalancer, LeaseBalancer, RingBalancer, best_fit
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
from millstream.runtime.extending import (
    DirLock,
    Disk,
    DiskFile,
    DiskFull,
    DiskThread,
    RealDisk,
    SiloPart,
    SiloServices,
    SyncFailed,
    read_file,
    replace_file,
)
from millstream.streams import (
    AdapterHost,
    BringsMapper,
    Capability,
    CursorTooOld,
    DeliveryFailure,
    EnqueueFailed,
    EnqueuesAtOnce,
    FailureHandler,
    GiveUpDecision,
    HashRingMapper,
    KeepDeadLetters,
    Measurable,
    OutMessage,
    Page,
    PersistentStreams,
    ProducerMark,
    QueueAdapter,
    QueueAdapterFactory,
    QueueBalancer,
    QueueFenced,
    QueueId,
    QueueMapper,
    QueueMessage,
    QueueOwner,
    QueueReader,
    QueueReceiver,
    QueueUnavailable,
    Retains,
    Rewinds,
    Seals,
    SendLimits,
    SiloSet,
    StaleMapper,
    StreamId,
    StreamOptions,
    Token,
)

# --- queues --------------------------------------------------------------------------------------


class ListQueues:
    """The factory. A class attribute serves as the property of the contract."""

    capabilities = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS})

    async def open(self, name: str, host: AdapterHost) -> ListAdapter:
        assert_type(host.cluster, str)
        assert_type(host.silo, str)
        assert_type(host.mapper, QueueMapper)
        assert_type(host.clock.wall_s(), float)
        assert_type(await host.owner("queue-0"), tuple[str, int] | None)
        return ListAdapter(name, host)


class ListAdapter:
    def __init__(self, name: str, host: AdapterHost, echo: bool = False) -> None:
        self._messages: dict[QueueId, list[QueueMessage]] = {}
        self._wall_s = host.clock.wall_s

    async def enqueue(self, queue_id: str, outs: Sequence[OutMessage], epoch: int) -> list[Token]:
        queue = self._messages.setdefault(queue_id, [])
        tokens: list[Token] = []
        for out in outs:
            if isinstance(out.mark, ProducerMark) and out.mark.seq < 0:
                raise EnqueueFailed(tokens, QueueUnavailable(out.mark.producer))
            if epoch < 1:
                raise EnqueueFailed(tokens, StaleMapper(f"epoch {epoch}"))
            tokens.append(Token(1, len(queue) + 1))
            stored = QueueMessage(out.stream, tokens[-1], out.items, out.headers, self._wall_s())
            queue.append(stored)
        return tokens

    def reader(self, queue_id: str) -> ListReader:
        return ListReader(self._messages.setdefault(queue_id, []))

    def receiver(self, queue_id: str, epoch: int) -> ListReceiver:
        return ListReceiver(self._messages.setdefault(queue_id, []))

    async def aclose(self) -> None: ...


class ListReceiver:
    """Has more optional parameters and narrower results than the contract."""

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

    async def release(self, tokens: Sequence[Token], seconds: float, has_run: bool) -> None: ...

    async def extend(self, tokens: Sequence[Token], seconds: float) -> list[Token]:
        return []

    async def aclose(self) -> None: ...


class ListReader:
    def __init__(self, messages: list[QueueMessage]) -> None:
        self._messages = messages

    async def bounds(self) -> tuple[Token | None, Token | None]:
        return (
            (self._messages[0].token, self._messages[-1].token) if self._messages else (None, None)
        )

    async def seek(self, when: datetime) -> Token | None:
        return next((m.token for m in self._messages if m.enqueued_s >= when.timestamp()), None)

    async def read_from(
        self, position: Token, events: int, size: int, streams: frozenset[StreamId] | None
    ) -> Page:
        if position.seq < 1:
            raise CursorTooOld("gone", first=Token(1, 1))
        found = self._messages[position.seq - 1 :][:events]
        wanted = [m for m in found if streams is None or m.stream in streams]
        return Page(wanted, Token(1, position.seq + len(found)), at_end=True)

    async def aclose(self) -> None: ...


class KeepingAdapter:
    async def retain(self, queue: QueueId, reader: str, position: Token | None, /) -> None: ...

    async def let_go(self, queue: QueueId, reader: str, /) -> None: ...

    async def list_retained(self, queue: QueueId, /) -> dict[str, Token]:
        return {}


class MeasuringReceiver(ListReceiver):
    async def backlog(self) -> int:
        return len(self._messages) - self._at


factory: QueueAdapterFactory = ListQueues()
reader: QueueReader = ListReader([])
keeping: Retains = KeepingAdapter()
measurable: Measurable = MeasuringReceiver([])


def take_apart(adapter: QueueAdapter, message: QueueMessage) -> None:
    assert_type(adapter.receiver("queue-0", 1), QueueReceiver)
    assert_type(message.stream, StreamId)
    assert_type(message.stream.namespace, str)
    assert_type(message.token, Token)
    assert_type(message.items, Sequence[bytes])
    if isinstance(adapter, EnqueuesAtOnce):
        adapter.enqueue_at_once("q", [], 1)
    if isinstance(adapter, Rewinds):
        assert_type(adapter.reader("queue-0"), QueueReader)
    if isinstance(message, Rewinds):
        raise TypeError


# --- mapper and balancer -------------------------------------------------------------------------


class ByNamespace:
    """A mapper with `epoch` as a plain attribute."""

    def __init__(self, *namespaces: str) -> None:
        self.epoch = 1
        self._namespaces = namespaces

    def queues(self) -> tuple[QueueId, ...]:
        return self._namespaces

    def queue_for(self, stream: StreamId) -> QueueId:
        return stream.namespace


class Everything:
    """A balancer whose silo wants all queues."""

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[frozenset[QueueId]], None],
    ) -> None:
        assert_type(silos.me, str)
        assert_type(silos.names(), Mapping[str, str])
        self._unwatch = silos.watch(lambda: wanted(frozenset(queues)))
        owners = await silos.owners()
        assert_type(owners, Mapping[QueueId, QueueOwner])
        held = {queue: owner.silo for queue, owner in owners.items() if not owner.has_lapsed}
        assert_type(silos.lease_s, float)
        wanted(frozenset(best_fit(queues, silos.silos(), held=held)[silos.me]))

    async def aclose(self) -> None:
        self._unwatch()


class Pausing:
    """A failure handler that pauses or skips."""

    async def give_up(self, failure: DeliveryFailure) -> Literal["pause", "skip"]:
        return "pause" if failure.attempts > 3 else "skip"


class Choosing:
    """A failure handler that returns the decision as a value."""

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
balancers: list[QueueBalancer] = [RingBalancer(buckets=60), LeaseBalancer()]


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

    async def identity(self) -> str:
        return "the list"

    async def aclose(self) -> None: ...


class CountingTransport:
    """TCP with a count of the connections."""

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
    """A part by another author, which inherits the methods that it does not define."""

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


async def open_adapter(provider: str, host: AdapterHost) -> QueueAdapter:
    return await MemoryQueues().open(provider, host)


by_function = PersistentStreams(open_adapter, balancer="deployment")


class Shelf(Quiet):
    """A part that keeps data of all silos."""

    def has_bookie(self) -> bool:
        return not super().has_bookie()


reduced = Silo(
    grains=[],
    membership=ListTable(),
    stores={"default": DictStore()},
    parts={"shelf": Shelf(), "quiet": Quiet()},
)
reduced.reduce_to_bookie()
keeps: bool = streams.has_bookie()
by_name = PersistentStreams("memory", balancer="deployment")


class PartitionMapper:
    def mapper(self, changed: Callable[[], None]) -> HashRingMapper:
        return HashRingMapper(queues=3)


class SealingAdapter(ListAdapter):
    async def seal(self, queue_id: str, epoch: int, era: int) -> Token | None:
        return None


async def keep(disk: Disk) -> bytes:
    """Use the disk like a storage layer."""
    disk.make_dir("data")
    held: DirLock | None = disk.lock("data")
    file: DiskFile = disk.create("data/1")
    thread: DiskThread = disk.start_thread("log")
    try:
        assert_type(await thread.run(file.read_at, 0, 10), bytes)
        assert_type(await thread.flush(file, 0, [b"x", memoryview(b"y")]), None)
    except (DiskFull, SyncFailed) as error:
        raise OSError(error.filename) from error
    if held is not None:
        held.release()
    replace_file(RealDisk(), "data/id", b"x")
    return read_file(disk, "data/id", 10)


async def keep_beside(host: AdapterHost, services: SiloServices) -> None:
    await keep(host.disk)
    await keep(services.disk)


def check_seams(host: AdapterHost) -> tuple[BringsMapper, Seals]:
    return PartitionMapper(), SealingAdapter("list", host)


options = StreamOptions(send=SendLimits(batch_messages_max=10))
