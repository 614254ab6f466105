"""Delivers an event that was given up to its subscription again.

`failures` stores the letter, and `consumer` runs the handler. Invariant: only the subscription that
failed gets the event, and only while it exists.
"""

from __future__ import annotations

from millstream.runtime import StreamError
from millstream.runtime.extending import SiloServices, show_text
from millstream.streams.agent.delivery.options import DeliveryOptions
from millstream.streams.api.implicit import is_implicit
from millstream.streams.api.subscription_rows import SubscriptionRow, implicit_row
from millstream.streams.consumer.batch import WireBatch
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.contracts.item import Item
from millstream.streams.failures.handler import DeliveryFailure
from millstream.streams.failures.letters import OUTBOX, DeadLetter
from millstream.streams.publishing.silo_publisher import SiloPublisher

from .known_subscriptions import KnownSubscriptions

__all__ = ["Redrive"]

ANSWER_S = 5.0  # for the answer to arrive, beyond the handler's own time


class Redrive:
    """The subscriptions of one provider, for single events (`Redriver`)."""

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        following: KnownSubscriptions,
        options: DeliveryOptions,
        publisher: SiloPublisher,
    ) -> None:
        self._provider = provider
        self._services = services
        self._following = following
        self._publisher = publisher
        self._timeout_s = options.handler_timeout_s

    async def redrive(self, letter: DeadLetter, /) -> None:
        """Deliver the event; returns when it is done. Raises the errors of the handler and of
        calls."""
        failure = letter.failure
        if failure.subscription == OUTBOX:
            await self._publisher.publish(failure.stream, [failure.body], failure.headers)
            return
        row = await self._row(failure)
        if row is None:
            raise StreamError(
                f"dead letter {show_text(letter.id)}: subscription "
                f"{show_text(failure.subscription)} of {show_text(str(failure.stream))} has ended: "
                "subscribe again, or delete the letter"
            )
        timeout_s = self._timeout_s + ANSWER_S
        redrive = self._services.extensions.method(
            failure.grain_type, ConsumerExtension.redrive, timeout_s
        )
        reply = await redrive(failure.grain_key, self._batch(failure, row.commit_with))
        if reply.error:
            raise self._services.decode_error(reply.error)

    async def _row(self, failure: DeliveryFailure) -> SubscriptionRow | None:
        """Return the subscription that failed; None if it has ended."""
        if is_implicit(failure.subscription):
            marks = self._following.implicit_now().of(failure.stream)
            one = marks.get(failure.subscription)
            return None if one is None else implicit_row(one, failure.stream.key)
        rows = await self._following.read_stored(failure.stream)
        return next((row for row in rows if row.id == failure.subscription), None)

    def _batch(self, failure: DeliveryFailure, commit_with: str) -> WireBatch:
        item = Item(failure.token, failure.body, failure.headers or None)
        return WireBatch(
            failure.subscription,
            failure.handler,
            *failure.stream,
            failure.queue,
            0,
            failure.attempts + 1,
            True,
            [item],
            self._timeout_s,
            redriven=True,
            commit_with=commit_with,
        )
