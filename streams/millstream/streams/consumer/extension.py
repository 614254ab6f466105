"""The consumer's end of a delivery: a grain extension.

Owns: the positions of one activation, and the commit of state and cursor. Not: running handlers
(`run`), retries, and what to send (`agent`).
Invariants: an item at or below the last token is acknowledged without running; a delivery of an
older epoch than one seen is refused; with `commit_with`, what the reply calls done is stored, and
a failed handler leaves no trace in the state; what this activation has unsubscribed is not handled,
also where it was on its way already.
"""

from __future__ import annotations

from typing import Any

from millstream.runtime import State
from millstream.runtime.extending import ExtendedGrain
from millstream.streams.contracts.token import Token

from .batch import Delivered, WireBatch
from .run import HandlerRun, Position, first_new

__all__ = ["Consumer"]

ENDED_MAX = 1_000


class Consumer:
    """Extension `streams` of a grain's activation."""

    def __init__(self, grain: ExtendedGrain) -> None:
        self._grain = grain
        self._positions: dict[str, Position] = {}
        self._ended: dict[str, None] = {}  # unsubscribed here; deliveries may still be on their way

    def left(self, subscription: str) -> None:
        """The grain has unsubscribed: nothing more of that is handled here."""
        self._positions.pop(subscription, None)
        self._ended[subscription] = None
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def joined(self, subscription: str) -> None:
        """The grain subscribes, perhaps again."""
        self._ended.pop(subscription, None)

    def epochs(self) -> dict[str, dict[str, int]]:
        """The newest epoch of each queue that each subscription has had events of."""
        return {
            subscription: dict(position.epochs)
            for subscription, position in self._positions.items()
        }

    async def deliver(self, batch: WireBatch) -> Delivered:
        """Run the handler over the items; the reply says how far it came."""
        if batch.subscription in self._ended:
            return Delivered(len(batch.items))
        position = self._positions.get(batch.subscription)
        if position is None:
            position = self._positions[batch.subscription] = Position(self._grain, batch)
        if batch.epoch < position.epochs.get(batch.queue, 0):
            return Delivered(0, is_fenced=True)
        position.epochs[batch.queue] = batch.epoch
        if batch.rewinds:
            position.last = None
        state = position.state
        if state is not None and batch.subscription in state.cursors:
            position.last = Token(*state.cursors[batch.subscription])

        def is_over() -> bool:
            return self._positions.get(batch.subscription) is not position

        run = HandlerRun(batch, position, self._grain, is_over)
        start = first_new(batch.items, position.last)
        if start == len(batch.items):
            return Delivered(start)
        if state is None:
            done, error = await run.items(start, len(batch.items))
        else:
            done, error = await self._commit(run, state, start)
        if is_over():
            return Delivered(len(batch.items))  # unsubscribed meanwhile: nobody waits for the rest
        if done:
            position.last = batch.items[done - 1].token
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
