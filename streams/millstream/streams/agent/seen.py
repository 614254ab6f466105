"""What others may see of an agent: where it stands, its figures, what is not done.

Owns: `SeenAgent`. Not: what changes it (`agent`), or how its figures are told (`provider`).
"""

from __future__ import annotations

from millstream.runtime.extending import Clock
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.token import Token

from .cache.lagging import Laggards
from .cache.queue_cache import QueueCache
from .delivery.dispatch import Dispatch
from .findings import QueueFindings
from .options import StreamOptions
from .parts import AgentParts
from .progress.standing import Standing
from .reading.reader import ReaderCore
from .reading.receiving import Receiving
from .reading.steps import ReaderState
from .subscribers import Subscribers
from .watching.watch import Watch

__all__ = ["SeenAgent"]


class SeenAgent:
    """The state of an agent, to be looked at.

    `is_fenced`: another silo reads the queue in a newer epoch. `has_positions`: a token says how
    far the queue is done.
    """

    _clock: Clock
    _core: ReaderCore
    _options: StreamOptions
    _parts: AgentParts
    _receiving: Receiving | None
    _standing: Standing
    behind: Laggards
    cache: QueueCache
    dispatch: Dispatch
    findings: QueueFindings
    has_positions: bool
    is_fenced: bool
    subscribers: Subscribers
    watch: Watch

    @property
    def in_flight(self) -> int:
        """Delivery calls that are out."""
        return self.dispatch.calls_out

    @property
    def unacked(self) -> int:
        """Subscriptions that are to acknowledge something by hand."""
        return self.subscribers.unacked

    @property
    def is_urgent(self) -> bool:
        """Does somebody wait until the record has the progress?"""
        return self._standing.is_awaited

    @property
    def has_repeats(self) -> bool:
        """May something that is not done have been delivered, here or by a former owner?

        Asked for once it is paused.
        """
        if not self.has_positions:
            return self.undone > 0
        has_backlog = self._has_backlog or self.behind.has_repeats
        # where it can be read again, who is behind another is in the record, and goes on by itself
        goes_on_alone = Capability.REWIND in self._parts.capabilities
        is_uneven = not goes_on_alone and self.subscribers.is_uneven()
        return has_backlog or is_uneven or self.subscribers.has_tried()

    @property
    def _has_backlog(self) -> bool:
        """Is there something of which it is not known what former owners have delivered?"""
        return self.cache.base <= self.cache.repeats_upto or self._core.has_repeats

    @property
    def undone(self) -> int:
        """Events that were read and are not done for each of their subscriptions.

        One at least while the backlog that a former owner may have delivered is not in the cache.
        """
        events = self.cache.events + self.cache.chained_events
        return events + len(self.behind) + self._core.has_repeats

    @property
    def is_reading(self) -> bool:
        """Is a receiver open, and the queue this silo's?"""
        return self._core.is_open and not self.is_fenced

    @property
    def state(self) -> ReaderState:
        """Where reading stands."""
        return self._core.state

    @property
    def options(self) -> StreamOptions:
        """Its limits."""
        return self._options

    @property
    def trouble(self) -> str:
        """The adapter's last fault, while reading has not succeeded since."""
        return self.findings.last_fault if self._core.is_failing else ""

    @property
    def read_count(self) -> int:
        """Events that were read."""
        return self._core.read_count

    def stops(self) -> tuple[int, float]:
        """How often reading stopped for a full cache, and for how many seconds in all."""
        return self._core.stops.count, self._core.stops.total_s(self._clock.now())

    @property
    def backlog(self) -> int:
        """Events not read yet, when it was measured last."""
        return 0 if self._receiving is None else self._receiving.backlog

    @property
    def repeats_to(self) -> Token | None:
        """The last message that a former owner can have delivered; None: not known."""
        return self._core.repeats_to
