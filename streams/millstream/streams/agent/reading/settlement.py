"""Settles messages with a receiver: acknowledges them, extends leases, returns messages. Pure.

Owns `Settlement`: the next of these calls, its time and its time limit. `contained_receiver` makes
the calls, `reader` reads, `cache` knows the finished messages, and `leases` has the leases.

Invariants:

- One of the three calls is in flight at a time.
- An acknowledgement is due only if more messages are done than at the last one.
- An acknowledgement without an answer, when its receiver is closed, is repeated with the next
  receiver. Returns are not repeated, because closing the receiver has returned the messages.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from millstream.runtime.extending import Backoff
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.token import Token

from .leases import Leases
from .steps import Ack, Extend, Release

__all__ = ["RELEASES_MAX", "Settlement"]

RELEASES_MAX = 1_000  # limit of messages that wait to be returned; then the receiver is replaced


class Settlement:
    """The calls by which one agent settles messages with its receivers.

    The number of finished messages counts those before the oldest cached one. If messages are
    acknowledged one by one, it counts all that have left the cache.

    Attributes:
        acked_count: the number of finished messages at the last acknowledgement.
        next_ack_s: from this time on, one more message is enough for the next acknowledgement.
        acked_upto: the provider knows that messages up to this one are done.
        waits: nothing is acknowledged until the queue record lists the gaps that were found. A
            receiver that starts without acknowledgements finds them again.
        until_s: the call in flight is late after this; infinite: there is none.
        gives_back: whether single messages can be returned, because the queue has no order.
    """

    def __init__(
        self,
        cache: QueueCache,
        behind: LaggingCursors,
        options: StreamOptions,
        capabilities: Collection[Capability],
        retries: Backoff,
        now_s: float,
    ) -> None:
        self._cache = cache
        self._behind = behind
        self._retries = retries
        self._retry_s = options.read_retry_s
        self._limit_s = options.call_limit_s
        self._flow = options.flow
        self._is_log = has_positions(capabilities)
        self._is_ordered = Capability.ORDERED in capabilities
        self._acks_items = Capability.ITEM_ACK in capabilities or not self._is_ordered
        self.leases = Leases() if Capability.LEASED in capabilities else None
        self._also: list[Token] = []  # done, and not acknowledged one by one yet
        self._back: list[Release] = []
        self._out: Ack | Extend | Release | None = None
        self._out_count: int  # finished messages at the acknowledgement in flight
        self._failures = 0  # of acknowledgements, in a row
        self._ack_at_s = self._release_at_s = -math.inf  # earliest times after a failed call
        self.acked_count = 0
        self.next_ack_s = now_s + options.flow.ack_every_s
        self.acked_upto: Token | None = None
        self.waits = False
        self.until_s = math.inf
        self.gives_back = Capability.ITEM_ACK in capabilities and not self._is_ordered

    @property
    def method(self) -> str:
        """The name of the call in flight."""
        return type(self._out).__name__.lower()

    @property
    def has_unacked(self) -> bool:
        """Whether a finished message is not acknowledged."""
        return self._count_done() > self.acked_count

    @property
    def is_stuck(self) -> bool:
        """Whether the provider accepts no returned messages."""
        return sum(len(one.tokens) for one in self._back) > RELEASES_MAX

    def _count_done(self) -> int:
        return (self._cache.left if self._acks_items else self._cache.base) + self._cache.moved

    def give_back(self, tokens: Sequence[Token], delay_s: float, *, has_run: bool) -> None:
        """Return these messages to the queue; `has_run`: that counts as an attempt."""
        if tokens:
            self._end_leases(tokens)
            self._back.append(Release(tokens, delay_s, has_run))

    def _end_leases(self, tokens: Sequence[Token]) -> None:
        if self.leases is not None:
            self.leases.on_done(tokens)

    # -- the next call

    def ask(self, now_s: float) -> Sequence[Ack | Extend | Release]:
        """Return the call to make now, or () for none. A returned call counts as in flight."""
        if self._out is not None:
            return ()
        call: Ack | Extend | Release | None = None
        if self.leases is not None:
            call = self.leases.ask(now_s)
        if call is None and self._back and now_s >= self._release_at_s:
            call = self._back[0]
        if call is None:
            enough = self._flow.ack_every_events if now_s < self.next_ack_s else 1
            done_max = self._cache.next_index + self._cache.moved
            if done_max - self.acked_count >= enough:
                call = self._due_ack(enough, now_s)
        if call is None:
            return ()
        self._out, self.until_s = call, now_s + self._limit_s
        return (call,)

    def _due_ack(self, enough: int, now_s: float) -> Ack | None:
        """Return the acknowledgement to make if this many more messages are done."""
        count = self._count_done()
        if count - self.acked_count < enough or now_s < self._ack_at_s or self.waits:
            return None
        ack = self._ack()
        if (ack.upto is None or ack.upto == self.acked_upto) and not ack.also:
            self._note_acked(count, now_s)  # the provider knows all that is done
            return None
        self._out_count = count
        return ack

    def _ack(self) -> Ack:
        """Return the acknowledgement of all that is done; single messages only after its
        position."""
        if not self._acks_items:
            return Ack(self._behind.ackable())
        upto = self._behind.ackable() if self._is_ordered else None
        also, self._also = self._also + self._cache.take_done(), []
        self._end_leases(also)
        if upto is not None and self._is_log:
            also = [token for token in also if token > upto]
        return Ack(upto, also)

    def last(self) -> tuple[Ack | None, Sequence[Release]]:
        """Return the last calls: for all finished or returned messages, also those of the call in
        flight."""
        self.take_back()
        ack = self._ack() if self.has_unacked and not self.waits else None
        return ack, tuple(self._back)

    # -- the end of a call

    def on_settled(self, answer: object, where: str, now_s: float) -> Collection[Token]:
        """Handle the answer of the call in flight; returns the tokens whose lease is lost.

        Raises AdapterFault, in which `where` names adapter and method.
        """
        call, self._out, self.until_s = self._out, None, math.inf
        lost: set[Token] = set()
        if isinstance(call, Ack):
            self.acked_upto = call.upto or self.acked_upto
            self._failures = 0
            self._note_acked(self._out_count, now_s)
        elif isinstance(call, Release):
            self._back.pop(0)
        elif self.leases is not None:
            lost.update(self.leases.on_extended(answer, where, now_s))
            self._cache.disown(lost)
        return lost

    def _note_acked(self, count: int, now_s: float) -> None:
        assert count >= self.acked_count, "messages do not come back into the cache"
        self.acked_count, self.next_ack_s = count, now_s + self._flow.ack_every_s

    def on_failed(self, now_s: float) -> str:
        """Handle an error of the call in flight; returns the time of its repetition, in words."""
        call = self._out
        self.take_back()
        if isinstance(call, Ack):
            self._failures += 1
            wait_s = self._retries.whole_s(self._failures)
            self._ack_at_s = now_s + wait_s
            return f"the acknowledgement is retried in {wait_s:g} s"
        if isinstance(call, Release):
            self._release_at_s = now_s + self._retry_s
        elif self.leases is not None:
            self.leases.on_failed(self._retry_s, now_s)
        return "the call is retried soon"

    def take_back(self) -> None:
        """Expect no answer of the call in flight: the next one settles the same messages."""
        if isinstance(self._out, Ack):
            self._also += self._out.also
        self._out, self.until_s = None, math.inf

    def let_go(self) -> None:
        """Forget the present calls, because closing the receiver returns all that it has."""
        self.take_back()
        self._back.clear()
        self._release_at_s = -math.inf
        if self.leases is not None:
            self.leases.clear()

    # -- time

    def wake_s(self, now_s: float) -> float:
        """Return the time of the next `ask`; infinite: not before another event."""
        if self._out is not None:
            return self.until_s
        wake_s, ack_at_s = math.inf, max(self.next_ack_s, self._ack_at_s)
        # A cached message may be done by then, and a reader that rests is not told.
        if now_s < ack_at_s:
            may_move = self._cache.next_index + self._cache.moved > self.acked_count
            if may_move or self._behind.matters:
                wake_s = ack_at_s
        elif self.has_unacked:
            wake_s = now_s + self._retry_s if self.waits else ack_at_s
        if self.leases is not None:
            wake_s = min(wake_s, self.leases.next_s)
        return min(wake_s, self._release_at_s) if self._back else wake_s

    def check(self) -> None:
        """Assert the invariants."""
        assert (self._out is None) == (self.until_s == math.inf)
        assert self._acks_items or not self._also
        assert self.gives_back or not self._back
