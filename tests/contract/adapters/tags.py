"""An adapter over a broker that leases single messages, like RabbitMQ through AMQP 1.0.

Tags belong to a session, redelivery is out of order, only failed deliveries raise the delivery
count, and acknowledging has a time limit. A message has no number: a token is the tag of a
delivery, and the next delivery has another one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from millstream.runtime import EnqueueFailed, QueueFull
from millstream.streams import (
    AdapterHost,
    Capability,
    OutMessage,
    QueueAdapter,
    QueueId,
    QueueMessage,
    Token,
)

LEASE_S = 0.1


@dataclass(eq=False)
class Letter:
    """A message in the broker."""

    out: OutMessage
    stamp_s: float
    failed: int = 0
    ready_s: float = 0.0
    holder: tuple[Channel, int] | None = None


class Channel:
    """A session: its tags mean nothing in another one."""

    def __init__(self, queue: BrokerQueue, serial: int) -> None:
        self.queue = queue
        self.serial = serial
        self.tags = itertools.count(1)
        self.unsettled: dict[int, Letter] = {}
        self.is_open = True

    def take(self, letter: Letter) -> int:
        tag = next(self.tags)
        self.unsettled[tag] = letter
        letter.ready_s, letter.holder = self.queue.now + LEASE_S, (self, tag)
        return tag

    def holds(self, tag: int) -> bool:
        """Does the session still hold this delivery? After its time limit the broker redelivers
        it."""
        letter = self.unsettled.get(tag)
        if letter is None or letter.holder != (self, tag):
            return False
        return letter.ready_s > self.queue.now

    def settle(self, tag: int) -> None:
        if self.holds(tag):
            self.queue.letters.remove(self.unsettled.pop(tag))

    def give_back(self, tag: int, delay_s: float, has_failed: bool) -> None:
        if self.holds(tag):
            letter = self.unsettled.pop(tag)
            letter.failed += has_failed
            letter.ready_s = self.queue.now + delay_s
            self.queue.ring()

    def close(self) -> None:
        self.is_open = False
        for tag in list(self.unsettled):
            self.give_back(tag, 0.0, has_failed=False)
        self.queue.ring()


@dataclass(eq=False)
class BrokerQueue:
    letters: list[Letter] = field(default_factory=list)
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    serials: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def ring(self) -> None:
        self.bell.set()
        self.bell = asyncio.Event()

    def free(self) -> list[Letter]:
        return [letter for letter in self.letters if letter.ready_s <= self.now]

    async def wait(self, end_s: float) -> None:
        soonest = min([end_s, *(letter.ready_s for letter in self.letters)])
        try:
            async with asyncio.timeout_at(soonest + 1e-3):
                await self.bell.wait()
        except TimeoutError:
            return


class LeasingBroker:
    """The server, which survives silos."""

    def __init__(self, capacity: int = 120) -> None:
        self.capacity = capacity
        self.queues: dict[QueueId, BrokerQueue] = {}

    def queue(self, name: QueueId) -> BrokerQueue:
        return self.queues.setdefault(name, BrokerQueue())

    def publish(self, name: QueueId, out: OutMessage, stamp_s: float) -> bool:
        """Confirm a message; False: the queue is full (`reject-publish`)."""
        queue = self.queue(name)
        if len(queue.letters) >= self.capacity:
            return False
        queue.letters.append(Letter(out, stamp_s))
        queue.ring()
        return True

    async def kill(self, adapter: QueueAdapter) -> None:
        """Crash a process: its sessions end, and their unsettled messages return to the queue."""
        assert isinstance(adapter, LeasedAdapter)
        for receiver in adapter.receivers:
            receiver.cut()


class LeasedQueues:
    capabilities = frozenset(
        {
            Capability.DURABLE,
            Capability.WAKEUP,
            Capability.ITEM_ACK,
            Capability.LEASED,
            Capability.OWN_POSITION,
        }
    )

    def __init__(self, broker: LeasingBroker) -> None:
        self.broker = broker

    async def open(self, provider: str, host: AdapterHost) -> LeasedAdapter:
        return LeasedAdapter(self.broker, host)


class LeasedAdapter:
    def __init__(self, broker: LeasingBroker, host: AdapterHost) -> None:
        self._broker = broker
        self._host = host
        self.receivers: list[LeasedReceiver] = []

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        """Wait for one confirm after the other; messages after a refused one are not sent."""
        done = list[Token | None]()
        for message in messages:
            await asyncio.sleep(0)
            if not self._broker.publish(queue, message, self._host.clock.wall_s()):
                raise EnqueueFailed(done, QueueFull(f"{queue} is full"))
            done.append(None)
        return done

    def receiver(self, queue: QueueId, epoch: int) -> LeasedReceiver:
        self.receivers.append(found := LeasedReceiver(self._broker.queue(queue)))
        return found

    async def aclose(self) -> None: ...


class LeasedReceiver:
    def __init__(self, queue: BrokerQueue) -> None:
        self._queue = queue
        self._channel = Channel(queue, 0)

    async def start(self, after: Token | None) -> None:
        self._channel = Channel(self._queue, next(self._queue.serials))

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        end_s = self._queue.now + wait_s
        while self._channel.is_open:
            if found := self._within(max_events, max_bytes):
                return [self._message(letter) for letter in found]
            if self._queue.now >= end_s:
                break
            await self._queue.wait(end_s)
        return []

    def _within(self, max_events: int, max_bytes: int) -> list[Letter]:
        found = list[Letter]()
        for letter in self._queue.free():
            max_events -= len(letter.out.items)
            max_bytes -= sum(map(len, letter.out.items))
            if found and (max_events < 0 or max_bytes < 0):
                break
            found.append(letter)
        return found

    def _message(self, letter: Letter) -> QueueMessage:
        out, token = letter.out, Token(self._channel.serial, self._channel.take(letter))
        attempt = letter.failed + 1
        return QueueMessage(
            out.stream, token, out.items, out.headers, letter.stamp_s, attempt, LEASE_S
        )

    def _tags(self, tokens: Sequence[Token]) -> list[int]:
        """Return the tags of this session: a tag of another session would settle another
        message."""
        return [token.seq for token in tokens if token.era == self._channel.serial]

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        for tag in self._tags(also):
            self._channel.settle(tag)

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        for tag in self._tags(tokens):
            self._channel.give_back(tag, delay_s, has_failed=has_run)

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        held = [tag for tag in self._tags(tokens) if self._channel.holds(tag)]
        for tag in held:
            self._channel.unsettled[tag].ready_s = self._queue.now + lease_s
        return [token for token in tokens if token.seq not in held]

    async def aclose(self) -> None:
        self._channel.close()

    def cut(self) -> None:
        """End the connection."""
        self._channel.close()
