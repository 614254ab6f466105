"""Acknowledging by hand, at the grain's end.

Owns: `AcksByHand`: what one subscription of an activation was given and has acknowledged;
`AckCalls`, which tells the agent of it; `AcksTarget`, where the agent's silo hears it. Not: what
comes again (`agent`).
Invariants: an acknowledgement is of its event and of all before it; while a delivery runs it goes
with the reply, else in a message, of which one is under way for a queue; the newest is told; the
owner of the queue is told, also where that has changed since the delivery; that one is lost costs
nothing but that events are asked for again, and are answered without running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from millstream.runtime import MillstreamError
from millstream.runtime.extending import SiloServices, SystemTarget, show_text
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.token import Token

from .batch import ByHand, WireBatch

__all__ = ["AckCalls", "AcksByHand", "AcksTarget"]

log = logging.getLogger("millstream.consumer")

TELLS_MAX = 20  # in vain, for one acknowledgement; in ten seconds, if each answers at once
TELL_RETRY_S = 0.05  # longer by as much each time


class Agent(Protocol):
    """What reads a queue in this silo."""

    def on_acked(self, stream: StreamId, subscription: str, upto: Token, /) -> bool:
        """Take an acknowledgement; False: it does not know the subscription yet, or it ends."""
        ...


class AgentFinder(Protocol):
    """The queues that this silo reads."""

    def agent(self, queue: QueueId, /) -> Agent | None: ...


class AcksTarget(SystemTarget):
    """What has been acknowledged by hand, of the queues of one provider that this silo reads."""

    target_name = "$acks"

    def __init__(self, agents: AgentFinder) -> None:
        self._agents = agents

    async def ack(
        self, queue: str, namespace: str, key: str, subscription: str, upto: Token
    ) -> bool:
        """Up to a token; False: the agent that has to know of it is not here."""
        agent = self._agents.agent(queue)
        return agent is not None and agent.on_acked(StreamId(namespace, key), subscription, upto)


class AckCalls:
    """Tells the agents of one provider, wherever they are; it outlives the activation.

    Args:
        owner: the silo that reads a queue now; None: no silo does. Raises StorageError.
    """

    def __init__(
        self,
        services: SiloServices,
        provider: str,
        owner: Callable[[QueueId], Awaitable[str | None]],
    ) -> None:
        self._services = services
        self._owner = owner
        self._target = f"{AcksTarget.target_name}/{provider}"

    def start(self, telling: Coroutine[Any, Any, None]) -> None:
        """Tell in the background."""
        self._services.tasks.start(telling)

    async def tell(
        self, silo: str, queue: QueueId, stream: StreamId, subscription: str, upto: Token
    ) -> bool:
        """A subscription has acknowledged up to a token; False: no agent has taken that."""
        call, acked = self._services.targets.call, AcksTarget.ack
        try:
            return await call(silo, self._target, acked, queue, *stream, subscription, upto)
        except MillstreamError as error:
            text = "%s: an acknowledgement did not reach the agent of %s: %s"
            log.info(text, show_text(subscription), queue, error)
            return False

    async def owner(self, queue: QueueId, nth: int) -> str:
        """Who is told next, after `nth` times in vain and a wait; empty: not known."""
        await asyncio.sleep(TELL_RETRY_S * nth)
        try:
            return await self._owner(queue) or ""
        except MillstreamError as error:
            log.info("the owner of %s is not known: %s", queue, error)
            return ""


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
                f"{show_text(self._subscription)}: the event {token} of "
                f"{show_text(str(self._stream))} was not delivered to this activation, so it "
                "cannot be acknowledged here"
            )
        for queue, given in self._given.items():
            upto, known = min(token, given), self._upto.get(queue)
            if known is None or upto > known:
                self._upto[queue] = upto
                self._tell(queue)

    def _tell(self, queue: str) -> None:
        if queue not in self._running and queue not in self._telling:
            self._telling.add(queue)
            self._calls.start(self._tell_agent(queue))

    async def _tell_agent(self, queue: str) -> None:
        """Tell the agent, until it knows the newest or a reply will say it."""
        told, failures, silo = None, 0, self._agents[queue].silo
        try:
            while (upto := self._untold(queue, told)) is not None and failures < TELLS_MAX:
                stream, name = self._stream, self._subscription
                if silo and await self._calls.tell(silo, queue, stream, name, upto):
                    told, failures, silo = upto, 0, self._agents[queue].silo
                else:  # the queue may have another owner, or will have
                    failures += 1
                    silo = await self._calls.owner(queue, failures)
        finally:
            self._telling.discard(queue)

    def _untold(self, queue: str, told: Token | None) -> Token | None:
        """What the agent has not been told; None: nothing, or a reply will say it."""
        upto = self._upto.get(queue)
        return None if upto == told or queue in self._running else upto
