"""What is settled with a receiver: acknowledged, held for longer, given back to the queue.

Owns: `Settling`: which of these calls is made next, their timing and their time limit. Not: the
calls (`receiving`), reading (`reader`), what is done (`cache`), leases (`leases`). Pure.
Invariants: one of the three calls is out at a time; what was to be acknowledged when a receiver was
let go of is acknowledged with the next one; what was to be given back then is not: that the
receiver was closed has given it back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from millstream.runtime.extending import Backoff
from millstream.streams.agent.cache.lagging import Laggards
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.flow import AckThrottle
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.token import Token

from .leases import Leases
from .steps import Ack, Extend, Extended, Release

__all__ = ["RELEASES_MAX", "Settling"]

RELEASES_MAX = 1_000  # that wait for the provider to take them; then the receiver is replaced


class Settling:
    """What one agent settles with its receivers.

    Attributes:
        acks: when an acknowledgement is due.
        acked_upto: the provider knows that this is done.
        waits: nothing is acknowledged before the record says what was found to be gone: who finds
            nothing done finds that too.
        until_s: a call that is out is late then; infinite: none is out.
        gives_back: single messages can be given back: the provider has no order to keep.
    """

    def __init__(
        self,
        cache: QueueCache,
        behind: Laggards,
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
        self._is_log = has_positions(capabilities)
        self._is_ordered = Capability.ORDERED in capabilities
        self._acks_items = Capability.ITEM_ACK in capabilities or not self._is_ordered
        self.leases = Leases() if Capability.LEASED in capabilities else None
        self._also: list[Token] = []  # done, and not acknowledged by themselves
        self._back: list[Release] = []
        self._out: Ack | Extend | Release | None = None
        self._out_left: int  # how many were done when the acknowledgement that is out was made
        self._failures = 0  # of acknowledgements, in a row
        self._ack_at_s = self._release_at_s = -math.inf  # not before, after one that failed
        self.acks = AckThrottle(options.flow, now_s)
        self.acked_upto: Token | None = None
        self.waits = False
        self.until_s = math.inf
        self.gives_back = Capability.ITEM_ACK in capabilities and not self._is_ordered

    @property
    def method(self) -> str:
        """The call that is out."""
        return type(self._out).__name__.lower()

    @property
    def has_unacked(self) -> bool:
        """Is something done that no receiver has taken the acknowledgement of?"""
        return self.acks.has_moved(self._left())

    @property
    def is_stuck(self) -> bool:
        """Does the provider take nothing back?"""
        return sum(len(one.tokens) for one in self._back) > RELEASES_MAX

    def _left(self) -> int:
        """Messages that are done, as they are acknowledged: one by one, or in a row."""
        return (self._cache.left if self._acks_items else self._cache.base) + self._cache.moved

    def give_back(self, tokens: Sequence[Token], delay_s: float, *, has_run: bool) -> None:
        """The provider is to give these out again; `has_run`: it counts as an attempt."""
        if tokens:
            self._not_held(tokens)
            self._back.append(Release(tokens, delay_s, has_run))

    def _not_held(self, tokens: Sequence[Token]) -> None:
        if self.leases is not None:
            self.leases.done(tokens)

    # -- what is asked for

    def is_quiet(self, now_s: float) -> bool:
        """Is nothing to be asked for, as far as a short look tells?"""
        if self._out is not None:
            return True
        return (
            self.leases is None
            and not self._back
            and not self.acks.is_due(self._cache.next_index + self._cache.moved, now_s)
        )

    def ask(self, now_s: float) -> Sequence[Ack | Extend | Release]:
        """The call to be made now, if any."""
        call = None if self._out is not None else self._next(now_s)
        if call is None:
            return ()
        self._out, self.until_s = call, now_s + self._limit_s
        return (call,)

    def _next(self, now_s: float) -> Ack | Extend | Release | None:
        for extend in () if self.leases is None else self.leases.ask(now_s):
            return extend
        if self._back and now_s >= self._release_at_s:
            return self._back[0]
        return self._due_ack(now_s) if now_s >= self._ack_at_s and not self.waits else None

    def _due_ack(self, now_s: float) -> Ack | None:
        left = self._left()
        if not self.acks.is_due(left, now_s):
            return None
        ack = self._ack()
        if (ack.upto is None or ack.upto == self.acked_upto) and not ack.also:
            self.acks.sent(left, now_s)  # nothing that the provider does not know
            return None
        self._out_left = left
        return ack

    def _ack(self) -> Ack:
        """What is done; one by one only what is not in the row."""
        if not self._acks_items:
            return Ack(self._behind.ackable())
        upto = self._behind.ackable() if self._is_ordered else None
        also, self._also = self._also + self._cache.take_done(), []
        self._not_held(also)
        if upto is not None and self._is_log:
            also = [token for token in also if token > upto]
        return Ack(upto, also)

    def last(self) -> tuple[Ack | None, Sequence[Release]]:
        """All that is done or given back, for the end; what is out now is in it."""
        self.take_back()
        ack = self._ack() if self.has_unacked and not self.waits else None
        return ack, tuple(self._back)

    # -- what comes of it

    def acked(self, now_s: float) -> None:
        """The acknowledgement was taken."""
        if isinstance(self._out, Ack):
            self.acked_upto = self._out.upto or self.acked_upto
            self._failures = 0
            self._end()
            self.acks.sent(self._out_left, now_s)

    def extended(self, event: Extended, now_s: float) -> Collection[Token]:
        """The leases are longer, but for these, which are lost. Raises AdapterFault."""
        assert self.leases is not None, "nothing was leased"
        self._end()
        lost = set(self.leases.extended(event, now_s))
        if lost:
            self._cache.disown(lost)
        return lost

    def released(self) -> None:
        """What was given back was taken."""
        if isinstance(self._out, Release):
            self._back.pop(0)
            self._end()

    def failed(self, method: str, now_s: float) -> str:
        """A call has raised; returns what is done about it."""
        if method == "ack":
            self._failures += 1
            self.take_back()
            wait_s = self._retries.whole_s(self._failures)
            self._ack_at_s = now_s + wait_s
            return f"it is acknowledged again in {wait_s:g} s"
        self._end()
        if method == "release":
            self._release_at_s = now_s + self._retry_s
        elif self.leases is not None:
            self.leases.failed(self._retry_s, now_s)
        return "it is tried again soon"

    def _end(self) -> None:
        self._out, self.until_s = None, math.inf

    def take_back(self) -> None:
        """What is out is settled again, with the next."""
        if isinstance(self._out, Ack):
            self._also += self._out.also
        self._end()

    def let_go(self) -> None:
        """The receiver is replaced: it gives back all that it has."""
        self.take_back()
        self._back.clear()
        self._release_at_s = -math.inf
        if self.leases is not None:
            self.leases.clear()

    # -- time

    def wake_s(self, now_s: float) -> float:
        """When it is to be asked again; infinite: only an event goes on."""
        if self._out is not None:
            return self.until_s
        wake_s = self._next_ack_s(now_s)
        if self.leases is not None:
            wake_s = min(wake_s, self.leases.next_s)
        return min(wake_s, self._release_at_s) if self._back else wake_s

    def _next_ack_s(self, now_s: float) -> float:
        """Before an acknowledgement can be due: then, if anything that is held may be done by then,
        as a reader that rests is not told of it."""
        at_s = max(self.acks.next_s, self._ack_at_s)
        if now_s < at_s:
            may_move = self._cache.next_index + self._cache.moved > self.acks.left
            return at_s if may_move or self._behind.matters else math.inf
        if not self.has_unacked:
            return math.inf
        return now_s + self._retry_s if self.waits else at_s

    def check(self) -> None:
        """Assert the invariants."""
        assert (self._out is None) == (self.until_s == math.inf)
        assert self._acks_items or not self._also
        assert self.gives_back or not self._back
