"""Calls of consumers, and the meaning of each outcome for the delivery.

`delivery` and `dispatch` decide when to send. Invariant: each call returns how it ended; only a
cancellation of the caller's own task is raised.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from millstream.runtime import (
    ActivationTimeout,
    CallTimeout,
    ClusterError,
    NotHosted,
    Overloaded,
    Rejected,
    SiloUnavailable,
    StorageError,
    with_options,
)
from millstream.runtime.extending import SiloServices
from millstream.streams.agent.losses import Loss, spanning
from millstream.streams.agent.queue_epoch import QueueEpoch
from millstream.streams.api.inbox import inbox_name
from millstream.streams.consumer.batch import ByHand, Delivered, WireBatch
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token
from millstream.streams.inbox.inbox import inbox_grain_of

from .give_ups import error_text
from .item_filter import ItemFilter
from .steps import CallReply, Failure, FailureKind, Outcome, Unreachable
from .subscriber import Subscriber

__all__ = ["ConsumerCalls"]

# These are not the handler's fault: the delivery waits and retries without limit.
UNREACHABLE = (CallTimeout, ClusterError, NotHosted, Overloaded, Rejected, StorageError)
ANSWER_S = 5.0  # for the reply to arrive, beyond the handler's own time


class ConsumerCalls:
    """The calls of one agent to its consumers."""

    def __init__(self, services: SiloServices, epoch: QueueEpoch, *, has_positions: bool) -> None:
        self._services, self._clock = services, services.clock
        self._provider, self._inbox_kind = epoch.provider, inbox_name(epoch.provider)
        self._queue, self._epoch = epoch.queue, epoch.number
        self._has_positions = has_positions
        self._sifter = ItemFilter(services.clock, services.budget)

    async def send(
        self,
        subscriber: Subscriber,
        items: Sequence[Item],
        attempt: int,
        gaps: Sequence[Loss],
        by_hand: ByHand | None = None,
    ) -> Outcome:
        """Call the consumer, unless the subscription's filter rejects all items.

        `gaps` are the losses just before the items. `by_hand` is for manual acknowledgement.
        """
        sifted = None
        if subscriber.fits is not None:
            sifted = await self._sifter.sift(subscriber, subscriber.fits, items)
            if not sifted.fitting:
                now_s = self._clock.now()
                return CallReply(sifted.seen, sifted.failure, now_s, self._roll(), is_heard=False)
            items = [items[at] for at in sifted.fitting]
        is_rewound = subscriber.rewinds_done < subscriber.rewinds
        limit_s = subscriber.options.handler_timeout_s
        batch = WireBatch(
            subscriber.id,
            subscriber.handler,
            subscriber.stream.namespace,
            subscriber.stream.key,
            self._queue,
            self._epoch,
            attempt,
            subscriber.is_redelivered or is_rewound or attempt > 1,
            items,
            limit_s,
            is_rewound,
            self._has_positions,
            give_up_on=subscriber.give_up_on,
            gap=gap_at(gaps, items[0].token) if gaps else None,
            where=subscriber.where,
            by_hand=by_hand,
            commit_with=subscriber.commit_with,
        )
        grain_type, key = subscriber.grain_type, subscriber.grain_key
        outcome: Outcome
        try:
            reply = await self.deliver(grain_type, key, batch, limit_s + ANSWER_S)
        except ActivationTimeout as error:
            outcome = self.make_failed(FailureKind.ACTIVATION, error_text(error))
        except UNREACHABLE as error:
            silo = error.silo if isinstance(error, SiloUnavailable) and error.may_have_run else ""
            outcome = Unreachable(str(error), self._clock.now(), self._roll(), silo)
        except Exception as error:
            outcome = self.make_failed(FailureKind.ACTIVATION, error_text(error))
        else:
            outcome = self._outcome_of(reply)
        return outcome if sifted is None else sifted.widen(outcome)

    def deliver(
        self, kind: str, key: str, batch: WireBatch, timeout_s: float
    ) -> Coroutine[Any, Any, Delivered]:
        """Call the consumer of a grain, or the inbox of a program. Raises the errors of calls."""
        if kind == self._inbox_kind:
            inbox = self._services.grain(inbox_grain_of(self._provider), key)
            return with_options(inbox, timeout=timeout_s).deliver(batch)
        return self._services.extensions.method(kind, ConsumerExtension.deliver, timeout_s)(
            key, batch
        )

    def _outcome_of(self, reply: Delivered) -> Outcome:
        if reply.is_fenced:
            return Unreachable("fenced", self._clock.now(), self._roll(), is_fenced=True)
        failure = None
        if reply.error:
            error = self._services.decode_error(reply.error)
            is_late = isinstance(error, CallTimeout)
            kind = FailureKind.TIMEOUT if is_late else FailureKind.HANDLER
            failure = Failure(kind, error_text(error), reply.is_final)
        roll = 0.0 if reply.done and failure is None else self._roll()  # only a back-off needs one
        now_s = self._clock.now()
        return CallReply(reply.done, failure, now_s, roll, True, reply.acked, reply.is_anew)

    def make_failed(self, kind: FailureKind, text: str) -> CallReply:
        """Return the outcome of a call in which the first item failed."""
        return CallReply(0, Failure(kind, text), self._clock.now(), self._roll())

    def _roll(self) -> float:
        return self._clock.uniform(0.0, 1.0)


def gap_at(gaps: Sequence[Loss], token: Token) -> tuple[Token | None, Token]:
    """Return the losses just before the event at a token, as one gap. Pure."""
    gap = spanning(gaps)
    return gap.after, gap.first or token
