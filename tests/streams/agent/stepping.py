"""Drives a delivery core by hand, event by event, and checks its invariants after each."""

from __future__ import annotations

from collections.abc import Sequence

from tests.streams.agent import events as happening
from tests.streams.agent.events import Event, apply

from millstream.streams import StreamId, Token
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    Action,
    Deliver,
    DeliveryState,
    Failure,
    FailureKind,
)

A = StreamId("n", "a")
RAISED = Failure(FailureKind.HANDLER, "ValueError: no")


def steps(delivery: Delivery, *events: Event) -> Sequence[Action]:
    """Deliver the events; return the actions of the last one."""
    actions: Sequence[Action] = ()
    for event in events:
        actions = apply(delivery, event)
        delivery.check()
    return actions


def state_of(delivery: Delivery) -> DeliveryState:
    """Return the current state. Type checkers would assume that the attribute keeps its last
    state."""
    return delivery.state


def offer(delivery: Delivery) -> Deliver:
    """Wake the delivery; return the items that it has to send."""
    (action,) = steps(delivery, happening.wake)
    assert isinstance(action, Deliver)
    return action


def tokens(action: Deliver) -> list[Token]:
    return [item.token for item in action.items]


def send(delivery: Delivery, count: int | None = None, at_s: float = 0.0) -> Deliver:
    """Send all offered items, or the first `count`; return the sent ones."""
    offered = offer(delivery)
    sent = Deliver(offered.items[:count], offered.attempt)
    assert steps(delivery, happening.sent(len(sent.items), at_s)) == ()
    return sent
