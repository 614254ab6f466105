"""The memory provider as the simulation observes it: all accepted messages are noted.

Owns: the observed queue grain, its adapter factory, and the `Ledger` of accepted messages and lost
eras. Invariants: the ledger is outside of the cluster, so no crash reaches it. The provider's own
code runs unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from tests.sim.suites.run.record import Run, current_run

from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter, MemoryReceiver
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.providers.memory.queue_log import QueueLog
from millstream.runtime import (
    PREFER_LOCAL,
    DeactivationReason,
    Grain,
    StorageUnavailable,
    grain,
)
from millstream.runtime.testing import (
    Activated,
    Deactivated,
    History,
    HostDown,
    SiloDeclaredDead,
    SiloEnded,
)
from millstream.streams import (
    AdapterHost,
    OutMessage,
    ProducerMark,
    QueueId,
    QueueMessage,
    StreamId,
    Token,
)

__all__ = ["Era", "Ledger", "NotedQueues", "StoredItem"]

QUEUE_TYPE = "millstream.MemoryQueue"


class Era(NamedTuple):
    """One numbering of a queue's messages."""

    queue: str
    era: int


class StoredItem(NamedTuple):
    """An item that a queue accepted; `token` is its position."""

    token: tuple[int, int, int]
    item: str
    queue: str

    def era_of(self) -> Era:
        """Return the era in which the queue numbered the item."""
        return Era(self.queue, self.token[0])


class Accepted(NamedTuple):
    """A message as a queue accepted it."""

    stream: StreamId
    items: Sequence[bytes]
    mark: ProducerMark | None = None

    def is_held_as(self, held: QueueMessage | None) -> bool:
        """Is this the message in a queue? None: the queue dropped the message because it is
        done."""
        return held is None or (held.stream, list(held.items)) == (self.stream, list(self.items))


class Ledger:
    """The messages that the queues of one run accepted, and the losses of their content."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._messages: dict[Era, dict[int, Accepted]] = {}
        self._begun_s: dict[Era, float] = {}
        self._held_s: dict[Era, float] = {}  # when the newest activation of the era began
        self._failures: list[tuple[float, str]] = []  # (time, queue): the content was not stored
        self._items: dict[str, StoredItem] = {}
        self._repeats: dict[ProducerMark, list[tuple[Era, Accepted]]] = {}

    def on_opened(
        self, era: Era, held_s: float, start: int, loaded: Sequence[QueueMessage | None]
    ) -> None:
        """Check the content that an activation loaded for an era: the messages after `start`."""
        known = self._messages.setdefault(era, {})
        self._held_s[era] = held_s
        self._begun_s.setdefault(era, self._run.simulation.loop.time())
        self._run.figures["moved"] += sum(len(one.items) for one in loaded if one is not None)
        wanted = [known[number] for number in sorted(known) if number > start]
        pairs = zip(loaded, wanted, strict=False)
        if len(loaded) != len(wanted) or not all(want.is_held_as(one) for one, want in pairs):
            self._run.on_violated(
                f"{era} was loaded with {len(loaded)} messages behind {start}, "
                f"{len(wanted)} were accepted: {loaded[:2]}"
            )

    def on_accepted(self, era: Era, number: int, message: Accepted) -> None:
        """Note that a message got a number."""
        known = self._messages[era]
        if number in known:
            self._run.on_violated(f"{era}: number {number} was given twice")
        known[number] = message
        if message.mark is not None:
            self._repeats.setdefault(message.mark, []).append((era, message))
        for stored in iter_items(era, number, message):
            if stored.item in self._items:
                self._run.on_violated(f"{era}: {stored.item} was stored twice")
            self._items[stored.item] = stored

    def not_kept(self, queue: str) -> None:
        """Note that an activation ended without storing its content, because the store failed."""
        self._run.figures["contents not kept"] += 1
        self._failures.append((self._run.simulation.loop.time(), queue))

    def find_stored(self, mark: ProducerMark) -> list[str]:
        """Return the items of a producer's message as they were last stored."""
        stored = self._repeats.get(mark, [])
        return [msgspec.msgpack.decode(body) for body in stored[-1][1].items] if stored else []

    def check_repeats(self, lost: dict[Era, bool]) -> Iterator[str]:
        """Check that a producer's sequence is stored again only if its message was lost."""
        for mark, stored in self._repeats.items():
            for era, _ in stored[:-1]:
                if not lost[era]:
                    yield f"{mark} was stored {len(stored)} times: {[era for era, _ in stored]}"

    def find(self, item: str) -> StoredItem | None:
        """Return the position of a stored item."""
        return self._items.get(item)

    def items_of(self, stream: str) -> Iterator[StoredItem]:
        """Yield the accepted items of a stream, in order."""
        found = [
            stored
            for era, messages in self._messages.items()
            for number, message in messages.items()
            if f"{message.stream.namespace}/{message.stream.key}" == stream
            for stored in iter_items(era, number, message)
        ]
        return iter(sorted(found))

    def find_lost_eras(self) -> dict[Era, bool]:
        """Return whether each era may have lost content: its last holder crashed, was evicted or
        cut off."""
        ends = [*self._failures, *abrupt_ends(self._run.history)]
        return {
            era: any(
                queue == era.queue and held_s <= at_s <= self._find_followed_s(era)
                for at_s, queue in ends
            )
            for era, held_s in self._held_s.items()
        }

    def check_eras(self, lost: dict[Era, bool]) -> Iterator[str]:
        """Check that each era ended for a reason."""
        for era, begun_s in self._begun_s.items():
            until_s = self._find_followed_s(era)
            if until_s < float("inf") and not lost[era]:
                yield f"{era}, begun at {begun_s:.6f}, was over at {until_s:.6f}; nobody crashed"

    def _find_followed_s(self, key: Era) -> float:
        """Return the time at which the next era of the queue began."""
        return min(
            (
                at_s
                for other, at_s in self._begun_s.items()
                if other.queue == key.queue and other.era > key.era
            ),
            default=float("inf"),
        )


def iter_items(era: Era, number: int, message: Accepted) -> Iterator[StoredItem]:
    """Yield the items of a message."""
    for index, body in enumerate(message.items):
        item = msgspec.msgpack.decode(body)
        yield StoredItem((era.era, number, index), item, era.queue)


def abrupt_ends(history: History) -> Iterator[tuple[float, str]]:
    """Yield (time, queue) for each activation of a queue that ended without storing its content."""
    live: dict[tuple[str, str], str] = {}  # (grain, silo): host
    dead: set[str] = set()
    for at_s, event in history.events:
        gone: list[tuple[str, str]] = []
        match event:
            case Activated() if event.grain.startswith(QUEUE_TYPE):
                live[event.grain, event.silo] = event.host
                if event.silo in dead:  # the silo does not know yet that it is dead
                    gone = [(event.grain, event.silo)]
            case Deactivated():
                live.pop((event.grain, event.silo), None)
            case HostDown():
                gone = [key for key, host in live.items() if host == event.host]
            case SiloDeclaredDead() | SiloEnded():
                dead.add(event.silo)
                gone = [key for key in live if key[1] == event.silo]
            case _:
                pass
        for key in gone:
            del live[key]
            yield at_s, key[0].rpartition("/")[2]


def ledger() -> Ledger:
    """Return the ledger of the run that is being simulated."""
    run = current_run()
    found: Ledger = run.ledger  # type: ignore[attr-defined]
    return found


class NotedLog(QueueLog):
    """The content of a queue, with notes about accepted messages."""

    def _accept_all(
        self, messages: Sequence[OutMessage], *room: Any, **named: Any
    ) -> list[Token | None]:
        tokens = super()._accept_all(messages, *room, **named)
        for message, token in zip(messages, tokens, strict=True):
            if token is None:
                current_run().figures["repeats dropped"] += 1
            else:
                era = Era(self.key.rpartition("/")[2], token.era)
                accepted = Accepted(message.stream, message.items, message.mark)
                ledger().on_accepted(era, token.seq, accepted)
        return tokens


@grain(name=QUEUE_TYPE, placement=PREFER_LOCAL)
class NotedQueue(MemoryQueue):
    """The grain of a queue, with notes about loaded and stored content."""

    log_class: ClassVar[type[QueueLog]] = NotedLog

    @property
    def _name(self) -> str:
        return self.key.rpartition("/")[2]

    async def on_activate(self) -> None:
        """Note the loaded messages."""
        held_s = current_run().simulation.loop.time()
        await super().on_activate()
        log = self._log
        loaded = log.content(log.done, log.depth) if log.depth else []
        ledger().on_opened(Era(self._name, log.era), held_s, log.done, loaded)

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Note whether the content was stored."""
        try:
            await super().on_deactivate(reason)
        except (StorageUnavailable, asyncio.CancelledError):
            ledger().not_kept(self._name)
            raise


class NotedQueues(MemoryQueues):
    """The adapter factory of one silo."""

    grains: ClassVar[tuple[type[Grain], ...]] = (NotedQueue,)

    async def open(self, provider: str, host: AdapterHost, /) -> NotedAdapter:
        return NotedAdapter(host, self._options)


class NotedAdapter(MemoryAdapter):
    """Notes the owner of a queue."""

    def receiver(self, queue: QueueId, epoch: int, /) -> MemoryReceiver:
        current_run().on_acquired(queue, self.host.silo, epoch)
        return super().receiver(queue, epoch)
