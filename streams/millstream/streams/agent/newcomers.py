"""Making the subscriber of a mark, or of a stored row.

Owns: what of them an agent goes by. Not: which there are (`subscribers`).
"""

from __future__ import annotations

from dataclasses import replace

from millstream.runtime.extending import Backoff
from millstream.streams.api.implicit import ImplicitSubscription
from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.identity import StreamId

from .delivery.options import DeliveryOptions
from .delivery.subscriber import Subscriber

__all__ = ["explicit_subscriber", "implicit_subscriber", "options_for"]


def options_for(
    options: DeliveryOptions, retries: int | None, backoff: Backoff | None
) -> DeliveryOptions:
    """The provider's limits, but for what a subscription says itself."""
    if retries is not None:
        options = replace(options, retries=retries)
    return options if backoff is None else replace(options, backoff=backoff)


def implicit_subscriber(
    one: ImplicitSubscription, stream: StreamId, options: DeliveryOptions
) -> Subscriber:
    """The subscription that a `@subscribe` mark makes for a stream."""
    return Subscriber(
        one.subscription,
        stream,
        one.grain_type,
        stream.key,
        one.handler,
        options_for(options, one.retries, one.backoff),
        keeps_dead_letters=one.keeps_dead_letters,
        is_explicit=False,
        on_give_up=one.on_give_up,
    )


def explicit_subscriber(
    row: SubscriptionRow, stream: StreamId, options: DeliveryOptions
) -> Subscriber:
    """The subscription of a stored row."""
    policy = row.policy
    return Subscriber(
        row.id,
        stream,
        row.grain_type,
        row.grain_key,
        row.handler,
        options_for(options, policy.retries, policy.backoff),
        keeps_dead_letters=True,
        is_explicit=True,
        on_give_up=policy.on_give_up,
        give_up_on=policy.give_up_on,
    )
