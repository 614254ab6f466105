"""Delivering to one subscription that has work: what to send, when to send again, when to give up.

Owns: the cursor of the subscription, its attempts, the size of its calls. Not: calls, clocks,
chance, dead letters, or who comes next (`dispatch`), which all come in as events.
Invariants:
- one call at a time; the cursor moves only after its reply, or after a give-up was answered;
- attempts count what the handler did (raised, ran out of time, could not be activated) to the
  item at the cursor; everything else waits and tries again without end;
- an item that has failed is tried alone until it is done or given up, or goes back to a queue that
  counts attempts; what such a queue has counted before is counted here, too;
- the death of a silo that had the item at the cursor counts as an attempt, but an item is given up
  for that only if it died alone once; what was in one call with it is tried one by one;
- a death that becomes known while the next try is out does not count if that one fails: no failure
  is the last one unless its handler was told so, or the error is final.

    ready ──Sent──▶ in_flight ──Progress──▶ ready │ backoff │ giving_up │ closed
    backoff ──Tick──▶ ready │ giving_up         giving_up ──GivenUp──▶ ready │ faulted │ closed
    ready ──Wake──▶ lagging ──Fetched──▶ ready
    any ──Pause──▶ faulted, when nothing is out
    faulted, backoff ──Resume, Retry──▶ ready │ closed
    in_flight, giving_up ──Unreachable──▶ backoff

While the state is `ready`, the driver owes a `Wake` as soon as it has a call to spare. `closed` is
the end: the driver drops the object, and the next message of the stream makes another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.lagging.behind import BehindCursor
from millstream.streams.agent.lagging.book import BehindBook
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .held_cursor import HeldCursor
from .options import DeliveryOptions
from .seen import FATE_WAIT_S, UNTRIED, SeenDelivery, Tries
from .steps import (
    AckDue,
    Acked,
    Action,
    Arrived,
    Deliver,
    DeliveryState,
    Died,
    Drained,
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

__all__ = ["Delivery", "DeliveryState"]

BATCH_FIRST = 16  # the size of the first call, before anything is known about the handler
SMOOTHING = 0.2  # weight of the newest call in `event_s`
NOTHING_OUT = (
    DeliveryState.BACKOFF,
    DeliveryState.FAULTED,
    DeliveryState.LAGGING,
    DeliveryState.UNACKED,
)


class Delivery(SeenDelivery):
    """The state of one subscription with work. `step` takes events and returns what to do.

    Args:
        at: absolute index of the message in which it begins (`QueueCache.first_index`, `append`),
            or its cursor.
        after: the last token that the subscription has done, if known.
        window, event_s: the size of calls that an earlier delivery to the same subscription had
            reached, and what an event took, smoothed.
        is_faulted: keep its events, and deliver none.
    """

    __slots__ = (
        "_cache",
        "_is_paused",
        "_is_retried",
        "_options",
        "_resume",
        "_told",
        "careful",
        "event_s",
        "is_feared",
        "position",
        "stream",
        "window",
    )

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
        self._cache = cache
        self._options = options
        self._cursor = cache.open_cursor(stream, at, after) if isinstance(at, int) else at
        self._out: Sequence[Item] = ()
        self._tries = UNTRIED  # of the item at the cursor,
        self._told: Tries  # and those of which the handler of what is out was told
        self.is_feared = False  # it is to run alone in its queue
        self.careful = 0  # so many items are sent one by one
        self._losses = 0  # calls in a row that told nothing
        self._resume: Resume | None = None  # came while something was out
        self._is_paused = False  # `Pause` came, and neither `Retry` nor `Resume` since
        self._is_retried = False  # `Retry` came while the failure handler had the item
        self.stream = stream
        self.position = after
        self.window = min(options.max_batch, BATCH_FIRST if window is None else window)
        self._trouble = ""  # why calls told nothing, the last time
        self.event_s = event_s
        self.state = DeliveryState.FAULTED if is_faulted else DeliveryState.READY

    def step(self, event: Event) -> Sequence[Action]:
        """Apply an event. What comes after the end is ignored: a late reply, a late tick."""
        if self.state is DeliveryState.CLOSED:
            return ()
        match event:
            case Wake():
                return self._wake()
            case Sent():
                return self._sent(event)
            case Progress():
                return self._progress(event)
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
            case Acked() | AckDue() | Arrived():
                return ()  # nothing is acknowledged by hand, and its cursor sees what arrives

    def follow(self, options: DeliveryOptions) -> None:
        """The subscription has these limits from now on."""
        self._options = options

    def close(self) -> None:
        """The subscription, or its agent, ends; a reply that is still out will be ignored."""
        self._cursor.close()
        if self._resume is not None and self._resume.cursor is not None:
            self._resume.cursor.close()
        self._out, self._resume = (), None
        self.state = DeliveryState.CLOSED

    def leave(self) -> Cursor | BehindCursor:
        """End, and let another delivery go on from its place; what is out will be ignored."""
        if self._resume is not None:
            self._reopen(self._resume)
        self._out, self.state = (), DeliveryState.CLOSED
        return self._place

    @property
    def _place(self) -> Cursor | BehindCursor:
        assert not isinstance(self._cursor, HeldCursor)
        return self._cursor

    def going_back(self) -> Sequence[Token]:
        """What a subscription that is held gives back to a queue without order."""
        cursor, is_held = self._cursor, self.state is DeliveryState.FAULTED
        return cursor.going_back() if is_held and isinstance(cursor, Cursor) else ()

    def fall_behind(self, book: BehindBook, subscription: str, *, may_repeat: bool) -> None:
        """Hold nothing in the cache any more; one that is faulted holds nothing at all."""
        cursor = self._cursor
        if self._is_moving:
            return
        if isinstance(cursor, Cursor):
            self._cursor = self._parked(cursor, 0, book, subscription, may_repeat=may_repeat)
        elif self.state is DeliveryState.FAULTED:
            cursor.unload()

    @property
    def _is_moving(self) -> bool:
        """Is it behind already, at the place where it goes on once what is out has ended?"""
        return self._resume is not None and self._resume.cursor is not None

    def _parked(
        self, cursor: Cursor, given: int, book: BehindBook, subscription: str, *, may_repeat: bool
    ) -> BehindCursor:
        """`given`: items at the cursor that it must have at hand, before what is out."""
        is_faulted = self.state is DeliveryState.FAULTED
        out = given + (len(self._out) if self._out else min(1, self._tries.failures))
        return book.park(
            (self.stream, subscription),
            cursor,
            0 if is_faulted else out,
            has_chain=not is_faulted,
            may_repeat=may_repeat,
        )

    def _fetched(self) -> Sequence[Action]:
        if self.state is not DeliveryState.LAGGING:
            return ()
        if isinstance(self._cursor, BehindCursor):
            self.position = self._cursor.after
        self._cursor = self._cursor.advance(0) or self._cursor
        return self._next()

    def _wake(self) -> Sequence[Action]:
        if self.state is not DeliveryState.READY:
            return ()
        if self._cursor.is_away:
            self.state = DeliveryState.LAGGING
            return (Fetch(),)
        tried = 0
        if self._tries.error is not None:
            if self._is_hopeless:
                return self._give_up()
            tried = self._tries.failures + self._tries.deaths
        if self._cache.has_tried:
            tried += self._cursor.tried
        size = 1 if tried or self.careful else self.window
        self._out = self._cursor.peek(size, self._options.max_batch_bytes)
        if not self._out:
            return self._next()
        return (Deliver(self._out, tried + 1),)

    def _sent(self, event: Sent) -> Sequence[Action]:
        assert self.state is DeliveryState.READY, f"sent while {self.state.value}"
        assert 1 <= event.count <= len(self._out), f"sent {event.count} of {len(self._out)}"
        self._out = self._out[: event.count]
        self._sent_s = event.at_s
        self._told = self._tries
        self.state = DeliveryState.IN_FLIGHT
        return ()

    def _progress(self, event: Progress) -> Sequence[Action]:
        assert self.state is DeliveryState.IN_FLIGHT, f"a reply while {self.state.value}"
        if self._resume is not None:
            return self._reopen(self._resume)
        out, done = self._out, min(max(event.done, 0), len(self._out))
        if done == 0 and event.error is None:
            return self._lost(event.at_s, event.roll)  # else it would be sent in a hot loop
        self._losses = 0
        self._move(done)
        if event.error is not None and done < len(out):
            return self._failed(event.error, event.at_s, event.roll)
        self._adapt(done, event.at_s - self._sent_s)
        return self._next()

    def _move(self, done: int) -> None:
        if done:
            self.position = self._out[done - 1].token
            if self.careful:
                self.careful = max(0, self.careful - done)
            if self._tries.error is not None or self.is_feared:
                self._forget()
            self._cursor = self._cursor.advance(done) or self._cursor
        self._out = ()

    def _forget(self) -> None:
        """What is at the cursor has not been tried."""
        self._tries = self._told = UNTRIED
        self._is_retried = self.is_feared = False

    def _died(self, event: Died) -> Sequence[Action]:
        """Count it; what waited to know is sent again now, or given up."""
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
        if self._cursor.is_drained:
            self.close()
            return (Drained(),)
        self.state = DeliveryState.FAULTED if self._is_paused else DeliveryState.READY
        return ()

    def _failed(self, error: Failure, at_s: float, roll: float) -> Sequence[Action]:
        self._tries = self._told.failed(error)
        if error.kind is FailureKind.TIMEOUT:
            self.window = 1  # halving would cost one whole deadline per step
        if self._is_hopeless:
            return self._give_up()
        if self._cursor.goes_back:
            return self._hand_back(error, roll)
        return self._back_off(self._tries.failures, at_s, roll)

    def _hand_back(self, error: Failure, roll: float) -> Sequence[Action]:
        """The queue gives it out again, and counts; what comes behind it need not wait."""
        cursor, attempts = self._cursor, self.attempts
        assert isinstance(cursor, Cursor) and cursor.token is not None
        delay_s = self._options.backoff.delay_s(attempts, roll)
        back = HandBack(cursor.token, delay_s, attempts, error)
        self._cursor = cursor.leave() or cursor
        self._forget()
        return (back, *self._next())

    @property
    def _is_hopeless(self) -> bool:
        """Is the item at the cursor to be given up? Not before a failure was seen here."""
        if self._tries.failures and isinstance(self._cursor, Cursor) and self._cursor.is_last:
            return self._cursor.goes_back
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
        (item,) = self._out = self._cursor.peek(1, self._options.max_batch_bytes)
        self.state = DeliveryState.GIVING_UP
        return (GiveUp(item, error, self.attempts),)

    def _given_up(self, outcome: GiveUpOutcome) -> Sequence[Action]:
        assert self.state is DeliveryState.GIVING_UP, f"{outcome} while {self.state.value}"
        self._losses = 0
        if self._resume is not None:
            return self._reopen(self._resume)
        if outcome != "pause":
            self._move(1)
            return self._next()
        self._out = ()
        self.state = DeliveryState.FAULTED
        return self._retried() if self._is_retried else ()

    def _paused(self) -> Sequence[Action]:
        self._is_paused, self._is_retried = True, False
        if not self.is_out:
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
        self._cursor.close()
        self._resume, self._out = None, ()
        self._forget()
        self._losses = self.careful = 0
        self.position = event.token
        if event.cursor is not None:
            self._cursor = self._opened(event.cursor)
            return self._next()
        at = self._cache.first_index(self.stream, event.token)
        if at is not None:
            cursor = self._cache.open_cursor(self.stream, at, event.token)
            self._cursor = self._opened(cursor)
        return self._next()

    def _opened(self, cursor: Cursor | BehindCursor) -> Cursor | BehindCursor | HeldCursor:
        """It goes on here."""
        return cursor

    def check(self) -> None:
        """Assert the invariants."""
        if self.state is DeliveryState.CLOSED:
            assert self._cursor.is_drained and not self._out
        elif not self._is_moving:
            assert not self._cursor.is_drained, f"{self.state.value} without anything to deliver"
        if self.is_out:
            assert self._out
            assert self._is_moving or self._out[0] == self._cursor.peek(1, 1)[0]
        else:
            assert self._resume is None
            assert self.state is DeliveryState.READY or not self._out, "keeps what is not out"
        tries = self._tries
        assert (tries.failures + tries.deaths > 0) == (tries.error is not None)
        assert tries.failures <= self._options.retries + 1  # of those that were seen here
        assert 1 <= self.window <= self._options.max_batch
