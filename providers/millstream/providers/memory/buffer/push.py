"""Batches given to a handler, by as many tasks as the group has consumers.

Owns: `PushGroup`, `Retries`. Invariants: a batch is committed after its handler, never before; one
that fails is given again after a back-off until `attempts_max`, and then skipped or the group
stops; `stop` lets handlers that run end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from millstream.runtime import ConfigError, GrainError
from millstream.runtime.extending import Backoff, check_kind

from .consumer import MemoryConsumer

__all__ = ["Commit", "Handler", "ManualHandler", "PushGroup", "Retries"]

log = logging.getLogger("millstream.buffer")

T = TypeVar("T")
Commit = Callable[[int | None], Awaitable[None]]
Handler = Callable[[list[T]], Awaitable[None]]
ManualHandler = Callable[[list[T], Commit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Retries:
    """What becomes of a batch whose handler raised. Raises ConfigError.

    Args:
        attempts_max: handler calls for one batch; 0: without end.
        backoff: the pauses between them.
        on_exhausted: "skip": give the batch to `exhausted` and go on behind it; "stop": the group
            stops, and the batch stays.
        exhausted: gets the batch and the last error before it is skipped, such as a dead-letter
            topic's `produce_many`.
    """

    attempts_max: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.01, 2, 5.0))
    on_exhausted: Literal["skip", "stop"] = "skip"
    exhausted: Callable[[list[Any], Exception], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attempts_max, bool) or not isinstance(self.attempts_max, int):
            raise ConfigError(f"attempts_max is {self.attempts_max!r}: write a whole number")
        if self.attempts_max < 0:
            raise ConfigError(f"attempts_max is {self.attempts_max}: 0 means without end")
        check_kind("Retries.backoff", self.backoff, Backoff)
        if self.exhausted is not None and not callable(self.exhausted):
            raise ConfigError(f"Retries.exhausted is {self.exhausted!r}: give an async function")
        if self.on_exhausted not in ("skip", "stop"):
            raise ConfigError(f"on_exhausted is {self.on_exhausted!r}: write 'skip' or 'stop'")


class PushGroup(Generic[T]):
    """A group whose batches go to a handler, until `stop`."""

    def __init__(
        self,
        name: str,
        consumers: Sequence[MemoryConsumer[T]],
        handler: Handler[T] | ManualHandler[T],
        is_manual: bool,
        retries: Retries,
    ) -> None:
        self._name = name
        self._consumers = consumers
        self._handler = handler
        self._is_manual = is_manual
        self._retries = retries
        self._is_stopping = False
        self.failed: Exception | None = None  # what stopped the group
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(consumer)) for consumer in consumers]

    async def _run(self, consumer: MemoryConsumer[T]) -> None:
        failures: dict[int, tuple[int, int]] = {}  # by partition: where a batch began, how often
        async for batch in consumer:
            assert consumer.given is not None
            partition, start = consumer.given
            cancelled = cancellations()  # handlers before may have left some of their own
            try:
                await self._handle(consumer, batch)
                failures.pop(partition, None)
            except (Exception, asyncio.CancelledError) as raised:
                error = own_failure(raised, cancelled)
                before = failures.get(partition, (start, 0))
                nth = before[1] + 1 if before[0] == start else 1
                failures[partition] = start, nth
                if not await self._on_failure(consumer, batch, nth, error):
                    return
            if self._is_stopping:
                return

    async def _handle(self, consumer: MemoryConsumer[T], batch: list[T]) -> None:
        if self._is_manual:
            await cast("ManualHandler[T]", self._handler)(batch, consumer.commit)
        else:
            await cast("Handler[T]", self._handler)(batch)
            await consumer.commit()

    async def _on_failure(
        self, consumer: MemoryConsumer[T], batch: list[T], failures: int, error: Exception
    ) -> bool:
        """After a failure: pause, skip, or end; returns whether to go on."""
        retries = self._retries
        log.warning(
            "%s: group %r: a handler failed at attempt %d of %s: %r",
            self._name,
            consumer.group,
            failures,
            retries.attempts_max or "any number",
            error,
        )
        if not retries.attempts_max or failures < retries.attempts_max:
            await asyncio.sleep(retries.backoff.whole_s(failures))
            return True
        if retries.on_exhausted == "stop":
            self._end(error)
            return False
        if retries.exhausted is not None:
            cancelled = cancellations()
            try:
                await retries.exhausted(batch, error)
            except (Exception, asyncio.CancelledError) as raised:
                self._end(own_failure(raised, cancelled))
                return False
        if consumer.given is not None:  # a handler that commits may have done so
            await consumer.commit()
        return True

    def _end(self, error: Exception) -> None:
        """Stop all of the group; the batch stays."""
        self._is_stopping, self.failed = True, error
        log.error("%s: a group of its handlers stops: %r", self._name, error, exc_info=error)
        for consumer in self._consumers:
            consumer.end()

    async def wait_drained(self) -> None:
        """Until the topic is closed and the group has had all of it. Raises what stopped it."""
        await asyncio.wait(self._tasks)  # who waits no more ends nothing
        if self.failed is not None:
            raise self.failed

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more batches, and wait for the handlers that run.

        Args: `timeout_s`: then they are cancelled; their batches were not committed.
        """
        self._is_stopping = True
        for consumer in self._consumers:
            consumer.end()
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                self.failed = self.failed or ended


def cancellations() -> int:
    """How often the running task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def own_failure(raised: BaseException, cancelled: int) -> Exception:
    """A handler's failure as an error. Raises a cancellation that came from outside.

    Args: `cancelled`: the `cancellations` before the handler was called.
    """
    if isinstance(raised, Exception):
        return raised
    if cancellations() > cancelled:
        raise raised
    return GrainError("asyncio.CancelledError", "the handler awaited something that was cancelled")
