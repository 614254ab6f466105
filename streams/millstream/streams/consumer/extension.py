"""The grain extension that receives deliveries.

It keeps the positions of one activation, and commits a state together with the position. `run`
calls the handlers. The agent decides about deliveries and retries.

Invariants:

- An item at or below the last processed token of its queue is acknowledged without running. This
  does not hold if tokens do not rise, or if a message that is read again gets another token.
- A delivery with an older epoch than a known one is refused.
- With `commit_with`, the changes by the items that the reply counts as done are stored. A failed
  handler leaves no change in the state.
- Items of a subscription that this activation has unsubscribed are not handled, even if they were
  already on their way.
- With `ack="manual"`, an acknowledged event is not handled again, and the reply acknowledges no
  event that the grain has not acknowledged.
- One delivery of a subscription runs at a time, also on a reentrant grain and during a hand-over.
- An activation that moves to another silo takes its positions along. Events that it has not
  acknowledged by hand are delivered again, because the objects of these events stay behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from millstream.runtime import MillstreamError, Rejected, State
from millstream.runtime.extending import ExtendedGrain, show_text
from millstream.streams.api.event import Event
from millstream.streams.api.implicit import is_implicit
from millstream.streams.api.rendezvous import Rendezvous, rendezvous_key, rendezvous_of
from millstream.streams.api.stream import parse_subscription_id
from millstream.streams.api.subscription_rows import SubscriptionRow
from millstream.streams.failures.handler import DeliveryFailure

from .batch import Delivered, WireBatch
from .fresh import fresh_of
from .old_positions import OldPositions
from .on_error import error_handler
from .on_gap import gap_of
from .run import HandlerRun, MovedPosition, Position

__all__ = ["ConsumerExtension"]

log = logging.getLogger("millstream.consumer")

ENDED_MAX = 1_000


class MovedConsumer(msgspec.Struct, array_like=True, frozen=True):
    """The extension of an activation that moves: its positions, and the names in `_ended`."""

    positions: dict[str, MovedPosition]
    ended: list[str]


_encode_moved = msgspec.msgpack.Encoder().encode
_decode_moved = msgspec.msgpack.Decoder(MovedConsumer).decode


class ConsumerExtension:
    """The extension `streams` of an activation. `runs` is the class that runs its handlers."""

    __slots__ = ("_ended", "_grain", "_moved", "_old_positions", "_positions", "_removing")
    runs: ClassVar[type[HandlerRun]] = HandlerRun

    def __init__(self, grain: ExtendedGrain) -> None:
        self._grain = grain
        self._positions: dict[str, Position] = {}
        self._ended: dict[str, Position | None] = {}  # unsubscribed here, with the last position
        self._old_positions: OldPositions | None = None
        self._removing: dict[str, asyncio.Task[None]] = {}  # removals that are tried again
        self._moved: dict[str, MovedPosition] = {}  # from another silo, until the first delivery

    @property
    def _old(self) -> OldPositions:
        """Create the object on first use: most activations have no stored positions."""
        if self._old_positions is None:
            self._old_positions = OldPositions(self._grain)
        return self._old_positions

    def dehydrate(self) -> bytes:
        """Return the positions for the silo to which the activation moves."""
        positions = {
            name: position.dehydrate()
            for name, position in self._positions.items()
            if not position.is_over
        }
        return _encode_moved(MovedConsumer({**self._moved, **positions}, [*self._ended]))

    def rehydrate(self, data: bytes) -> None:
        """Continue with the positions of the activation that has moved here."""
        moved = _decode_moved(data)
        self._moved, self._ended = moved.positions, dict.fromkeys(moved.ended)

    def left(self, subscription: str) -> None:
        """Handle no more events of a subscription that the grain has unsubscribed."""
        self._moved.pop(subscription, None)
        position = self._ended[subscription] = self._positions.pop(subscription, None)
        if position is not None:
            position.is_over = True
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    async def on_joining(self, subscription: str) -> None:
        """Prepare for a subscription that the grain makes, perhaps again."""
        removing = self._removing.get(subscription)
        if removing is not None:
            await asyncio.wait([removing])  # a removal under way could remove the new subscription
        self._ended.pop(subscription, None)
        self._old.on_joining(subscription)

    def on_added(self, row: SubscriptionRow) -> None:
        """Do nothing: only consumers outside the cluster need to know that the row is stored."""

    def on_removed(self, subscription: str) -> None:
        """Forget the positions of a subscription that the grain has removed from the store."""
        if subscription in self._ended:
            if (position := self._ended[subscription]) is not None:
                position.is_removed = True
            self._old.on_removed(subscription)

    def _remove(self, batch: WireBatch) -> None:
        """Remove an unsubscribed subscription again: it still has deliveries, so the removal may
        have failed."""
        name = batch.subscription
        if name in self._removing or is_implicit(name):
            return
        provider, stream = parse_subscription_id(name)
        grain = self._grain.grain
        rendezvous = grain.grain(rendezvous_of(provider), rendezvous_key(provider, stream))
        task = grain.context.create_task(self._remove_from(rendezvous, name))
        self._removing[name] = task
        task.add_done_callback(lambda _: self._removing.pop(name, None))

    async def _remove_from(self, rendezvous: Rendezvous, subscription: str) -> None:
        try:
            await rendezvous.remove(subscription)
            self.on_removed(subscription)
        except MillstreamError as error:  # the next delivery tries the removal again
            text = "subscription %s could not be removed yet: %s"
            log.info(text, show_text(subscription), error)

    def epochs(self) -> dict[str, dict[str, int]]:
        """Return the newest known epoch of each queue, for each subscription."""
        return {
            subscription: dict(position.epochs)
            for subscription, position in self._positions.items()
        }

    async def deliver(self, batch: WireBatch) -> Delivered:
        """Run the handler over the items; the reply says how many are done."""
        if batch.subscription in self._ended:
            self._remove(batch)
            raise Rejected(f"{self._grain} has unsubscribed {batch.subscription}")
        position = self._positions.get(batch.subscription)
        if position is None:
            if is_in_the_middle(batch):
                return Delivered(0, is_anew=True)
            position = self._positions[batch.subscription] = Position(self._grain, batch)
            moved = self._moved.pop(batch.subscription, None)
            if moved is not None:
                position.rehydrate(moved)
            if position.state is not None:
                self._old.look(position.state, self._positions)
        if batch.epoch < position.epochs.get(batch.queue, 0):
            return Delivered(0, is_fenced=True)
        position.epochs[batch.queue] = batch.epoch
        if position.is_busy:
            await position.idle()
            return await self.deliver(batch)
        if batch.rewinds:
            position.forget(batch.queue)
        if batch.commit_with != position.committed:
            position.commit_by(batch, self._grain)
        last = position.last_of(batch)
        fresh = fresh_of(batch.items, last) if batch.has_positions else range(len(batch.items))
        if not fresh:
            await wait_sent(position.state)  # a delivery whose reply was lost has stored them
            return Delivered(len(batch.items), acked=last if batch.by_hand else None)
        items = batch.items
        if len(fresh) < len(items):
            items = [items[at] for at in fresh]
        gap = None if batch.gap is None else gap_of(batch, last)
        run = self.runs(batch, items, position, self._grain, gap)
        position.is_busy = True
        try:
            if batch.by_hand is not None:
                return await self._by_hand(run, position, fresh)
            if position.state is None:
                done, error = await run.upto(len(items))
            else:
                done, error = await self._commit(run, position.state)
        finally:
            position.is_busy = False
            if position.waiting:
                position.ends()
        if position.is_removed:
            return Delivered(len(batch.items))  # unsubscribed meanwhile: the rest is done
        if done and batch.has_positions:
            position.last[batch.queue] = run.items[done - 1].token
        # skipped items before the next fresh one count as done, too
        all_done = fresh[done] if done < len(fresh) else len(batch.items)
        return Delivered(all_done, error, is_final=run.is_final) if error else Delivered(all_done)

    async def _by_hand(
        self, run: HandlerRun, position: Position, fresh: Sequence[int]
    ) -> Delivered:
        """Run the items of a delivery; they stay unacknowledged until the grain acknowledges
        them."""
        acks, batch = position.acks_by_hand(run.batch, self._grain), run.batch
        acks.begins(batch)
        try:
            done, error = await run.upto(len(run.items))
        finally:
            acks.ends(batch.queue)
        if position.is_removed:
            return Delivered(len(batch.items), acked=batch.items[-1].token)
        all_done = fresh[done] if done < len(fresh) else len(batch.items)
        acked = acks.upto(batch.queue)
        return Delivered(all_done, error, is_final=run.is_final, acked=acked)

    def acknowledge(self, event: Event[object]) -> None:
        """Acknowledge an event and all before it. Raises ValueError if none such was delivered."""
        subscription = event.subscription
        if event.redriven or subscription in self._ended:
            return  # a redriven event has no position, and an ended subscription needs none
        position = self._positions.get(subscription)
        if position is None or position.by_hand is None:
            raise ValueError(
                f"{self._grain}: {show_text(subscription) or 'the event'} has no manual "
                'acknowledgement in this activation: subscribe with ack="manual"'
            )
        position.by_hand.ack(event.token)

    async def give_up(self, failure: DeliveryFailure) -> None:
        """Pass an event that was given up to the grain's `@on_error` method, if it has one."""
        handler = error_handler(self._grain.grain, failure.stream.namespace)
        if handler is not None and failure.subscription not in self._ended:
            await handler(failure)

    async def redrive(self, batch: WireBatch) -> Delivered:
        """Run the handler over an event that was given up, without changing any position."""
        position = Position(self._grain, batch)
        run = self.runs(batch, batch.items, position, self._grain)
        if position.state is None:
            return Delivered(*await run.upto(len(run.items)))
        return Delivered(*await self._commit(run, position.state))

    async def _commit(self, run: HandlerRun, state: State[Any]) -> tuple[int, bytes]:
        """Run the items, then store the state and the position in one write.

        If an item fails, the state returns to its stored value. The items before the failing one
        run again and are committed. The agent then retries the failing item alone.
        """
        try:
            done, error = await run.upto(len(run.items))
            if error:
                state.restore()
                done_again, error_again = await run.upto(done, is_again=True)
                if error_again:
                    state.restore()
                    return 0, error_again
                assert done_again == done
            if done:
                batch = run.batch
                last = None if batch.redriven else run.items[done - 1].token
                await state.commit(batch.subscription, batch.queue, last)
                await wait_sent(state)
        except BaseException:
            state.restore()
            raise
        return done, error


def is_in_the_middle(batch: WireBatch) -> bool:
    """Say whether an activation that has ended received earlier events, which are not acknowledged.
    Pure."""
    before = None if batch.by_hand is None else batch.by_hand.unacked_from
    return before is not None and batch.items[0].token > before


async def wait_sent(state: State[Any] | None) -> None:
    """Wait until the events stored with a state are published: no other call would wake the
    grain."""
    sender = None if state is None else state.parcels.sender
    if sender is not None:
        await sender.wait_sent()
