"""All events of a delivery, as values: calls of its core that a test makes one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from millstream.streams import Token
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    Action,
    CallReply,
    Died,
    GiveUpOutcome,
    Unreachable,
)

Call = Callable[[Delivery], Sequence[Action] | None]
Event = Call | CallReply | Unreachable | Died

wake, retry, pause, fetched = Delivery.wake, Delivery.retry, Delivery.pause, Delivery.on_fetched


def sent(count: int, at_s: float) -> Call:
    return partial(Delivery.on_sent, count=count, at_s=at_s)


def arrived(slot: Slot, *, is_held: bool = False) -> Call:
    return partial(Delivery.on_arrival, slot=slot, is_held=is_held)


def tick(now_s: float) -> Call:
    return partial(Delivery.tick, now_s=now_s)


def given_up(outcome: GiveUpOutcome) -> Call:
    return partial(Delivery.on_given_up, outcome=outcome)


def resume(after: Token | None, cursor: Cursor | None = None) -> Call:
    return partial(Delivery.resume, after=after, cursor=cursor)


def acked(upto: Token) -> Call:
    return partial(Delivery.on_acked, upto=upto)


def ack_due(now_s: float) -> Call:
    return partial(Delivery.ack_due, now_s=now_s)


def call_of(event: Event) -> Call:
    """Return the call of the core that delivers the event."""
    match event:
        case CallReply():
            return partial(Delivery.on_reply, event=event)
        case Unreachable():
            return partial(Delivery.unreachable, event=event)
        case Died():
            return partial(Delivery.on_death, event=event)
        case _:
            return event


def apply(delivery: Delivery, event: Event) -> Sequence[Action]:
    """Deliver the event; return the actions that follow."""
    return call_of(event)(delivery) or ()
