"""Delivering to one subscription: what to send, when to send again, when to give up.

Owns: the attempts of the subscription, the size of its calls, what is acknowledged by hand, and
when the rest comes again. Not: places in the stream (`cache.cursor`), calls, clocks, chance, dead
letters, or which subscription comes next (`dispatch`), which all come in as events.
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
- by hand, what is delivered is done when it is acknowledged, with all before it; one `AckDue` is
  awaited at a time, and one is while anything is not acknowledged; nothing comes again while
  something is out, or fails.

    idle ──Arrived──▶ ready ──Sent──▶ in_flight ──Progress──▶ ready │ backoff │ giving_up │ idle
    backoff ──Tick──▶ ready │ giving_up         giving_up ──GivenUp──▶ ready │ faulted │ idle
    ready ──Wake──▶ lagging ──Fetched──▶ ready  ready ──window full──▶ unacked ──Acked──▶ ready
    any ──Pause──▶ faulted, when nothing is out
    faulted, backoff ──Resume, Retry──▶ ready │ idle
    in_flight, giving_up ──Unreachable──▶ backoff

While the state is `ready`, the driver owes a `Wake` as soon as it has a call to spare. `closed` is
the end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .options import DeliveryOptions
from .steps import (
    AckBy,
    AckDue,
    Acked,
    Action,
    Arrived,
    Deliver,
    DeliveryState,
    Died,
    Event,
    Failure,
    FailureKind,
    Fetch,
    Fetched,
    GivenUp,
    GiveUp,
    GiveUpOutcome,
    HandBack,
    Pause,
    Progress,
    Resume,
    Retry,
    Sent,
    Tick,
    Unreachable,
    WaitUntil,
    Wake,
)
from .tries import FATE_WAIT_S, UNTRIED, Tries

__all__ = ["Delivery"]

BATCH_FIRST = 16  # the size of the first call, before anything is known about the handler
SMOOTHING = 0.2  # weight of the newest call in `event_s`
NOTHING_OUT = (
    DeliveryState.IDLE,
    DeliveryState.BACKOFF,
    DeliveryState.FAULTED,
    DeliveryState.LAGGING,
    DeliveryState.UNACKED,
)


class Delivery:
    """The state of delivering to one subscription. `step` takes events and returns what to do.

    Args:
        cursor: its place in the stream; it belongs to this object from now on.
        after: the last token that the subscription has done, if known.
        has_positions: tokens rise within the queue, so nothing at or below `position` is for it.
        is_faulted: keep its events, and deliver none.
    """

    __slots__ = (
        "_has_tried",
        "_is_awaited",
        "_is_overdue",
        "_is_paused",
        "_is_retried",
        "_losses",
        "_options",
        "_out",
        "_resume",
        "_sent_s",
        "_sent_upto",
        "_told",
        "_tries",
        "_trouble",
        "_upto",
        "_when_s",
        "careful",
        "cursor",
        "event_s",
        "has_positions",
        "is_feared",
        "is_manual",
        "position",
        "state",
        "window",
    )

    _sent_s: float  # when the call was made that is out
    _told: Tries  # of which the handler of what is out was told
    _when_s: float  # when what backs off is tried again

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
        self.event_s = 0.0  # what an event takes, smoothed; 0: not known
        self._resume: Resume | None = None  # came while something was out
        self._is_paused = False  # `Pause` came, and neither `Retry` nor `Resume` since
        self._is_awaited = False  # `AckDue` is to come
        self._rest()
        if not cursor.is_drained:
            self.state = DeliveryState.FAULTED if is_faulted else DeliveryState.READY
            self._note_former()

    def _rest(self) -> None:
        """Nothing is left: what was known of the items that are done is of no more use."""
        self._out: Sequence[Item] = ()
        self._tries = UNTRIED  # of the item at the cursor
        self.is_feared = False  # it is to run alone in its queue
        self.careful = 0  # so many items are sent one by one
        self._losses = 0  # calls in a row that told nothing
        self._trouble = ""  # why, the last time
        self._is_retried = False  # `Retry` came while the failure handler had the item
        self._upto: Token | None = None  # acknowledged by hand, also what is out still
        self._sent_upto: Token | None = None  # by hand, also where no reply said so
        self._is_overdue = False  # what is not acknowledged comes again
        self.state = DeliveryState.IDLE

    def _note_former(self) -> None:
        """Of what a lagging cursor gets by hand, a former owner may have sent the beginning."""
        self._upto = None
        self._sent_upto = self.cursor.sent if self.cursor.is_lagging else None
        self._is_overdue = False

    def step(self, event: Event) -> Sequence[Action]:
        """Apply an event. What comes after the end is ignored: a late reply, a late tick."""
        if self.state is DeliveryState.CLOSED:
            return ()
        match event:
            case Wake():
                return self.wake()
            case Sent():
                return self.sent(event.count, event.at_s)
            case Progress():
                return self.replied(event)
            case Arrived():
                return self.arrived(event.slot, is_held=event.is_held)
            case Unreachable():
                return self._unreachable(event)
            case Died():
                return self._died(event)
            case Tick():
                return self._tick(event.now_s)
            case GivenUp():
                return self._given_up(event.outcome)
            case Resume():
                return self._resumed(event)
            case Retry():
                return self._retried()
            case Pause():
                return self._paused()
            case Fetched():
                return self._fetched()
            case Acked():
                return self._acked(event.upto)
            case AckDue():
                return self._ack_due(event.now_s)

    def follow(self, options: DeliveryOptions) -> None:
        """The subscription has these limits from now on."""
        self._options = options
        self.window = min(self.window, options.max_batch)
        if self.is_manual:
            self.cursor.unacked_max = options.max_unacked

    def close(self) -> None:
        """The subscription, or its agent, ends; a reply that is still out will be ignored."""
        self.cursor.close()
        if self._resume is not None and self._resume.cursor is not None:
            self._resume.cursor.close()
        self._out, self._resume = (), None
        self.state = DeliveryState.CLOSED

    def let_go(self) -> None:
        """Be idle: the queue gives again what is not done."""
        self.cursor.close()
        self._rest()

    def leave(self) -> Cursor:
        """End, and let another delivery go on from its place; what is out will be ignored."""
        if self._resume is not None:
            self._reopen(self._resume)
        self._out, self.state = (), DeliveryState.CLOSED
        self.cursor.rewind()
        return self.cursor

    def going_back(self) -> Sequence[Token]:
        """What a subscription that is held gives back to a queue without order."""
        is_held = self.state is DeliveryState.FAULTED
        return self.cursor.going_back() if is_held and not self.cursor.is_lagging else ()

    def fall_behind(self, *, may_repeat: bool) -> None:
        """Hold nothing in the cache any more; one that is faulted holds nothing at all."""
        cursor, is_faulted = self.cursor, self.state is DeliveryState.FAULTED
        if self._is_moving or cursor.is_drained:
            return
        if is_faulted:
            cursor.rewind()
        if not cursor.is_lagging:
            out = cursor.ahead + (len(self._out) or min(1, self._tries.failures))
            out = 0 if is_faulted else out
            cursor.fall_behind(out, has_chain=not is_faulted, may_repeat=may_repeat)
        elif is_faulted:
            cursor.unload()

    @property
    def _is_moving(self) -> bool:
        """Does it lag already, at the place where it goes on once what is out has ended?"""
        return self._resume is not None and self._resume.cursor is not None

    # -- what it looks like

    @property
    def index(self) -> int | None:
        """The absolute index of the first message that is not done; None: in none of the cache."""
        return self.cursor.index

    @property
    def message(self) -> Token:
        """The token of the first message that is not done, which is here."""
        return self.cursor.message

    @property
    def is_out(self) -> bool:
        """Has its consumer, or the failure handler, something of it now?"""
        return self.state in (DeliveryState.IN_FLIGHT, DeliveryState.GIVING_UP)

    @property
    def is_within(self) -> bool:
        """Is a part of its message done?"""
        token = self.cursor.token
        return token is not None and token.index > 0

    @property
    def may_repeat(self) -> bool:
        """Does it lag, and may what it gets have been delivered before?"""
        return self.cursor.is_lagging and self.cursor.may_repeat

    @property
    def attempts(self) -> int:
        """Failures of the item that is delivered next, or now, those that the queue counts too."""
        return self._tries.failures + self._tries.deaths + self.cursor.tried

    @property
    def deaths(self) -> int:
        """Of silos that had the item that is delivered next."""
        return self._tries.deaths

    @property
    def is_lost(self) -> bool:
        """Has the last call told nothing?"""
        return self._losses > 0

    @property
    def is_away(self) -> bool:
        """Is its next item to be read anew first?"""
        return self.cursor.is_away

    @property
    def has_failed(self) -> bool:
        """Has a failure of the item at the cursor been seen here?"""
        return self._tries.error is not None

    @property
    def trouble(self) -> str:
        """The last error, while one holds the delivery up."""
        if self._tries.error is not None:
            return self._tries.error.text
        return self._trouble if self._losses else ""

    @property
    def due_s(self) -> float:
        """When it is tried again, while it backs off, by the loop's clock."""
        return self._when_s

    @property
    def place(self) -> tuple[Token | None, Token | None]:
        """Where it holds and where it sends: what changes when it goes on."""
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

    def lag(self) -> tuple[int, float]:
        """Events that are not done, and when the oldest was stored (wall clock).

        Cost: O(messages of the stream in the cache).
        """
        return self.cursor.lag()

    @property
    def next_token(self) -> Token | None:
        """The token of the item that is delivered next, or now; None at the end."""
        return self.cursor.next_token

    @property
    def next_index(self) -> int | None:
        """The absolute index of the message that is delivered next, or now; None at the end."""
        return self.cursor.next_index

    @property
    def unacked(self) -> int:
        """Events that were delivered, and are to be acknowledged by hand."""
        return self.cursor.ahead

    @property
    def unacked_from(self) -> Token | None:
        """The first of these."""
        return self.cursor.token if self.cursor.ahead else None

    @property
    def undone_token(self) -> Token | None:
        """The first item that comes again if another silo reads the queue; None: there is none."""
        return self.unacked_from or self.next_token

    # -- what is sent

    def arrived(self, slot: Slot, *, is_held: bool) -> Sequence[Action]:
        """As the event `Arrived`."""
        cursor = self.cursor
        if cursor.slot is not None or cursor.is_lagging:
            return self._next() if self.state is DeliveryState.UNACKED else ()
        if self.is_out:  # it goes on elsewhere
            return ()
        if self.state is not DeliveryState.IDLE:  # it has met the cache, and is to hear of that
            self.position = cursor.after
        has_entered = cursor.enter(slot, self.position if self.has_positions else None)
        if self.state is DeliveryState.IDLE and has_entered:
            self._is_paused = is_held
            self.state = DeliveryState.FAULTED if is_held else DeliveryState.READY
        return ()

    def _fetched(self) -> Sequence[Action]:
        if self.state is DeliveryState.LAGGING:
            self.position = self.cursor.after
            return self._next()
        if self.cursor.is_drained and not self.is_out and self.state is not DeliveryState.IDLE:
            self.position = self.cursor.after
            self._rest()
        return ()

    def wake(self) -> Sequence[Action]:
        """As the event `Wake`."""
        if self.state is not DeliveryState.READY:
            return ()
        cursor = self.cursor
        if self.is_manual and self._pass_over():
            return self._next()  # nothing is sent that was acknowledged meanwhile
        if cursor.is_lagging and cursor.is_away:
            self.state = DeliveryState.LAGGING
            return (Fetch(),)
        if self._tries.error is not None and self._is_hopeless:
            return self._give_up()
        tries, slot = self._tries, cursor.slot
        tried = tries.failures + tries.deaths
        if slot is not None and slot.message.attempt > 1:
            tried += slot.message.attempt - 1
        size = 1 if tried or self.careful else self.window
        self._out = cursor.peek(size, self._options.max_batch_bytes)
        if not self._out:
            return self._next()
        return (Deliver(self._out, tried + 1),)

    def sent(self, count: int, at_s: float) -> Sequence[Action]:
        """As the event `Sent`."""
        assert self.state is DeliveryState.READY, f"sent while {self.state.value}"
        assert 1 <= count <= len(self._out), f"sent {count} of {len(self._out)}"
        self._out = self._out[:count]
        self._sent_s = at_s
        self._told = self._tries
        self.state = DeliveryState.IN_FLIGHT
        if self.is_manual:
            last = self._out[-1].token
            self._sent_upto = last if self._sent_upto is None else max(self._sent_upto, last)
        return ()

    def replied(self, event: Progress) -> Sequence[Action]:
        """As the event `Progress`."""
        assert self.state is DeliveryState.IN_FLIGHT, f"a reply while {self.state.value}"
        if self._resume is not None:
            return self._reopen(self._resume)
        out, done = self._out, min(max(event.done, 0), len(self._out))
        if done == 0 and event.error is None:
            if event.is_anew and self.cursor.ahead:
                return self._again()
            return self._lost(event.at_s, event.roll)  # else it would be sent in a hot loop
        self._losses = 0
        self._move(done, event.at_s)
        if self.is_manual:
            self._settle(event.acked)
        if event.error is not None and done < len(out):
            return self._failed(event.error, event.at_s, event.roll)
        self._adapt(done, event.at_s - self._sent_s)
        return self._next()

    def _move(self, done: int, at_s: float) -> None:
        """So many items were handled."""
        if done:
            self.position = self._out[done - 1].token
            if self.careful:
                self.careful = max(0, self.careful - done)
            if self._tries.error is not None or self.is_feared:
                self._forget()
            if self.is_manual:
                self.cursor.give(done, at_s)
            else:
                self.cursor.done(done)
        self._out = ()

    def _forget(self) -> None:
        """What is at the cursor has not been tried."""
        self._tries = self._told = UNTRIED
        self._is_retried = self.is_feared = False

    def _start_anew(self) -> None:
        """Nothing is out, and nothing failed."""
        self._out, self._losses = (), 0
        self._forget()

    def _again(self) -> Sequence[Action]:
        """The consumer is another one: it gets first what that had not acknowledged."""
        self._start_anew()
        self.cursor.rewind()
        return self._next()

    def _died(self, event: Died) -> Sequence[Action]:
        """Count it; what waited to know is sent again now, or given up."""
        if self.state is DeliveryState.IDLE:
            return ()
        self._tries = self._tries.died(event)
        self.careful = max(self.careful, event.sent)
        self.is_feared = self._tries.is_feared(0, self.attempts, self._options.retries)
        if self.state is not DeliveryState.BACKOFF:
            return ()
        if self._is_hopeless:
            return self._give_up()
        self.state = DeliveryState.READY
        return ()

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
            if self._tries is not UNTRIED or self.careful or self.is_manual:
                self._rest()
            return ()
        if self._is_overdue and not self._tries.failures:
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

    def _failed(self, error: Failure, at_s: float, roll: float) -> Sequence[Action]:
        if self._pass_over():
            return self._next()
        self._tries = self._told.failed(error)
        if error.kind is FailureKind.TIMEOUT:
            self.window = 1  # halving would cost one whole deadline per step
        if self._is_hopeless:
            return self._give_up()
        if self.cursor.goes_back:
            return self._hand_back(error, roll)
        return self._back_off(self._tries.failures, at_s, roll)

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
        if self._tries.failures and self.cursor.is_last:
            return self.cursor.goes_back
        return self._tries.is_hopeless(self.attempts, self._options.retries)

    def _back_off(
        self, nth: int, at_s: float, roll: float, least_s: float = 0.0
    ) -> Sequence[Action]:
        if self._is_paused:
            self.state = DeliveryState.FAULTED
            return ()
        self._when_s = at_s + max(least_s, self._options.backoff.delay_s(nth, roll))
        self.state = DeliveryState.BACKOFF
        return (WaitUntil(self._when_s),)

    def _unreachable(self, event: Unreachable) -> Sequence[Action]:
        if self.state in NOTHING_OUT:
            return ()
        if self._resume is not None:
            return self._reopen(self._resume)
        self._trouble = event.reason
        if event.silo:  # which may have died of this
            self.careful = max(self.careful, len(self._out))
            tried, retries = self.attempts + 1, self._options.retries
            self.is_feared = self._tries.is_feared(1, tried, retries)
            if tried > retries:
                return self._lost(event.at_s, event.roll, FATE_WAIT_S)
        return self._lost(event.at_s, event.roll)

    def _lost(self, at_s: float, roll: float, least_s: float = 0.0) -> Sequence[Action]:
        if self._pass_over():
            return self._next()
        self._out = ()
        self._losses += 1
        return self._back_off(self._losses, at_s, roll, least_s)

    def _tick(self, now_s: float) -> Sequence[Action]:
        if self.state is not DeliveryState.BACKOFF:
            return ()
        if now_s < self._when_s:
            return (WaitUntil(self._when_s),)
        if self._is_hopeless:
            return self._give_up()
        self.state = DeliveryState.READY
        return ()

    def _give_up(self) -> Sequence[Action]:
        error = self._tries.error
        assert error is not None, "an item is given up for a reason"
        (item,) = self._out = self.cursor.peek(1, self._options.max_batch_bytes)
        self.state = DeliveryState.GIVING_UP
        return (GiveUp(item, error, self.attempts),)

    def _given_up(self, outcome: GiveUpOutcome) -> Sequence[Action]:
        assert self.state is DeliveryState.GIVING_UP, f"{outcome} while {self.state.value}"
        self._losses = 0
        if self._resume is not None:
            return self._reopen(self._resume)
        if outcome != "pause":
            self._pass_given_up(self._out[0].token)
            return self._next()
        self._out = ()
        self.state = DeliveryState.FAULTED
        return self._retried() if self._is_retried else ()

    def _pass_given_up(self, token: Token) -> None:
        """By hand, the item that is given up is done once all before it are."""
        if not self.is_manual:
            self._move(1, 0.0)
            return
        self.position, self._out = token, ()
        self.careful = max(0, self.careful - 1)
        self._forget()
        self.cursor.give_up(token)
        self._settle(None)

    # -- where it goes on

    def _paused(self) -> Sequence[Action]:
        self._is_paused, self._is_retried = True, False
        if not self.is_out and self.state is not DeliveryState.IDLE:
            self._out, self.state = (), DeliveryState.FAULTED
        return ()

    def _retried(self) -> Sequence[Action]:
        self._is_paused = False
        self._is_retried = self.state is DeliveryState.GIVING_UP
        if self.state in (DeliveryState.FAULTED, DeliveryState.BACKOFF):
            self._forget()
            self._losses = 0
            self.state = DeliveryState.READY
        return ()

    def _resumed(self, event: Resume) -> Sequence[Action]:
        self._is_paused = False
        if self.is_out:
            if self._resume is not None and self._resume.cursor is not None:
                self._resume.cursor.close()
            self._resume = event  # one call at a time: what is out ends first
            return ()
        return self._reopen(event)

    def _reopen(self, event: Resume) -> Sequence[Action]:
        self._resume, self.careful = None, 0
        self._start_anew()
        self.position = event.token
        if event.cursor is None:
            self.cursor.seek(event.token)
        else:
            self.cursor.close()
            self.cursor = event.cursor
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

    def _acked(self, upto: Token) -> Sequence[Action]:
        if not self.is_manual or self.state is DeliveryState.IDLE:
            return ()
        self._settle(upto)
        if self.is_out:
            return ()
        has_moved = self._pass_over()
        if self.cursor.is_drained or self.state is DeliveryState.UNACKED:
            return self._next()
        return self._next() if has_moved and self.state is not DeliveryState.FAULTED else ()

    def _await_ack(self) -> Sequence[Action]:
        if self._is_awaited or not self.cursor.ahead:
            return ()
        self._is_awaited = True
        return (AckBy(self._due_s),)

    @property
    def _due_s(self) -> float:
        """When what is not acknowledged comes again."""
        return self.cursor.given_s + self._options.ack_timeout_s

    def _ack_due(self, now_s: float) -> Sequence[Action]:
        self._is_awaited = False
        if not self.cursor.ahead or now_s < self._due_s:
            return self._await_ack()
        self._is_overdue = True
        is_busy = self._out or self._tries.failures or self._losses
        return () if is_busy else self._next()

    def check(self) -> None:
        """Assert the invariants."""
        cursor, tries = self.cursor, self._tries
        cursor.check()
        is_idle = self.state in (DeliveryState.CLOSED, DeliveryState.IDLE)
        if is_idle:
            assert cursor.is_drained and not self._out
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
