"""The reason why one delivery makes no progress, in words, from its present state. Pure.

Invariant: if nothing is known to end a state, it has no reason. The log then reports a fault of
Millstream.
"""

from __future__ import annotations

from millstream.runtime.extending import show_text
from millstream.streams.agent.delivery.consumer_calls import ANSWER_S
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import DeliveryState
from millstream.streams.agent.delivery.subscriber import Seat, Subscriber

__all__ = ["reason_of"]

LATE_S = 30.0  # seconds before a timer or the end of a call counts as late
TROUBLE_CHARS_MAX = 300


def reason_of(one: Subscriber, seat: Seat) -> str:
    """Return the reason why a subscription waits.

    The text is empty if the subscription has no work, or if the reason is unknown.
    """
    delivery = one.work
    if delivery is None:
        return ""
    grain = show_text(f"{one.grain_type}/{one.grain_key}")
    match delivery.state:
        case DeliveryState.READY:
            return _ready(delivery, seat)
        case DeliveryState.IN_FLIGHT:
            out_s = delivery.out_s(seat.now_s)
            if seat.is_out and out_s <= one.options.handler_timeout_s + ANSWER_S + LATE_S:
                place = f"silo {seat.silo}" if seat.silo else "a silo that is being looked for"
                return f"it waits for the reply of {grain} in {place} since {out_s:.1f} s"
        case DeliveryState.GIVING_UP:
            return (
                "it waits for the failure handler, or for the store, to take an event that was "
                f"tried {delivery.attempts} times: {_trouble(delivery)}"
            )
        case DeliveryState.BACKOFF:
            left_s = delivery.when_s - seat.now_s
            if left_s >= -LATE_S:
                return f"it is tried again in {max(0.0, left_s):.1f} s, after {_trouble(delivery)}"
        case DeliveryState.UNACKED:
            if unacked := delivery.cursor.ahead:
                return (
                    f"{unacked:,} events are not acknowledged by hand: {grain} is to call "
                    f"`context.ack`; they come again {one.options.ack_timeout_s:g} s after they "
                    "were handled (ack_timeout_s)"
                )
        case DeliveryState.LAGGING:
            if seat.is_lagging and seat.reading:
                return f"it is behind the cache, and its events are read anew: {seat.reading}"
        case DeliveryState.FAULTED:
            return _explain_stop(one, delivery)
    return ""


def _ready(delivery: Delivery, seat: Seat) -> str:
    if seat.is_paused:
        return "the queue is being handed over: no call begins"
    if seat.is_out:
        return "a call that was out before it was moved, or made again, has not ended"
    if seat.is_early:
        return "its stream moved here from another queue, which has events that are not done"
    if seat.is_wary:
        return "owners of the queue have died: the queue record is to name its event first"
    if seat.is_alone and seat.calls_out:
        return "an event that may have ended a silo runs alone in the queue"
    if seat.calls_out >= seat.calls_out_max:
        return f"no credit: {seat.calls_out} of {seat.calls_out_max} calls of the queue are out"
    return f"it is tried again at once, after {_trouble(delivery)}" if delivery.trouble else ""


def _explain_stop(one: Subscriber, delivery: Delivery) -> str:
    if one.held == "faulted":
        trouble = f", after {_trouble(delivery)}" if delivery.trouble else ""
        return f"it is faulted{trouble}: `resume()` lets it go on"
    if one.held == "paused":
        return "it is paused: `resume()` lets it go on"
    return "all of its stream is paused: `resume_stream` lets it go on" if one.is_paused else ""


def _trouble(delivery: Delivery) -> str:
    return (
        show_text(delivery.trouble.splitlines()[0], TROUBLE_CHARS_MAX) if delivery.trouble else "-"
    )
