"""Delivering to one subscription: the events to send, when to send them again or give them up.

Owns: the attempts of the subscription, the size of its calls, what is acknowledged by hand, and
when the rest comes again. Not: places in the stream (`cache.cursor`), calls, clocks, chance, dead
letters, or which subscription comes next: the driver (`dispatch`) has these, and calls a method
for each thing that happens. Methods return the actions that follow. All that come after the end are
ignored: a late reply, a late tick. `at_s` and `now_s` are the loop's clock; `roll` is a chance in
[0, 1) for the back-off.
Invariants:
- one call at a time; the cursor moves only after its reply, or after a give-up was answered;
- attempts count what the handler did (raised, ran out of time, could not be activated) to the
  item at the cursor; everything else waits and tries again without end;
- an item that has failed is tried alone until it is done or given up, or goes back to a queue that
  counts attempts; what such a queue has counted before is counted here, too;
- the death of a silo that had the item at the cursor counts as an attempt, but an item is given up
  for that only if it died alone once; what was in one call with it is tried one by one;
- a death that becomes known while the next try is out does not count if that one fails: no failure
  is the last one unless its handler was told so, or the error is final;
- by hand, what is delivered is done when it is acknowledged, with all before it; one `ack_due` is
  awaited at a time, and one is while anything is not acknowledged; nothing comes again while
  something is out, or fails.

    idle ──arrived──▶ ready ──sent──▶ in_flight ──replied──▶ ready │ backoff │ giving_up │ idle
    backoff ──tick──▶ ready │ giving_up         giving_up ──given_up──▶ ready │ faulted │ idle
    ready ──wake──▶ lagging ──fetched──▶ ready  ready ──window full──▶ unacked ──acked──▶ ready
    any ──pause──▶ faulted, when nothing is out
    faulted, backoff ──resume, retry──▶ ready │ idle
    in_flight, giving_up ──unreachable──▶ backoff

While the state is `ready`, the driver owes a `wake` as soon as it has a call to spare. `closed` is
the end.
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

FATE_WAIT_S = 30.0  # for it to be known whether a silo died, before an event's last try
DEATHS_FEARED = 2  # an item that had so many runs alone in its queue
BATCH_FIRST = 16  # the size of the first call, before anything is known about the handler
SMOOTHING = 0.2  # weight of the newest call in `event_s`
NO_WORK = (DeliveryState.IDLE, DeliveryState.CLOSED)

Place = tuple[Token | None, Cursor | None]
"""Behind a token; with a cursor that lags there, if it does."""


class Tries(msgspec.Struct, frozen=True):
    """The tries of one item, as far as they were seen here.

    `failures`: of its handler; `deaths`: of silos that had it; `died_alone`: one of them while
    nothing else of its queue was out; `error`: the last of both.
    """

    failures: int = 0
    deaths: int = 0
    died_alone: bool = False
    error: Failure | None = None

    def on_failure(self, error: Failure) -> Tries:
        """The tries after another failure of the handler."""
        return msgspec.structs.replace(self, failures=self.failures + 1, error=error)

    def on_death(self, event: Died) -> Tries:
        """The tries after the death of silos that had the item."""
        deaths = self.deaths + event.times
        text = f"SiloUnavailable: the silo of its handler died {deaths} times while it ran"
        is_alone = self.died_alone or event.is_alone
        return Tries(self.failures, deaths, is_alone, Failure(FailureKind.DEATH, text))

    def is_hopeless(self, tried: int, retries: int) -> bool:
        """Is the item to be given up? `tried`: all attempts that are known, here and elsewhere."""
        if self.error is None:
            return False
        if self.error.is_final:
            return True
        is_known = self.died_alone or self.error.kind is not FailureKind.DEATH
        return is_known and tried > retries

    def is_feared(self, more: int, tried: int, retries: int) -> bool:
        """Is the item to run alone, if so many more deaths are counted than are known?"""
        deaths = self.deaths + more
        return deaths >= DEATHS_FEARED or (deaths > 0 and tried > retries)


UNTRIED = Tries()


class Delivery:
    """The state of delivering to one subscription.

    Args:
        cursor: its place in the stream; it belongs to this object from now on.
        after: the last token that the subscription has done, if known.
        has_positions: tokens rise within the queue, so nothing at or below `position` is for it.
        is_faulted: keep its events, and deliver none.

    Attributes:
        tries: those of the item at the cursor.
        losses: calls in a row that told nothing.
        when_s: while it backs off, when it is tried again.
        careful: so many items are sent one by one.
        is_feared: the item at the cursor is to run alone in its queue.
        event_s: how long an event takes, smoothed; 0: not known.
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

    _sent_s: float  # when the call was made that is out
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
        self._resume: Place | None = None  # where it goes once what is out has ended
        self._is_paused = False  # since `pause`, until `retry` or `resume`
        self._is_awaited = False  # `ack_due` is to come
        self._rest()
        if not cursor.is_drained:
            self.state = DeliveryState.FAULTED if is_faulted else DeliveryState.READY

    def _rest(self) -> None:
        """Be idle, and forget all that was known of the items that are done."""
        self._start_anew()
        self._note_former()
        self.careful = 0
        self._trouble = ""  # why the last call told nothing
        self.state = DeliveryState.IDLE

    def _start_anew(self) -> None:
        """Begin without calls and failures."""
        self._out: Sequence[Item] = ()
        self.losses = 0
        self._forget()

    def _forget(self) -> None:
        """Forget the attempts of the item at the cursor."""
        self.tries = UNTRIED
        self._told = UNTRIED  # of these the handler of what is out was told
        self.is_feared = False
        self._is_retried = False  # `retry` came while the failure handler had the item

    def _note_former(self) -> None:
        """Of what a lagging cursor gets by hand, a former owner may have sent the beginning."""
        self._upto: Token | None = None  # acknowledged by hand, also what is out still
        self._sent_upto = self.cursor.sent if self.cursor.is_lagging else None  # as far as is known
        self._is_overdue = False  # what is not acknowledged comes again

    def follow(self, options: DeliveryOptions) -> None:
        """The subscription has these limits from now on."""
        self._options = options
        self.window = min(self.window, options.max_batch)
        if self.is_manual:
            self.cursor.unacked_max = options.max_unacked

    def close(self) -> None:
        """The subscription, or its agent, ends; a reply that is still out will be ignored."""
        self.cursor.close()
        self._stay_here()
        self._out, self.state = (), DeliveryState.CLOSED

    def let_go(self) -> None:
        """Be idle: the queue gives again what is not done."""
        self.cursor.close()
        self._rest()

    def leave(self) -> Cursor:
        """End, and let another delivery go on from its place; what is out will be ignored."""
        if self._resume is not None:
            self._reopen(*self._resume)
        self._out, self.state = (), DeliveryState.CLOSED
        self.cursor.rewind()
        return self.cursor

    def going_back(self) -> Sequence[Token]:
        """The messages that a held subscription gives back to a queue without order."""
        is_held = self.state is DeliveryState.FAULTED
        return self.cursor.going_back() if is_held and not self.cursor.is_lagging else ()

    def start_lagging(self, *, may_repeat: bool) -> None:
        """Hold nothing in the cache any more; a faulted delivery holds nothing at all."""
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
        """Does a cursor lag already where the delivery goes on once its call has ended?"""
        return self._resume is not None and self._resume[1] is not None

    def _stay_here(self) -> None:
        """Forget the place where the delivery was to go on."""
        if self._resume is not None and self._resume[1] is not None:
            self._resume[1].close()
        self._resume = None

    # -- what it looks like

    @property
    def is_out(self) -> bool:
        """Has its consumer, or the failure handler, something of it now?"""
        return self.state in (DeliveryState.IN_FLIGHT, DeliveryState.GIVING_UP)

    @property
    def attempts(self) -> int:
        """Failures of the item that is delivered next, or now, those that the queue counts too."""
        return self.tries.failures + self.tries.deaths + self.cursor.tried

    @property
    def trouble(self) -> str:
        """The last error, while one holds the delivery up."""
        if self.tries.error is not None:
            return self.tries.error.text
        return self._trouble if self.losses else ""

    @property
    def place(self) -> tuple[Token | None, Token | None]:
        """The first item that is not done, and the next to send; both change when it goes on."""
        return self.cursor.token, self.cursor.next_token

    @property
    def last_out(self) -> int:
        """The last message of which something is out; -1: none, or it is behind."""
        if self.is_manual:
            return sys.maxsize  # what was delivered before is out until it is acknowledged
        if not self.is_out or self.cursor.is_lagging:
            return -1
        return self.cursor.index_at(len(self._out) - 1)

    def out_s(self, now_s: float) -> float:
        """Since when a call is out; 0: none is."""
        return now_s - self._sent_s if self.state is DeliveryState.IN_FLIGHT else 0.0

    # -- what is sent

    def on_arrival(self, slot: Slot, *, is_held: bool) -> Sequence[Action]:
        """Another message of the stream is here; `is_held`: keep it, and do not deliver it."""
        cursor = self.cursor
        if cursor.slot is not None or cursor.is_lagging:
            return self._next() if self.state is DeliveryState.UNACKED else ()
        if self.is_out or self.state is DeliveryState.CLOSED:  # it goes on elsewhere
            return ()
        if self.state is not DeliveryState.IDLE:  # it has met the cache, and is to hear of that
            self.position = cursor.after
        has_entered = cursor.enter(slot, self.position if self.has_positions else None)
        if self.state is DeliveryState.IDLE and has_entered:
            self._is_paused = is_held
            self.state = DeliveryState.FAULTED if is_held else DeliveryState.READY
        return ()

    def on_fetched(self) -> Sequence[Action]:
        """The answer to `Fetch`: the items are here, or lost, or not yet."""
        if self.state is DeliveryState.LAGGING:
            self.position = self.cursor.after
            return self._next()
        if self.cursor.is_drained and not self.is_out and self.state not in NO_WORK:
            self.position = self.cursor.after
            self._rest()
        return ()

    def wake(self) -> Sequence[Action]:
        """A call may be made now."""
        if self.state is not DeliveryState.READY:
            return ()
        cursor = self.cursor
        if self.is_manual and self._pass_over():
            return self._next()  # nothing is sent that was acknowledged meanwhile
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
        """The first `count` items of the last `Deliver` are on their way."""
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
        """The consumer has answered what was sent."""
        if self.state is DeliveryState.CLOSED:
            return ()
        assert self.state is DeliveryState.IN_FLIGHT, f"a reply while {self.state.value}"
        if self._resume is not None:
            return self._reopen(*self._resume)
        out, done = self._out, min(max(event.done, 0), len(self._out))
        if done == 0 and event.error is None:
            if event.is_anew and self.cursor.ahead:  # first, what another one had not acknowledged
                self._start_anew()
                self.cursor.rewind()
                return self._next()
            return self._on_lost(event.at_s, event.roll)  # else it would be sent in a hot loop
        self.losses = 0
        self._move(done, event.at_s)
        if self.is_manual:
            self._settle(event.acked)
        if event.error is not None and done < len(out):
            return self._on_failure(event.error, event.at_s, event.roll)
        self._adapt(done, event.at_s - self._sent_s)
        return self._next()

    def _move(self, done: int, at_s: float) -> None:
        """So many items were handled, or one was given up: by hand, once all before it are done."""
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
        elif took_s < target_s / 2 and count >= self.window:  # a short call tells nothing
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

    # -- what fails

    def _on_failure(self, error: Failure, at_s: float, roll: float) -> Sequence[Action]:
        if self._pass_over():
            return self._next()
        self.tries = self._told.on_failure(error)
        if error.kind is FailureKind.TIMEOUT:
            self.window = 1  # halving would cost one whole deadline per step
        if self._is_hopeless:
            return self._give_up()
        if self.cursor.goes_back:
            return self._hand_back(error, roll)
        return self._back_off(self.tries.failures, at_s, roll)

    def _hand_back(self, error: Failure, roll: float) -> Sequence[Action]:
        """The queue gives it out again, and counts; what comes behind it need not wait."""
        cursor, attempts = self.cursor, self.attempts
        assert cursor.token is not None
        delay_s = self._options.backoff.delay_s(attempts, roll)
        back = HandBack(cursor.token, delay_s, attempts, error)
        cursor.leave()
        self._forget()
        return (back, *self._next())

    @property
    def _is_hopeless(self) -> bool:
        """Is the item at the cursor to be given up? Not before a failure was seen here."""
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
        """No answer came to a call, or an item that was given up could not be stored."""
        if not self.is_out and self.state is not DeliveryState.READY:
            return ()
        if self._resume is not None:
            return self._reopen(*self._resume)
        self._trouble = event.reason
        if event.silo:  # which may have died of this
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
        """Count the death; an item that waited for the news is sent again now, or given up."""
        if self.state in NO_WORK:
            return ()
        self.tries = self.tries.on_death(event)
        self.careful = max(self.careful, event.sent)
        self.is_feared = self.tries.is_feared(0, self.attempts, self._options.retries)
        return self.tick(math.inf)

    def tick(self, now_s: float) -> Sequence[Action]:
        """The time of `WaitUntil` has come."""
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
        """The answer to `GiveUp`; what was to be stored is stored."""
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

    # -- where it goes on

    def pause(self) -> None:
        """Deliver nothing more; what is out ends first."""
        self._is_paused, self._is_retried = True, False
        if not self.is_out and self.state not in NO_WORK:
            self._out, self.state = (), DeliveryState.FAULTED

    def retry(self) -> Sequence[Action]:
        """Go on, after a fault or a pause too; what failed is tried as if it were new."""
        self._is_paused = False
        self._is_retried = self.state is DeliveryState.GIVING_UP
        if self.state in (DeliveryState.FAULTED, DeliveryState.BACKOFF):
            self._forget()
            self.losses = 0
            self.state = DeliveryState.READY
        return ()

    def resume(self, after: Token | None, cursor: Cursor | None = None) -> Sequence[Action]:
        """Go on behind a token (None: at the oldest event held), from wherever it is now.

        `cursor`: it lags there.
        """
        if self.state is DeliveryState.CLOSED:
            return ()
        self._is_paused = False
        if self.is_out:
            self._stay_here()
            self._resume = (after, cursor)  # one call at a time: what is out ends first
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

    # -- what is acknowledged by hand

    def _settle(self, upto: Token | None) -> None:
        if upto is not None:
            self._upto = upto if self._upto is None else max(self._upto, upto)
        self.cursor.settle(self._upto)

    def _pass_over(self) -> bool:
        """Pass over events that were sent and are acknowledged, though no reply said so.

        Nothing is out. Returns whether there were any.
        """
        if self._sent_upto is None or self._upto is None:
            return False
        if not self.cursor.pass_over(min(self._sent_upto, self._upto)):
            return False
        self._start_anew()
        return True

    def on_acked(self, upto: Token) -> Sequence[Action]:
        """The consumer has acknowledged up to a token, by hand."""
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
        """The time at which unacknowledged events come again."""
        return self.cursor.given_s + self._options.ack_timeout_s

    def ack_due(self, now_s: float) -> Sequence[Action]:
        """The time of `AckBy` has come."""
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
