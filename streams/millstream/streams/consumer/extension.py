"""The consumer's end of a delivery: a grain extension.

Owns: the last token and the highest queue epoch per subscription of one activation, running the
handler, and the commit of state and cursor. Not: retries, and what to send (`delivery`).
Invariants: an item at or below the last token is acknowledged without running; a delivery of an
older epoch than one seen is refused; with `commit_with`, what the reply calls done is stored, and
a failed handler leaves no trace in the state; what this activation has unsubscribed is not handled,
also where it was on its way already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.runtime import CallTimeout, GrainError, Rejected, State
from millstream.runtime.extending import Codec, ExtendedGrain, encode_error
from millstream.streams.api.declared import is_declared
from millstream.streams.api.event import Event
from millstream.streams.api.handlers import is_batch_handler, items_codec_of
from millstream.streams.api.subscribe import SubscribeMark
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["Consumer", "Delivered", "WireBatch"]


BATCH_MAX = 1 << 31  # an explicit handler that takes lists takes what a call brings
ENDED_MAX = 1_000


class WireBatch(msgspec.Struct, array_like=True, frozen=True):
    """A delivery: consecutive undelivered events of one stream for one subscription."""

    subscription: str
    handler: str
    namespace: str
    key: str
    queue: str
    epoch: int
    attempt: int
    redelivered: bool
    items: Sequence[Item]
    timeout_s: float = 60.0
    rewinds: bool = False  # it was resumed further back: what was seen comes again


class Delivered(msgspec.Struct, array_like=True, frozen=True):
    """The reply: the first `done` items are done; `error` is an encoded error, or empty."""

    done: int
    error: bytes = b""
    is_fenced: bool = False


class SubscriptionPlace:
    """What this activation knows of one subscription: its handler, and how far it is.

    `batch_max`: events that the handler takes at a time; 0: one, not as a list.
    """

    __slots__ = ("batch_max", "codec", "epochs", "handler", "last", "runtime", "state")

    def __init__(self, grain: ExtendedGrain, batch: WireBatch) -> None:
        self.runtime = grain.runtime
        self.last: Token | None = None
        self.epochs: dict[str, int] = {}
        mark, self.handler = find_handler(grain, batch)
        self.codec: Codec[Any]
        self.state: State[Any] | None = None
        if mark is None:
            self.codec = items_codec_of(self.handler)
            self.batch_max = BATCH_MAX if is_batch_handler(self.handler) else 0
            return
        self.codec = mark.namespace.codec
        self.batch_max = mark.max_events if mark.is_batch else 0
        if mark.commit_name is not None:
            self.state = getattr(grain.grain, mark.commit_name)


class Consumer:
    """Extension `streams` of a grain's activation."""

    def __init__(self, grain: ExtendedGrain) -> None:
        self._grain = grain
        self._places: dict[str, SubscriptionPlace] = {}
        self._ended: dict[str, None] = {}  # unsubscribed here; deliveries may still be on their way

    def left(self, subscription: str) -> None:
        """The grain has unsubscribed: nothing more of that is handled here."""
        self._places.pop(subscription, None)
        self._ended[subscription] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def joined(self, subscription: str) -> None:
        """The grain subscribes, perhaps again."""
        self._ended.pop(subscription, None)

    def epochs(self) -> dict[str, dict[str, int]]:
        """The newest epoch of each queue that each subscription has had events of."""
        return {subscription: dict(place.epochs) for subscription, place in self._places.items()}

    def follows(self, subscription: str, place: SubscriptionPlace) -> bool:
        """Is this still the subscription that the place was made for?"""
        return self._places.get(subscription) is place

    async def deliver(self, batch: WireBatch) -> Delivered:
        """Run the handler over the items; the reply says how far it came."""
        if batch.subscription in self._ended:
            return Delivered(len(batch.items))
        place = self._places.get(batch.subscription)
        if place is None:
            place = self._places[batch.subscription] = SubscriptionPlace(self._grain, batch)
        if batch.epoch < place.epochs.get(batch.queue, 0):
            return Delivered(0, is_fenced=True)
        place.epochs[batch.queue] = batch.epoch
        if batch.rewinds:
            place.last = None
        state = place.state
        if state is not None and batch.subscription in state.cursors:
            place.last = Token(*state.cursors[batch.subscription])
        run = HandlerRun(batch, place, self._grain, self)
        start = first_new(batch.items, place.last)
        if start == len(batch.items):
            return Delivered(start)
        if state is None:
            done, error = await run.items(start, len(batch.items))
        else:
            done, error = await self._commit(run, state, start)
        if run.is_over:
            return Delivered(len(batch.items))  # unsubscribed meanwhile: nobody waits for the rest
        if done:
            place.last = batch.items[done - 1].token
        return Delivered(done, error)

    async def _commit(self, run: HandlerRun, state: State[Any], start: int) -> tuple[int, bytes]:
        """Run the items, then store state and cursor in one write.

        If an item fails, the state goes back to what is stored, the items before it run again and
        are committed; the failing one is left to be tried alone.
        """
        try:
            done, error = await run.items(start, len(run.batch.items))
            if error:
                state.restore()
                done_again, error_again = await run.items(start, done, is_again=True)
                if error_again:
                    state.restore()
                    return start, error_again
                assert done_again == done
            if done > start:
                token = run.batch.items[done - 1].token
                await state.commit({run.batch.subscription: token})
        except BaseException:
            state.restore()
            raise
        return done, error


def find_handler(grain: ExtendedGrain, batch: WireBatch) -> tuple[SubscribeMark | None, Any]:
    """A subscription's handler, and the mark of a declared one. Raises LookupError, Rejected."""
    handler = getattr(grain.grain, batch.handler, None)
    if handler is None and is_declared(batch.subscription):
        raise Rejected(  # a silo that is older or newer than the one that declared it: it waits
            f"{grain} has no handler {batch.handler!r} in this silo's {grain.kind}"
        )
    if handler is None:
        raise LookupError(
            f"{grain} has no handler {batch.handler!r} for subscription {batch.subscription!r}"
        )
    for mark in grain.marks(batch.handler):
        if isinstance(mark, SubscribeMark) and mark.namespace.name == batch.namespace:
            return mark, handler
    return None, handler


def first_new(items: Sequence[Item], last: Token | None) -> int:
    """Index of the first item behind `last`; the number of items if there is none."""
    if last is None or not items or items[0].token > last:
        return 0
    return next((at for at, item in enumerate(items) if item.token > last), len(items))


class HandlerRun:
    """One delivery's handler calls."""

    __slots__ = ("_at", "_consumer", "_grain", "_place", "batch")

    def __init__(
        self,
        batch: WireBatch,
        place: SubscriptionPlace,
        grain: ExtendedGrain,
        consumer: Consumer,
    ) -> None:
        self.batch = batch
        self._place = place
        self._grain = grain
        self._consumer = consumer
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Was the subscription ended since the run began?"""
        return not self._consumer.follows(self.batch.subscription, self._place)

    async def items(self, start: int, end: int, *, is_again: bool = False) -> tuple[int, bytes]:
        """Run items start..end-1; returns the first that is not done, and its error.

        The run stops when the subscription ends, but for items that are only run again.
        """
        self._at = start
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        limit = asyncio.timeout(self.batch.timeout_s)
        try:
            async with limit:
                await self._run(end, is_again)
        except BaseException as raised:
            is_ended = isinstance(raised, KeyboardInterrupt | SystemExit)
            if is_ended or task.cancelling() > cancelling:
                raise  # not the handler's doing
            return self._at, self._described(raised, limit.expired())
        return self._at, b""

    def _described(self, raised: BaseException, is_late: bool) -> bytes:
        """What the handler did, as the agent gets it."""
        place = f"{self._grain} handling {self.batch.namespace}/{self.batch.key}"
        if is_late:
            return encode_error(
                CallTimeout(f"{place}: not done after {self.batch.timeout_s:g} s"), place
            )
        if isinstance(raised, asyncio.CancelledError):
            text = f"{place} awaited something that was cancelled"
            return encode_error(GrainError("asyncio.CancelledError", text), place)
        return encode_error(raised, place)

    async def _run(self, end: int, is_again: bool) -> None:
        """Run items `_at`..end-1; `_at` counts along."""
        handler, batch_max = self._place.handler, self._place.batch_max
        while self._at < end and (is_again or not self.is_over):
            part = self.batch.items[self._at : min(self._at + max(1, batch_max), end)]
            events = self._events(part)
            await handler(events if batch_max else events[0])
            self._at += len(part)

    def _events(self, items: Sequence[Item]) -> list[Event[Any]]:
        key, attempt, redelivered = self.batch.key, self.batch.attempt, self.batch.redelivered
        values = self._place.codec.decode_many([item.body for item in items], self._place.runtime)
        return [
            Event(value, item.token, key, attempt, dict(item.headers or ()), redelivered)
            for value, item in zip(values, items, strict=True)
        ]
