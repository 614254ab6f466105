"""The generators of activations: the producer's side of streamed results.

`GrainResults` owns the generators of one activation, and `ResultCalls` is the extension by which
consumers ask for items. `result_buffer` decides which items travel, and `calls/result_reader` is
the consumer's side.

Invariants:

- A generator runs in one task of its activation. It is no turn, so it blocks no other turn. A
  request of its consumer is a turn. Until the generator ends, its activation is not idle.
- A generator runs ahead of its consumer by at most one batch.
- A generator ends with its consumer, with its activation, or after `results_idle_s` without a
  request. In each case its `finally` blocks run.
- An error of the generator reaches the consumer after all items before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from typing import Any

from millstream.runtime.codec.failures import answerable, describe
from millstream.runtime.definition.headers import HeaderSet
from millstream.runtime.definition.markers import always_interleave
from millstream.runtime.definition.streamed_method import Batch, StreamedMethod
from millstream.runtime.errors import GrainError, Overloaded, ResultsAborted
from millstream.runtime.tasks import Tasks

from .activation import Activation, contain
from .flows import flowing_of
from .request import RUNTIME_TASK, Request, caller_of, current_request, live_request
from .result_buffer import ResultBuffer
from .run import Turns

__all__ = ["GrainResults", "ResultCalls"]

log = logging.getLogger("millstream.results")

WAIT_PART = 0.5
"""A request waits for an item during this part of its time, and then answers without items."""
READ_KEPT_S = 10.0
"""Seconds for which the last batch of a generator is kept, in case its answer was lost."""
READ_KEPT_MAX = 16
"""Last batches that one activation keeps."""


class RunningResults:
    """One generator: its task, its waiting items and the requests that wait for them."""

    def __init__(
        self, results: GrainResults, method: StreamedMethod, generator: AsyncGenerator[Any, None]
    ) -> None:
        options = results.turns.options
        self.id = results.turns.new_id()
        self._results = results
        self._method = method
        self._generator = generator
        self._buffer = ResultBuffer(options.results_batch_items, options.results_batch_bytes)
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._asking = 0  # requests that run
        self._asked_s = results.turns.loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._aborted = ""  # the reason why the items are lost
        self.is_done = False

    def start(self, request: Request) -> None:
        """Start the generator in a task of its activation."""
        results, activation = self._results, self._results.activation
        own = HeaderSet({}) if request.headers is None else request.headers
        headers = HeaderSet(own.own, flowing_of(request))
        begun = Request(
            None, None, activation, self._method, float("inf"), request.depth, RUNTIME_TASK
        )
        begun.headers, begun.caller = headers, caller_of(request)
        context = results.new_context()
        context.run(current_request.set, begun)
        task = results.turns.loop.create_task(contain(self._run(), activation), context=context)
        begun.task = self._task = task
        task.add_done_callback(lambda _: self._on_ended(begun), context=results.new_context())
        activation.ensure_mailbox().own(task)
        self._look_later(results.turns.options.results_idle_s)

    # -- the task

    async def _run(self) -> None:
        try:
            async for value in self._generator:
                item = self._method.encode_item(value)
                while not self._buffer.has_room(len(item)):
                    self._room.clear()
                    await self._room.wait()
                self._buffer.put(item)
                self._news.set()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._error = self._name_error(error)
        finally:
            await self._close_generator()
            self.is_done = True  # before the next request: the last items then carry the end
            self._news.set()

    def _name_error(self, error: BaseException) -> BaseException:
        """Return the error for the consumer."""
        if self._aborted or not isinstance(error, asyncio.CancelledError | SystemExit):
            return error
        place = f"{self._results.activation}: {self._method.label}"
        if isinstance(error, SystemExit):
            log.error("%s raised %r", place, error)
            return GrainError("SystemExit", f"{place}: {error}")
        return GrainError("asyncio.CancelledError", f"{place} awaited a cancelled task or future")

    async def _close_generator(self) -> None:
        """Run the `finally` blocks of a generator that has not ended by itself."""
        try:
            await self._generator.aclose()
        except Exception as error:
            if self._error is None or self._aborted:
                self._error = error
            place, name = self._results.activation, self._method.label
            log.warning("%s: %s raised while it was closed: %r", place, name, error)

    def _on_ended(self, request: Request) -> None:
        self.is_done = request.done = True
        request.task = None
        self._news.set()
        if self._aborted:
            self._results.drop(self)

    # -- asked by the consumer

    async def take(self, number: int, wait_s: float) -> Batch:
        """Return the batch `number`, without items if none came within `wait_s` seconds.

        A repeat of the last number returns the same batch. Raises ResultsAborted if the activation
        ends.
        """
        self._asking += 1
        try:
            if not self._buffer.repeats(number):
                await self._wait_for_news(wait_s)
            return self._answer(number)
        finally:
            self._asking -= 1
            self._asked_s = self._results.turns.loop.time()

    async def _wait_for_news(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                while self._buffer.is_empty and not (self.is_done or self._aborted):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass

    def _answer(self, number: int) -> Batch:
        if self._aborted:
            raise ResultsAborted(self._aborted)
        items = self._buffer.take(number)
        self._room.set()
        return Batch(self.id, items, self._end() if self._buffer.is_empty else None)

    def _end(self) -> bytes | None:
        if not self.is_done:
            return None
        if self._error is None:
            return b""
        return describe(answerable(self._error), str(self._results.activation))

    async def close(self, wait_s: float) -> None:
        """End the generator for its consumer, and wait until its `finally` blocks have run.

        Raises their error.
        """
        was_done = self.is_done  # an error that the consumer has not read yet is none of the end
        self.abort("its consumer closed it")
        if self._task is not None and not was_done:
            await asyncio.wait([self._task], timeout=wait_s)
            if isinstance(self._error, Exception):
                raise self._error

    def abort(self, reason: str) -> None:
        """End the generator, its unread items, and the requests that wait for them."""
        if self._aborted:
            return
        self._aborted = f"{self._results.activation}: {self._method.label} ended early: {reason}"
        self._news.set()
        if self.is_done:
            self._results.drop(self)
        elif self._task is not None:
            self._task.cancel()

    def stop_timer(self) -> None:
        """End the watch of the idle time."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    # -- idleness

    def _look_later(self, delay_s: float) -> None:
        self._idle_timer = self._results.tasks.call_later(delay_s, self._look)

    def _look(self) -> None:
        """End the generator if its consumer has asked for nothing for too long."""
        turns = self._results.turns
        limit_s = turns.options.results_idle_s
        left_s = limit_s if self._asking else self._asked_s + limit_s - turns.loop.time()
        if left_s > 0:
            self._look_later(left_s)
            return
        self.abort(f"no item was asked for during {limit_s:g} s (results_idle_s)")


class GrainResults:
    """The generators of one activation.

    Args:
        tasks: has the timers.
        new_context: makes the context in which a generator runs.
    """

    def __init__(
        self,
        activation: Activation,
        turns: Turns,
        tasks: Tasks,
        new_context: Callable[[], Context],
    ) -> None:
        self.activation = activation
        self.turns = turns
        self.tasks = tasks
        self.new_context = new_context
        self._all: dict[int, RunningResults] = {}
        self._read: dict[int, RunningResults] = {}  # to their end, in case an answer was lost

    async def start(self, method: StreamedMethod, generator: AsyncGenerator[Any, None]) -> Batch:
        """Start a generator for the running turn, and return its first batch.

        Raises Overloaded at `results_open_max`, and ResultsAborted.
        """
        limit = self.turns.options.results_open_max
        if len(self._all) >= limit:
            text = f"{self.activation}: {limit} generators run"
            raise Overloaded(text, "results_open_max", limit)
        request = live_request()
        assert request is not None
        running = RunningResults(self, method, generator)
        self._all[running.id] = running
        running.start(request)
        try:
            batch = await running.take(1, self._wait_s())
        except BaseException:
            running.abort("its consumer gave up")
            raise
        if batch.end is not None:
            self.drop(running)  # no request can ask for the batch again
        return batch

    async def take(self, generator: int, number: int) -> Batch:
        """Return a batch of a generator. Raises ResultsAborted."""
        running = self._find(generator)
        batch = await running.take(number, self._wait_s())
        if batch.end is not None:
            self._keep(running)
        return batch

    async def close(self, generator: int) -> None:
        """End a generator whose consumer does not want more items."""
        running = self._all.get(generator)
        if running is not None:
            await running.close(self._wait_s())

    def _find(self, generator: int) -> RunningResults:
        running = self._all.get(generator) or self._read.get(generator)
        if running is None:
            raise ResultsAborted(
                f"{self.activation} does not have the generator: it was deactivated or moved, or "
                f"no item was asked for during {self.turns.options.results_idle_s:g} s "
                "(results_idle_s)"
            )
        return running

    def _wait_s(self) -> float:
        request = live_request()
        assert request is not None
        left_s = min(request.deadline - self.turns.loop.time(), self.turns.options.call_timeout_s)
        return max(0.0, left_s * WAIT_PART)

    def drop(self, running: RunningResults) -> None:
        """Forget a generator that has ended."""
        running.stop_timer()
        self._all.pop(running.id, None)

    def _keep(self, running: RunningResults) -> None:
        """Keep the last batch of a generator that was read to its end, for a while."""
        if self._all.get(running.id) is not running:
            return
        self.drop(running)
        self._read[running.id] = running
        self.tasks.call_later(READ_KEPT_S, lambda: self._read.pop(running.id, None))
        while len(self._read) > READ_KEPT_MAX:
            del self._read[next(iter(self._read))]

    @property
    def is_open(self) -> bool:
        """True while a generator runs or has items."""
        return bool(self._all)

    def stop(self, reason: str) -> None:
        """End all generators, because the activation is going to end."""
        for running in list(self._all.values()):
            running.abort(f"the activation ends ({reason})")


class ResultCalls:
    """The extension `$results` of an activation: the requests of consumers.

    Its methods are open to those that may call the grain type. The id of a generator cannot be
    guessed, so it admits its holder to the generators of methods with `@open_to`, too.
    """

    def __init__(self, results: GrainResults) -> None:
        self.results = results

    @always_interleave
    async def take(self, generator: int, number: int) -> Batch:
        """Return a batch of a generator."""
        return await self.results.take(generator, number)

    @always_interleave
    async def close(self, generator: int) -> None:
        """End a generator."""
        await self.results.close(generator)
