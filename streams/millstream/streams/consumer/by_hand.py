"""Manual acknowledgement, on the grain's side.

`AcksByHand` records the events that one subscription of an activation has received and
acknowledged. `AckCalls` sends acknowledgements to the agent, and `AcksTarget` receives them in the
agent's silo. The agent decides about redelivery.

Invariants:

- An acknowledgement covers its event and all events before it.
- During a delivery, the reply carries the acknowledgement. Otherwise a message does, with at most
  one message in flight for a queue.
- The message carries the newest acknowledgement, and goes to the present owner of the queue.
- If an acknowledgement is lost, the agent sends the events again, and the activation confirms them
  without running the handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from millstream.runtime import MillstreamError
from millstream.runtime.extending import SiloServices, SystemTarget, show_text
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.token import Token

from .batch import ByHand, WireBatch

__all__ = ["AckCalls", "AcksByHand", "AcksTarget"]

log = logging.getLogger("millstream.consumer")

TELLS_MAX = 20  # failed attempts for one acknowledgement; ten seconds if each fails at once
TELL_RETRY_S = 0.05  # the wait grows by this after each failure


class Agent(Protocol):
    """The pulling agent of a queue in this silo."""

    def on_acked(self, stream: StreamId, subscription: str, upto: Token, /) -> bool:
        """Accept an acknowledgement. False: the subscription is not known yet, or it is ending."""
        ...


class AgentFinder(Protocol):
    """Finds the agent of a queue that this silo reads."""

    def agent(self, queue: QueueId, /) -> Agent | None: ...


class AcksTarget(SystemTarget):
    """Receives manual acknowledgements for the queues of one provider that this silo reads."""

    target_name = "$acks"

    def __init__(self, agents: AgentFinder) -> None:
        self._agents = agents

    async def ack(
        self, queue: str, namespace: str, key: str, subscription: str, upto: Token
    ) -> bool:
        """Acknowledge up to a token. False: this silo has no agent that can accept it."""
        agent = self._agents.agent(queue)
        return agent is not None and agent.on_acked(StreamId(namespace, key), subscription, upto)


class AckCalls:
    """Sends acknowledgements to the agents of one provider; it outlives an activation.

    Args:
        owner: finds the silo that reads a queue at present; None if no silo does. Raises
            StorageError.
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
        """Run a coroutine that sends acknowledgements, in the background."""
        self._services.tasks.start(telling)

    async def tell(
        self, silo: str, queue: QueueId, stream: StreamId, subscription: str, upto: Token
    ) -> bool:
        """Send an acknowledgement up to a token. False: no agent accepted it."""
        call, acked = self._services.targets.call, AcksTarget.ack
        try:
            return await call(silo, self._target, acked, queue, *stream, subscription, upto)
        except MillstreamError as error:
            text = "%s: an acknowledgement did not reach the agent of %s: %s"
            log.info(text, show_text(subscription), queue, error)
            return False

    async def owner(self, queue: QueueId, nth: int) -> str:
        """Wait after the failed attempt number `nth`, then find the owner; empty if it is
        unknown."""
        await asyncio.sleep(TELL_RETRY_S * nth)
        try:
            return await self._owner(queue) or ""
        except MillstreamError as error:
            log.info("the owner of queue %s could not be read: %s", queue, error)
            return ""


class AcksByHand:
    """The acknowledgements of one subscription, in one activation."""

    def __init__(self, batch: WireBatch, calls: AckCalls) -> None:
        self._subscription = batch.subscription
        self._stream = StreamId(batch.namespace, batch.key)
        self._calls = calls
        self._given: dict[str, Token] = {}  # by queue: the last token that the handler received
        self._upto: dict[str, Token] = {}  # by queue: the last acknowledged token
        self._agents: dict[str, ByHand] = {}
        self._running: set[str] = set()
        self._telling: set[str] = set()

    def upto(self, queue: str) -> Token | None:
        """Return the token up to which the events of a queue are acknowledged; None if none is."""
        return self._upto.get(queue)

    def all_acked(self) -> dict[str, Token]:
        """Return the last acknowledged token of each queue."""
        return dict(self._upto)

    def continue_after(self, acked: Mapping[str, Token]) -> None:
        """Continue after the acknowledgements of the activation that has moved here."""
        self._upto.update(acked)

    def begins(self, batch: WireBatch) -> None:
        """Record that the handler receives a delivery."""
        assert batch.by_hand is not None
        queue, last = batch.queue, batch.items[-1].token
        self._agents[queue] = batch.by_hand
        self._given[queue] = max(last, self._given.get(queue, last))
        self._running.add(queue)

    def ends(self, queue: str) -> None:
        """Record that a delivery has ended; its reply carries the acknowledgements so far."""
        self._running.discard(queue)

    def forget(self, queue: str) -> None:
        """Forget a queue: the subscription was moved back, and acknowledged events are delivered
        again."""
        self._upto.pop(queue, None)
        self._given.pop(queue, None)

    def ack(self, token: Token) -> None:
        """Acknowledge an event and all events before it.

        Raises ValueError if the event is later than every event that this activation received.
        """
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
        """Send acknowledgements until the agent knows the newest one, or a reply will carry it."""
        told, failures, silo = None, 0, self._agents[queue].silo
        try:
            while (upto := self._untold(queue, told)) is not None and failures < TELLS_MAX:
                stream, name = self._stream, self._subscription
                if silo and await self._calls.tell(silo, queue, stream, name, upto):
                    told, failures, silo = upto, 0, self._agents[queue].silo
                else:  # the queue has another owner now, or will have one soon
                    failures += 1
                    silo = await self._calls.owner(queue, failures)
        finally:
            self._telling.discard(queue)

    def _untold(self, queue: str, told: Token | None) -> Token | None:
        """Return the acknowledged token that the agent does not know yet. None: the agent knows
        all, or a running delivery will report the token with its reply."""
        upto = self._upto.get(queue)
        return None if upto == told or queue in self._running else upto
