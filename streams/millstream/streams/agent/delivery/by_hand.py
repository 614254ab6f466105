"""Delivering to a subscription that acknowledges by hand.

Owns: `DeliveryByHand`: what was acknowledged, and when what was not comes again. Not: the places
(`held_cursor`). Invariants: what is delivered is done when it is acknowledged, with all before it;
an event that is given up is done once all before it are; one `AckDue` is awaited at a time, and one
is while anything is not acknowledged; nothing comes again while something is out, or fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.lagging.behind import BehindCursor
from millstream.streams.agent.lagging.book import BehindBook
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

from .delivery import Delivery
from .held_cursor import HeldCursor
from .options import DeliveryOptions
from .steps import (
    AckBy,
    AckDue,
    Acked,
    Action,
    Arrived,
    DeliveryState,
    Event,
    Failure,
    Progress,
    Sent,
)

__all__ = ["DeliveryByHand"]


class DeliveryByHand(Delivery):
    """A `Delivery`; `held` is its cursor. Arguments: as of `Delivery`."""

    __slots__ = ("_answer", "_is_awaited", "_is_overdue", "_sent_upto", "_upto", "held")

    def __init__(
        self,
        cache: QueueCache,
        stream: StreamId,
        options: DeliveryOptions,
        *,
        at: int | Cursor | BehindCursor,
        after: Token | None = None,
        window: int | None = None,
        event_s: float = 0.0,
        is_faulted: bool = False,
    ) -> None:
        super().__init__(
            cache,
            stream,
            options,
            at=at,
            after=after,
            window=window,
            event_s=event_s,
            is_faulted=is_faulted,
        )
        assert not isinstance(self._cursor, HeldCursor)
        self._answer: Progress | None = None  # while it is applied
        self._is_awaited = False
        self._open(self._cursor)

    def _open(self, cursor: Cursor | BehindCursor) -> HeldCursor:
        self._cursor = self.held = HeldCursor(cursor, self._options.max_unacked)
        self._upto: Token | None = None  # acknowledged, also what is out still
        sent = cursor.sent if isinstance(cursor, BehindCursor) else None
        self._sent_upto = sent  # also where no reply said so, and by a former owner
        self._is_overdue = False  # what is not acknowledged comes again
        return self.held

    def _opened(self, cursor: Cursor | BehindCursor) -> HeldCursor:
        return self._open(cursor)

    @property
    def unacked(self) -> int:
        """Events that were delivered, and are not acknowledged."""
        return self.held.ahead

    @property
    def unacked_from(self) -> Token | None:
        """The first of these."""
        return self.held.token if self.held.ahead else None

    def step(self, event: Event) -> Sequence[Action]:
        """Apply an event. What comes after the end is ignored."""
        if self.state is DeliveryState.CLOSED:
            return ()
        match event:
            case Acked():
                return self._ack(event.upto)
            case AckDue():
                return self._ack_due(event.now_s)
            case Arrived():
                return self._next() if self.state is DeliveryState.UNACKED else ()
        return super().step(event)

    def fall_behind(self, book: BehindBook, subscription: str, *, may_repeat: bool) -> None:
        """Hold nothing in the cache any more; one that is faulted holds nothing at all."""
        held, cursor = self.held, self.held.inner
        if self._is_moving:
            return
        if self.state is DeliveryState.FAULTED:
            held.rewind()
        if isinstance(cursor, Cursor):
            given = held.ahead
            parked = self._parked(cursor, given, book, subscription, may_repeat=may_repeat)
            held.moved_to(parked)
        elif self.state is DeliveryState.FAULTED:
            cursor.unload()

    @property
    def _place(self) -> Cursor | BehindCursor:
        self.held.rewind()
        return self.held.inner

    def _fetched(self) -> Sequence[Action]:
        inner = self.held.inner
        if self.state is DeliveryState.LAGGING and isinstance(inner, BehindCursor):
            self.position = inner.after
        return super()._fetched()

    # -- what is sent

    def _sent(self, event: Sent) -> Sequence[Action]:
        actions, last = super()._sent(event), self._out[-1].token
        self._sent_upto = last if self._sent_upto is None else max(self._sent_upto, last)
        return actions

    def _progress(self, event: Progress) -> Sequence[Action]:
        is_lost = event.done == 0 and event.error is None and self._resume is None
        if is_lost and event.is_anew and self.held.ahead:
            return self._again()
        self._answer = event
        try:
            return super()._progress(event)
        finally:
            self._answer = None

    def _move(self, done: int) -> None:
        """So many items were handled, or the one that is out was given up."""
        answer = self._answer
        given_up = self._out[0].token if self.state is DeliveryState.GIVING_UP else None
        super()._move(done)
        if answer is not None:
            self.held.note(done, answer.at_s)
            self._settle(answer.acked)
        elif given_up is not None:
            self.held.give_up(given_up)
            self._settle(None)

    def _again(self) -> Sequence[Action]:
        """The consumer is another one: it gets first what that had not acknowledged."""
        self._start_anew()
        self.held.rewind()
        return self._next()

    def _start_anew(self) -> None:
        """Nothing is out, and nothing failed."""
        self._out, self._losses = (), 0
        self._forget()

    def _lost(self, at_s: float, roll: float, least_s: float = 0.0) -> Sequence[Action]:
        return self._next() if self._pass_over() else super()._lost(at_s, roll, least_s)

    def _failed(self, error: Failure, at_s: float, roll: float) -> Sequence[Action]:
        return self._next() if self._pass_over() else super()._failed(error, at_s, roll)

    def _wake(self) -> Sequence[Action]:
        """Send nothing that was acknowledged since it was decided to send it."""
        is_ready = self.state is DeliveryState.READY
        return self._next() if is_ready and self._pass_over() else super()._wake()

    def _next(self) -> Sequence[Action]:
        held = self.held
        if held.is_drained:
            return super()._next()
        if self._is_overdue and not self._tries.failures:
            self._is_overdue = False
            held.rewind()
        if self._is_paused:
            self.state = DeliveryState.FAULTED
        elif held.can_send or held.is_away:
            self.state = DeliveryState.READY
        else:
            self.state = DeliveryState.UNACKED
        return self._await_ack()

    # -- what is acknowledged

    def _settle(self, upto: Token | None) -> None:
        if upto is not None:
            self._upto = upto if self._upto is None else max(self._upto, upto)
        self.held.settle(self._upto)

    def _pass_over(self) -> bool:
        """What was sent and is acknowledged is done, though no reply said so. Nothing is out."""
        if self._sent_upto is None or self._upto is None:
            return False
        if not self.held.pass_over(min(self._sent_upto, self._upto)):
            return False
        self._start_anew()
        return True

    def _ack(self, upto: Token) -> Sequence[Action]:
        self._settle(upto)
        if self.is_out:
            return ()
        has_moved = self._pass_over()
        if self.held.is_drained or self.state is DeliveryState.UNACKED:
            return self._next()
        return self._next() if has_moved and self.state is not DeliveryState.FAULTED else ()

    def _await_ack(self) -> Sequence[Action]:
        if self._is_awaited or not self.held.ahead:
            return ()
        self._is_awaited = True
        return (AckBy(self._due_s),)

    @property
    def _due_s(self) -> float:
        """When what is not acknowledged comes again."""
        return self.held.given_s + self._options.ack_timeout_s

    def _ack_due(self, now_s: float) -> Sequence[Action]:
        self._is_awaited = False
        if not self.held.ahead or now_s < self._due_s:
            return self._await_ack()
        self._is_overdue = True
        is_busy = self._out or self._tries.failures or self._losses
        return () if is_busy else self._next()

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        if self.state is DeliveryState.UNACKED:
            assert self.held.ahead and not self.held.can_send and not self.held.is_away
