"""Sending what deliveries offer: the driver of the delivery cores of one agent.

Owns: the calls that are out (at most `calls_out_max`), their order (round robin over subscriptions
with work), timers of back-off, giving up. Not: what to send and when to retry (`delivery`).
Invariants: one call at a time per subscription; after each step a delivery that is ready is queued
and one that is closed is dropped; nothing is sent while paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.runtime import (
    ActivationTimeout,
    CallTimeout,
    ClusterError,
    MillstreamError,
    Overloaded,
    Rejected,
    StorageError,
)
from millstream.streams.consumer.extension import Consumer, Delivered, WireBatch
from millstream.streams.contracts.item import Item

from .dead_letters import DeadLetter, DeliveryFailure
from .delivery import (
    Action,
    Deliver,
    Delivery,
    DeliveryState,
    Event,
    Failure,
    FailureKind,
    GivenUp,
    GiveUp,
    Progress,
    Sent,
    Tick,
    Unreachable,
    WaitUntil,
    Wake,
)
from .subscriber import Subscriber

if TYPE_CHECKING:
    from millstream.streams.provider.provider import PersistentStreams

    from .reader import PullingAgent

__all__ = ["Dispatch"]

log = logging.getLogger("millstream.delivery")

# not the handler's fault: wait and try again without end
UNREACHABLE = (CallTimeout, ClusterError, Overloaded, Rejected, StorageError)
OUTCOMES = ("dead_letter", "skip", "pause")
ANSWER_S = 5.0  # for a handler's answer to arrive, beyond the handler's own time


class Dispatch:
    """Drives the deliveries of one agent."""

    def __init__(self, provider: PersistentStreams, agent: PullingAgent) -> None:
        self._provider = provider
        self._agent = agent
        self._services = provider.services
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Subscriber] = deque()
        self._tasks = self._services.new_tasks()
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self._is_paused = False
        self._is_closed = False
        self.calls_out = 0
        self.delivered_count = 0
        self.given_up_count = 0

    # -- work

    def offer(self, subscriber: Subscriber, index: int) -> None:
        """A message at `index` is for this subscription."""
        if self._is_closed or subscriber.delivery is not None:
            return  # its cursor will come to the message by itself
        delivery = Delivery(
            self._agent.cache,
            subscriber.stream,
            subscriber.options,
            at=index,
            after=subscriber.position,
            window=subscriber.window,
            is_held=subscriber.is_held,
        )
        if delivery._cursor.is_drained:
            delivery.close()
            return
        subscriber.delivery = delivery
        if not subscriber.is_held:
            self._queue(subscriber)

    def drop(self, subscriber: Subscriber) -> None:
        """The subscription ends: what is out will be ignored."""
        if subscriber.delivery is not None:
            subscriber.delivery.close()
            subscriber.delivery = None

    def pause(self) -> None:
        """Start no more calls."""
        self._is_paused = True

    def resume(self) -> None:
        """Start calls again."""
        self._is_paused = False
        self.pump()

    def close(self) -> None:
        """End: replies that are still out are ignored."""
        self._is_closed = self._is_paused = True
        for timer in self._timers:
            timer.cancel()
        self._tasks.cancel()

    def _queue(self, subscriber: Subscriber) -> None:
        if not subscriber.is_queued:
            subscriber.is_queued = True
            self._ready.append(subscriber)

    def pump(self) -> None:
        """Start as many calls as may be out."""
        limit = self._provider.options.calls_out_max
        while self._ready and self.calls_out < limit and not self._is_paused:
            subscriber = self._ready.popleft()
            subscriber.is_queued = False
            if subscriber.delivery is not None:
                self._step(subscriber, subscriber.delivery, Wake())

    def _step(self, subscriber: Subscriber, delivery: Delivery, event: Event) -> None:
        actions = delivery.step(event)
        for action in actions:
            self._act(subscriber, delivery, action)
        if delivery.state is DeliveryState.READY:
            self._queue(subscriber)
        elif delivery.state is DeliveryState.CLOSED and subscriber.delivery is delivery:
            subscriber.position, subscriber.window = delivery.position, delivery.window
            subscriber.delivery = None

    def _act(self, subscriber: Subscriber, delivery: Delivery, action: Action) -> None:
        if isinstance(action, Deliver):
            index = delivery.index  # of a backlog that a former owner may have delivered?
            subscriber.is_redelivered = index is not None and index <= self._agent.repeats_upto
            delivery.step(Sent(len(action.items), self._loop.time()))
            self.calls_out += 1
            self._tasks.start(self._deliver(subscriber, delivery, action.items, action.attempt))
        elif isinstance(action, WaitUntil):
            self._tick_at(subscriber, delivery, action.when_s)
        elif isinstance(action, GiveUp):
            self._tasks.start(self._give_up(subscriber, delivery, action))

    def _tick_at(self, subscriber: Subscriber, delivery: Delivery, when_s: float) -> None:
        def tick() -> None:
            self._timers.pop(timer, None)
            self._step(subscriber, delivery, Tick(max(self._loop.time(), when_s)))
            self.pump()

        timer = self._tasks.call_at(when_s, tick)
        self._timers[timer] = None

    # -- one call

    async def _deliver(
        self, subscriber: Subscriber, delivery: Delivery, items: Sequence[Item], attempt: int
    ) -> None:
        try:
            event = await self._send(subscriber, items, attempt)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed or task is None:
                raise
            task.uncancel()  # only a handler can have done that: it runs in this task
            event = self._failed(FailureKind.HANDLER, "the handler cancelled the task it runs in")
        finally:
            self.calls_out -= 1
        if self._is_closed:
            self._agent._provider.manager.wake(self._agent.queue)
            return
        if isinstance(event, Progress):
            self.delivered_count += event.done
            if event.done:
                subscriber.is_rewound = False
        self._step(subscriber, delivery, event)
        self._agent.progressed()
        self.pump()
        if self._is_paused:
            self._agent._provider.manager.wake(self._agent.queue)

    async def _send(self, subscriber: Subscriber, items: Sequence[Item], attempt: int) -> Event:
        """Call the consumer; every outcome becomes an event of the delivery core."""
        sent, last = subscriber.sent_upto, items[-1].token
        was_sent = sent is not None and items[0].token <= sent
        subscriber.sent_upto = last if sent is None else max(sent, last)
        batch = WireBatch(
            subscriber.id,
            subscriber.handler,
            subscriber.stream.namespace,
            subscriber.stream.key,
            self._agent.queue,
            self._agent.epoch,
            attempt,
            was_sent or subscriber.is_redelivered or subscriber.is_rewound or attempt > 1,
            items,
            subscriber.options.handler_timeout_s,
            subscriber.is_rewound,
        )
        timeout_s = subscriber.options.handler_timeout_s + ANSWER_S
        try:
            reply = await self._services.extensions.call(
                subscriber.grain_type,
                subscriber.grain_key,
                Consumer.deliver,
                (batch,),
                timeout_s,
            )
        except ActivationTimeout as error:
            return self._failed(FailureKind.ACTIVATION, error_text(error))
        except UNREACHABLE as error:
            return Unreachable(str(error), self._loop.time(), self._roll())
        except Exception as error:
            return self._failed(FailureKind.ACTIVATION, error_text(error))
        return self._progress(reply)

    def _progress(self, reply: Delivered) -> Event:
        if reply.is_fenced:
            self._agent.is_fenced = True
            self._provider.manager.wake(self._agent.queue)
            return Unreachable("fenced", self._loop.time(), self._roll())
        failure = None
        if reply.error:
            error = self._services.decode_error(reply.error)
            is_late = isinstance(error, CallTimeout)
            kind = FailureKind.TIMEOUT if is_late else FailureKind.HANDLER
            failure = Failure(kind, error_text(error))
        return Progress(reply.done, failure, self._loop.time(), self._roll())

    def _failed(self, kind: FailureKind, text: str) -> Progress:
        return Progress(0, Failure(kind, text), self._loop.time(), self._roll())

    def _roll(self) -> float:
        return self._services.clock.uniform(0.0, 1.0)

    # -- giving up

    async def _give_up(self, subscriber: Subscriber, delivery: Delivery, action: GiveUp) -> None:
        item = action.item
        failure = DeliveryFailure(
            self._provider.name,
            subscriber.id,
            subscriber.stream,
            item.token,
            item.body,
            dict(item.headers or {}),
            action.attempts,
            action.error.text,
        )
        try:
            outcome = await self._decide(subscriber, delivery, failure)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a handler of failures that fails is asked again
            if self._is_closed:
                return  # nobody waits for the answer any more
            self._take_back_cancellation(error)
            self._log_no_answer(failure, error)
            event: Event = Unreachable(error_text(error), self._loop.time(), self._roll())
        else:
            if outcome is None:
                return
            self._log_outcome(failure, outcome)
            self.given_up_count += 1
            event = GivenUp(outcome)
        self._step(subscriber, delivery, event)
        self._agent.progressed()
        self.pump()

    def _take_back_cancellation(self, error: BaseException) -> None:
        """While the dispatch is open only the failure handler can have cancelled its task."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None:
            task.uncancel()

    async def _decide(
        self, subscriber: Subscriber, delivery: Delivery, failure: DeliveryFailure
    ) -> Any:
        """The outcome, once it is stored; None: the subscription ended meanwhile."""
        outcome = await self._ask(failure, subscriber.options.give_up_timeout_s)
        if delivery.state is DeliveryState.CLOSED:
            return None
        if outcome == "dead_letter" and not subscriber.keeps_dead_letters:
            outcome = "skip"
        if outcome == "dead_letter":
            await self._provider.dead_letters.put(
                DeadLetter(failure, self._services.clock.wall_s())
            )
        elif outcome == "pause":
            if subscriber.is_explicit:
                await self._provider.fault(subscriber.stream, subscriber.id, failure.error)
            subscriber.is_held = True
        return outcome

    async def _ask(self, failure: DeliveryFailure, timeout_s: float) -> Any:
        """The failure handler's answer. Raises what it raises, and NoAnswer."""
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                outcome: Any = await self._provider.on_give_up.give_up(failure)
        except TimeoutError:
            if limit.expired():
                raise NoAnswer(
                    f"no answer within {timeout_s:g} s (DeliveryOptions.give_up_timeout_s); the "
                    "subscription waits until there is one: let give_up return, or raise the limit"
                ) from None
            raise
        if outcome not in OUTCOMES:
            raise TypeError(f"give_up returned {outcome!r}, not one of {', '.join(OUTCOMES)}")
        return outcome

    def _log_no_answer(self, failure: DeliveryFailure, error: BaseException) -> None:
        """Say that the failure handler will be asked again, and why."""
        is_known = isinstance(error, MillstreamError | NoAnswer)
        log.log(
            logging.WARNING if isinstance(error, MillstreamError) else logging.ERROR,
            "on_give_up for %s of %s for %s is asked again: %s",
            failure.token,
            failure.stream,
            failure.subscription,
            error_text(error),
            exc_info=None if is_known else error,
        )

    def _log_outcome(self, failure: DeliveryFailure, outcome: str) -> None:
        log.error(
            "%s gave up %s at %s after %d attempts (%s): %s",
            failure.subscription,
            failure.stream,
            failure.token,
            failure.attempts,
            outcome,
            failure.error.splitlines()[0],
        )


class NoAnswer(Exception):
    """A failure handler took too long."""


def error_text(error: BaseException) -> str:
    """An error with its notes, which hold the callee's traceback, as text that can be stored."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    try:
        said = str(error)
    except Exception as another:
        said = f"(its text cannot be made: {type(another).__name__})"
    text = f"{type(error).__name__}: {said}\n{notes}".rstrip()
    return text.encode("utf-8", "backslashreplace").decode()
