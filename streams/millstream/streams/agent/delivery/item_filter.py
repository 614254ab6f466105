"""Applies a filter to the items of one delivery before they are sent.

Owns `ItemFilter`, `FilteredItems`. `api.filters` has the filters, and `consumer_calls` sends.

Invariants:

- An item that does not match is done without a call.
- An item at which the filter fails is not sent. It counts as an attempt, and the items after it are
  not looked at.
- A long run of items yields to the loop.
- A slow filter is named in the log.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

import msgspec

from millstream.runtime.extending import Budget, Clock, LineBudget, show_text
from millstream.streams.api.filters.event_filter import EventFilter
from millstream.streams.contracts.item import Item

from .give_ups import error_text
from .steps import CallReply, Failure, FailureKind, Outcome
from .subscriber import Subscriber

__all__ = ["FILTER_SLOW_S", "FilteredItems", "ItemFilter"]

log = logging.getLogger("millstream.delivery")

FILTER_SLOW_S = 0.05
"""A filter that takes longer for one event delays its silo, and is named in the log."""


class FilteredItems(msgspec.Struct, frozen=True):
    """The indexes of the matching items, among the first `seen` items."""

    fitting: Sequence[int]
    seen: int
    failure: Failure | None

    def widen(self, outcome: Outcome) -> Outcome:
        """Return the outcome of all items, from that of the matching ones."""
        if not isinstance(outcome, CallReply) or (outcome.done == 0 and outcome.error is None):
            return outcome
        done, error, is_heard = self.seen, outcome.error or self.failure, outcome.done > 0
        if outcome.done < len(self.fitting):
            done, error = self.fitting[outcome.done], outcome.error
        return CallReply(done, error, outcome.at_s, outcome.roll, is_heard=is_heard)


class ItemFilter:
    """Applies the filters of one agent's subscriptions."""

    def __init__(self, clock: Clock, budget: Budget) -> None:
        self._clock = clock
        self._budget = budget
        self._lines = LineBudget()

    async def sift(
        self, subscriber: Subscriber, fits: EventFilter, items: Sequence[Item]
    ) -> FilteredItems:
        """Filter the items, up to the first one at which the filter fails."""
        fitting: list[int] = []
        for at, item in enumerate(items):
            began_s = self._clock.now()
            try:
                if fits.fits(item, subscriber.stream, subscriber.id):
                    fitting.append(at)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # the filter is sync: only it can have cancelled
                return FilteredItems(fitting, at, failure_of(fits, error))
            if self._clock.now() - began_s > FILTER_SLOW_S:
                self._log_slow(fits.label, subscriber, self._clock.now() - began_s)
            await self._budget.spend()
        return FilteredItems(fitting, len(items), None)

    def _log_slow(self, label: str, subscriber: Subscriber, took_s: float) -> None:
        left_out = self._lines.take(self._clock.now())
        if left_out is not None:
            text = "filter %s of subscription %s blocked its silo for %.0f ms for one event%s"
            log.warning(text, label, show_text(subscriber.id), took_s * 1e3, left_out)


def failure_of(fits: EventFilter, error: BaseException) -> Failure:
    """Return the failure of a filter that raised, as an attempt at its event."""
    where = "".join(traceback.format_tb(error.__traceback__))
    error.add_note(f"in filter {fits.label}\n{where}")
    return Failure(FailureKind.FILTER, error_text(error), fits.gives_up_on(error))
