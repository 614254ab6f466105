"""Counts of the calls of one process, while its metrics are switched on.

This module owns `CallCounts`. `turns/run` counts every call but a direct turn, which its stub
counts by itself. A direct turn takes a microsecond, so the stub measures only each `sample_every`th
of them, and the duration counts for all since the one before.

Invariants:

- Each call counts once: in the silo in which its turn ran or waited, and, if the call came from
  another silo of the cluster, once more there as a sent call.
- The durations of a grain type are at most `sample_every - 1` direct turns of each method behind
  the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import CallTimeout
from millstream.runtime.metrics.metric import Histogram

from .request import Request

__all__ = ["CallCounts", "MethodCalls"]

OK, ERROR, TIMEOUT, CANCELLED = "ok", "error", "timeout", "cancelled"


class MethodCalls:
    """The calls of one method.

    Args:
        durations: The durations of all methods of the grain type.
        sample_every: One of so many direct turns is measured; the first one is, too.

    Attributes:
        left: Direct turns until the next one that is measured. A stub decrements it when the turn
            ends, and calls `measure` at zero.
        failed: The calls that did not return a result, by outcome.
    """

    __slots__ = ("_batch", "_done", "_durations", "_sample_every", "failed", "left")

    def __init__(self, durations: Histogram, sample_every: int) -> None:
        self._durations = durations
        self._sample_every = sample_every
        self._batch = self.left = 1
        self._done = 0
        self.failed: dict[str, int] = {}

    @property
    def ok(self) -> int:
        """The calls that returned a result."""
        return self._done + self._batch - self.left

    def measure(self, seconds: float) -> None:
        """Record the duration of a direct turn, the last one of a batch."""
        self._done += self._batch
        self._durations.observe(seconds, self._batch)
        self._batch = self.left = self._sample_every

    def end(self, error: BaseException | None, seconds: float) -> None:
        """Record a call that ended: with a result, or with an error."""
        if error is None:
            self._done += 1
        else:
            outcome = outcome_of(error)
            self.failed[outcome] = self.failed.get(outcome, 0) + 1
        self._durations.observe(seconds)

    def end_direct(self, request: Request, error: BaseException, seconds: float) -> None:
        """Record a direct turn that failed. One that never began was recorded as it waited."""
        if request.activation is not None:
            self.end(error, seconds)


class CallCounts:
    """The calls of one process.

    Args:
        sample_every: See `MethodCalls`.
    """

    def __init__(self, sample_every: int) -> None:
        self._sample_every = sample_every
        self._methods: dict[tuple[str, str], MethodCalls] = {}
        self._sent: dict[str, MethodCalls] = {}
        self.durations: dict[str, Histogram] = {}
        self.sent_durations: dict[str, Histogram] = {}

    def of(self, grain_type: str, method: str) -> MethodCalls:
        """Return the calls of a method that this process hosts."""
        found = self._methods.get((grain_type, method))
        if found is None:
            durations = self.durations.setdefault(grain_type, Histogram())
            found = MethodCalls(durations, self._sample_every)
            self._methods[grain_type, method] = found
        return found

    def _find_sent(self, name: str) -> MethodCalls:
        found = self._sent.get(name)
        if found is None:
            durations = self.sent_durations.setdefault(name, Histogram())
            found = self._sent[name] = MethodCalls(durations, self._sample_every)
        return found

    def count(self, request: Request, error: BaseException | None, seconds: float) -> None:
        """Count a call that ended, and was no direct turn. Hooks and timers do not count."""
        spec, activation = request.spec, request.activation
        if not isinstance(spec, MethodSpec):
            return
        if activation is not None:
            self.of(activation.kind.name, spec.wire_name).end(error, seconds)
        elif request.target:
            self._find_sent(request.target.partition("/")[0]).end(error, seconds)

    def list_calls(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield the grain type, method, outcome and number of the calls that ended here."""
        for (grain_type, method), calls in self._methods.items():
            for outcome, number in list_outcomes(calls):
                yield grain_type, method, outcome, number

    def list_sent(self) -> Iterator[tuple[str, str, int]]:
        """Yield the grain type, outcome and number of the calls that went to other processes."""
        for name, calls in self._sent.items():
            for outcome, number in list_outcomes(calls):
                yield name, outcome, number


def list_outcomes(calls: MethodCalls) -> Iterator[tuple[str, int]]:
    """Yield each outcome of a method that has occurred, with its number."""
    if calls.ok:
        yield OK, calls.ok
    yield from calls.failed.items()


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a call that raised an error."""
    if isinstance(error, CallTimeout):
        return TIMEOUT
    return CANCELLED if isinstance(error, asyncio.CancelledError) else ERROR
