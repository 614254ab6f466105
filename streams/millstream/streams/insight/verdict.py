"""One sentence that names the part of a stream that delays it. Pure.

Owns: the checks, which run in a fixed order, and their words. Not: the figures (`report`).
Invariant: the first check that applies is the verdict, because a cause upstream explains the
symptoms downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import msgspec

from millstream.runtime.extending import show_text

from .report import LETTERS_MAX, LetterReport, QueueReport, StreamReport, SubscriptionReport

__all__ = ["CHECKS", "Check", "Why", "verdict"]

Check = Literal[
    "no_queue",
    "queue_unreachable",
    "queue_unowned",
    "queue_paused",
    "stream_paused",
    "cache_full",
    "subscription_parked",
    "handler_slow",
    "handler_blocked",
    "grain_unreachable",
    "standing_still",
    "nobody_subscribes",
    "nothing",
]
CHECKS: tuple[Check, ...] = get_args(Check)
BLOCKED_S = 10.0  # a call that takes longer is blocked
SLOW_LAG_S = 1.0  # a smaller lag is not reported


class Why(msgspec.Struct, frozen=True):
    """The reason why a stream is delayed; `str(why)` is a sentence that explains it.

    The sentence also names dead letters of the stream, if there are any. The checks run in this
    order, and the first one that applies is the verdict, because a cause upstream explains the
    symptoms downstream:

    | `check` | meaning |
    |---|---|
    | `"no_queue"` | the mapper has no queue for the stream |
    | `"queue_unreachable"` | the adapter fails; the sentence has its last error |
    | `"queue_unowned"` | no silo reads the queue, or its owner has gone or does not answer |
    | `"queue_paused"` | the queue is being handed over, or a user has paused it |
    | `"stream_paused"` | a user has paused the whole stream |
    | `"cache_full"` | the cache is full; the sentence names the holder of its oldest event |
    | `"subscription_parked"` | it is faulted, paused or lagging, or it retries a failing event |
    | `"handler_slow"` | the handler is slower than the queue brings events |
    | `"handler_blocked"` | a call takes more than 10 s, and ten times the usual time |
    | `"grain_unreachable"` | the grain cannot be reached; the sentence has the error |
    | `"standing_still"` | there is work without progress; the sentence has the reason |
    | `"nobody_subscribes"` | events are acknowledged without a subscription |
    | `"nothing"` | the stream makes progress, or had no event lately |

    Attributes:
        check: the check that applied.
        text: the sentence.
        reports: two reports of the stream, half a second apart.
    """

    check: Check
    text: str
    reports: tuple[StreamReport, StreamReport]

    def __str__(self) -> str:
        return self.text


def verdict(before: StreamReport, after: StreamReport) -> Why:
    """The conclusion from two reports of a stream."""
    check, text = _of_queue(before, after) or _of_subscriptions(before, after)
    return Why(check, text + _dead(after.letters), (before, after))


def _dead(letters: Sequence[LetterReport]) -> str:
    """Return a sentence about dead letters of the stream, which need an operator."""
    if not letters:
        return ""
    first = letters[0]
    count = f"{len(letters)} or more" if len(letters) >= LETTERS_MAX else f"{len(letters)}"
    return (
        f" Dead letters of the stream: {count}. For example, {show_text(first.id, 500)} was given "
        f"up after {first.attempts} attempts: {show_text(first.error, 300)}."
    )


Found = tuple[Check, str] | None


def _of_queue(before: StreamReport, after: StreamReport) -> Found:
    agent = after.agent
    if after.trouble:
        return "no_queue", f"Events cannot be published: {show_text(after.trouble, 500)}."
    if after.is_held:
        return "queue_paused", (
            f"Queue {after.queue} is paused by `pause_queue`, so no silo reads it. "
            "`resume_queue` resumes it."
        )
    if agent is None:
        return "queue_unowned", _explain_unowned(after)
    if agent.trouble:
        return "queue_unreachable", (
            f"Silo {agent.silo} cannot read queue {agent.queue}: "
            f"{show_text(agent.trouble, 500)}. The silo retries; no event is lost."
        )
    if agent.state == "paused" or after.owner_state == "pausing":
        return "queue_paused", (
            f"Silo {agent.silo} is handing over queue {agent.queue}, and waits for "
            f"{agent.calls_out} calls in flight."
        )
    if after.is_paused:
        return "stream_paused", _stream_paused(after)
    if agent.state == "full":
        return "cache_full", _full(before, after, agent)
    return None


def _stream_paused(report: StreamReport) -> str:
    waiting = max((one.lag_events for one in report.subscriptions or ()), default=0)
    events = f", and {waiting:,} of its events were read and wait" if waiting else ""
    return (
        f"Stream {_name(report.stream)} is paused by `pause_stream`{events}. "
        "`resume_stream` resumes it."
    )


def _explain_unowned(report: StreamReport) -> str:
    queue = report.queue
    if report.owner and not report.is_owner_live:
        return (
            f"Silo {report.owner}, the owner of queue {queue}, is gone; another silo takes the "
            "queue over soon."
        )
    if report.owner:
        return (
            f"Silo {report.owner} owns queue {queue}, but does not read it yet, or does not answer."
        )
    return (
        f"No silo owns queue {queue}. Check that a silo may own queues (can_own_queues), and that "
        "a balancer assigns the queue to a silo."
    )


def _full(before: StreamReport, after: StreamReport, agent: QueueReport) -> str:
    text = (
        f"The cache of queue {agent.queue} is full: {agent.cached_events:,} of "
        f"{agent.events_max:,} events, {agent.cached_bytes:,} of {agent.bytes_max:,} bytes."
    )
    holder = agent.holder
    if holder is None:
        return text
    if holder.subscription is None:
        return f"{text} The subscriptions of stream {_name(holder.stream)} are being looked up."
    found = _of_subscription(holder.subscription, rate_of(before, after))
    why = found[1] if found else "The subscription makes progress."
    return (
        f"{text} Its oldest message is pinned by subscription "
        f"{show_text(holder.subscription.id)} of stream {_name(holder.stream)}, which lags by "
        f"{_seconds(holder.subscription.lag_s)}. {why}"
    )


def _of_subscriptions(before: StreamReport, after: StreamReport) -> tuple[Check, str]:
    name, rate = _name(after.stream), rate_of(before, after)
    if after.reason:
        return "standing_still", f"All of stream {name} waits: {show_text(after.reason, 500)}."
    if after.subscriptions is None:
        return "nothing", (
            f"Stream {name} had no event lately: all of its events that were read are processed."
        )
    if not after.subscriptions:
        return "nobody_subscribes", (
            f"Stream {name} has no subscription; its events are acknowledged without a delivery."
        )
    found = [_of_subscription(one, rate) for one in _worst_first(after.subscriptions)]
    first = min((one for one in found if one), key=lambda one: CHECKS.index(one[0]), default=None)
    if first is not None:
        return first
    assert after.agent is not None, "else no silo reads the queue"
    backlog = after.agent.backlog
    waiting = f"; {backlog:,} events of queue {after.queue} are not read yet" if backlog else ""
    lag = sum(one.lag_events for one in after.subscriptions)
    text = f"Stream {name} makes progress: {lag:,} events are being processed{waiting}."
    return "nothing", text + _gaps(after.subscriptions)


def _gaps(subscriptions: Sequence[SubscriptionReport]) -> str:
    """Return a sentence about the subscription with the most gaps."""
    most = max(subscriptions, key=lambda one: one.gaps)
    return f" Subscription {show_text(most.id)} had {most.gaps_text}." if most.gaps else ""


def _worst_first(subscriptions: Sequence[SubscriptionReport]) -> list[SubscriptionReport]:
    return sorted(subscriptions, key=lambda one: -one.lag_s)


def _of_subscription(one: SubscriptionReport, rate: float) -> Found:
    checks: tuple[Callable[[SubscriptionReport, float], Found], ...] = (
        _find_parked,
        _find_blocked,
        _slow,
        _unreachable,
        _still,
    )
    return next((found for check in checks if (found := check(one, rate))), None)


def _find_parked(one: SubscriptionReport, rate: float) -> Found:
    name = f"Subscription {show_text(one.id)}"
    if one.state == "faulted":
        return "subscription_parked", (
            f"{name} is faulted, and {one.lag_events:,} of its events wait: "
            f"{show_text(one.trouble, 500) or 'an event was given up'}. `resume()` resumes it."
        )
    if one.state == "paused":
        return "subscription_parked", f"{name} is paused. `resume()` resumes it."
    if one.state == "stream_paused":
        return "subscription_parked", (
            "The whole stream is paused by `pause_stream`. `resume_stream` resumes it."
        )
    if one.state == "lagging":
        return "subscription_parked", (
            f"{name} lags behind the cache: {one.lag_events:,} of its events are read again from "
            "the queue."
        )
    if one.state == "unacked" and one.lag_s >= BLOCKED_S:
        return "subscription_parked", (
            f"{name} has {one.lag_events:,} events that wait for manual acknowledgement, the "
            f"oldest for {_seconds(one.lag_s)}: {one.grain} must call `context.ack`. The events "
            "are redelivered after ack_timeout_s."
        )
    if one.attempts:
        return "subscription_parked", (
            f"{name} has failed {one.attempts} attempts at one event, and retries it: "
            f"{show_text(one.trouble, 500)}."
        )
    return None


def _find_blocked(one: SubscriptionReport, rate: float) -> Found:
    if one.state != "in_flight" or one.out_s < BLOCKED_S or one.out_s < 10 * one.event_s:
        return None
    usual = f"; an event usually takes {_seconds(one.event_s)}" if one.event_s else ""
    return "handler_blocked", (
        f"{one.grain} has not answered a delivery of subscription {show_text(one.id)} for "
        f"{_seconds(one.out_s)}{usual}."
    )


def _slow(one: SubscriptionReport, rate: float) -> Found:
    if one.lag_s < SLOW_LAG_S or not one.event_s or one.state not in ("in_flight", "ready"):
        return None
    if one.state == "ready" and one.still_s >= BLOCKED_S:
        return None  # its handler is idle, so another cause delays it
    return "handler_slow", (
        f"Subscription {show_text(one.id)} lags by {_seconds(one.lag_s)}: its handler takes "
        f"{_seconds(one.event_s)} for an event, so it processes at most {one.rate:,.0f} events a "
        f"second, and {rate:,.0f} events a second are read from its queue."
    )


def _unreachable(one: SubscriptionReport, rate: float) -> Found:
    if one.state != "backoff":
        return None
    return "grain_unreachable", (
        f"{one.grain} could not be reached for subscription {show_text(one.id)}; the delivery is "
        f"retried: {show_text(one.trouble, 500) or 'the grain gave no answer'}."
    )


def _still(one: SubscriptionReport, rate: float) -> Found:
    if one.still_s < BLOCKED_S:
        return None
    reason = show_text(one.reason, 500) or "the reason is unknown (please report this)"
    return "standing_still", (
        f"Subscription {show_text(one.id)} has made no progress for {_seconds(one.still_s)}: "
        f"{reason}."
    )


def rate_of(before: StreamReport, after: StreamReport) -> float:
    """Events per second that were read from the queue between two reports, or 0 if that is not
    known."""
    took_s = after.at_s - before.at_s
    if before.agent is None or after.agent is None:
        return 0.0
    if before.agent.epoch != after.agent.epoch or took_s <= 0:
        return 0.0
    return (after.agent.read - before.agent.read) / took_s


def _name(stream: object) -> str:
    return show_text(str(stream))


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.1f} s"
