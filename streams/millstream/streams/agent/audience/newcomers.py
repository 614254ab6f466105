"""Makes subscribers from marks and from stored rows.

`subscribers` knows which ones there are.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.runtime.extending import Backoff
from millstream.streams.agent.delivery.options import DeliveryOptions
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.api.filters.hosted import HostedFilters
from millstream.streams.api.implicit import ImplicitSubscription
from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.contracts.identity import StreamId

__all__ = ["Newcomers"]


class Newcomers:
    """Makes the subscribers of one provider. A limit of the provider holds for a subscription that
    does not set this limit itself."""

    def __init__(self, options: DeliveryOptions, filters: HostedFilters | None = None) -> None:
        self._options = options
        self._filters = filters

    def _limits(self, retries: int | None, backoff: Backoff | None) -> DeliveryOptions:
        options = self._options
        if retries is not None:
            options = replace(options, retries=retries)
        return options if backoff is None else replace(options, backoff=backoff)

    def implicit(self, one: ImplicitSubscription, stream: StreamId) -> Subscriber:
        """Return the subscriber of a `@subscribe` mark for a stream."""
        return Subscriber(
            one.subscription,
            stream,
            one.grain_type,
            stream.key,
            one.handler,
            self._limits(one.retries, one.backoff),
            keeps_dead_letters=one.keeps_dead_letters,
            is_explicit=False,
            on_give_up=one.on_give_up,
            where=one.where,
            fits=self._filters.of_mark(one) if self._filters and one.where else None,
            is_manual=one.is_manual,
        )

    def explicit(self, row: SubscriptionRow, stream: StreamId) -> Subscriber:
        """Return the subscriber of a stored row."""
        policy = row.policy
        return Subscriber(
            row.id,
            stream,
            row.grain_type,
            row.grain_key,
            row.handler,
            self._limits(policy.retries, policy.backoff),
            keeps_dead_letters=True,
            is_explicit=True,
            on_give_up=policy.on_give_up,
            give_up_on=policy.give_up_on,
            where=row.where,
            fits=self._filters.of_row(row) if self._filters and row.where else None,
            is_manual=row.is_manual,
            commit_with=row.commit_with,
        )
