"""The core of a delivery to one subscription: it decides about sending, retries and giving up.

Owns the attempts, the size of calls, and the events that are acknowledged by hand. `cache.cursor`
has the places in the stream. The driver (`dispatch`) has calls, clocks, chance and dead letters,
and calls a method for each event. A method returns the actions that follow.

Everything after the end is ignored, such as a late reply. `at_s` and `now_s` are the loop's clock;
`roll` is a random number in [0, 1) for the back-off.

Invariants:

- One call is in flight at a time. The cursor moves only after its reply, or after the answer to a
  give-up.
- Attempts count the failures of the handler at the cursor's item: it raised, timed out, or could
  not be activated. Every other failure waits and retries without limit.
- A failed item is sent alone until it is done or given up, or returns to a queue that counts
  attempts. The attempts that such a queue counted before count here, too.
- A crash of the silo that had the cursor's item counts as an attempt. If the last error is a crash,
  the item is given up only if a silo crashed at least once while the item ran alone. Other items of
  that call are sent one by one.
- A crash that becomes known during the next attempt does not count if that attempt fails. So an
  item is given up only after an attempt that its handler could recognise as the last one, or after
  a final error.
- With manual acknowledgement, a delivered event is done when it is acknowledged, with all before
  it. At most one `ack_due` is awaited, and one is while events are unacknowledged. Nothing is
  redelivered while a call is in flight or an item fails.

    idle ──arrived──▶ ready ──sent──▶ in_flight ──replied──▶ ready │ backoff │ giving_up │ idle
    backoff ──tick──▶ ready │ giving_up         giving_up ──given_up──▶ ready │ faulted │ idle
    ready ──wake──▶ lagging ──fetched──▶ ready  ready ──window full──▶ unacked ──acked──▶ ready
    any ──pause──▶ faulted, when no call is in flight
    faulted, backoff ──resume, retry──▶ ready │ idle
    in_flight, giving_up ──unreachable──▶ backoff

While the state is `ready`, the driver must call `wake` as soon as a call is free. `closed` is the
end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .options import DeliveryOptions
from .steps import (
    AckBy,
    Action,
    CallReply,
    Deliver,
    DeliveryState,
    Died,
    Failure,
    FailureKind,
    Fetch,
    GiveUp,
    GiveUpOutcome,
    HandBack,
    Unreachable,
    WaitUntil,
)

__all__ = ["FATE_WAIT_S", "UNTRIED", "Delivery", "Tries"]

FATE_WAIT_S = 30.0  # to learn the fate of a silo before an event's last attempt
DEATHS_FEARED = 2  # an item with this many runs alone in its queue
BATCH_FIRST = 16  # the size of the first call, before the handler's speed is known
SMOOTHING = 0.2  # the weight of the newest call in `event_s`
NO_WORK = (DeliveryState.IDLE, DeliveryState.CLOSED)

Place = tuple[Token | None, Cursor | None]
"""The token after which the delivery continues, and its cursor if that lags."""


class Tries(msgspec.Struct, frozen=True):
    """The attempts at one item, as far as they were seen here.

    `failures` counts those of its handler, and `deaths` the crashes of silos that had it.
    `died_alone` says that one of these crashes came while nothing else of its queue was in flight.
    `error` is the last error of both kinds.
    """

    failures: int = 0
    deaths: int = 0
    died_alone: bool = False
    error: Failure | None = None

    def on_failure(self, error: Failure) -> Tries:
        """Return the attempts after another failure of the handler."""
        return msgspec.structs.replace(self, failures=self.failures + 1, error=error)

    def on_death(self, event: Died) -> Tries:
        """Return the attempts after a crash of silos that had the item."""
        deaths = self.deaths + event.times
        text = f"SiloUnavailable: the handler's silo crashed {deaths} times while the handler ran"
        is_alone = self.died_alone or event.is_alone
        return Tries(self.failures, deaths, is_alone, Failure(FailureKind.DEATH, text))

    def is_hopeless(self, tried: int, retries: int) -> bool:
        """Say whether to give the item up. `tried` counts all known attempts, here and
        elsewhere."""
        if self.error is None:
            return False
        if self.error.is_final:
            return True
        is_known = self.died_alone or self.error.kind is not FailureKind.DEATH
        return is_known and tried > retries

    def is_feared(self, more: int, tried: int, retries: int) -> bool:
        """Say whether the item must run alone, with `more` crashes than are known."""
        deaths = self.deaths + more
        return deaths >= DEATHS_FEARED or (deaths > 0 and tried > retries)


UNTRIED = Tries()


class Delivery:
    """The state of delivering to one subscription.

    Args:
        cursor: its place in the stream; it belongs to this object from now on.
        after: the last token that the subscription has finished, if known.
        has_positions: whether tokens rise in the queue, so that no event at or below `position` is
            new.
        is_faulted: whether its events are kept and not delivered.

    Attributes:
        tries: the attempts at the item of the cursor.
        losses: the number of calls in a row without a reply.
        when_s: the time of the next attempt, during a back-off.
        careful: the number of items to send one by one.
        is_feared: whether the item of the cursor must run alone in its queue.
        event_s: the smoothed time for an event; 0: unknown.
    """

    __slots__ = (
        "_is_awaited",
        "_is_overdue",
        "_is_paused",
        "_is_retried",
        "_options",
        "_out",
        "_resume",
        "_sent_s",
        "_sent_upto",
        "_told",
        "_trouble",
        "_upto",
        "careful",
        "cursor",
        "event_s",
        "has_positions",
        "is_feared",
        "is_manual",
        "losses",
        "position",
        "state",
        "tries",
        "when_s",
        "window",
    )

    _sent_s: float  # the start of the call in flight
    when_s: float

    def __init__(
        self,
        cursor: Cursor,
        options: DeliveryOptions,
        *,
        after: Token | None = None,
        has_positions: bool = True,
        is_manual: bool = False,
        is_faulted: bool = False,
    ) -> None:
        self._options = options
        self.cursor = cursor
        self.is_manual = is_manual
        cursor.unacked_max = options.max_unacked if is_manual else 0
        self.has_positions = has_positions
        self.position = after
        self.window = min(options.max_batch, BATCH_FIRST)
        self.event_s = 0.0
        self._resume: Place | None = None  # its next place, after the call in flight has ended
        self._is_paused = False  # since `pause`, until `retry` or `resume`
        self._is_awaited = False  # whether `ack_due` will be called
        self._rest()
        if not cursor.is_drained:
            self.state = DeliveryState.FAULTED if is_faulted else DeliveryState.READY

    def _rest(self) -> None:
        """Become idle, and forget the attempts at finished items."""
        self._start_anew()
        self._note_former()
        self.careful = 0
        self._trouble = ""  # why the last call had no reply
        self.state = DeliveryState.IDLE

    def _start_anew(self) -> None:
        """Begin without calls and failures."""
        self._out: Sequence[Item] = ()
        self.losses = 0
        self._forget()

    def _forget(self) -> None:
        """Forget the attempts at the item of the cursor."""
        self.tries = UNTRIED
        self._told = UNTRIED  # the attempts that the handler in flight knows
        self.is_feared = False
        self._is_retried = False  # `retry` came while the failure handler had the item

    def _note_former(self) -> None:
        """Record how far a former owner sent, for a lagging cursor with manual acknowledgement."""
        self._upto: Token | None = None  # acknowledged by hand, also items in flight
        self._sent_upto = self.cursor.sent if self.cursor.is_lagging else None  # as far as known
        self._is_overdue = False  # unacknowledged events must be sent again

    def follow(self, options: DeliveryOptions) -> None:
        """Use these limits from now on."""
        self._options = options
        self.window = min(self.window, options.max_batch)
        if self.is_manual:
            self.cursor.unacked_max = options.max_unacked

    def close(self) -> None:
        """Close the delivery, because the subscription or its agent ends; a late reply is
        ignored."""
        self.cursor.close()
        self._stay_here()
        self._out, self.state = (), DeliveryState.CLOSED

    def let_go(self) -> None:
        """Become idle: the queue delivers unfinished events again."""
        self.cursor.close()
        self._rest()

    def leave(self) -> Cursor:
        """Close, and return the cursor for another delivery; the call in flight is ignored."""
        if self._resume is not None:
            self._reopen(*self._resume)
        self._out, self.state = (), DeliveryState.CLOSED
        self.cursor.rewind()
        return self.cursor

    def going_back(self) -> Sequence[Token]:
        """Return the messages that a stopped subscription returns to a queue without order."""
        is_held = self.state is DeliveryState.FAULTED
        return self.cursor.going_back() if is_held and not self.cursor.is_lagging else ()

    def start_lagging(self, *, may_repeat: bool) -> None:
        """Unpin everything in the cache; a faulted delivery keeps no messages at all."""
        cursor, is_faulted = self.cursor, self.state is DeliveryState.FAULTED
        if self._is_moving or cursor.is_drained:
            return
        if is_faulted:
            cursor.rewind()
        if not cursor.is_lagging:
            out = cursor.ahead + (len(self._out) or min(1, self.tries.failures))
            out = 0 if is_faulted else out
            cursor.start_lagging(out, has_chain=not is_faulted, may_repeat=may_repeat)
        elif is_faulted:
            cursor.unload()

    @property
    def _is_moving(self) -> bool:
        """Whether the delivery will continue at a lagging cursor after its call has ended."""
        return self._resume is not None and self._resume[1] is not None

    def _stay_here(self) -> None:
        """Forget the place where the delivery should continue."""
        if self._resume is not None and self._resume[1] is not None:
            self._resume[1].close()
        self._resume = None

    # -- its state, for reports

    @property
    def is_out(self) -> bool:
        """Whether the consumer or the failure handler has an item at present."""
        return self.state in (DeliveryState.IN_FLIGHT, DeliveryState.GIVING_UP)

    @property
    def attempts(self) -> int:
        """The number of failures of the next or present item, including those that the queue
        counted."""
        return self.tries.failures + self.tries.deaths + self.cursor.tried

    @property
    def trouble(self) -> str:
        """The last error, while it delays the delivery."""
        if self.tries.error is not None:
            return self.tries.error.text
        return self._trouble if self.losses else ""

    @property
    def place(self) -> tuple[Token | None, Token | None]:
        """The first unfinished item, and the next to send; they change when it makes progress."""
        return self.cursor.token, self.cursor.next_token

    @property
    def last_out(self) -> int:
        """The index of the last message in flight, or -1 if there is none or the cursor lags."""
        if self.is_manual:
            return sys.maxsize  # delivered events count until they are acknowledged
        if not self.is_out or self.cursor.is_lagging:
            return -1
        return self.cursor.index_at(len(self._out) - 1)

    def out_s(self, now_s: float) -> float:
        """Return how long a call has been in flight, or 0 if there is no call."""
        return now_s - self._sent_s if self.state is DeliveryState.IN_FLIGHT else 0.0

    # -- sending

    def on_arrival(self, slot: Slot, *, is_held: bool) -> Sequence[Action]:
        """Handle a new message of the stream; `is_held`: keep it, and do not deliver it."""
        cursor = self.cursor
        if cursor.slot is not None or cursor.is_lagging:
            return self._next() if self.state is DeliveryState.UNACKED else ()
        if self.is_out or self.state is DeliveryState.CLOSED:  # it continues elsewhere
            return ()
        if self.state is not DeliveryState.IDLE:  # it has reached the cache, and needs to know that
            self.position = cursor.after
        has_entered = cursor.enter(slot, self.position if self.has_positions else None)
        if self.state is DeliveryState.IDLE and has_entered:
            self._is_paused = is_held
            self.state = DeliveryState.FAULTED if is_held else DeliveryState.READY
        return ()

    def on_fetched(self) -> Sequence[Action]:
        """Handle the answer to `Fetch`: the items are here, or lost, or not yet."""
        if self.state is DeliveryState.LAGGING:
            self.position = self.cursor.after
            return self._next()
        if self.cursor.is_drained and not self.is_out and self.state not in NO_WORK:
            self.position = self.cursor.after
            self._rest()
        return ()

    def wake(self) -> Sequence[Action]:
        """Offer the next items, because a call may be made now."""
        if self.state is not DeliveryState.READY:
            return ()
        cursor = self.cursor
        if self.is_manual and self._pass_over():
            return self._next()  # sends nothing that was acknowledged meanwhile
        if cursor.is_lagging and cursor.is_away:
            self.state = DeliveryState.LAGGING
            return (Fetch(),)
        if self.tries.error is not None and self._is_hopeless:
            return self._give_up()
        tries, slot = self.tries, cursor.slot
        tried = tries.failures + tries.deaths
        if slot is not None and slot.message.attempt > 1:
            tried += slot.message.attempt - 1
        size = 1 if tried or self.careful else self.window
        self._out = cursor.peek(size, self._options.max_batch_bytes)
        if not self._out:
            return self._next()
        return (Deliver(self._out, tried + 1),)

    def on_sent(self, count: int, at_s: float) -> None:
        """Record that the first `count` items of the last `Deliver` were sent."""
        if self.state is DeliveryState.CLOSED:
            return
        assert self.state is DeliveryState.READY, f"sent while {self.state.value}"
        assert 1 <= count <= len(self._out), f"sent {count} of {len(self._out)}"
        self._out = self._out[:count]
        self._sent_s = at_s
        self._told = self.tries
        self.state = DeliveryState.IN_FLIGHT
        if self.is_manual:
            last = self._out[-1].token
            self._sent_upto = last if self._sent_upto is None else max(self._sent_upto, last)

    def on_reply(self, event: CallReply) -> Sequence[Action]:
        """Handle the reply of the consumer."""
        if self.state is DeliveryState.CLOSED:
            return ()
        assert self.state is DeliveryState.IN_FLIGHT, f"a reply while {self.state.value}"
        if self._resume is not None:
            return self._reopen(*self._resume)
        out, done = self._out, min(max(event.done, 0), len(self._out))
        if done == 0 and event.error is None:
            if event.is_anew and self.cursor.ahead:  # first resend unacknowledged events
                self._start_anew()
                self.cursor.rewind()
                return self._next()
            return self._on_lost(event.at_s, event.roll)  # otherwise a busy loop
        self.losses = 0
        self._move(done, event.at_s)
        if self.is_manual:
            self._settle(event.acked)
        if event.error is not None and done < len(out):
            return self._on_failure(event.error, event.at_s, event.roll)
        self._adapt(done, event.at_s - self._sent_s)
        return self._next()

    def _move(self, done: int, at_s: float) -> None:
        """Move past items that were handled or given up; by hand, they stay until they are
        acknowledged."""
        if done:
            self.position = last = self._out[done - 1].token
            if self.careful:
                self.careful = max(0, self.careful - done)
            if self.tries.error is not None or self.is_feared:
                self._forget()
            if not self.is_manual:
                self.cursor.advance(done)
            elif self.state is DeliveryState.GIVING_UP:
                self.cursor.give_up(last)
            else:
                self.cursor.give(done, at_s)
        self._out = ()

    def _adapt(self, count: int, took_s: float) -> None:
        each_s, known_s = took_s / count, self.event_s
        self.event_s = known_s + SMOOTHING * (each_s - known_s) if known_s else each_s
        target_s = self._options.target_call_s
        if took_s > target_s:
            self.window = max(1, self.window // 2)
        elif took_s < target_s / 2 and count >= self.window:  # a short call proves nothing
            self.window = min(self._options.max_batch, self.window * 2)

    def _next(self) -> Sequence[Action]:
        cursor = self.cursor
        if cursor.slot is None and not cursor.is_lagging:
            self.state = DeliveryState.IDLE
            if self.careful or self.is_manual:
                self._rest()
            return ()
        if self._is_overdue and not self.tries.failures:
            self._is_overdue = False
            cursor.rewind()
        if self._is_paused:
            self.state = DeliveryState.FAULTED
        elif not self.is_manual or cursor.can_send or cursor.is_away:
            self.state = DeliveryState.READY
        else:
            self.state = DeliveryState.UNACKED
        return self._await_ack() if self.is_manual else ()

    # -- failures

    def _on_failure(self, error: Failure, at_s: float, roll: float) -> Sequence[Action]:
        if self._pass_over():
            return self._next()
        self.tries = self._told.on_failure(error)
        if error.kind is FailureKind.TIMEOUT:
            self.window = 1  # halving would cost one time-out for each step
        if self._is_hopeless:
            return self._give_up()
        if self.cursor.goes_back:
            return self._hand_back(error, roll)
        return self._back_off(self.tries.failures, at_s, roll)

    def _hand_back(self, error: Failure, roll: float) -> Sequence[Action]:
        """Return the item to the queue, which counts attempts and delivers it again; later items do
        not wait."""
        cursor, attempts = self.cursor, self.attempts
        assert cursor.token is not None
        delay_s = self._options.backoff.delay_s(attempts, roll)
        back = HandBack(cursor.token, delay_s, attempts, error)
        cursor.leave()
        self._forget()
        return (back, *self._next())

    @property
    def _is_hopeless(self) -> bool:
        """Whether to give up the item of the cursor; only after a failure was seen here."""
        if self.tries.failures and self.cursor.is_last:
            return self.cursor.goes_back
        return self.tries.is_hopeless(self.attempts, self._options.retries)

    def _back_off(
        self, nth: int, at_s: float, roll: float, least_s: float = 0.0
    ) -> Sequence[Action]:
        if self._is_paused:
            self.state = DeliveryState.FAULTED
            return ()
        self.when_s = at_s + max(least_s, self._options.backoff.delay_s(nth, roll))
        self.state = DeliveryState.BACKOFF
        return (WaitUntil(self.when_s),)

    def unreachable(self, event: Unreachable) -> Sequence[Action]:
        """Handle a call without a reply, or a given-up item that could not be stored."""
        if not self.is_out and self.state is not DeliveryState.READY:
            return ()
        if self._resume is not None:
            return self._reopen(*self._resume)
        self._trouble = event.reason
        if event.silo:  # the call may have crashed it
            self.careful = max(self.careful, len(self._out))
            tried, retries = self.attempts + 1, self._options.retries
            self.is_feared = self.tries.is_feared(1, tried, retries)
            if tried > retries:
                return self._on_lost(event.at_s, event.roll, FATE_WAIT_S)
        return self._on_lost(event.at_s, event.roll)

    def _on_lost(self, at_s: float, roll: float, least_s: float = 0.0) -> Sequence[Action]:
        if self._pass_over():
            return self._next()
        self._out = ()
        self.losses += 1
        return self._back_off(self.losses, at_s, roll, least_s)

    def on_death(self, event: Died) -> Sequence[Action]:
        """Count a crash; an item that waited for this news is sent again at once, or given up."""
        if self.state in NO_WORK:
            return ()
        self.tries = self.tries.on_death(event)
        self.careful = max(self.careful, event.sent)
        self.is_feared = self.tries.is_feared(0, self.attempts, self._options.retries)
        return self.tick(math.inf)

    def tick(self, now_s: float) -> Sequence[Action]:
        """Handle the time of `WaitUntil`."""
        if self.state is not DeliveryState.BACKOFF:
            return ()
        if now_s < self.when_s:
            return (WaitUntil(self.when_s),)
        if self._is_hopeless:
            return self._give_up()
        self.state = DeliveryState.READY
        return ()

    def _give_up(self) -> Sequence[Action]:
        error = self.tries.error
        assert error is not None, "an item is given up for a reason"
        (item,) = self._out = self.cursor.peek(1, self._options.max_batch_bytes)
        self.state = DeliveryState.GIVING_UP
        return (GiveUp(item, error, self.attempts),)

    def on_given_up(self, outcome: GiveUpOutcome) -> Sequence[Action]:
        """Handle the answer to `GiveUp`; the dead letter or the fault is stored."""
        if self.state is DeliveryState.CLOSED:
            return ()
        assert self.state is DeliveryState.GIVING_UP, f"{outcome} while {self.state.value}"
        self.losses = 0
        if self._resume is not None:
            return self._reopen(*self._resume)
        if outcome == "pause":
            self._out, self.state = (), DeliveryState.FAULTED
            return self.retry() if self._is_retried else ()
        self._move(1, math.inf)
        if self.is_manual:
            self._settle(None)
        return self._next()

    # -- moving

    def pause(self) -> None:
        """Deliver nothing more; the call in flight ends first."""
        self._is_paused, self._is_retried = True, False
        if not self.is_out and self.state not in NO_WORK:
            self._out, self.state = (), DeliveryState.FAULTED

    def retry(self) -> Sequence[Action]:
        """Continue, also after a fault or a pause; a failed item is retried as if it were new."""
        self._is_paused = False
        self._is_retried = self.state is DeliveryState.GIVING_UP
        if self.state in (DeliveryState.FAULTED, DeliveryState.BACKOFF):
            self._forget()
            self.losses = 0
            self.state = DeliveryState.READY
        return ()

    def resume(self, after: Token | None, cursor: Cursor | None = None) -> Sequence[Action]:
        """Continue after a token (None: at the oldest cached event), from any place.

        `cursor` is a lagging cursor at the new place.
        """
        if self.state is DeliveryState.CLOSED:
            return ()
        self._is_paused = False
        if self.is_out:
            self._stay_here()
            self._resume = (after, cursor)  # one call at a time: the call in flight ends first
            return ()
        return self._reopen(after, cursor)

    def _reopen(self, after: Token | None, cursor: Cursor | None) -> Sequence[Action]:
        self._resume, self.careful = None, 0
        self._start_anew()
        self.position = after
        if cursor is None:
            self.cursor.seek(after)
        else:
            self.cursor.close()
            self.cursor = cursor
            self.cursor.unacked_max = self._options.max_unacked if self.is_manual else 0
        self._note_former()
        return self._next()

    # -- manual acknowledgement

    def _settle(self, upto: Token | None) -> None:
        if upto is not None:
            self._upto = upto if self._upto is None else max(self._upto, upto)
        self.cursor.settle(self._upto)

    def _pass_over(self) -> bool:
        """Skip events that were acknowledged by hand although the reply to their call was lost.

        Call this only while no call is in flight. Returns whether any event was skipped.
        """
        if self._sent_upto is None or self._upto is None:
            return False
        if not self.cursor.pass_over(min(self._sent_upto, self._upto)):
            return False
        self._start_anew()
        return True

    def on_acked(self, upto: Token) -> Sequence[Action]:
        """Handle a manual acknowledgement up to a token."""
        if not self.is_manual or self.state in NO_WORK:
            return ()
        self._settle(upto)
        if self.is_out:
            return ()
        has_moved = self._pass_over() and self.state is not DeliveryState.FAULTED
        is_free = self.cursor.is_drained or self.state is DeliveryState.UNACKED
        return self._next() if has_moved or is_free else ()

    def _await_ack(self) -> Sequence[Action]:
        if self._is_awaited or not self.cursor.ahead:
            return ()
        self._is_awaited = True
        return (AckBy(self._due_s),)

    @property
    def _due_s(self) -> float:
        """The time at which unacknowledged events are sent again."""
        return self.cursor.given_s + self._options.ack_timeout_s

    def ack_due(self, now_s: float) -> Sequence[Action]:
        """Handle the time of `AckBy`."""
        if self.state is DeliveryState.CLOSED:
            return ()
        self._is_awaited = False
        if not self.cursor.ahead or now_s < self._due_s:
            return self._await_ack()
        self._is_overdue = True
        is_busy = self._out or self.tries.failures or self.losses
        return () if is_busy else self._next()

    def check(self) -> None:
        """Assert the invariants."""
        cursor, tries = self.cursor, self.tries
        cursor.check()
        if self.state in NO_WORK:
            assert cursor.is_drained and not self._out
            assert tries is UNTRIED or self.state is DeliveryState.CLOSED
        elif not self._is_moving:
            assert not cursor.is_drained, f"{self.state.value} without anything to deliver"
        if self.is_out:
            assert self._out
            assert self._is_moving or self._out[0] == cursor.peek(1, 1)[0]
        else:
            assert self._resume is None
            assert self.state is DeliveryState.READY or not self._out, "keeps what is not out"
        if self.state is DeliveryState.UNACKED:
            assert cursor.ahead and not cursor.can_send and not cursor.is_away
        assert (tries.failures + tries.deaths > 0) == (tries.error is not None)
        assert tries.failures <= self._options.retries + 1  # of those that were seen here
        assert 1 <= self.window <= self._options.max_batch
