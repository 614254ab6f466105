"""Calling a consumer: what goes out, and what each outcome means for the delivery.

Owns: `ConsumerCalls`, `Outlet`. Not: what is sent, and when (`delivery`, `dispatch`).
Invariant: every outcome is an event of the delivery; only a cancellation of the caller's own task
is raised.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from millstream.runtime import (
    ActivationTimeout,
    CallTimeout,
    ClusterError,
    NotHosted,
    Overloaded,
    Rejected,
    SiloUnavailable,
    StorageError,
)
from millstream.runtime.extending import Budget, Clock
from millstream.streams.agent.losses import Loss, spanning
from millstream.streams.consumer.batch import ByHand, Delivered, WireBatch
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .giving_up import error_text
from .sifting import Sifter
from .steps import Event, Failure, FailureKind, Progress, Unreachable
from .subscriber import Fits, Subscriber

__all__ = ["ConsumerCalls", "Outlet", "Source"]

# not the handler's fault: wait and try again without end
UNREACHABLE = (CallTimeout, ClusterError, NotHosted, Overloaded, Rejected, StorageError)
ANSWER_S = 5.0  # for a handler's answer to arrive, beyond the handler's own time


class Source(Protocol):
    """Where the items come from: the agent of one queue."""

    @property
    def queue(self) -> QueueId: ...
    @property
    def epoch(self) -> int: ...
    @property
    def has_positions(self) -> bool:
        """Do tokens rise within the queue, and does a message keep its own?"""
        ...

    @property
    def repeats_to(self) -> Token | None:
        """The last message that a former owner can have delivered; None: not known."""
        ...

    def give_back(self, token: Token, delay_s: float, /) -> None:
        """A handler has failed at a message that the queue gives out again."""
        ...

    def return_held(self, tokens: Sequence[Token], delay_s: float, /) -> None:
        """The subscription of these messages is paused: the queue gives them again."""
        ...

    def given_up(self, token: Token, reason: str, /) -> None:
        """A subscription has given up an event."""
        ...

    def fetch(self) -> None:
        """A subscription has come to items that are to be read anew."""
        ...

    @property
    def reading_anew(self) -> str:
        """What reading anew waits for, in words; empty: nothing is read anew."""
        ...

    def progressed(self) -> None:
        """A delivery moved: there may be room, and something to acknowledge."""
        ...

    def fenced(self) -> None:
        """A consumer knows an owner of a newer epoch."""
        ...

    def look_again(self) -> None:
        """The queue's owner should decide anew: a call that was out has ended while nothing new is
        sent, or an event is to be named in the record."""
        ...


class Outlet(Protocol):
    """Where the items go: the consumers, wherever they are."""

    @property
    def provider(self) -> str:
        """Name of the stream provider."""
        ...

    @property
    def silo(self) -> str:
        """Address of the agent's silo."""
        ...

    def deliver(
        self, kind: str, key: str, batch: WireBatch, timeout_s: float, /
    ) -> Coroutine[Any, Any, Delivered]:
        """Call the consumer of a grain. Raises what calls raise."""
        ...

    def silo_of(self, kind: str, key: str, /) -> str:
        """Where a grain is, as far as this silo knows; empty: it is not known."""
        ...

    def error_of(self, data: bytes, /) -> Exception:
        """The error in a reply."""
        ...


class ConsumerCalls:
    """The calls of one agent to its consumers."""

    def __init__(self, source: Source, outlet: Outlet, clock: Clock, budget: Budget) -> None:
        self._source = source
        self._outlet = outlet
        self._clock = clock
        self._sifter = Sifter(clock, budget)

    async def send(
        self,
        subscriber: Subscriber,
        items: Sequence[Item],
        attempt: int,
        gaps: Sequence[Loss],
        *,
        are_sifted: bool = False,
        by_hand: ByHand | None = None,
    ) -> Event:
        """Call the consumer; every outcome becomes an event of the delivery core.

        `gaps`: what is gone just before the items. `by_hand`: how they are acknowledged.
        """
        if subscriber.fits is not None and not are_sifted:
            return await self._send_fitting(subscriber, subscriber.fits, items, attempt, gaps)
        is_rewound = subscriber.rewinds_done < subscriber.rewinds
        batch = WireBatch(
            subscriber.id,
            subscriber.handler,
            subscriber.stream.namespace,
            subscriber.stream.key,
            self._source.queue,
            self._source.epoch,
            attempt,
            subscriber.is_redelivered or is_rewound or attempt > 1,
            items,
            subscriber.options.handler_timeout_s,
            is_rewound,
            self._source.has_positions,
            give_up_on=subscriber.give_up_on,
            gap=gap_at(gaps, items[0].token) if gaps else None,
            where=subscriber.where,
            by_hand=by_hand,
            commit_with=subscriber.commit_with,
        )
        timeout_s = subscriber.options.handler_timeout_s + ANSWER_S
        try:
            reply = await self._outlet.deliver(
                subscriber.grain_type, subscriber.grain_key, batch, timeout_s
            )
        except ActivationTimeout as error:
            return self.failed(FailureKind.ACTIVATION, error_text(error))
        except UNREACHABLE as error:
            silo = error.silo if isinstance(error, SiloUnavailable) and error.may_have_run else ""
            return Unreachable(str(error), self._clock.now(), self._roll(), silo)
        except Exception as error:
            return self.failed(FailureKind.ACTIVATION, error_text(error))
        return self._progress(reply)

    async def _send_fitting(
        self,
        subscriber: Subscriber,
        fits: Fits,
        items: Sequence[Item],
        attempt: int,
        gaps: Sequence[Loss],
    ) -> Event:
        """Send those that the subscription's filter lets through."""
        sifted = await self._sifter.sift(subscriber, fits, items)
        if not sifted.fitting:
            now_s = self._clock.now()
            return Progress(sifted.seen, sifted.failure, now_s, self._roll(), is_heard=False)
        fitting = [items[at] for at in sifted.fitting]
        return sifted.told(await self.send(subscriber, fitting, attempt, gaps, are_sifted=True))

    def _progress(self, reply: Delivered) -> Event:
        if reply.is_fenced:
            self._source.fenced()
            return Unreachable("fenced", self._clock.now(), self._roll())
        failure = None
        if reply.error:
            error = self._outlet.error_of(reply.error)
            is_late = isinstance(error, CallTimeout)
            kind = FailureKind.TIMEOUT if is_late else FailureKind.HANDLER
            failure = Failure(kind, error_text(error), reply.is_final)
        roll = 0.0 if reply.done and failure is None else self._roll()  # only a back-off needs one
        now_s = self._clock.now()
        return Progress(reply.done, failure, now_s, roll, True, reply.acked, reply.is_anew)

    def failed(self, kind: FailureKind, text: str) -> Progress:
        return Progress(0, Failure(kind, text), self._clock.now(), self._roll())

    def _roll(self) -> float:
        return self._clock.uniform(0.0, 1.0)


def gap_at(gaps: Sequence[Loss], token: Token) -> tuple[Token | None, Token]:
    """What is gone just before the event at a token, as one gap. Pure."""
    gap = spanning(gaps)
    return gap.after, gap.first or token
