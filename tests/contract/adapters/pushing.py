"""An adapter over a broker that calls back and cannot be asked, like MQTT with QoS 1.

The broker pushes until it is paused, and takes acknowledgements of single messages. It pushes
unacknowledged messages again to the next session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millstream.streams import (
    AdapterHost,
    Capability,
    OutMessage,
    PushReceiver,
    QueueAdapter,
    QueueId,
    QueueMessage,
    Token,
)
from millstream.streams.testing import AdapterHooks

NARROW_EVENTS = 4
Push = Callable[[QueueMessage], None]


@dataclass(eq=False)
class Topic:
    """The unacknowledged messages, in order, and the one session that gets them."""

    kept: dict[int, QueueMessage] = field(default_factory=dict)
    number: int = 0
    session: Session | None = None

    def connect(self, session: Session) -> None:
        """Replace a session of the same name, which gets no more messages."""
        self.session = session


class PushingBroker:
    """The server, which survives silos."""

    def __init__(self) -> None:
        self.topics: dict[QueueId, Topic] = {}

    def topic(self, queue: QueueId) -> Topic:
        return self.topics.setdefault(queue, Topic())

    def publish(self, queue: QueueId, out: OutMessage, stamp_s: float) -> None:
        topic = self.topic(queue)
        topic.number += 1
        token = Token(1, topic.number)
        topic.kept[topic.number] = QueueMessage(out.stream, token, out.items, out.headers, stamp_s)
        if topic.session is not None:
            topic.session.wake()

    async def kill(self, adapter: QueueAdapter) -> None:
        """Crash a process: its connections end, and its code no longer runs."""
        assert isinstance(adapter, PushedAdapter)
        for session in adapter.sessions:
            session.cut()


class Session:
    """A `PushSource`: the connection of one subscriber."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._push: Push | None = None
        self._pushed = 0
        self._is_paused = False

    async def start(self, push: Push, after: Token | None, /) -> None:
        self._push = push
        self._topic.connect(self)
        self.wake()

    def cut(self) -> None:
        """End the connection without a message."""
        self._push = None

    def wake(self) -> None:
        """Let the network push the kept messages soon."""
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        for number, message in list(self._topic.kept.items()):
            if self._push is None or self._is_paused:
                return
            if number > self._pushed:
                self._push(message)
                self._pushed = number

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.wake()

    async def ack(self, upto: Token | None, also: Sequence[Token], /) -> None:
        for token in also:
            self._topic.kept.pop(token.seq, None)

    async def aclose(self) -> None:
        self._push = None
        if self._topic.session is self:
            self._topic.session = None


class PushedQueues:
    capabilities = frozenset(
        {
            Capability.DURABLE,
            Capability.WAKEUP,
            Capability.ITEM_ACK,
            Capability.OWN_POSITION,
            Capability.STABLE_TOKENS,
        }
    )

    def __init__(
        self,
        broker: PushingBroker,
        events_max: int = 110,
        session_class: Callable[[Topic], Session] = Session,
    ) -> None:
        self.broker = broker
        self.events_max = events_max
        self.session_class = session_class

    async def open(self, provider: str, host: AdapterHost) -> PushedAdapter:
        return PushedAdapter(self, host)


class PushedAdapter:
    def __init__(self, queues: PushedQueues, host: AdapterHost) -> None:
        self._queues = queues
        self._host = host
        self.sessions: list[Session] = []

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        for message in messages:
            await asyncio.sleep(0)
            self._queues.broker.publish(queue, message, self._host.clock.wall_s())
        return [None] * len(messages)

    def receiver(self, queue: QueueId, epoch: int) -> PushReceiver:
        found = self._queues
        session = found.session_class(found.broker.topic(queue))
        self.sessions.append(session)
        return PushReceiver(session, found.capabilities, events_max=found.events_max)

    async def aclose(self) -> None: ...


def push_hooks(
    broker: PushingBroker, session_class: Callable[[Topic], Session] = Session
) -> AdapterHooks:
    """Return the hooks of the contract suite."""

    def narrow() -> PushedQueues:
        return PushedQueues(broker, NARROW_EVENTS, session_class)

    return AdapterHooks(kill=broker.kill, narrow=narrow, patience_s=60.0)
