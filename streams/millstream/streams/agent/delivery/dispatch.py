"""The driver of the delivery cores of one agent: sends the events that deliveries offer.

Owns the calls in flight (at most `calls_out_max`), their order (round robin over subscriptions with
work), and the timers of back-off. `delivery` chooses the events and the time of retries,
`deliveries` the places of deliveries. `give_ups` handles events that are given up.

Invariants:

- A subscription has one call in flight at a time, even if it was ended and made again meanwhile.
- After each step, a delivery that is ready is queued, and one that is closed is dropped.
- Nothing is sent while paused, and no event before the former queue of its stream is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from millstream.runtime.extending import (
    Backoff,
    LineBudget,
    Runners,
    SiloServices,
    Tasks,
    show_text,
)
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.positions import LAST_INDEX, SubscriptionKey
from millstream.streams.agent.losses import Loss
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.agent.queue_epoch import QueueEpoch
from millstream.streams.consumer.batch import ByHand
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.layout import Layout

from .consumer_calls import ConsumerCalls
from .deaths import Deaths
from .delivery import Delivery
from .give_ups import GiveUps, error_text, failure_of, is_task, take_back_cancellation
from .steps import (
    AckBy,
    Action,
    Deliver,
    DeliveryState,
    Died,
    Failure,
    FailureKind,
    Fetch,
    GiveUp,
    HandBack,
    Outcome,
    Unreachable,
    WaitUntil,
)
from .subscriber import Seat, Subscriber, upto

__all__ = ["AttemptLog", "Dispatch"]

log = logging.getLogger("millstream.delivery")


HELD = Backoff(first_s=2.0, ceiling_s=60.0)
"""The delay for messages that a stopped subscription returns to a queue without order."""


class Dispatch:
    """Drives the deliveries of one agent.

    Args:
        layout: knows the events that wait for the former queue of their stream; None: the number of
            queues cannot change.
        failed: receives the given-up events with their errors, if the queue needs them.
        give_back: returns messages to the queue with a delay; the last argument says whether a
            handler had them.
        fetch: reads items again for lagging cursors.
        progressed: called when a delivery has moved: there may be room, and messages to
            acknowledge.
    """

    __slots__ = (
        "_attempts",
        "_cache",
        "_calls_out_max",
        "_clock",
        "_consumers",
        "_deaths",
        "_early",
        "_epoch",
        "_failed",
        "_fetch",
        "_give_back",
        "_give_ups",
        "_is_paused",
        "_laggards",
        "_lagging",
        "_layout",
        "_limit",
        "_out",
        "_progressed",
        "_ready",
        "_runners",
        "_services",
        "_tasks",
        "_timers",
        "_wary",
        "calls_out",
        "delivered_count",
        "given_up_count",
        "is_closed",
    )

    def __init__(
        self,
        services: SiloServices,
        epoch: QueueEpoch,
        laggards: LaggingCursors,
        give_ups: GiveUps,
        wary: Wary,
        deaths: Deaths,
        failed: dict[Token, str],
        *,
        layout: Layout | None,
        has_positions: bool,
        calls_out_max: int,
        tasks: Tasks,
        runners: Runners,
        give_back: Callable[[Sequence[Token], float, bool], None],
        fetch: Callable[[], None],
        progressed: Callable[[], None],
    ) -> None:
        self._services, self._clock, self._epoch = services, services.clock, epoch
        self._laggards, self._cache = laggards, laggards.cache
        self._give_ups = give_ups
        self._failed = failed
        self._layout = layout
        self._consumers = ConsumerCalls(services, epoch, has_positions=has_positions)
        self._calls_out_max = self._limit = calls_out_max  # 1 while an event runs alone
        self._wary = wary
        self._deaths = deaths
        self._tasks = tasks
        self._runners = runners  # they outlive the agent: a hand-over ends no handler
        self._give_back, self._fetch = give_back, fetch
        self._progressed = progressed
        self._attempts = AttemptLog(epoch.silo, epoch.queue)
        self._ready: deque[Subscriber] = deque()
        self._out: dict[SubscriptionKey, Subscriber | None] = {}  # and its waiting successor
        self._lagging: dict[SubscriptionKey, Subscriber] = {}
        self._early: dict[StreamId, list[Subscriber]] = {}  # their former queue is not done
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self._is_paused = False
        self.is_closed = False
        self.calls_out = 0
        self.delivered_count = 0
        self.given_up_count = 0

    # -- work

    def start_lagging(self, subscriber: Subscriber) -> None:
        """Make the cursor of a subscription lag, so that it pins nothing in the cache.

        If no further cursor may lag, return the messages of the subscription to the queue, where
        the queue allows that.
        """
        delivery = subscriber.delivery
        if delivery is None:
            return
        if self._laggards.has_place:
            index = delivery.cursor.index
            may_repeat = index is not None and index <= self._cache.repeats_upto
            delivery.start_lagging(may_repeat=may_repeat)
            behind = self._laggards.get(subscriber.key)
            if subscriber.is_manual and behind is not None:
                behind.sent = subscriber.sent_upto
        elif tokens := delivery.going_back():
            subscriber.returns += 1
            self._give_back(tokens, HELD.whole_s(subscriber.returns), False)
            delivery.let_go()  # only now, otherwise they would look done

    def on_acked(self, subscriber: Subscriber, upto: Token) -> None:
        """Handle a manual acknowledgement."""
        if subscriber.work is None or subscriber.rewinds_done < subscriber.rewinds:
            return  # it has no work, or was moved back since
        self.apply(subscriber, subscriber.work, subscriber.work.on_acked(upto))
        self._progressed()
        self.pump()
        if self._is_paused:
            self._epoch.decide_again()

    def pause(self) -> None:
        """Start no more calls."""
        self._is_paused = True

    def resume(self) -> None:
        """Start calls again."""
        self._is_paused = False
        self.pump()

    def close(self) -> None:
        """Close: calls in flight continue, and their replies are ignored."""
        self.is_closed = self._is_paused = True
        for timer in self._timers:
            timer.cancel()
        self._tasks.cancel()

    def lagging(self) -> list[Cursor]:
        """Return the cursors that wait for items to be read again."""
        found: list[Cursor] = []
        for key, subscriber in list(self._lagging.items()):
            delivery, cursor = subscriber.delivery, self._laggards.get(key)
            if delivery is not None and delivery.state is DeliveryState.LAGGING and cursor:
                found.append(cursor)
                continue
            del self._lagging[key]
            if delivery is not None:  # it may have reached the cache by itself
                self.apply(subscriber, delivery, delivery.on_fetched())
        self.pump()
        return found

    def on_events_lost(self, behind: Cursor, loss: Loss) -> None:
        """Report a loss to the subscription of a waiting cursor."""
        subscriber = self._lagging.get(behind.key)
        if subscriber is not None:
            subscriber.lose(loss)

    def on_fetched(self) -> None:
        """Let the waiting deliveries continue, because items were read again, or are lost."""
        for key, subscriber in list(self._lagging.items()):
            del self._lagging[key]  # one by one: a failing step affects no other one
            if subscriber.delivery is not None:
                self.apply(subscriber, subscriber.delivery, subscriber.delivery.on_fetched())
        self._progressed()
        self.pump()

    # -- its state, for reports

    def seat_of(self, subscriber: Subscriber, reading: str) -> Seat:
        """Return the surroundings of a delivery; `reading` describes the present rereading, in
        words."""
        delivery, key = subscriber.delivery, subscriber.key
        is_feared = delivery is not None and delivery.is_feared
        return Seat(
            self._clock.now(),
            self.calls_out,
            self._calls_out_max,
            is_paused=self._is_paused,
            is_alone=self._limit < self._calls_out_max or is_feared,
            is_wary=self._wary.is_on,
            is_out=key in self._out,
            is_early=subscriber in self._early.get(subscriber.stream, ()),
            is_lagging=self._lagging.get(key) is subscriber and self._laggards.get(key) is not None,
            reading=reading,
            silo=self._services.silo_of(subscriber.grain_type, subscriber.grain_key),
        )

    def dump_of(self, subscriber: Subscriber) -> str:
        """Return the state of a subscription and of its delivery, for a report of a fault."""
        delivery, behind = subscriber.delivery, self._laggards.get(subscriber.key)
        seen: dict[str, object] = {
            "held": subscriber.held,
            "is_paused": subscriber.is_paused,
            "is_queued": subscriber.is_queued,
            "is_in_ready": subscriber in self._ready,
            "limit": self._limit,
        }
        if delivery is not None:
            holds, sends = delivery.place
            seen |= {"state": delivery.state.value, "holds": holds, "sends": sends}
            seen["trouble"] = delivery.trouble
        if behind is not None:
            seen |= {"following": behind.following, "dropped": behind.dropped}
            seen |= {"is_full": behind.is_full, "keeps": behind.keeps}
        return ", ".join(f"{name}={value}" for name, value in seen.items())

    def leave_early(self, subscriber: Subscriber) -> None:
        """Let a moved subscription no longer wait for the former queue of its stream."""
        early = self._early.get(subscriber.stream, [])
        if subscriber in early:
            early.remove(subscriber)
            subscriber.is_queued = False

    def pump(self) -> None:
        """Start as many calls as the limit permits."""
        while self._ready and self.calls_out < self._limit and not self._is_paused:
            subscriber = self._ready.popleft()
            subscriber.is_queued = False
            delivery = subscriber.delivery
            if delivery is None or delivery.state is not DeliveryState.READY:
                continue
            if subscriber.key in self._out:
                self._out[subscriber.key] = subscriber  # the call of its predecessor is in flight
            elif delivery.is_feared or self._wary.is_on:
                if not self._send_alone(subscriber, delivery):
                    subscriber.is_queued = True
                    self._ready.appendleft(subscriber)
                    return
            else:
                self.apply(subscriber, delivery, delivery.wake())

    def _send_alone(self, subscriber: Subscriber, delivery: Delivery) -> bool:
        """Send one item while no other call of the queue is in flight.

        Return False if that is not possible yet.
        """
        if self.calls_out:
            return False
        wary, cursor = self._wary, delivery.cursor
        token = cursor.next_token
        if wary.is_on and token is not None and not cursor.is_away:
            more = wary.deaths_of(subscriber.key, token) - delivery.tries.deaths
            if more > 0:
                self.apply(subscriber, delivery, delivery.on_death(Died(more, is_alone=True)))
            if not wary.may_send(subscriber.key, token, delivery.tries.deaths):
                self._epoch.decide_again()
                return False
        delivery.careful = max(1, delivery.careful)
        self._limit = 1
        self.apply(subscriber, delivery, delivery.wake())
        if not self.calls_out:
            self._limit = self._calls_out_max
        return True

    def judge(self) -> None:
        """Count the lost calls whose silo crashed, after a change of the membership."""
        for subscriber, delivery, died in list(self._deaths.iter_judged()):
            self.apply(subscriber, delivery, delivery.on_death(died))
            self.pump()

    def apply(self, subscriber: Subscriber, delivery: Delivery, actions: Sequence[Action]) -> None:
        """Carry out the actions of a delivery, and queue it if it is ready then."""
        for action in actions:
            match action:
                case Deliver():
                    self._send(subscriber, delivery, action)
                case Fetch():
                    self._lagging[subscriber.key] = subscriber
                    self._fetch()
                case WaitUntil():
                    self._call_at(subscriber, delivery, action.when_s, delivery.tick)
                case AckBy():
                    self._call_at(subscriber, delivery, action.when_s, delivery.ack_due)
                case HandBack():
                    token, attempts, now_s = action.token, action.attempts, self._clock.now()
                    self._attempts.log_failure(subscriber, token, attempts, action.error, now_s)
                    self._give_back([action.token], action.delay_s, True)
                case GiveUp():
                    self._tasks.start(self._give_up(subscriber, delivery, action))
        if delivery.state is DeliveryState.READY and not subscriber.is_queued:
            subscriber.is_queued = True
            self._ready.append(subscriber)

    def _send(self, subscriber: Subscriber, delivery: Delivery, action: Deliver) -> None:
        items, may_repeat = action.items, False
        if delivery.cursor.is_lagging or self._cache.repeats_upto >= 0:
            items, may_repeat = self._find_repeated(delivery, items)
        if subscriber.gaps:
            items = subscriber.upto_gap(items)
        layout = self._layout
        if layout is not None and items[-1].token.era > layout.open_era:
            items = self._open_part(subscriber, items, layout)
            if not items:
                return
        sent = subscriber.sent_upto
        if sent is not None and items[0].token <= sent:
            items, may_repeat = upto(items, sent), True
        subscriber.is_redelivered = may_repeat
        subscriber.retries += action.attempt > 1
        last = items[-1].token
        subscriber.sent_upto = last if sent is None or last > sent else sent
        delivery.on_sent(len(items), self._clock.now())
        self.calls_out += 1
        self._out[subscriber.key] = None
        self._runners.start(self._deliver(subscriber, delivery, items, action.attempt, sent))

    def _open_part(
        self, subscriber: Subscriber, items: Sequence[Item], layout: Layout
    ) -> Sequence[Item]:
        """Return the items that need not wait for the former queue; if none, the subscription
        waits."""
        stream, queue = subscriber.stream, self._epoch.queue
        found = list(takewhile(lambda one: layout.is_open(stream, queue, one.token.era), items))
        if not found:
            subscriber.is_queued = True  # in `_early`, until it is queued again
            if stream not in self._early:
                self._tasks.start(self._await_former(stream, items[0].token.era, layout))
            self._early.setdefault(stream, []).append(subscriber)
        return found

    async def _await_former(self, stream: StreamId, era: int, layout: Layout) -> None:
        await layout.wait_open(stream, self._epoch.queue, era)
        self._ready.extend(self._early.pop(stream))
        self.pump()

    def _find_repeated(
        self, delivery: Delivery, items: Sequence[Item]
    ) -> tuple[Sequence[Item], bool]:
        """Return the leading items that have the same answer: a former owner may have sent them, or
        not.

        Also returns that answer.
        """
        cursor, last = delivery.cursor, self._cache.repeats_to
        index = cursor.next_index
        is_backlog = index is not None and index <= self._cache.repeats_upto
        if not is_backlog and not (cursor.is_lagging and cursor.may_repeat):
            return items, False
        if last is None:
            return items, True
        end = Token(last.era, last.seq, LAST_INDEX)
        if items[0].token > end:
            return items, False
        return upto(items, end), True

    def _call_at(
        self,
        subscriber: Subscriber,
        delivery: Delivery,
        when_s: float,
        due: Callable[[float], Sequence[Action]],
    ) -> None:
        def call() -> None:
            self._timers.pop(timer, None)
            self.apply(subscriber, delivery, due(max(self._clock.now(), when_s)))
            self.pump()

        timer = self._tasks.call_at(when_s, call)
        self._timers[timer] = None

    # -- one call

    async def _deliver(
        self,
        subscriber: Subscriber,
        delivery: Delivery,
        items: Sequence[Item],
        attempt: int,
        sent: Token | None,
    ) -> None:
        rewinds, gaps = subscriber.rewinds, subscriber.gaps
        if gaps:
            gaps = subscriber.gaps_before(items[0].token)
        by_hand: ByHand | None = None
        if delivery.is_manual:
            cursor = delivery.cursor
            unacked_from = cursor.token if cursor.ahead else None
            by_hand = ByHand(self._epoch.silo, self._epoch.provider, unacked_from)
        is_alone = self._limit == 1
        outcome: Outcome
        try:
            outcome = await self._consumers.send(subscriber, items, attempt, gaps, by_hand)
        except asyncio.CancelledError:
            if self.is_closed:
                raise
            # Only a handler can have done that: it runs in this task, which ends with the call.
            outcome = self._consumers.make_failed(
                FailureKind.HANDLER, "the handler cancelled the task it runs in"
            )
        finally:
            self.calls_out -= 1
            self._limit = self._calls_out_max
            successor = self._out.pop(subscriber.key)
            if successor is not None and successor.delivery is not None:
                self.apply(successor, successor.delivery, ())
        if isinstance(outcome, Unreachable) and outcome.is_fenced:
            self._epoch.fence()
        if self.is_closed:
            self._epoch.decide_again()
            return
        if isinstance(outcome, Unreachable):
            died = Died(sent=len(items), is_alone=is_alone)
            self._on_lost(subscriber, delivery, outcome, died)
        else:
            self.delivered_count += outcome.done
            if outcome.is_anew:
                subscriber.sent_upto = sent  # the consumer has taken none of it
            if outcome.done and outcome.is_heard:
                subscriber.rewinds_done = rewinds
                if gaps:
                    subscriber.on_told(gaps)
                if self._wary.is_on:
                    self._wary.on_done(subscriber.key, items[0].token)
            actions = delivery.on_reply(outcome)
            if actions or delivery.cursor.slot is not None or delivery.cursor.is_lagging:
                self.apply(subscriber, delivery, actions)
            if outcome.error is not None and delivery.tries.error is not None:
                token, attempts = delivery.cursor.next_token, delivery.attempts
                self._attempts.log_failure(subscriber, token, attempts, outcome.error, outcome.at_s)
        self._progressed()
        if self._ready:
            self.pump()
        if self._is_paused:
            self._epoch.decide_again()

    def _on_lost(
        self, subscriber: Subscriber, delivery: Delivery, outcome: Unreachable, died: Died
    ) -> None:
        """Handle a call without a reply; `died` is the meaning if its silo crashed."""
        may_have_died = self._deaths.may_have_died(outcome.silo)
        if not may_have_died:
            outcome = Unreachable(outcome.reason, outcome.at_s, outcome.roll)
        self.apply(subscriber, delivery, delivery.unreachable(outcome))
        if may_have_died:
            self._deaths.on_lost(outcome.silo, subscriber, delivery, died)
            self.judge()

    # -- giving up

    async def _give_up(self, subscriber: Subscriber, delivery: Delivery, action: GiveUp) -> None:
        me = asyncio.current_task()
        failure = failure_of(subscriber, action, self._epoch.provider, self._epoch.queue)
        try:
            outcome = await self._give_ups.decide(subscriber, delivery, failure)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a failure handler that fails is asked again
            if self.is_closed or not is_task(me):
                return  # no caller is left, or the loop has ended
            take_back_cancellation(error)
            self._give_ups.log_no_answer(failure, error)
            outcome = None
            now_s, roll = self._clock.now(), self._clock.uniform(0.0, 1.0)
            actions = delivery.unreachable(Unreachable(error_text(error), now_s, roll))
        else:
            if outcome is None:
                return
            self.given_up_count += 1
            if self._wary.is_on:
                self._wary.on_done(subscriber.key, failure.token)
            if outcome != "pause":
                if self._cache.gives_back:
                    self._failed[failure.token._replace(index=0)] = action.error.text
                subscriber.on_told(subscriber.gaps_before(failure.token))  # with the event
            actions = delivery.on_given_up(outcome)
        self.apply(subscriber, delivery, actions)
        if delivery.state is DeliveryState.FAULTED:
            if outcome == "pause" and not subscriber.held:
                subscriber.held = "faulted"
            self.start_lagging(subscriber)
        self._progressed()
        self.pump()


class AttemptLog:
    """Logs failures, one line each; a flood of them becomes a few lines and a count."""

    def __init__(self, silo: str, queue: str) -> None:
        self._silo = silo
        self._queue = queue
        self._lines = LineBudget()

    def log_failure(
        self,
        subscriber: Subscriber,
        token: Token | None,
        attempts: int,
        failure: Failure,
        now_s: float,
    ) -> None:
        """Log that a handler raised, timed out, or could not be activated."""
        left_out = self._lines.take(now_s)
        if left_out is None:
            return
        log.warning(
            "%s/%s.%s failed at %s of %s, attempt %d of %d (%s): %s%s",
            subscriber.grain_type,
            show_text(subscriber.grain_key),
            subscriber.handler,
            token,
            show_text(str(subscriber.stream)),
            attempts,
            subscriber.options.retries + 1,
            failure.kind.value,
            failure.text.partition("\n")[0],
            left_out,
            extra={
                "silo": self._silo,
                "grain": subscriber.grain_type,
                "key": subscriber.grain_key,
                "queue": self._queue,
                "stream": str(subscriber.stream),
                "subscription": subscriber.id,
            },
        )
