"""Acknowledging by hand, at the grain's end.

Owns: `AcksByHand`: what one subscription of an activation was given and has acknowledged;
`AckCalls`, which tells the agent of it; `AcksTarget`, where the agent's silo hears it. Not: what
comes again (`agent`).
Invariants: an acknowledgement is of its event and of all before it; while a delivery runs it goes
with the reply, else in a message, of which one is under way for a queue; the newest is told; that
one is lost costs nothing but that events are asked for again, and are answered without running.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from millstream.runtime import MillstreamError
from millstream.runtime.extending import SiloServices, SystemTarget, shown
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.token import Token

from .batch import ByHand, WireBatch

__all__ = ["AckCalls", "AcksByHand", "AcksTarget"]

log = logging.getLogger("millstream.consumer")


class Agent(Protocol):
    """What reads a queue in this silo."""

    def acked(self, stream: StreamId, subscription: str, upto: Token, /) -> None: ...


class Agents(Protocol):
    """The queues that this silo reads."""

    def agent(self, queue: QueueId, /) -> Agent | None: ...


class AcksTarget(SystemTarget):
    """What has been acknowledged by hand, of the queues of one provider that this silo reads."""

    target_name = "$acks"

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def acked(
        self, queue: str, namespace: str, key: str, subscription: str, upto: Token
    ) -> None:
        """Up to a token; of a queue that is not here any more it is left aside."""
        agent = self._agents.agent(queue)
        if agent is not None:
            agent.acked(StreamId(namespace, key), subscription, upto)


class AckCalls:
    """Tells the agents of one provider, wherever they are; it outlives the activation."""

    def __init__(self, services: SiloServices, provider: str) -> None:
        self._services = services
        self._target = f"{AcksTarget.target_name}/{provider}"

    def start(self, telling: Coroutine[Any, Any, None]) -> None:
        """Tell in the background."""
        self._services.tasks.start(telling)

    async def tell(
        self, silo: str, queue: QueueId, stream: StreamId, subscription: str, upto: Token
    ) -> None:
        """A subscription has acknowledged up to a token; that it fails is no harm."""
        call = self._services.targets.call
        try:
            await call(silo, self._target, AcksTarget.acked, queue, *stream, subscription, upto)
        except MillstreamError as error:
            text = "%s: an acknowledgement did not reach the agent of %s: %s"
            log.info(text, shown(subscription), queue, error)


class AcksByHand:
    """The acknowledgements of one subscription, in one activation."""

    def __init__(self, batch: WireBatch, calls: AckCalls) -> None:
        self._subscription = batch.subscription
        self._stream = StreamId(batch.namespace, batch.key)
        self._calls = calls
        self._given: dict[str, Token] = {}  # by queue: up to here the handler has had them
        self._upto: dict[str, Token] = {}  # by queue: up to here they are acknowledged
        self._agents: dict[str, ByHand] = {}
        self._running: set[str] = set()
        self._telling: set[str] = set()

    def upto(self, queue: str) -> Token | None:
        """Up to here the events of a queue are acknowledged."""
        return self._upto.get(queue)

    def begins(self, batch: WireBatch) -> None:
        """The handler is given a delivery."""
        assert batch.by_hand is not None
        queue, last = batch.queue, batch.items[-1].token
        self._agents[queue] = batch.by_hand
        self._given[queue] = max(last, self._given.get(queue, last))
        self._running.add(queue)

    def ends(self, queue: str) -> None:
        """The delivery is over; its reply tells what is acknowledged."""
        self._running.discard(queue)

    def forget(self, queue: str) -> None:
        """The subscription was moved back: what was acknowledged comes again."""
        self._upto.pop(queue, None)
        self._given.pop(queue, None)

    def ack(self, token: Token) -> None:
        """An event is acknowledged. Raises ValueError: this activation was not given it."""
        if all(token > given for given in self._given.values()):
            raise ValueError(
                f"{shown(self._subscription)}: the event {token} of {shown(str(self._stream))} was "
                "not delivered to this activation, so it cannot be acknowledged here"
            )
        for queue, given in self._given.items():
            upto, known = min(token, given), self._upto.get(queue)
            if known is None or upto > known:
                self._upto[queue] = upto
                self._tell(queue)

    def _tell(self, queue: str) -> None:
        if queue not in self._running and queue not in self._telling:
            self._telling.add(queue)
            self._calls.start(self._told(queue))

    async def _told(self, queue: str) -> None:
        """Tell the agent, until it knows the newest or a reply will say it."""
        told: Token | None = None
        try:
            while queue not in self._running and (upto := self._upto.get(queue)) != told:
                assert upto is not None
                told, silo = upto, self._agents[queue].silo
                await self._calls.tell(silo, queue, self._stream, self._subscription, upto)
        finally:
            self._telling.discard(queue)
