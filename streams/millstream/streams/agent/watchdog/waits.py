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
                place = f"in silo {seat.silo}" if seat.silo else "whose silo is being looked up"
                return f"the delivery has waited {out_s:.1f} s for the reply of {grain} {place}"
        case DeliveryState.GIVING_UP:
            return (
                "the failure handler, or the store, has not yet accepted an event that was given "
                f"up after {delivery.attempts} attempts: {_trouble(delivery)}"
            )
        case DeliveryState.BACKOFF:
            left_s = delivery.when_s - seat.now_s
            if left_s >= -LATE_S:
                wait_s = max(0.0, left_s)
                return f"the delivery is retried in {wait_s:.1f} s, after {_trouble(delivery)}"
        case DeliveryState.UNACKED:
            if unacked := delivery.cursor.ahead:
                return (
                    f"{unacked:,} events wait for manual acknowledgement: {grain} must call "
                    f"`context.ack`; the events are redelivered {one.options.ack_timeout_s:g} s "
                    "after they were handled (ack_timeout_s)"
                )
        case DeliveryState.LAGGING:
            if seat.is_lagging and seat.reading:
                return (
                    "the subscription lags behind the cache, and its events are read again from "
                    f"the queue: {seat.reading}"
                )
        case DeliveryState.FAULTED:
            return _explain_stop(one, delivery)
    return ""


def _ready(delivery: Delivery, seat: Seat) -> str:
    if seat.is_paused:
        return "the queue is being handed over, so no call begins"
    if seat.is_out:
        return (
            "an earlier call of the subscription has not ended; the subscription was moved or "
            "created again while the call ran"
        )
    if seat.is_early:
        return "the stream moved to this queue, and its former queue still has unfinished events"
    if seat.is_wary:
        return "owners of the queue crashed, so the queue record must name the event first"
    if seat.is_alone and seat.calls_out:
        return "an event that may have crashed a silo runs alone in the queue"
    if seat.calls_out >= seat.calls_out_max:
        return f"{seat.calls_out} of {seat.calls_out_max} calls of the queue are in flight"
    return (
        f"the delivery is retried at once, after {_trouble(delivery)}" if delivery.trouble else ""
    )


def _explain_stop(one: Subscriber, delivery: Delivery) -> str:
    if one.held == "faulted":
        trouble = f", after {_trouble(delivery)}" if delivery.trouble else ""
        return f"the subscription is faulted{trouble}: `resume()` resumes it"
    if one.held == "paused":
        return "the subscription is paused: `resume()` resumes it"
    return "the whole stream is paused: `resume_stream` resumes it" if one.is_paused else ""


def _trouble(delivery: Delivery) -> str:
    return (
        show_text(delivery.trouble.splitlines()[0], TROUBLE_CHARS_MAX) if delivery.trouble else "-"
    )
