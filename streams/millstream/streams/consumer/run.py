"""Runs one delivery: calls the handler of a subscription for the items that are new to it.

`Position` keeps the handler of a subscription and the last token and epoch of each queue.
`HandlerRun` calls the handler. `extension` builds the reply and commits.

Invariants:

- The handler calls of one run end within the delivery's time-out.
- If a handler raises or cancels, the reply reports this, and the run's own task continues.
- A cancellation from outside still cancels the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from millstream.runtime import CallTimeout, GrainError, Rejected, State
from millstream.runtime.extending import Codec, ExtendedGrain, encode_error, states_of
from millstream.streams.api.event import Event, Gap
from millstream.streams.api.filters.event_filter import Where, answer_of, filter_in
from millstream.streams.api.handlers import is_batch_handler, items_codec_of
from millstream.streams.api.implicit import is_implicit
from millstream.streams.api.subscribe import SubscribeMark
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token
from millstream.streams.failures.policy import is_one_of

from .batch import WireBatch
from .by_hand import AckCalls, AcksByHand
from .on_gap import gap_handler

__all__ = ["HandlerRun", "MovedPosition", "Position"]

BODY_OF = attrgetter("body")

BATCH_MAX = 1 << 31  # an explicit list handler takes all items of a delivery
NO_FILTERS: Mapping[str, Where] = MappingProxyType({})


class Provider(Protocol):
    """The stream provider of an event, in this silo."""

    @property
    def ack_calls(self) -> AckCalls: ...


class MovedPosition(msgspec.Struct, array_like=True, frozen=True):
    """The progress of a subscription on its way to another silo, by queue."""

    last: dict[str, Token]
    epochs: dict[str, int]
    acked: dict[str, Token]


class Position:
    """The handler of one subscription and its progress, as an activation knows them.

    `batch_max` is the number of events that the handler takes as a list; 0: one event, not in a
    list.
    """

    __slots__ = (
        "batch_max",
        "by_hand",
        "codec",
        "committed",
        "epochs",
        "filters",
        "give_up_on",
        "handler",
        "is_busy",
        "is_over",
        "is_removed",
        "last",
        "mark",
        "runtime",
        "state",
        "waiting",
    )

    def __init__(self, grain: ExtendedGrain, batch: WireBatch) -> None:
        self.runtime = grain.runtime
        self.last: dict[str, Token] = {}  # by queue
        self.is_over = False  # unsubscribed by this activation
        self.is_removed = False  # and removed from the store
        self.is_busy = False  # a delivery runs
        self.waiting: Sequence[asyncio.Future[None]] = ()  # deliveries that wait for the end
        self.by_hand: AcksByHand | None = None
        if batch.by_hand is not None:
            self.acks_by_hand(batch, grain)
        self.epochs: dict[str, int] = {}
        mark, self.handler = find_handler(grain, batch)
        self.filters: Mapping[str, Where] = NO_FILTERS  # filters of explicit subscriptions, by name
        self.mark = mark
        self.codec: Codec[Any]
        self.state: State[Any] | None = None
        self.committed = ""  # the name of that state, for an explicit subscription
        self.give_up_on: tuple[type[Exception], ...] = ()
        if mark is None:
            self.codec = items_codec_of(self.handler)
            self.batch_max = BATCH_MAX if is_batch_handler(self.handler) else 0
            if batch.commit_with:
                self.commit_by(batch, grain)
            return
        self.codec = mark.namespace.codec
        self.batch_max = mark.max_events if mark.is_batch else 0
        self.give_up_on = mark.give_up_on
        if mark.commit_name is not None:
            self.state = getattr(grain.grain, mark.commit_name)

    def commit_by(self, batch: WireBatch, grain: ExtendedGrain) -> None:
        """Use the state that an explicit subscription names for its position.

        Raises LookupError if the grain has no such state.
        """
        name = batch.commit_with
        if self.mark is not None:
            return
        state = states_of(grain.grain).get(name)
        if name and state is None:
            raise LookupError(
                f"{grain} has no state {name!r} for subscription {batch.subscription!r}"
            )
        self.committed, self.state = name, state

    def acks_by_hand(self, batch: WireBatch, grain: ExtendedGrain) -> AcksByHand:
        """Return the acknowledgements; they begin here if the mark did not ask for them before."""
        if self.by_hand is None:
            assert batch.by_hand is not None
            provider: Provider = grain.part(batch.by_hand.provider)
            self.by_hand = AcksByHand(batch, provider.ack_calls)
        return self.by_hand

    def dehydrate(self) -> MovedPosition:
        """Return the progress for the silo to which the activation moves."""
        acked = {} if self.by_hand is None else self.by_hand.all_acked()
        return MovedPosition(self.last, self.epochs, acked)

    def rehydrate(self, moved: MovedPosition) -> None:
        """Continue with the progress of the activation that has moved here."""
        self.last.update(moved.last)
        self.epochs.update(moved.epochs)
        if self.by_hand is not None:
            self.by_hand.continue_after(moved.acked)

    async def idle(self) -> None:
        """Wait until no delivery runs: a former owner's delivery may still run on a reentrant
        grain."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = [*self.waiting, end]
        await end

    def ends(self) -> None:
        """Wake the deliveries that wait, in order of arrival: none runs at this moment."""
        self.is_busy = False
        waiting, self.waiting = self.waiting, ()
        for end in waiting:
            if not end.done():
                end.set_result(None)

    def forget(self, queue: str) -> None:
        """Forget a queue: the subscription was moved back, and its events are delivered again."""
        self.last.pop(queue, None)
        if self.by_hand is not None:
            self.by_hand.forget(queue)

    def last_of(self, batch: WireBatch) -> Token | None:
        """Return the last processed token of the batch's queue; a stored token has precedence.
        None: no event of the queue is processed."""
        if batch.by_hand is not None:
            return None if self.by_hand is None else self.by_hand.upto(batch.queue)
        stored = None
        if self.state is not None:
            stored = self.state.cursor(batch.subscription, batch.queue)
        return self.last.get(batch.queue) if stored is None else Token(*stored)


def filter_of(position: Position, grain: ExtendedGrain, batch: WireBatch) -> Where | None:
    """Return the filter that the agent could not apply; None if this version of the class has none.

    Raises LookupError if the filter of an explicit subscription is missing.
    """
    name = batch.where
    if is_implicit(batch.subscription):
        return None if position.mark is None else position.mark.where
    if name not in position.filters:
        found = filter_in(type(grain.grain), name)
        if found is None:
            raise LookupError(f"{grain} has no filter {name!r}")
        position.filters = {**position.filters, name: found}
    return position.filters[name]


def find_handler(grain: ExtendedGrain, batch: WireBatch) -> tuple[SubscribeMark | None, Any]:
    """Return the handler, and the mark of an implicit subscription. Raises LookupError,
    Rejected."""
    handler = getattr(grain.grain, batch.handler, None)
    if handler is None and is_implicit(batch.subscription):
        raise Rejected(  # this silo runs another version of the class: the delivery waits
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


class HandlerRun:
    """The handler calls of one delivery. `items` are the items that are new to the activation.

    `gap` describes the events that are missing just before the items.
    """

    __slots__ = ("_at", "_gap", "_grain", "_is_late", "_position", "batch", "is_final", "items")

    def __init__(
        self,
        batch: WireBatch,
        items: Sequence[Item],
        position: Position,
        grain: ExtendedGrain,
        gap: Gap | None = None,
    ) -> None:
        self.batch = batch
        self.items = items
        self._gap = gap
        self._position = position
        self._grain = grain
        self._at = 0
        self._is_late = False  # cancelled by the time-out
        self.is_final = False  # the failing item must not be retried

    async def upto(self, end: int, *, is_again: bool = False) -> tuple[int, bytes]:
        """Run items 0..end-1. Returns the index of the first item that is not done, and its error.

        The run stops when the subscription ends, except if the items run again (`is_again`).
        """
        self._at, self._is_late = 0, False
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        cancelling = task.cancelling()
        timer = loop.call_later(self.batch.timeout_s, self._expire, task)  # like `asyncio.timeout`
        is_told = self._gap is None
        try:
            try:
                if not is_told and end:
                    await self._tell(is_again)
                    is_told = True
                await self._run_alone(end, is_again)
            finally:
                timer.cancel()
                if self._is_late:
                    task.uncancel()
        except BaseException as raised:
            if task.cancelling() > cancelling or isinstance(raised, KeyboardInterrupt):
                raise  # the cancellation came from outside the handler
            is_alone = is_told and min(self._position.batch_max or 1, end - self._at) == 1
            self.is_final = is_alone and self._is_hopeless(raised)
            return self._at, self._describe(raised)
        return self._at, b""

    def _expire(self, task: asyncio.Task[Any]) -> None:
        self._is_late = True
        task.cancel()

    def _is_hopeless(self, raised: BaseException) -> bool:
        """Say whether the mark or the subscription forbids a retry after this error."""
        names = self.batch.give_up_on
        is_marked = isinstance(raised, self._position.give_up_on)
        return is_marked or (bool(names) and is_one_of(raised, names))

    async def _tell(self, is_again: bool) -> None:
        """Report the gap to the grain's `@on_gap` method, if it has one."""
        assert self._gap is not None
        handler = gap_handler(self._grain.grain, self.batch.namespace)
        if handler is not None and (is_again or not self._position.is_over):
            await handler(self._gap)

    def _describe(self, raised: BaseException) -> bytes:
        """Encode the error of a handler for the agent."""
        where = f"{self._grain} handling {self.batch.namespace}/{self.batch.key}"
        if self._is_late:
            return encode_error(
                CallTimeout(f"{where}: no result after {self.batch.timeout_s:g} s"), where
            )
        if isinstance(raised, asyncio.CancelledError):
            text = f"{where} awaited something that was cancelled"
            return encode_error(GrainError("asyncio.CancelledError", text), where)
        if isinstance(raised, SystemExit):
            return encode_error(GrainError("SystemExit", f"{where}: {raised}"), where)
        return encode_error(raised, where)

    async def _run_alone(self, end: int, is_again: bool) -> None:
        """Run items as `_run`, while no other code may write the state of `commit_with`."""
        state = self._position.state
        if state is None:
            await self._run(end, is_again)
            return
        state.writer = f"{self._grain.kind}.{self.batch.handler}"
        try:
            await self._run(end, is_again)
        finally:
            state.writer = ""

    async def _run(self, end: int, is_again: bool) -> None:
        """Run the items from `_at` to `end - 1`, and advance `_at`."""
        position = self._position
        batch_max = position.batch_max
        while self._at < end and (is_again or not position.is_over):
            following = min(self._at + (batch_max or 1), end)
            events = self._events(self.items[self._at : following])
            if events:
                await position.handler(events if batch_max else events[0])
            self._at = following

    def _drop_acked(self, items: Sequence[Item]) -> Sequence[Item]:
        """Drop the items that the grain acknowledged by hand while other items of the delivery
        ran."""
        upto = self._position.last_of(self.batch)
        return items if upto is None else [item for item in items if item.token > upto]

    def _fitting(self, events: list[Event[Any]]) -> list[Event[Any]]:
        """Keep the events that match the subscription's filter, which the agent could not apply."""
        where = filter_of(self._position, self._grain, self.batch)
        if where is None:
            return events
        seen = [msgspec.structs.replace(one, attempt=1, redelivered=False) for one in events]
        fits = [answer_of(where, one, self.batch.where) for one in seen]
        return [event for event, is_for_it in zip(events, fits, strict=True) if is_for_it]

    def _events(self, items: Sequence[Item]) -> list[Event[Any]]:
        """Decode items into the events that the handler receives."""
        batch = self.batch
        if batch.by_hand is not None:
            items = self._drop_acked(items)
        key, attempt, redelivered = batch.key, batch.attempt, batch.redelivered
        # A loop is cheaper than a comprehension: nearly every delivery has one event.
        bodies = list(map(BODY_OF, items))
        values = self._position.codec.decode_many(bodies, self._position.runtime)
        events: list[Event[Any]] = []
        for value, item in zip(values, items, strict=True):
            headers = dict(item.headers) if item.headers else {}
            event = Event(
                value,
                item.token,
                key,
                attempt,
                headers,
                redelivered,
                batch.subscription,
                batch.redriven,
            )
            events.append(event)
        return self._fitting(events) if batch.where else events
