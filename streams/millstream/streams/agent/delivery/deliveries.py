"""The places where the delivery of each subscription begins, continues and waits.

Owns `Deliveries`. `dispatch` sends, `delivery` chooses the events and the time, and `audience`
chooses the messages of a subscription.

Invariants:

- A subscription has one delivery at a time, from its first event on.
- A delivery that is moved continues at its new place after its call has ended.
- A stopped delivery sends nothing, and pins nothing in the cache if it may lag.
"""

from __future__ import annotations

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.positions import before, past
from millstream.streams.contracts.token import Token

from .delivery import Delivery
from .dispatch import Dispatch
from .steps import DeliveryState
from .subscriber import Subscriber

__all__ = ["Deliveries"]


class Deliveries:
    """The deliveries of one agent."""

    __slots__ = ("_dispatch", "_has_positions", "_laggards")

    def __init__(
        self, laggards: LaggingCursors, dispatch: Dispatch, *, has_positions: bool
    ) -> None:
        self._laggards = laggards
        self._dispatch = dispatch
        self._has_positions = has_positions

    def offer(self, subscriber: Subscriber, slot: Slot) -> None:
        """Offer a message of the cache to a subscription."""
        if self._dispatch.is_closed:
            return
        delivery = subscriber.delivery or self._new_delivery(subscriber)
        cursor, state = delivery.cursor, delivery.state
        if (cursor.slot is not None or cursor.is_lagging) and state is not DeliveryState.UNACKED:
            return  # it reaches the message by itself
        is_held = subscriber.is_paused or subscriber.held != ""
        self._dispatch.apply(subscriber, delivery, delivery.on_arrival(slot, is_held=is_held))
        if delivery.state is DeliveryState.FAULTED:
            self._dispatch.start_lagging(subscriber)

    def _new_delivery(
        self, subscriber: Subscriber, cursor: Cursor | None = None, after: Token | None = None
    ) -> Delivery:
        former = subscriber.delivery
        delivery = subscriber.delivery = Delivery(
            cursor or Cursor(self._laggards, subscriber.key),
            subscriber.options,
            after=subscriber.position if cursor is None else after,
            has_positions=self._has_positions,
            is_manual=subscriber.is_manual,
            is_faulted=subscriber.is_held,
        )
        if former is not None:
            delivery.window = min(former.window, subscriber.options.max_batch)
            delivery.event_s = former.event_s
        return delivery

    def retry(self, subscriber: Subscriber) -> None:
        """Retry a subscription at its place, also after a fault. A stopped one stays as it is."""
        subscriber.returns = 0
        if subscriber.delivery is not None and not subscriber.is_held:
            self._dispatch.apply(subscriber, subscriber.delivery, subscriber.delivery.retry())
            self._dispatch.pump()

    def move(self, subscriber: Subscriber, after: Token | None) -> None:
        """Let a subscription continue after a token, once its call has ended.

        None: it continues at the oldest cached event.
        """
        cursor, is_out = None, subscriber.delivery is not None and subscriber.delivery.is_out
        if is_out and after is not None and self._laggards.is_used:
            cursor = self._laggards.begin(subscriber.key, past(after))  # new events can be reread
            cursor.may_repeat = False
        self._resume(subscriber, after, cursor)

    def begin(self, subscriber: Subscriber, start: Token) -> None:
        """Move a subscription back to `start`, once its call has ended.

        `start` may be the oldest event that the provider has.
        """
        cursor = self._laggards.begin(subscriber.key, start)
        cursor.is_rewound = True
        self._resume(subscriber, before(start), cursor)

    def _resume(self, subscriber: Subscriber, after: Token | None, cursor: Cursor | None) -> None:
        delivery = subscriber.delivery or self._new_delivery(subscriber)
        self._dispatch.leave_early(subscriber)
        self._dispatch.apply(subscriber, delivery, delivery.resume(after, cursor))
        if subscriber.is_held:
            self.hold(subscriber)
        self._dispatch.pump()

    def restore(self, subscriber: Subscriber) -> None:
        """Restore a subscription that became known; a former owner may have left it lagging."""
        self._laggards.fork(*subscriber.key)
        cursor = self._laggards.get(subscriber.key)
        if cursor is not None and subscriber.work is None:
            subscriber.rewinds += cursor.is_rewound
            subscriber.note_sent(cursor.sent)
            delivery = subscriber.delivery
            seen = subscriber.position if delivery is None else delivery.position
            if seen is not None:  # attached while its place was unknown
                cursor.skip_to(past(seen))
            self._take_up(subscriber, cursor, seen)

    def _take_up(self, subscriber: Subscriber, cursor: Cursor, seen: Token | None) -> None:
        """Let another delivery continue at a cursor; `seen` is the last done token if nothing is
        left."""
        token = cursor.token
        after = seen if token is None else before(token)
        self._dispatch.apply(subscriber, self._new_delivery(subscriber, cursor, after), ())

    def hold(self, subscriber: Subscriber) -> None:
        """Stop a subscription: its call ends, and nothing more is delivered."""
        if subscriber.delivery is not None:
            subscriber.delivery.pause()
            if subscriber.delivery.state is DeliveryState.FAULTED:
                self._dispatch.start_lagging(subscriber)

    def follow(self, subscriber: Subscriber, made_anew: Subscriber) -> None:
        """Follow a subscription that was made again.

        If the way of acknowledgement changed, unfinished events are delivered again.
        """
        subscriber.follow(made_anew)
        delivery = subscriber.delivery
        if delivery is None or delivery.is_manual is made_anew.is_manual:
            return
        position, cursor = delivery.position, delivery.leave()
        self._take_up(subscriber, cursor, position)
        if subscriber.is_held:
            self._dispatch.start_lagging(subscriber)
        self._dispatch.pump()
