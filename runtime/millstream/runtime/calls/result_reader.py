"""The consumer's side of streamed results: one async generator for each call.

`ResultReader` starts a generator of a grain anywhere, and asks for its batches by number.
`turns/results` is the producer's side.

Invariants:

- No call is made before the first item is asked for. The arguments are isolated before that, when
  the method is called.
- Items arrive once and in order. A request whose answer was lost is repeated by its number.
- The generator of the grain is closed when this one is closed, cancelled or collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from millstream.runtime.codec.failures import rebuild
from millstream.runtime.definition.headers import HeaderSet
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.streamed_method import RESULTS, Batch, StreamedMethod
from millstream.runtime.errors import ClusterError, ResultsAborted, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.results import ResultCalls
from millstream.runtime.turns.run import Turns

from .caller import Caller
from .system_target import specs_of

__all__ = ["RESULT_SPECS", "ResultReader"]

RETRY_S = (0.05, 0.25, 1.0)
"""Seconds before each repetition of a request that a broken connection has interrupted."""
RESULT_SPECS: Mapping[str, MethodSpec] = specs_of(ResultCalls, RESULTS)
TAKE = RESULT_SPECS[f"{RESULTS}.take"]
CLOSE = RESULT_SPECS[f"{RESULTS}.close"]
TAKE.open_to = CLOSE.open_to = None  # as the grain type itself: clients activate no other grains


class ResultReader:
    """Reads the streamed results of all grains for one process."""

    def __init__(self, turns: Turns, caller: Caller, tasks: Tasks) -> None:
        self._turns = turns
        self._caller = caller
        self._tasks = tasks
        self._start = caller.call_filtered if caller.has_outgoing else caller.call

    def read(
        self,
        kind: GrainKind,
        key: str,
        spec: StreamedMethod,
        args: tuple[Any, ...],
        timeout_s: float | None = None,
        headers: HeaderSet | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Return a generator of the items that a method of a grain yields."""
        isolated = spec.isolate(args, kind.runtime)
        return self._read(kind, key, spec, isolated, timeout_s, headers)

    async def _read(
        self,
        kind: GrainKind,
        key: str,
        spec: StreamedMethod,
        args: tuple[Any, ...],
        timeout_s: float | None,
        headers: HeaderSet | None,
    ) -> AsyncGenerator[Any, None]:
        batch: Batch = await self._start(kind, key, spec, args, timeout_s, headers)
        timeout_s, number = timeout_s or spec.timeout_s, 1
        try:
            while True:
                for value in spec.item.decode_many(batch.items, kind.runtime):
                    yield value
                if batch.end is not None:
                    break
                number += 1
                batch = await self._take(kind, key, batch.generator, number, timeout_s)
        except GeneratorExit:
            if batch.end is None:
                await self._close(kind, key, batch.generator, timeout_s)
            raise
        except ResultsAborted:
            raise
        except BaseException:
            if batch.end is None and not self._turns.ended:
                self._tasks.start(self._close(kind, key, batch.generator, timeout_s))
            raise
        if batch.end:
            raise rebuild(batch.end, self._turns.known_errors)

    async def _take(
        self, kind: GrainKind, key: str, generator: int, number: int, timeout_s: float | None
    ) -> Batch:
        for pause_s in (*RETRY_S, None):
            try:
                found: Batch = await self._caller.call_here(
                    kind, key, TAKE, (generator, number), timeout_s
                )
                return found
            except SiloUnavailable:
                if pause_s is None or self._turns.ended:
                    raise
                await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def _close(
        self, kind: GrainKind, key: str, generator: int, timeout_s: float | None
    ) -> None:
        """End the generator of a grain. Raises the errors of its `finally` blocks."""
        try:
            await self._caller.call_here(kind, key, CLOSE, (generator,), timeout_s)
        except (ClusterError, ResultsAborted):  # it has ended, or ends when it is idle
            pass
